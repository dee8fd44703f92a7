"""What the engine costs: its steps against the bare calls of them, its requests against diffusers.

Everything is alternated in one process under equal settings, and outputs are compared: another
answer in less time would be no measurement.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from ostinato.bench._arguments import BenchArguments
from ostinato.bench._library import DiffusersRun, EngineRun
from ostinato.bench._small_wan import PROMPT, SIZES, ClipSize, calibrate, nearest, write_small_wan
from ostinato.bench._steps import StepClock, SteppedRequest
from ostinato.bench._threads import threads_for, torch_threads
from ostinato.bench.alternate import Ratio, Rounds, alternate, ratio_of_medians
from ostinato.card import ModelSource
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import EULER, UNIPC
from ostinato.report import Comparison, Report, Target, describe_environment
from ostinato.request import Request
from ostinato.runtime import Engine, ResidentModel
from ostinato.runtime.threads import told_threads
from ostinato.tasks import OutputName, TaskType

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "engine_overhead_ratio": (Comparison.AT_MOST, 1.02),
        "wall_ratio_vs_diffusers_upper": (Comparison.AT_MOST, 1.03),
        "outputs_equal": (Comparison.AT_LEAST, 1),
    }
)
BUILTIN = "builtin"
_WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amount:
    """How much is run: requests a contestant, step by step and as a whole, denoise steps of Wan,
    frames and steps of the built-in model.
    """

    rounds: int
    wall_rounds: int
    num_inference_steps: int
    builtin_frames: int
    builtin_steps: int


_FULL = _Amount(
    rounds=60, wall_rounds=240, num_inference_steps=4, builtin_frames=24, builtin_steps=4
)
_QUICK = _Amount(rounds=6, wall_rounds=6, num_inference_steps=2, builtin_frames=24, builtin_steps=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Two contestants by name, ours first: their ratio, seconds by round, equal outputs or not;
    the model, and the CPU threads that were in force.
    """

    ratio: Ratio
    seconds: Mapping[str, Rounds]
    equal: bool
    model: str
    threads: int

    def median_us(self) -> tuple[float, float]:
        """Return the median of each, in microseconds."""
        ours, theirs = (float(np.median(np.asarray(s))) for s in self.seconds.values())
        return ours * 1e6, theirs * 1e6


def run(arguments: BenchArguments) -> Report:
    """Measure the engine on a small Wan and on the built-in model.

    Quick runs the same with fewer rounds and steps, and wider intervals. Raises BadInput for a
    thread count that OSTINATO_NUM_THREADS contradicts.
    """
    amount, threads = _QUICK if arguments.quick else _FULL, threads_for(arguments.threads)
    with (
        tempfile.TemporaryDirectory(prefix="ostinato-overhead-") as folder,
        torch_threads(threads),
    ):
        euler, unipc = (
            open_model(write_small_wan(Path(folder) / name.lower(), name, arguments.seed))
            for name in (EULER, UNIPC)
        )
        sizes = calibrate(ResidentModel(euler))
        size = nearest(sizes)
        euler_request, unipc_request = (
            _wan_request(str(source.card.model_id), size, amount, arguments.seed)
            for source in (euler, unipc)
        )
        steps = {
            "": _steps(euler, euler_request, amount),
            "_unipc": _steps(unipc, unipc_request, amount),
            "_builtin": _steps(
                open_model(BUILTIN), _builtin_request(amount, arguments.seed), amount
            ),
        }
        wall = _wall(unipc, unipc_request, amount)
    return Report(
        name="overhead",
        figures=_figures(steps, wall, amount),
        targets=dict(TARGETS),
        environment={**describe_environment(threads), "threads": _threads(steps, wall)},
        detail={
            "sizes": asdict(SIZES),
            "calibration": [{**asdict(size), "num_tokens": size.num_tokens} for size in sizes],
            "request": {"height": size.height, "width": size.width, **asdict(amount)},
            "ratios": {name: entry.ratio._asdict() for name, entry in _all(steps, wall).items()},
            "seconds": {name: entry.seconds for name, entry in _all(steps, wall).items()},
        },
    )


def _steps(source: ModelSource, request: Request, amount: _Amount) -> _Compared:
    """Compare seconds a step: through the engine, and the bare calls with the same inputs."""
    clock = StepClock()
    with Engine(observer=clock) as engine:
        stepped = SteppedRequest(engine, clock, engine.add(source), request)
        stepped.alternate(_WARM_UP_ROUNDS)
        engine_s, bare_s = stepped.alternate(amount.rounds)
        equal = stepped.outputs_equal()
    seconds = {"engine": engine_s, "bare": bare_s}
    return _compared(seconds, request, stepped.cpu_threads, equal=equal)


def _wall(source: ModelSource, request: Request, amount: _Amount) -> _Compared:
    """Compare seconds a request, models loaded and warm: the engine's and diffusers'."""
    with Engine(max_batch=1) as engine:
        engine.add(source)
        ours, theirs = EngineRun(engine, request), DiffusersRun(source, request)
        runs = {"engine": ours, "diffusers": theirs}
        seconds = alternate(runs, rounds=amount.wall_rounds, warm_up=_WARM_UP_ROUNDS)
    first, *others = (*ours.latents, *theirs.latents)
    equal = all(torch.equal(first, other) for other in others)
    return _compared(seconds, request, ours.cpu_threads, equal=equal)


def _compared(
    seconds: Mapping[str, Rounds], request: Request, threads: int, *, equal: bool
) -> _Compared:
    return _Compared(
        ratio=ratio_of_medians(*seconds.values(), seed=request.seed),
        seconds=seconds,
        equal=equal,
        model=request.model,
        threads=threads,
    )


def _threads(steps: Mapping[str, _Compared], wall: _Compared) -> str:
    return told_threads({entry.model: entry.threads for entry in (*steps.values(), wall)})


def _all(steps: Mapping[str, _Compared], wall: _Compared) -> dict[str, _Compared]:
    named = {f"engine_overhead_ratio{suffix}": entry for suffix, entry in steps.items()}
    return {**named, "wall_ratio_vs_diffusers": wall}


def _figures(steps: Mapping[str, _Compared], wall: _Compared, amount: _Amount) -> dict[str, float]:
    every = _all(steps, wall)
    figures = {name: entry.ratio.value for name, entry in every.items()}
    for suffix, entry in steps.items():
        engine_us, bare_us = entry.median_us()
        figures[f"engine_overhead_us{suffix}"] = engine_us - bare_us
        figures[f"bare_step_us{suffix}"] = bare_us
    return {
        **figures,
        "wall_ratio_vs_diffusers_upper": wall.ratio.high,
        "rounds": amount.rounds,
        "outputs_equal": float(all(entry.equal for entry in every.values())),
    }


def _wan_request(model: str, size: ClipSize, amount: _Amount, seed: int) -> Request:
    """Ask for latents, one forward a step, so that nothing hides behind a second."""
    return Request(
        model=model,
        task=TaskType.TEXT_TO_VIDEO,
        prompt=PROMPT,
        seed=seed,
        height=size.height,
        width=size.width,
        num_frames=1,
        num_inference_steps=amount.num_inference_steps,
        guidance_scale=1.0,
        outputs=(OutputName.LATENTS,),
    )


def _builtin_request(amount: _Amount, seed: int) -> Request:
    return Request(
        model=BUILTIN,
        task=TaskType.TEXT_TO_VIDEO,
        prompt=PROMPT,
        seed=seed,
        num_frames=amount.builtin_frames,
        num_inference_steps=amount.builtin_steps,
        outputs=(OutputName.LATENTS,),
    )
