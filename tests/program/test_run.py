"""Programs run: step by step over a real loop and network, with declared reads and writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from ostinato.card import LoopSpec
from ostinato.errors import InvalidPlan, UndeclaredAccess
from ostinato.loop.chunks.rollout import ChunkRollout, RolloutState
from ostinato.loop.contract import Component, Done, Loop, LoopContext, LoopResult, Slots
from ostinato.loop.driver import run_plan
from ostinato.memory import KVPool
from ostinato.program import (
    ComponentNode,
    LoopNode,
    Node,
    Piece,
    Program,
    ProgramRun,
    ProgramState,
    SlotView,
)
from ostinato.request import GenerationSpec
from ostinato.tasks import OutputName
from ostinato.work import WorkPlan, WorkUnitKind
from support.kernels import kernels_of
from support.tiny_denoisers import TEXT_TOKENS, WIDTH, TinyCausal, context_for, embeds, spec_of


class Encoder:
    """Op `encode`: letters to embeddings, with a note on an empty prompt."""

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return the one operation."""
        return {"encode": self.encode}[name]

    def encode(self, text: str) -> Mapping[str, object]:
        """Return embeddings [1, L, D] keyed by the text's length."""
        generator = torch.Generator().manual_seed(len(text))
        embeddings = torch.randn(1, TEXT_TOKENS, WIDTH, generator=generator)
        return {"prompt_embeds": embeddings, "notes": () if text else ("the prompt is empty",)}


