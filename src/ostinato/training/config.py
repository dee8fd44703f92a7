"""The frozen configuration of a training run; recipes are functions that return one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from ostinato.errors import BadInput, InvalidCheckpoint
from ostinato.models.builtin.architecture import BuiltinArchitecture
from ostinato.training.data.emphasis import Emphasis, check_emphasis

CONFIG_FILE = "config.json"  # in the folder of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """What is rendered before training starts."""

    num_clips: int = 10_000
    num_validation_clips: int = 96
    num_frames: int = 72
    num_codec_clips: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTraining:
    """How the decoder of the codec is trained; the encoder is fitted, not trained."""

    steps: int = 1600
    batch_latent_frames: int = 32
    learning_rate: float = 3e-3
    latent_noise: float = 0.03
    l1_weight: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseMix:
    """Probabilities of the noise patterns of a window of chunks.

    What is left after `independent` and `ladder` is a clean history with a noisy rest. Raises
    BadInput when nothing can be left, since the ladder's share would then be cut in silence.
    """

    independent: float = 0.35
    ladder: float = 0.30
    clean_chunk: float = 0.35  # in the independent pattern
    context_noise_share: float = 0.40  # samples whose clean chunks get a little noise
    context_noise_max: float = 0.15
    ladder_min_stages: int = 3

    def __post_init__(self) -> None:
        if min(self.independent, self.ladder) < 0 or self.independent + self.ladder > 1:
            raise BadInput(
                f"independent is {self.independent!r} and ladder {self.ladder!r}; expected "
                "probabilities whose sum is at most 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowMatchingConfig:
    """The objective and its batches; even steps are single chunks, odd steps are windows.

    emphasis: clips that show an attribute are drawn that much more often; weights multiply.
    Raises BadInput for an attribute that the world does not have.
    """

    flow_shift: float = 3.0
    chunk_latent_frames: int = 3
    window_chunks: int = 6
    single_batch: int = 60
    window_batch: int = 12
    text_drop: float = 0.10
    emphasis: Emphasis = ()
    noise: NoiseMix = field(default_factory=NoiseMix)

    def __post_init__(self) -> None:
        check_emphasis(self.emphasis)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Muon on the hidden matrices, AdamW on the rest, one schedule for both."""

    muon_learning_rate: float = 3e-3
    adamw_learning_rate: float = 2e-3
    weight_decay: float = 0.01
    warmup_steps: int = 200
    decay_share: float = 0.5  # of all steps, at the end, linearly to 0
    grad_clip: float = 1.0
    ema_decay: float = 0.998


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """One complete run."""

    name: str
    steps: int
    parent: str | None = None  # recipe whose exported weights this run starts from
    seed: int = 0
    architecture: BuiltinArchitecture = field(default_factory=BuiltinArchitecture)
    data: DataConfig = field(default_factory=DataConfig)
    codec: CodecTraining = field(default_factory=CodecTraining)
    method: FlowMatchingConfig = field(default_factory=FlowMatchingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint_every: int = 1200
    log_every: int = 50
    autocast: bool = True
    compile: bool = False


def config_digest(config: TrainingConfig) -> str:
    """Return the sha256 of every field of a configuration."""
    return hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()


def write_config(config: TrainingConfig, run_dir: Path) -> None:
    """Write the configuration of a run into its folder, which is made if there is none."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / CONFIG_FILE).write_text(json.dumps(asdict(config), indent=2) + "\n")


def read_config(run_dir: Path) -> TrainingConfig:
    """Read what `write_config` wrote.

    Raises InvalidCheckpoint when it is missing, or is no configuration that this version takes.
    """
    path = run_dir / CONFIG_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainingConfig)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidCheckpoint(
            f"{str(path)!r} cannot be read: {error}; expected the configuration that a training "
            "run wrote"
        ) from error
