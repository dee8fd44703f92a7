"""An engine in a process of its own: `RemoteEngine`, which is used as an `Engine` is."""

from ostinato.runtime.remote.client import BLANK_ENGINE as BLANK_ENGINE
from ostinato.runtime.remote.client import RemoteEngine as RemoteEngine
from ostinato.runtime.remote.supervisor import Supervision as Supervision
