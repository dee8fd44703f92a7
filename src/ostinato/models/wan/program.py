"""The text-to-video program: encode, denoise, decode."""

from __future__ import annotations

from ostinato.models.wan.layout import TEXT_ENCODER, VAE
from ostinato.program import ComponentNode, LoopNode, Program
from ostinato.tasks import OutputName
from ostinato.work import WorkUnitKind


def text_to_video() -> Program:
    """Return the graph; the negative prompt is encoded only where the loop reads it."""
    return Program(
        name="wan.text_to_video",
        nodes=(
            _encode("encode_prompt", "request.prompt", "prompt_embeds"),
            _encode("encode_negative", "request.negative_prompt", "negative_prompt_embeds"),
            LoopNode(
                name="denoise",
                loop="denoise",
                reads=frozenset({"prompt_embeds", "negative_prompt_embeds"}),
                writes=frozenset({"latents"}),
            ),
            ComponentNode(
                name="decode",
                component=VAE,
                op="decode",
                kind=WorkUnitKind.VAE_TILE,
                inputs={"latents": "latents"},
                outputs={"frames": "frames"},
            ),
        ),
        outputs={OutputName.VIDEO: "frames", OutputName.LATENTS: "latents"},
    )


def _encode(name: str, text: str, embeds: str) -> ComponentNode:
    return ComponentNode(
        name=name,
        component=TEXT_ENCODER,
        op="encode",
        kind=WorkUnitKind.ENCODER_CHUNK,
        inputs={"text": text},
        outputs={"prompt_embeds": embeds},
    )
