"""What can be typed: one frozen dataclass a command.

Flags are a public surface; tests/cli/test_cli_flags.py freezes their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import tyro
from tyro.conf import arg, subcommand

_OF_MODEL = arg(help_behavior_hint="(default: the model's)")
_OF_BENCHMARK = arg(help_behavior_hint="(default: the benchmark's)")
_OF_ENVIRONMENT = arg(help_behavior_hint="(default: OSTINATO_NUM_THREADS, or 1)")
_PROMPT = arg(metavar="PROMPT", help_behavior_hint="")
_MODEL = arg(metavar="MODEL", help_behavior_hint="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Flags of every command."""

    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """End with one JSON document as the last line on stdout."""
    debug: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show the traceback of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate(Common):
    """Make a clip from a prompt."""

    prompt: tyro.conf.Positional[Annotated[str, _PROMPT]]
    """What the clip shows."""
    model: Annotated[str, arg(metavar="MODEL")] = "builtin"
    """A built-in model, a diffusers-layout folder, or a hub id."""
    task: Annotated[str | None, arg(metavar="TASK"), _OF_MODEL] = None
    """What is asked for, such as text_to_video."""
    seed: int = 0
    """Equal seeds give equal clips."""
    num_frames: Annotated[int | None, _OF_MODEL] = None
    """Frames of the clip."""
    height: Annotated[int | None, _OF_MODEL] = None
    """Pixels."""
    width: Annotated[int | None, _OF_MODEL] = None
    """Pixels."""
    fps: Annotated[float | None, _OF_MODEL] = None
    """Frames a second of the file; the frames stay the same."""
    num_inference_steps: Annotated[int | None, _OF_MODEL] = None
    """Denoise steps."""
    guidance_scale: Annotated[float | None, _OF_MODEL] = None
    """How strongly the prompt steers; 1.0 turns guidance off."""
    negative_prompt: Annotated[str | None, arg(metavar="TEXT"), _OF_MODEL] = None
    """What the clip should not show."""
    sampler: Annotated[str | None, arg(metavar="NAME"), _OF_MODEL] = None
    """One of the samplers that `ostinato inspect MODEL` lists."""
    flow_shift: Annotated[float | None, _OF_MODEL] = None
    """k in sigma' = k sigma / (1 + (k - 1) sigma)."""
    output: Annotated[
        Path | None, arg(metavar="PATH", help_behavior_hint="(default: named by the prompt, .mp4)")
    ] = None
    """File to write: .mp4, .webm, .gif or .png (contact sheet); an existing one is replaced."""
    outputs: Annotated[str, arg(metavar="NAMES")] = "video"
    """Comma-separated: video, latents (safetensors beside the clip)."""
    timeline: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """Also write what ran when, as .json for ui.perfetto.dev or chrome://tracing."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """No progress, no commentary: only the paths written, and errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models(Common):
    """List the families and models that this installation serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(Common):
    """Show a model's card, its digest, where it came from and its files."""

    model: tyro.conf.Positional[Annotated[str, _MODEL]]
    """A built-in model, a diffusers-layout folder, or a hub id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(Common):
    """Run a training recipe; a stopped run goes on from its last checkpoint."""

    recipe: tyro.conf.Positional[
        Annotated[str | None, arg(metavar="[RECIPE]", help_behavior_hint="")]
    ] = None
    """Name of a recipe, such as builtin-base."""
    output_dir: Annotated[
        Path | None,
        arg(metavar="PATH", help_behavior_hint="(default: OSTINATO_RUNS_DIR/RECIPE)"),
    ] = None
    """Folder of checkpoints and metrics; made when it does not exist."""
    parent: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """Folder of weights to start from, for a recipe that starts from another one's."""
    export_to: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """When the run is done, write its weights there as a model folder that `generate` takes."""
    no_resume: Annotated[bool, arg(help_behavior_hint="")] = False
    """Refuse a folder that already holds checkpoints."""
    list: Annotated[bool, arg(help_behavior_hint="")] = False
    """List the recipes and stop."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """No metrics on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eval(Common):
    """Measure a model on a suite; exit 1 when a target is missed."""

    model: tyro.conf.Positional[Annotated[str, _MODEL]]
    """A built-in model, a diffusers-layout folder, or a hub id."""
    suite: Annotated[str, arg(metavar="SUITE")]
    """Name of a suite on the model's card, such as world."""
    prompts: int = 100
    """How many prompts to measure."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """No progress on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Common):
    """Hold a model to what its card promises; exit 1 when a gate is red or measured nothing."""

    model: tyro.conf.Positional[
        Annotated[str | None, arg(metavar="[MODEL]", help_behavior_hint="")]
    ] = None
    """A built-in model, a diffusers-layout folder, or a hub id."""
    all_tiny: Annotated[bool, arg(help_behavior_hint="")] = False
    """Verify every family on a small folder of its real classes, in place of a model."""
    html: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """Write the report as one page."""
    perturb: Annotated[str | None, arg(metavar="WEIGHT", help_behavior_hint="")] = None
    """Move COMPONENT.PARAMETER[INDEX]=AMOUNT after load (index 0, 1e-3): gates must see it."""
    errors: Annotated[bool, arg(help_behavior_hint="")] = False
    """Measure how far each tap lies from float64, in place of the gates."""
    dtype: Annotated[str, arg(metavar="DTYPE")] = "float32"
    """What --errors measures: float32 or bfloat16."""
    write_docs: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """Put the table of --errors between its markers in this page."""
    write_goldens: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """Make the goldens of the model, in place of the gates."""
    quick: Annotated[bool, arg(help_behavior_hint="")] = False
    """Smaller batches and fewer runs; never fewer gates."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """No progress on stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Common):
    """Measure this machine and this engine; exit 1 when a target is missed."""

    name: tyro.conf.Positional[
        Annotated[str | None, arg(metavar="[NAME]", help_behavior_hint="")]
    ] = None
    """What to measure; without a name, the benchmarks are listed."""
    quick: Annotated[bool, arg(help_behavior_hint="")] = False
    """A rougher measurement in a fraction of the time."""
    requests: Annotated[int | None, _OF_BENCHMARK] = None
    """How many requests to serve, where requests are what is counted."""
    seed: Annotated[int | None, _OF_BENCHMARK] = None
    """Of whatever is drawn."""
    threads: Annotated[int | None, _OF_ENVIRONMENT] = None
    """CPU threads of the kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulate(Common):
    """Run the scheduler on a trace under a virtual clock: what a policy would do, in seconds."""

    subject: tyro.conf.Positional[Annotated[str, arg(metavar="SUBJECT", help_behavior_hint="")]]
    """What to simulate: trace."""
    name: tyro.conf.Positional[
        Annotated[str | None, arg(metavar="[NAME]", help_behavior_hint="")]
    ] = None
    """A trace that ships, or a file; without it, those that ship are listed."""
    policy: Annotated[str, arg(metavar="POLICY")] = "fair-share"
    """Whose unit is next: such as fair-share or fifo-request."""
    devices: int = 1
    """How many devices the pool has."""
    profiles: Annotated[
        Path | None, arg(metavar="PATH", help_behavior_hint="(default: the trace's estimates)")
    ] = None
    """What requests of each class take, as a benchmark measured it."""
    no_stacking: Annotated[bool, arg(help_behavior_hint="")] = False
    """No two requests share a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor(Common):
    """Say what this machine is, what exact batches need on it, and what is missing."""

    quick: Annotated[bool, arg(help_behavior_hint="")] = False
    """Leave out the table of operations, which takes a minute."""


Command: TypeAlias = Generate | Models | Inspect | Train | Eval | Verify | Bench | Simulate | Doctor

SUBCOMMANDS = (
    Annotated[Generate, subcommand("generate")]
    | Annotated[Models, subcommand("models")]
    | Annotated[Inspect, subcommand("inspect")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Eval, subcommand("eval")]
    | Annotated[Verify, subcommand("verify")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[Simulate, subcommand("simulate")]
    | Annotated[Doctor, subcommand("doctor")]
)
