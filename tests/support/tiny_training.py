"""A training run that takes a second: every part of the real one, small."""

from __future__ import annotations

from ostinato.models.builtin.architecture import BuiltinArchitecture
from ostinato.models.builtin.codec import CodecConfig
from ostinato.training.config import (
    CodecTraining,
    DataConfig,
    FlowMatchingConfig,
    OptimizerConfig,
    TrainingConfig,
)

TINY = TrainingConfig(
    name="tiny",
    steps=6,
    seed=3,
    architecture=BuiltinArchitecture(
        codec=CodecConfig(hidden_channels=32, num_layers=1),
        num_attention_heads=2,
        num_layers=1,
        ffn_dim=64,
        freq_dim=32,
        text_dim=32,
        text_layers=1,
        text_ffn_dim=32,
    ),
    data=DataConfig(num_clips=8, num_validation_clips=2, num_frames=24, num_codec_clips=4),
    codec=CodecTraining(steps=2, batch_latent_frames=4),
    method=FlowMatchingConfig(window_chunks=2, single_batch=4, window_batch=2),
    optimizer=OptimizerConfig(warmup_steps=2),
    checkpoint_every=3,
    log_every=3,
)
