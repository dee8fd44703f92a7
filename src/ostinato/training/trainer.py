"""The training loop: draws, steps, averages, checkpoints and measures.

Invariant: what happens at step k depends on the configuration, the seed and k - never on when or
how often the run was stopped.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ostinato.errors import NonFinite, RecipeMismatch
from ostinato.models.builtin.layout import BuiltinModules, load_modules
from ostinato.report import source_commit
from ostinato.training.checkpoint import (
    Checkpoint,
    RunState,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from ostinato.training.config import TrainingConfig, config_digest, write_config
from ostinato.training.ema import WeightAverage
from ostinato.training.flow_model import FlowModel
from ostinato.training.lineage import adopt, open_parent, record_parent
from ostinato.training.methods.flow_matching import (
    flow_matching_loss,
    noise_latents,
    sample_single_sigmas,
    sample_window_sigmas,
)
from ostinato.training.metrics import MetricsCallback, MetricsLog
from ostinato.training.optimizer import MuonWithAdamW, learning_rate_factor
from ostinato.training.prepare import Prepared, prepare, require_own
from ostinato.training.validation import validation_losses

SINGLE, WINDOW = "single", "window"


class Trainer:
    """One run of flow matching on the built-in world."""

    def __init__(self, config: TrainingConfig, inputs: Prepared) -> None:
        self.config = config
        self.inputs = inputs
        self.model = FlowModel.build(config, inputs.tokenizer)
        self.parameters = self.model.parameters()
        self.optimizer = MuonWithAdamW(
            self.parameters, config.optimizer, torch.bfloat16 if config.autocast else torch.float32
        )
        self.average = WeightAverage(self.parameters, config.optimizer.ema_decay)
        self.averaged_model = self.model.frozen_copy()
        self.source_commit = source_commit()
        self.step = 0
        self.earlier_cpu_s = self.earlier_wall_s = 0.0
        self._cpu_start, self._wall_start = time.process_time(), time.monotonic()
        if config.compile:
            self.model.compile()

    def start_from(self, parent: BuiltinModules) -> None:
        """Take the parent's weights; the average starts from them too."""
        adopt(self.model, parent)
        self.average = WeightAverage(self.parameters, self.config.optimizer.ema_decay)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process and of those it resumed from."""
        return self.earlier_cpu_s + time.process_time() - self._cpu_start

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds, counted like `cpu_s`."""
        return self.earlier_wall_s + time.monotonic() - self._wall_start

    def loss_at(self, step: int) -> tuple[str, Tensor]:
        """Return the kind of batch of a step (even: single chunks, odd: windows) and its loss."""
        method = self.config.method
        rng = np.random.default_rng([self.config.seed, step])
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        if step % 2 == 0:
            kind, batch, num_chunks = SINGLE, method.single_batch, 1
            sigmas, weights = sample_single_sigmas(batch, method, generator)
        else:
            kind, batch, num_chunks = WINDOW, method.window_batch, method.window_chunks
            sigmas, weights = sample_window_sigmas(batch, method, generator)
        num_frames = num_chunks * method.chunk_latent_frames
        latents, captions = self.inputs.train.draw(rng, batch, num_frames, method.text_drop)
        noisy = noise_latents(latents, sigmas, generator)
        velocity = self.model.velocity(noisy.latents, noisy.timesteps, captions)
        return kind, flow_matching_loss(velocity, noisy.target, weights)

    def train_step(self) -> tuple[str, float, float]:
        """Take one optimizer step; returns kind of batch, loss and gradient norm."""
        kind, loss = self.loss_at(self.step)
        if not torch.isfinite(loss):
            raise NonFinite(
                f"the {kind} loss of train step {self.step} is {float(loss)!r}; expected a finite "
                "number; resume from the last checkpoint with a lower learning rate"
            )
        loss.backward()
        factor = learning_rate_factor(self.config.optimizer, self.step, self.config.steps)
        norm = self.optimizer.step(factor)
        self.average.update(self.parameters, self.step)
        self.step += 1
        return kind, float(loss.detach()), norm

    def validate(self) -> dict[str, float]:
        """Measure the averaged weights on held-out scenes."""
        self.average.copy_to(self.averaged_model.parameters())
        return validation_losses(self.averaged_model, self.inputs.validation, self.config.method)

    def checkpoint(self) -> Checkpoint:
        """Return all that a resumed run needs."""
        return Checkpoint(
            state=RunState(
                step=self.step,
                source_commit=self.source_commit,
                config_digest=config_digest(self.config),
                cpu_s=self.cpu_s,
                wall_s=self.wall_s,
            ),
            tensors={
                "weights": self.parameters,
                "average": self.average.tensors,
                "optimizer": self.optimizer.state_tensors(),
            },
        )

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same configuration."""
        for name, parameter in self.parameters.items():
            parameter.copy_(checkpoint.tensors["weights"][name])
            self.average.tensors[name].copy_(checkpoint.tensors["average"][name])
        self.optimizer.load_state_tensors(checkpoint.tensors["optimizer"])
        self.step = checkpoint.state.step
        self.earlier_cpu_s, self.earlier_wall_s = checkpoint.state.cpu_s, checkpoint.state.wall_s


def run(
    recipe_config: TrainingConfig,
    *,
    output_dir: Path | str,
    parent: Path | str | None = None,
    resume: bool = True,
    on_metrics: MetricsCallback | None = None,
) -> Path:
    """Train to the last step, checkpointing in `output_dir`; returns that folder.

    With `resume` a run that was stopped goes on from its latest checkpoint; without it a folder
    that already holds checkpoints is refused (RecipeMismatch), as is one whose checkpoint, parent
    or data are of another run; it is left as it was. `parent` is the folder of weights that a
    configuration with a parent starts from; raises BadInput when it is missing or not asked for,
    RecipeMismatch when another recipe made it, InvalidCheckpoint when its files changed.
    """
    start = open_parent(recipe_config, parent)
    run_dir = Path(output_dir)
    latest = _latest_checkpoint(recipe_config, run_dir, resume=resume)
    require_own(recipe_config, run_dir, start)
    record_parent(run_dir, start)  # before anything is made of the parent's codec
    write_config(recipe_config, run_dir)
    log = MetricsLog(run_dir, on_metrics, 0 if latest is None else latest.state.step)
    inputs = prepare(
        recipe_config, run_dir, lambda text: log.write({"step": 0, "note": text}), start
    )
    trainer = Trainer(recipe_config, inputs)
    if latest is not None:
        trainer.restore(latest)
    elif start is not None:
        trainer.start_from(load_modules(start.folder))
    _loop(trainer, run_dir, log)
    return run_dir


def _latest_checkpoint(config: TrainingConfig, run_dir: Path, *, resume: bool) -> Checkpoint | None:
    """Return where a run goes on, None at its start; raises RecipeMismatch as `run` does."""
    found = list_checkpoints(run_dir)
    if not found:
        return None
    if not resume:
        raise RecipeMismatch(
            f"{str(run_dir)!r} already holds checkpoint {found[-1].name!r}; pass resume=True to "
            "go on from it, or choose an empty folder"
        )
    latest = load_checkpoint(found[-1])
    made_by, own = latest.state.config_digest, config_digest(config)
    if made_by != own:
        raise RecipeMismatch(
            f"the checkpoint at step {latest.state.step} was made by configuration "
            f"{made_by[:12]!r}, this is {own[:12]!r}; start in another folder"
        )
    return latest


def _loop(trainer: Trainer, run_dir: Path, log: MetricsLog) -> None:
    config = trainer.config
    losses: dict[str, list[float]] = {SINGLE: [], WINDOW: []}
    while trainer.step < config.steps:
        kind, loss, norm = trainer.train_step()
        losses[kind].append(loss)
        if trainer.step % config.log_every == 0:
            means = {f"loss_{k}": float(np.mean(v)) for k, v in losses.items() if v}
            log.write({**_clock(trainer), **means, "grad_norm": norm})
            losses = {SINGLE: [], WINDOW: []}
        if trainer.step % config.checkpoint_every == 0 or trainer.step == config.steps:
            # In this order every checkpoint has its losses: a resumed run drops later lines.
            log.write({**_clock(trainer), **trainer.validate()})
            save_checkpoint(run_dir, trainer.checkpoint())


def _clock(trainer: Trainer) -> dict[str, float | int]:
    return {
        "step": trainer.step,
        "cpu_s": round(trainer.cpu_s, 1),
        "wall_s": round(trainer.wall_s, 1),
    }
