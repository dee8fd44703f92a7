"""What an engine process serves unless its owner names a factory."""

from __future__ import annotations

from ostinato.runtime.costs import CostStore
from ostinato.runtime.engine import Engine
from ostinato.runtime.threads import kernel_threads


def engine_of_this_device() -> Engine:
    """Return an engine that knows, and keeps, what was measured on this device.

    Raises BadInput for an environment variable that does not parse.
    """
    return Engine(costs=CostStore.of_this_process(kernel_threads()))
