"""The training plane: runs that make the weights which the runtime serves."""

from ostinato.training.export import export_weights as export_weights
from ostinato.training.trainer import run as run
