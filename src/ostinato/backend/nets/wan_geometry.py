"""What the forwards over a library Wan need to know of its configuration, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from ostinato.errors import InvalidCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class WanGeometry:
    """Sizes of a text-to-video Wan; a patch covers one latent frame."""

    patch_height: int
    patch_width: int
    num_heads: int
    head_dim: int
    num_layers: int

    def rows(self, height: int) -> int:
        """Return the rows of tokens in a latent frame of `height`."""
        return height // self.patch_height

    def columns(self, width: int) -> int:
        """Return the columns of tokens in a latent frame of `width`."""
        return width // self.patch_width


def wan_geometry(transformer: WanTransformer3DModel) -> WanGeometry:
    """Read the geometry from the model's configuration.

    Raises InvalidCheckpoint for what the causal forward cannot run: image conditioning, or patches
    that span several latent frames.
    """
    config = dict(transformer.config)
    for name in ("image_dim", "added_kv_proj_dim", "pos_embed_seq_len"):
        if config[name] is not None:
            raise InvalidCheckpoint(
                f"the transformer has {name}={config[name]!r}: the causal forward runs "
                f"text-to-video Wan models, which have {name}=None; load a T2V checkpoint"
            )
    patch_frames, patch_height, patch_width = config["patch_size"]
    if patch_frames != 1:
        raise InvalidCheckpoint(
            f"the transformer has patch_size={config['patch_size']!r}: the causal forward needs "
            "patches of one latent frame, since a frame is the unit of causality"
        )
    return WanGeometry(
        patch_height=patch_height,
        patch_width=patch_width,
        num_heads=config["num_attention_heads"],
        head_dim=config["attention_head_dim"],
        num_layers=config["num_layers"],
    )