class Codec:
    """Ops `decode` (frames and nothing else), `chatty` (more than it should), `mute` (less)."""

    def __init__(self) -> None:
        self.frames_decoded: list[int] = []

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return an operation by name."""
        return {"decode": self.decode, "chatty": self.chatty, "mute": self.mute}[name]

    def decode(self, latents: torch.Tensor, gain: torch.Tensor | None = None) -> dict[str, object]:
        """Return frames [T, H, W, C], each latent frame alone."""
        self.frames_decoded.append(latents.shape[2])
        frames = latents[0].permute(1, 2, 3, 0).numpy()
        return {"frames": frames if gain is None else frames * float(gain.mean())}

    def chatty(self, latents: torch.Tensor) -> dict[str, object]:
        """Return what no node declares."""
        return {**self.decode(latents), "thumbnail": latents}

    def mute(self, latents: torch.Tensor) -> dict[str, object]:
        """Return nothing."""
        del latents
        return {}


def encode(name: str, text: str, slot: str) -> ComponentNode:
    return ComponentNode(
        name=name,
        component="encoder",
        op="encode",
        kind=WorkUnitKind.ENCODER_CHUNK,
        inputs={"text": text},
        outputs={"prompt_embeds": slot},
    )


ROLLOUT = LoopNode(
    name="rollout",
    loop="rollout",
    reads=frozenset({"prompt_embeds", "negative_prompt_embeds"}),
    writes=frozenset({"latents"}),
)
DECODE = ComponentNode(
    name="decode",
    component="codec",
    op="decode",
    kind=WorkUnitKind.VAE_TILE,
    inputs={"latents": "latents"},
    outputs={"frames": "frames"},
    streams=True,
)
NODES: tuple[Node, ...] = (
    encode("encode_prompt", "request.prompt", "prompt_embeds"),
    encode("encode_negative", "request.negative_prompt", "negative_prompt_embeds"),
    ROLLOUT,
    DECODE,
)
CHUNKS = ChunkRollout(
    LoopSpec(
        name="rollout",
        loop="x:R",
        binds={"denoiser": "net", "latents": "codec"},
        options={
            "frames_per_block": 2,
            "window_blocks": 2,
            "attention_context": "self_forcing",
            "guidance": "batched",
            "guidance_rule": "classifier_free",
        },
    )
)
SPEC = spec_of(prompt="a circle", num_frames=5, num_inference_steps=2)


class Running:
    """One request through a program, a plan at a time; remembers what it saw."""

    def __init__(
        self,
        spec: GenerationSpec = SPEC,
        outputs: tuple[OutputName, ...] = (OutputName.VIDEO, OutputName.LATENTS),
        nodes: tuple[Node, ...] = NODES,
        loop: ChunkRollout = CHUNKS,
    ) -> None:
        self.pool, self.net, self.codec = KVPool(), TinyCausal(), Codec()
        slots = {OutputName.VIDEO: "frames", OutputName.LATENTS: "latents"}
        program = Program(name="video", nodes=nodes, outputs=slots)
        chosen = program.select(outputs, lambda node: loop.reads(spec))
        loops: Mapping[str, Loop[object]] = {"rollout": loop}  # type: ignore[dict-item]
        self.run = ProgramRun(spec, chosen, loops.__getitem__, lambda _: self.context(spec))
        self.state = self.run.init()
        self.visited: list[str] = []
        self.pieces: list[Piece] = []
        self.notes: list[str] = []

    def context(self, spec: GenerationSpec) -> LoopContext:
        return context_for(spec, self.pool.open_ring)

    def component(self, name: str) -> Component:
        known: Mapping[str, Component] = {
            "encoder": Encoder(),
            "net": self.net,
            "codec": self.codec,
        }
        return known[name]

    def turn(self) -> bool:
        self.state = self.run.enter(self.state)
        plan = self.run.next(self.state)
        if isinstance(plan, Done):
            return False
        self.visited.append(self.run.node_name(self.state))
        self.state = self.run.advance(self.state, run_plan(plan, self.component, self.pool))
        self.pieces += self.state.fresh
        self.notes += self.state.notes
        return True

    def finish(self) -> Running:
        with torch.no_grad():
            while self.turn():
                pass
        return self

    def array(self, slot: str) -> np.ndarray:
        return np.asarray(self.state.slots[slot])


def test_each_piece_is_decoded_as_it_is_finished() -> None:
    done = Running().finish()
    block = ["rollout"] * 2
    assert done.visited == [
        "encode_prompt",
        "encode_negative",
        *["rollout", *block, "decode"],  # text, two steps
        *["rollout", *block, "decode"],  # store, two steps
        *["rollout", *block, "decode"],
    ]
    assert done.codec.frames_decoded == [2, 2, 1]
    assert done.run.node_name(done.state) == ""


def test_pieces_join_to_what_one_decode_gives() -> None:
    done = Running().finish()
    assert [(piece.slot, piece.index) for piece in done.pieces] == [("frames", i) for i in range(3)]
    joined = np.concatenate([np.asarray(piece.value) for piece in done.pieces])
    assert np.array_equal(done.array("frames"), joined)
    latents = done.state.slots["latents"]
    assert isinstance(latents, torch.Tensor)
    assert latents.shape[2] == SPEC.num_frames
    whole = dataclasses.replace(DECODE, streams=False)
    at_once = Running(nodes=(*NODES[:-1], whole)).finish()
    assert at_once.codec.frames_decoded == [5]
    assert at_once.visited[-1] == "decode"
    assert at_once.visited.count("decode") == 1
    assert at_once.pieces == []
    assert np.array_equal(at_once.array("frames"), joined)


def test_latents_alone_do_not_touch_the_codec() -> None:
    done = Running(outputs=(OutputName.LATENTS,)).finish()
    assert "decode" not in done.visited
    assert done.codec.frames_decoded == []
    assert "frames" not in done.state.slots
    both = Running().finish()
    assert torch.equal(done.state.slots["latents"], both.state.slots["latents"])  # type: ignore[arg-type]


def test_guidance_one_does_not_encode_the_negative_prompt() -> None:
    done = Running(spec=dataclasses.replace(SPEC, guidance_scale=1.0)).finish()
    assert "encode_negative" not in done.visited
    assert "negative_prompt_embeds" not in done.state.slots


def test_notes_reach_the_caller_and_no_slot() -> None:
    done = Running().finish()
    assert done.notes == ["the prompt is empty"]  # the negative one
    assert "notes" not in done.state.slots


def test_a_streaming_node_may_read_what_is_there_already() -> None:
    gained = dataclasses.replace(DECODE, inputs={"latents": "latents", "gain": "prompt_embeds"})
    done, plain = Running(nodes=(*NODES[:-1], gained)).finish(), Running().finish()
    prompt_embeds = done.state.slots["prompt_embeds"]
    assert isinstance(prompt_embeds, torch.Tensor)
    gain = float(prompt_embeds.mean())
    assert np.array_equal(done.array("frames"), plain.array("frames") * gain)


def test_next_runs_no_kernel_and_old_states_stay_as_they_were() -> None:
    running = Running()
    states: list[ProgramState] = []
    with torch.no_grad():
        while True:
            running.state = running.run.enter(running.state)
            states.append(running.state)
            with kernels_of() as kernels:
                running.run.next(running.state)
            assert kernels == []
            if not running.turn():
                break
    assert [len(state.pieces.get("frames", ())) for state in states][-1] == 3
    first = running.run.next(states[0])
    assert not isinstance(first, Done)
    assert first.calls[0].inputs == {"text": "a circle"}
    assert "prompt_embeds" not in states[0].slots


def test_a_state_that_is_advanced_twice_gives_the_same_twice() -> None:
    running = Running()
    with torch.no_grad():
        while not running.state.queue:
            running.turn()
        plan = running.run.next(running.state)
        assert not isinstance(plan, Done)
        result = run_plan(plan, running.component, running.pool)
        one, other = (running.run.advance(running.state, result) for _ in range(2))
    assert len(one.pieces["frames"]) == len(other.pieces["frames"]) == 1
    assert running.state.queue
    assert not one.queue


class Greedy(ChunkRollout):
    """Reads a slot that its node does not declare."""

    def init(self, spec: GenerationSpec, slots: Slots, context: LoopContext) -> RolloutState:
        """Read the frames before there are any."""
        slots["frames"]
        return super().init(spec, slots, context)


class Forgetful(ChunkRollout):
    """Says that it needs one prompt, then reads both."""

    def reads(self, spec: GenerationSpec) -> frozenset[str]:
        """Leave the negative prompt out."""
        return super().reads(spec) - {"negative_prompt_embeds"}


class Sloppy(ChunkRollout):
    """Leaves behind something else than its node declares."""

    def finalize(self, state: RolloutState) -> LoopResult:
        """Add a slot."""
        return LoopResult(slots={**super().finalize(state).slots, "noise": state.noise})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Greedy, r"'rollout' read slot 'frames'; it declares \['negative_prompt_embeds'"),
        (Forgetful, r"read slot 'negative_prompt_embeds', which this request does not need"),
        (Sloppy, r"wrote \['latents', 'noise'\]; it declares \['latents'\]"),
    ],
)
def test_a_loop_keeps_to_what_its_node_declares(kind: type[ChunkRollout], message: str) -> None:
    spec = LoopSpec(
        name="rollout",
        loop="x:R",
        binds={"denoiser": "net", "latents": "codec"},
        options={
            "frames_per_block": 2,
            "window_blocks": 2,
            "attention_context": "self_forcing",
            "guidance": "batched",
            "guidance_rule": "classifier_free",
        },
    )
    with pytest.raises(UndeclaredAccess, match=message):
        Running(loop=kind(spec)).finish()


def test_an_op_keeps_to_what_its_node_declares() -> None:
    chatty = dataclasses.replace(DECODE, op="chatty")
    with pytest.raises(UndeclaredAccess, match=r"wrote \['thumbnail'\], which node 'decode'"):
        Running(nodes=(*NODES[:-1], chatty)).finish()
    mute = dataclasses.replace(DECODE, op="mute")
    with pytest.raises(InvalidPlan, match=r"'mute' of 'codec' gave \[\]; node 'decode' declares"):
        Running(nodes=(*NODES[:-1], mute)).finish()


def test_a_view_shows_what_is_declared() -> None:
    view = SlotView(ROLLOUT, {"prompt_embeds": 1, "frames": 2})
    assert view["prompt_embeds"] == 1
    with pytest.raises(UndeclaredAccess, match="'frames'"):
        view["frames"]


def test_the_request_is_there_as_slots() -> None:
    slots = Running().state.slots
    assert slots["request.prompt"] == "a circle"
    assert slots["request.seed"] == SPEC.seed
    assert set(slots) == {f"request.{field.name}" for field in dataclasses.fields(GenerationSpec)}


def test_the_loop_reads_what_the_program_made() -> None:
    """The rollout inside the program is the rollout alone, given the same embeddings."""
    done = Running().finish()
    slots = {name: done.state.slots[name] for name in embeds()}
    pool, net = KVPool(), TinyCausal()
    state = CHUNKS.init(SPEC, slots, context_for(SPEC, pool.open_ring))
    with torch.no_grad():
        while not isinstance(plan := CHUNKS.next(state), Done):
            state = CHUNKS.advance(state, run_plan(plan, lambda _: net, pool))
    alone = CHUNKS.finalize(state).slots["latents"]
    assert isinstance(alone, torch.Tensor)
    assert torch.equal(alone, done.state.slots["latents"])  # type: ignore[arg-type]


def test_a_loop_is_asked_once_for_each_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RolloutState] = []
    answer = ChunkRollout.next

    def next_of(loop: ChunkRollout, state: RolloutState) -> WorkPlan | Done:
        asked.append(state)
        return answer(loop, state)

    monkeypatch.setattr(ChunkRollout, "next", next_of)
    done = Running().finish()
    assert len(asked) == done.visited.count("rollout") + 1, "once more to hear that it is done"
