"""The runtime: the engine, its requests and its resident models."""

from ostinato.card import ModelSource as ModelSource
from ostinato.runtime.engine import Engine as Engine
from ostinato.runtime.handle import Handle as Handle
from ostinato.runtime.output import Output as Output
from ostinato.runtime.output import Provenance as Provenance
from ostinato.runtime.resident import ResidentModel as ResidentModel
from ostinato.runtime.stacking import Batching as Batching
from ostinato.runtime.stacking import Stacking as Stacking
