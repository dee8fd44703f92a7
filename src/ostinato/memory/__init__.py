"""Memory with rules: write-once K/V pages."""

from ostinato.memory._kv import KVPool as KVPool
from ostinato.memory._kv import KVRing as KVRing
from ostinato.memory._kv import LayerContext as LayerContext
