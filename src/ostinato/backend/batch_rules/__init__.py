"""What this processor needs so that a batch of N has the bits of N calls of one."""

from ostinato.backend.batch_rules._cases import Attention as Attention
from ostinato.backend.batch_rules._kernels import Kernels as Kernels
from ostinato.backend.batch_rules._linear import LinearShape as LinearShape
from ostinato.backend.batch_rules._measure import NEVER as NEVER
from ostinato.backend.batch_rules._probe import probe_batch_rules as probe_batch_rules
from ostinato.backend.batch_rules._rules import BatchRules as BatchRules
from ostinato.backend.batch_rules._shapes import Linear as Linear
from ostinato.backend.batch_rules._shapes import Rows as Rows
from ostinato.backend.batch_rules._shapes import StackShapes as StackShapes
from ostinato.backend.batch_rules._shapes import Trials as Trials
from ostinato.backend.batch_rules._stack_rules import StackRules as StackRules
from ostinato.backend.batch_rules._stack_rules import ToleranceRules as ToleranceRules
from ostinato.backend.batch_rules._thorough import Finding as Finding
from ostinato.backend.batch_rules._thorough import probe_thoroughly as probe_thoroughly
