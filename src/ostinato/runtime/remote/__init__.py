"""An engine in a process of its own: `RemoteEngine`, which is used as an `Engine` is."""

from ostinato.runtime.remote.client import RemoteEngine as RemoteEngine
from ostinato.runtime.remote.supervisor import Supervision as Supervision
