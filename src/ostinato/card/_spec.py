"""The parts of a model card: plain data, no callables, no tensors.

Components, loops and programs are named by import string (`package.module:Name`) so that a card
round-trips through JSON and has a digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ostinato.tasks import Modality, OutputName, TaskType

Scalar = bool | int | float | str


class GuidanceForm(StrEnum):
    """How guidance reaches the network.

    two_forward: one call per branch. batched: one call, branches stacked on the batch axis.
    embedded: one call that takes the scale as a tensor (guidance-distilled weights).
    none: one branch; the weights were made without guidance or have it folded in.
    """

    TWO_FORWARD = "two_forward"
    BATCHED = "batched"
    EMBEDDED = "embedded"
    NONE = "none"


class AttentionContext(StrEnum):
    """Which other blocks a block of video attends to."""

    BIDIRECTIONAL = "bidirectional"
    SELF_FORCING = "self_forcing"


class Determinism(StrEnum):
    """What the card promises about the bytes of its output at equal inputs and machine."""

    BITWISE = "bitwise"
    TOLERANCE = "tolerance"


class ParityLevel(StrEnum):
    """Rungs of the parity ladder (docs/architecture.md)."""

    C0 = "C0"
    C1 = "C1"
    C2 = "C2"
    C3 = "C3"
    C4 = "C4"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSpec:
    """One resident object and the operations it offers.

    adapter: import string of the class whose `load(folder, spec)` makes it.
    subfolder: where its files lie below the model folder.
    class_name: the library class that the checkpoint declares.
    ops: the operations that plans may name.
    """

    name: str
    adapter: str
    subfolder: str
    class_name: str
    ops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSpec:
    """One driven loop: its class, the components its roles bind to, and scalar options."""

    name: str
    loop: str
    binds: Mapping[str, str]
    options: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """Which program serves a task: an import string of a function that returns a Program."""

    task: TaskType
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """Whole numbers `offset + k * multiple` between minimum and maximum, both included."""

    minimum: int
    maximum: int
    multiple: int = 1
    offset: int = 0

    def accepts(self, value: int) -> bool:
        """Tell whether `value` lies in the range and on its grid."""
        on_grid = (value - self.offset) % self.multiple == 0
        return self.minimum <= value <= self.maximum and on_grid

    def nearest(self, value: int) -> tuple[int, ...]:
        """Return the valid values just below and just above a `value` that is not accepted.

        One value where there is no other side, or only one is valid.
        """
        steps = (value - self.offset) // self.multiple
        around = (self.offset + steps * self.multiple, self.offset + (steps + 1) * self.multiple)
        first = self.minimum + (self.offset - self.minimum) % self.multiple
        last = self.maximum - (self.maximum - self.offset) % self.multiple
        return tuple(sorted({min(max(v, first), last) for v in around}))

    def describe(self) -> str:
        """Say the range in words for an error message."""
        if self.minimum == self.maximum:
            return f"exactly {self.minimum}"
        grid = ""
        if self.multiple > 1:
            grid = f", a multiple of {self.multiple}" + (f" plus {self.offset}" * bool(self.offset))
        return f"{self.minimum} to {self.maximum}{grid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the card can be asked for; anything else is refused before weights are loaded.

    samplers: names accepted by `Request.sampler`; the first is the default.
    guidance: the form alone; which guidance_scale makes sense is not a capability.
    """

    tasks: tuple[TaskType, ...]
    inputs: tuple[Modality, ...]
    outputs: tuple[OutputName, ...]
    height: SizeRange
    width: SizeRange
    num_frames: SizeRange
    num_inference_steps: SizeRange
    samplers: tuple[str, ...]
    guidance: GuidanceForm
    negative_prompt: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """A card that this one was made from."""

    model_id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleAssumption:
    """What the weights assume of the sampling schedule; None leaves a point free.

    num_inference_steps: the only step counts the weights were made for.
    flow_shift: the only shift k in sigma' = k sigma / (1 + (k - 1) sigma).
    """

    sampler: str | None = None
    num_inference_steps: tuple[int, ...] | None = None
    guidance: GuidanceForm | None = None
    guidance_scale: float | None = None
    flow_shift: float | None = None
    attention_context: AttentionContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpec:
    """How the weights were made and what they therefore assume.

    method: the training method, or `published` for weights from elsewhere.
    parents: the cards whose weights this recipe started from.
    data: where the training data came from, with its digest when we made it.
    assumes_loop: the loop (by its name on the card) that the weights were trained to run under.
    assumes_precision: the dtype the parity promises were measured at.
    consistency: how closely the training forward equals the served one, in one sentence.
    """

    method: str
    parents: tuple[ParentRef, ...] = ()
    data: str = ""
    assumes_loop: str
    assumes_schedule: ScheduleAssumption = field(default_factory=ScheduleAssumption)
    assumes_precision: str
    consistency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParitySpec:
    """The parity that the pair must keep.

    levels: the rungs that are checked. oracle: import string of the implementation it is held
    against, `Oracle(source)`, None when there is none. reference: import string of
    `reference_of(source)`, which gives the same model in float64; None for a card that is itself
    one. num_frames: of the clips it is checked with, few but on every path that a clip can take.
    fast_batch_tolerances: by the dtype of weights, how far the latents of a request that shared
    forwards outside the exact batch rules may lie from those it gives alone: the largest error over
    the largest value, and rms over rms. Without the card's dtype it is always batched exactly.
    """

    levels: tuple[ParityLevel, ...]
    oracle: str | None
    reference: str | None
    num_frames: int
    output_determinism: Determinism
    fast_batch_tolerances: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSpec:
    """Floating-point types by torch name: how weights are kept and latents are stepped."""

    weights: str
    latents: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values for what a request leaves out."""

    task: TaskType
    height: int
    width: int
    num_frames: int
    fps: float
    num_inference_steps: int
    guidance_scale: float
    flow_shift: float | None
    negative_prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A shipped file that is verified when the model is opened; path is below the folder."""

    path: str
    sha256: str
