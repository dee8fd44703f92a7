"""Muon on the hidden matrices, AdamW on everything else, one learning-rate schedule for both.

Muon orthogonalises the momentum of a matrix. Embeddings, norms, biases, the input and output
layers stay with AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ostinato.training.config import OptimizerConfig
from ostinato.training.muon import BatchedMuon


def learning_rate_factor(config: OptimizerConfig, step: int, steps: int) -> float:
    """Return the schedule at a step in [0, steps): linear warm-up, constant, linear decay to 0."""
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    decay_steps = max(1, round(config.decay_share * steps))
    return min(warmup, 1.0, (steps - step) / decay_steps)


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether Muon trains this parameter: a 2-D weight inside a transformer block."""
    return parameter.ndim == 2 and ".block" in name and "relative_attention_bias" not in name


class MuonWithAdamW:
    """The two optimizers over one set of named parameters."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        config: OptimizerConfig,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Take the parameters; `dtype` is that of Muon's products."""
        self.config = config
        self.parameters = dict(parameters)
        hidden = [p for n, p in parameters.items() if is_hidden_matrix(n, p)]
        rest = [p for n, p in parameters.items() if not is_hidden_matrix(n, p)]
        self._muon = BatchedMuon(
            hidden,
            lr=config.muon_learning_rate,
            weight_decay=config.weight_decay,
            dtype=dtype,
        )
        self._adamw = torch.optim.AdamW(
            rest,
            lr=config.adamw_learning_rate,
            betas=(0.9, 0.98),
            weight_decay=config.weight_decay,
            foreach=True,
        )

    def step(self, factor: float) -> float:
        """Clip, update with the learning rates times `factor`, clear; return the gradient norm."""
        norm = nn.utils.clip_grad_norm_(self.parameters.values(), self.config.grad_clip)
        for optimizer, rate in (
            (self._muon, self.config.muon_learning_rate),
            (self._adamw, self.config.adamw_learning_rate),
        ):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state of both optimizers as tensors named `parameter/key`."""
        names = {id(p): name for name, p in self.parameters.items()}
        return {
            f"{names[id(parameter)]}/{key}": value
            for optimizer in (self._muon, self._adamw)
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_tensors` returned."""
        owners = {
            id(parameter): optimizer
            for optimizer in (self._muon, self._adamw)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for full_name, value in tensors.items():
            name, key = full_name.rsplit("/", 1)
            parameter = self.parameters[name]
            owners[id(parameter)].state[parameter][key] = value.clone()
