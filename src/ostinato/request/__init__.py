"""Requests, their events and their scope: pure contracts."""

from ostinato.request._events import Advice as Advice
from ostinato.request._events import Cancelled as Cancelled
from ostinato.request._events import ChunkReady as ChunkReady
from ostinato.request._events import Event as Event
from ostinato.request._events import Failed as Failed
from ostinato.request._events import FinalEvent as FinalEvent
from ostinato.request._events import Finished as Finished
from ostinato.request._events import Progress as Progress
from ostinato.request._events import Started as Started
from ostinato.request._request import ArrayLike as ArrayLike
from ostinato.request._request import GenerationSpec as GenerationSpec
from ostinato.request._request import ImagePart as ImagePart
from ostinato.request._request import LatentPart as LatentPart
from ostinato.request._request import ModalPart as ModalPart
from ostinato.request._request import Request as Request
from ostinato.request._request import TextPart as TextPart
from ostinato.request._scope import CancelScope as CancelScope
