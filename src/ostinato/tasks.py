"""Words that many rooms share: tasks, modalities, identifiers."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

RequestId = NewType("RequestId", str)
ModelId = NewType("ModelId", str)


class TaskType(StrEnum):
    """What a request asks for; declared by the caller, never inferred from its inputs."""

    TEXT_TO_IMAGE = "text_to_image"
    TEXT_TO_VIDEO = "text_to_video"
    IMAGE_TO_VIDEO = "image_to_video"
    VIDEO_TO_VIDEO = "video_to_video"
    TEXT_TO_AUDIO = "text_to_audio"


class Modality(StrEnum):
    """The kind of content a typed input carries."""

    TEXT = "text"
    IMAGE = "image"
    LATENT = "latent"


class OutputName(StrEnum):
    """What a request can ask to be delivered."""

    VIDEO = "video"
    LATENTS = "latents"
