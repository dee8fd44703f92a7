"""Requests: the task is declared, inputs are typed, nothing is inferred."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

from ostinato.errors import BadInput, UnknownField
from ostinato.tasks import Modality, ModelId, OutputName, RequestId, TaskType


class ArrayLike(Protocol):
    """Anything with a shape: numpy array or torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Text that conditions the result."""

    modality: ClassVar[Modality] = Modality.TEXT
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """A conditioning image, uint8 [H, W, 3]."""

    modality: ClassVar[Modality] = Modality.IMAGE
    pixels: ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentPart:
    """Initial noisy latents [1, C, T, H, W] in place of keyed noise; they are not changed."""

    modality: ClassVar[Modality] = Modality.LATENT
    latents: ArrayLike


ModalPart = TextPart | ImagePart | LatentPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing to generate. None means the card's default.

    task: what is wanted; refused when the card's capabilities do not list it.
    inputs: typed parts beyond the prompt texts.
    fps: frames per second of the delivered container; it does not change the frames.
    flow_shift: k in sigma' = k sigma / (1 + (k - 1) sigma).
    priority: higher runs first; equals take turns step by step.
    deadline_s: seconds from submission; past it the request is stopped at a step boundary.
    tenant: for whom it is; tenants share the device by their weights.
    """

    model: ModelId | str
    task: TaskType | str
    prompt: str
    negative_prompt: str | None = None
    inputs: tuple[ImagePart | LatentPart, ...] = ()
    seed: int = 0
    height: int | None = None
    width: int | None = None
    num_frames: int | None = None
    fps: float | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    sampler: str | None = None
    flow_shift: float | None = None
    outputs: tuple[OutputName | str, ...] = (OutputName.VIDEO,)
    priority: int = 0
    deadline_s: float | None = None
    tenant: str = "default"

    def __post_init__(self) -> None:
        """Refuse what would be read letter by letter, or could change after submission."""
        for name in ("inputs", "outputs"):
            value: object = getattr(self, name)
            if not isinstance(value, tuple):
                raise BadInput(
                    f"{name} is {value!r}; expected a tuple, such as {name}=(x,) for one"
                )

    @staticmethod
    def build(**fields: object) -> Request:
        """Make a request from named values; lists are taken for tuples.

        Raises UnknownField that suggests the right name, BadInput for a missing field.
        """
        names = [f.name for f in dataclasses.fields(Request)]
        unknown = [name for name in fields if name not in names]
        if unknown:
            hints = "; ".join(_hint(name, names) for name in unknown)
            raise UnknownField(f"a request has no field {unknown}: {hints}")
        missing = [name for name in ("model", "task", "prompt") if name not in fields]
        if missing:
            raise BadInput(f"a request needs {missing}")
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = tuple(cast("list[object]", value))
        return Request(**fields)  # type: ignore[arg-type]

    def parts(self) -> Iterator[ModalPart]:
        """Yield every typed input, the prompt texts first."""
        yield TextPart(text=self.prompt)
        yield from self.inputs


def _hint(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(names)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """A request after validation: every value is filled in and in range.

    outputs keeps the caller's order. initial_latents replaces keyed noise when given.
    """

    request_id: RequestId
    model: ModelId
    task: TaskType
    prompt: str
    negative_prompt: str
    seed: int
    height: int
    width: int
    num_frames: int
    fps: float
    num_inference_steps: int
    guidance_scale: float
    sampler: str
    flow_shift: float | None
    outputs: tuple[OutputName, ...]
    initial_latents: ArrayLike | None = None
