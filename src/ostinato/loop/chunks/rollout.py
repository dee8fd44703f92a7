"""The stock chunk rollout: video block by block, each denoised under clean history.

Roles: `denoiser` (ops `encode_text`, `predict`, `store`), `latents` (facts only). Each block of
`frames_per_block` latent frames is denoised by the sampler while attending to the keys and values
of the finished blocks that `visible_blocks` names; then one pass at timestep 0 (`store`) makes
its own clean keys and values. A finished block is emitted before its store pass, so that decoding
and delivery do not wait, and nothing is stored that no later block reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ostinato.card import AttentionContext, GuidanceForm, LoopSpec
from ostinato.loop.chunks.visible import visible_blocks
from ostinato.loop.contract import (
    DONE,
    Done,
    Emission,
    LoopContext,
    LoopResult,
    Ring,
    Slots,
    as_tensor,
)
from ostinato.loop.denoise import EMBEDS_OF
from ostinato.loop.facts import DenoiserFacts, Footprint, LatentFacts, fact
from ostinato.loop.noise import NoiseStream
from ostinato.loop.options import bound, member, options, whole
from ostinato.loop.policies.guidance import branches, guidance_rule
from ostinato.loop.sampling import sampler_by_name, unknown_sampler
from ostinato.loop.trajectory import Trajectory
from ostinato.request import GenerationSpec
from ostinato.work import (
    CacheRef,
    Commit,
    ComponentCall,
    OutputOf,
    PageRef,
    WorkPlan,
    WorkResult,
    WorkUnitKind,
)

CALL = "batched"
REQUIRED_OPTIONS = frozenset(
    {"frames_per_block", "window_blocks", "attention_context", "guidance", "guidance_rule"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """Between two steps of a rollout.

    text_kv: per-layer cross-attention keys and values of all branches, None before the first
    step. first_frame: int64 scalar, the latent frame at which the block begins. trajectory: the
    block being denoised, latents [1, C, F, H, W]; when it is done, only the block's store pass is
    left. pages: page of each visible block, by block. finished: clean blocks, the last one cut to
    what was asked for. fresh: the latest step finished a block.
    """

    spec: GenerationSpec
    noise: NoiseStream
    ring: Ring
    num_blocks: int
    last_frames: int
    prompt_embeds: tuple[torch.Tensor, ...]
    text_kv: object
    block: int
    first_frame: torch.Tensor
    trajectory: Trajectory
    pages: Mapping[int, PageRef]
    finished: tuple[torch.Tensor, ...]
    fresh: bool


class ChunkRollout:
    """Drive a causal denoiser block by block.

    Options: `frames_per_block` latent frames a block, `window_blocks` blocks in sight including
    the block itself, `attention_context`, `guidance` (`batched` or `none`), `guidance_rule`.
    """

    def __init__(self, spec: LoopSpec) -> None:
        """Read the options; raises InvalidCard for one that is missing, unknown or not served."""
        given = options(spec, required=REQUIRED_OPTIONS)
        binds = bound(spec, required=frozenset({"denoiser", "latents"}))
        context, form = given["attention_context"], given["guidance"]
        contexts = (AttentionContext.SELF_FORCING,)
        forms = (GuidanceForm.BATCHED, GuidanceForm.NONE)
        self._component = binds["denoiser"]
        self._frames_per_block = whole(
            spec, "frames_per_block", given["frames_per_block"], minimum=1
        )
        self._window_blocks = whole(spec, "window_blocks", given["window_blocks"], minimum=1)
        self._context = member(spec, "attention_context", context, contexts)
        self._form = member(spec, "guidance", form, forms)
        self._rule = guidance_rule(str(given["guidance_rule"]))

    def reads(self, spec: GenerationSpec) -> frozenset[str]:
        """Return the embeddings of the branches that will run."""
        order = branches(self._form, spec.guidance_scale)
        return frozenset(slot for branch, slot in EMBEDS_OF if branch in order)

    def check(self, spec: GenerationSpec, facts: Mapping[str, object]) -> tuple[str, ...]:
        """Refuse given initial latents: each block has keyed noise of its own."""
        del facts
        problems = unknown_sampler(spec.sampler)
        if spec.initial_latents is None:
            return problems
        return (*problems, "initial latents are not taken by a chunk rollout; leave them out")

    def num_steps(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        """Return text, denoise and store passes; a block that nobody reads is not stored."""
        num_blocks, _ = self._blocks(spec, fact(facts, "latents", LatentFacts))
        stored = sum(self._is_read(block, num_blocks) for block in range(num_blocks))
        return 1 + num_blocks * spec.num_inference_steps + stored

    def num_pieces(self, spec: GenerationSpec, facts: Mapping[str, object]) -> int:
        """Return the blocks, each emitted as it is finished."""
        return self._blocks(spec, fact(facts, "latents", LatentFacts))[0]

    def footprint(self, spec: GenerationSpec, facts: Mapping[str, object]) -> Footprint:
        """Return the ring's pages, and a block's tokens in all branches."""
        denoiser = fact(facts, "denoiser", DenoiserFacts)
        _, _, *block = self._block_shape(spec, facts)
        samples = len(branches(self._form, spec.guidance_scale))
        tokens = samples * denoiser.num_tokens(*block)
        return Footprint(num_pages=self._ring_pages, page_tokens=tokens, call_tokens=tokens)

    def init(self, spec: GenerationSpec, slots: Slots, context: LoopContext) -> RolloutState:
        """Fix the schedule, reserve the pages, draw the first block's noise."""
        codec = fact(context.facts, "latents", LatentFacts)
        sampler = sampler_by_name(spec.sampler)
        schedule = sampler.schedule(spec.num_inference_steps, spec.flow_shift)
        num_blocks, last_frames = self._blocks(spec, codec)
        order = branches(self._form, spec.guidance_scale)
        shape = self._block_shape(spec, context.facts)
        return RolloutState(
            spec=spec,
            noise=context.noise,
            ring=context.open_ring(self._ring_pages),
            num_blocks=num_blocks,
            last_frames=last_frames,
            prompt_embeds=tuple(as_tensor(slots[s], s) for b, s in EMBEDS_OF if b in order),
            text_kv=None,
            block=0,
            first_frame=torch.tensor(0),
            trajectory=Trajectory.begin(
                sampler, schedule, context.noise.normal(shape, "initial", 0), context.noise
            ),
            pages={},
            finished=(),
            fresh=False,
        )

    def next(self, state: RolloutState) -> WorkPlan | Done:
        """Describe the text pass, one denoise step or one store pass."""
        if state.block == state.num_blocks:
            return DONE
        if state.text_kv is None:
            inputs = {"prompt_embeds": state.prompt_embeds}
            return self._plan(WorkUnitKind.ENCODER_CHUNK, "encode_text", inputs)
        blocks = visible_blocks(self._context, state.block, window_blocks=self._window_blocks)
        inputs: dict[str, object] = {
            "latents": state.trajectory.latents,
            "first_frame": state.first_frame,
            "text_kv": state.text_kv,
            "context": CacheRef(pages=tuple(state.pages[block] for block in blocks)),
        }
        if not state.trajectory.done:
            inputs["timestep"] = state.trajectory.timestep
            return self._plan(WorkUnitKind.CHUNK_STEP, "predict", inputs)
        commit = Commit(output=OutputOf(call=CALL, name="layers"), target=state.pages[state.block])
        return self._plan(WorkUnitKind.CACHE_IO, "store", inputs, (commit,))

    def advance(self, state: RolloutState, result: WorkResult) -> RolloutState:
        """Fold a pass in: text K/V, a sampler step, or a stored block."""
        if state.fresh:
            state = replace(state, fresh=False)
        if state.text_kv is None:
            return replace(state, text_kv=result.get(CALL, "text_kv"))
        if state.trajectory.done:
            return self._next_block(state)
        scale = state.spec.guidance_scale
        order = branches(self._form, scale)
        stacked = as_tensor(result.get(CALL, "prediction"), "prediction")
        predictions = dict(zip(order, stacked.chunk(len(order)), strict=True))
        trajectory = state.trajectory.advance(self._rule, predictions, scale)
        state = replace(state, trajectory=trajectory)
        return self._finished(state) if trajectory.done else state

    def finalize(self, state: RolloutState) -> LoopResult:
        """Leave the final latents [1, C, T, H, W]."""
        return LoopResult(slots={"latents": torch.cat(state.finished, dim=2)})

    def emitted(self, state: RolloutState) -> tuple[Emission, ...]:
        """Return the block that the latest step finished."""
        if not state.fresh:
            return ()
        index = len(state.finished) - 1
        return (Emission(slot="latents", index=index, value=state.finished[-1]),)

    @property
    def _ring_pages(self) -> int:
        # Twice the window: a window of slots is then contiguous half of the time and longer.
        return 2 * self._window_blocks

    def _block_shape(
        self, spec: GenerationSpec, facts: Mapping[str, object]
    ) -> tuple[int, int, int, int, int]:
        codec = fact(facts, "latents", LatentFacts)
        return (
            1,
            fact(facts, "denoiser", DenoiserFacts).in_channels,
            self._frames_per_block,
            spec.height // codec.spatial_stride,
            spec.width // codec.spatial_stride,
        )

    def _blocks(self, spec: GenerationSpec, codec: LatentFacts) -> tuple[int, int]:
        """Return the blocks to roll out and the latent frames kept of the last."""
        frames = codec.num_latent_frames(spec.num_frames)
        num_blocks = -(-frames // self._frames_per_block)
        return num_blocks, frames - (num_blocks - 1) * self._frames_per_block

    def _plan(
        self,
        kind: WorkUnitKind,
        op: str,
        inputs: Mapping[str, object],
        commits: tuple[Commit, ...] = (),
    ) -> WorkPlan:
        call = ComponentCall(call_id=CALL, component=self._component, op=op, inputs=inputs)
        return WorkPlan(kind=kind, calls=(call,), commits=commits)

    def _finished(self, state: RolloutState) -> RolloutState:
        last = state.block == state.num_blocks - 1
        latents = state.trajectory.latents
        kept = latents[:, :, : state.last_frames] if last else latents
        state = replace(state, finished=(*state.finished, kept), fresh=True)
        if last:
            return replace(state, block=state.num_blocks)
        if not self._is_read(state.block, state.num_blocks):
            return self._next_block(state)
        return replace(state, pages={**state.pages, state.block: state.ring.page(state.block)})

    def _is_read(self, block: int, num_blocks: int) -> bool:
        """Tell whether a later block attends to this one; the next one does if any does."""
        seen = visible_blocks(self._context, block + 1, window_blocks=self._window_blocks)
        return block + 1 < num_blocks and block in seen

    def _next_block(self, state: RolloutState) -> RolloutState:
        block, done = state.block + 1, state.trajectory
        noise = state.noise.normal(tuple(done.latents.shape), "initial", block)
        seen = visible_blocks(self._context, block, window_blocks=self._window_blocks)
        return replace(
            state,
            block=block,
            first_frame=state.first_frame + self._frames_per_block,
            trajectory=Trajectory.begin(done.sampler, done.schedule, noise, state.noise, block),
            pages={b: page for b, page in state.pages.items() if b in seen},
        )
