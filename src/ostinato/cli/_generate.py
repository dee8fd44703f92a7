"""`ostinato generate`: submit, follow, write."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save

from ostinato.api import Engine, load
from ostinato.cli._arguments import Generate
from ostinato.cli._progress import (
    Display,
    Reading,
    hide_library_bars,
    plain_warnings,
    progress_display,
)
from ostinato.cli._result import CommandResult
from ostinato.media import replacing
from ostinato.request import Advice, ChunkReady, Progress
from ostinato.runtime import Handle, Output
from ostinato.runtime.costs import CostStore
from ostinato.runtime.threads import kernel_threads
from ostinato.runtime.witness import Timeline
from ostinato.tasks import OutputName

# Flags that go into the request under their own name when they are given.
_FIELDS = (
    "task",
    "seed",
    "num_frames",
    "height",
    "width",
    "fps",
    "num_inference_steps",
    "guidance_scale",
    "negative_prompt",
    "sampler",
    "flow_shift",
)


def generate(arguments: Generate, files: Mapping[OutputName, Path]) -> CommandResult:
    """Make what the flags ask for and write it to the files that `destinations` chose."""
    given = {name: getattr(arguments, name) for name in _FIELDS}
    fields = {name: value for name, value in given.items() if value is not None}
    started = time.monotonic()
    timeline = None if arguments.timeline is None else Timeline()
    store = CostStore.of_this_process(kernel_threads())
    with (
        plain_warnings(quiet=arguments.quiet),
        Engine(costs=store, witness=timeline) as engine,
    ):
        model = load(arguments.model, engine)
        hide_library_bars()
        handle = model.submit(arguments.prompt, outputs=tuple(files), **fields)
        with progress_display(quiet=arguments.quiet) as display:
            output = follow(handle, display)
    _write(output, files)
    paths = {name.value: path for name, path in files.items()}
    if timeline is not None and arguments.timeline is not None:
        timeline.save(arguments.timeline)  # of an engine that is closed: its last unit is told of
        paths["timeline"] = arguments.timeline
    return _report(output, paths, time.monotonic() - started, quiet=arguments.quiet)


def follow(handle: Handle, display: Display) -> Output:
    """Show a request's events and return its result.

    Whatever ends the following early, Ctrl-C or a display that cannot be written, cancels the
    request: the step that runs ends first, what the request held is freed, and the exception goes
    on to the caller.
    """
    chunks = 0
    try:
        for event in handle.events():
            if isinstance(event, ChunkReady):
                chunks += 1
            elif isinstance(event, Advice):
                display.note(f"warning: {event.message}")
            elif isinstance(event, Progress):
                display.show(
                    Reading(
                        step=event.step,
                        total=event.total,
                        unit="step",
                        device_s=event.device_s,
                        chunks=chunks,
                    )
                )
    except BaseException:
        handle.cancel()
        for _ in handle.events():
            pass
        raise
    return handle.result()


def _write(output: Output, files: Mapping[OutputName, Path]) -> None:
    if OutputName.VIDEO in files:
        output.video.save(files[OutputName.VIDEO])
    if OutputName.LATENTS in files:
        with replacing(files[OutputName.LATENTS]) as partial:
            partial.write_bytes(save({"latents": output.latents.contiguous()}))


def _report(
    output: Output, files: Mapping[str, Path], wall_s: float, *, quiet: bool
) -> CommandResult:
    spec, device_s = output.provenance.spec, output.provenance.device_s
    paths = {name: str(path) for name, path in files.items()}
    text = "\n".join(paths.values())
    if not quiet:
        text += (
            f"\n{spec.num_frames} frames of {spec.width}x{spec.height} at {spec.fps:g} fps, "
            f"seed {spec.seed}, {spec.num_inference_steps} steps, "
            f"{device_s:.1f} device-s, {wall_s:.1f} s in all"
        )
    document = {
        "files": paths,
        "wall_s": round(wall_s, 3),
        "advice": output.advice,
        "provenance": output.provenance,
    }
    return CommandResult(text=text, document=document)
