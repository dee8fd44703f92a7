"""How the built-in model's components and loop make a clip."""

from __future__ import annotations

from ostinato.models.builtin.layout import CODEC, TEXT_ENCODER
from ostinato.program import ComponentNode, LoopNode, Program
from ostinato.tasks import OutputName
from ostinato.work import WorkUnitKind


def text_to_video() -> Program:
    """Encode the prompts, roll out block by block, decode each block as it is finished."""
    return Program(
        name="builtin.text_to_video",
        nodes=(
            _encode("encode_prompt", "request.prompt", "prompt_embeds"),
            _encode("encode_negative", "request.negative_prompt", "negative_prompt_embeds"),
            LoopNode(
                name="rollout",
                loop="rollout",
                reads=frozenset({"prompt_embeds", "negative_prompt_embeds"}),
                writes=frozenset({"latents"}),
            ),
            ComponentNode(
                name="decode",
                component=CODEC,
                op="decode",
                kind=WorkUnitKind.VAE_TILE,
                inputs={"latents": "latents"},
                outputs={"frames": "frames"},
                streams=True,
            ),
        ),
        outputs={OutputName.VIDEO: "frames", OutputName.LATENTS: "latents"},
    )


def _encode(name: str, reads: str, writes: str) -> ComponentNode:
    return ComponentNode(
        name=name,
        component=TEXT_ENCODER,
        op="encode",
        kind=WorkUnitKind.ENCODER_CHUNK,
        inputs={"text": reads},
        outputs={"prompt_embeds": writes},
    )
