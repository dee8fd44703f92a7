"""What this processor needs so that a batch of N has the bits of N calls of one."""

from ._kernels import Kernels as Kernels
from ._probe import probe_batch_rules as probe_batch_rules
from ._rules import NEVER as NEVER
from ._rules import BatchRules as BatchRules
