"""One scheduler for the steps of all loops: who is admitted, whose unit is next, and where."""

from ostinato.runtime.scheduler.around import Around as Around
from ostinato.runtime.scheduler.decide import decide as decide
from ostinato.runtime.scheduler.ledger import Ledger as Ledger
from ostinato.runtime.scheduler.ledger import NextUnit as NextUnit
from ostinato.runtime.scheduler.policy import AgedPriority as AgedPriority
from ostinato.runtime.scheduler.policy import Deadline as Deadline
from ostinato.runtime.scheduler.policy import FairShare as FairShare
from ostinato.runtime.scheduler.policy import FifoRequest as FifoRequest
from ostinato.runtime.scheduler.policy import Policy as Policy
from ostinato.runtime.scheduler.policy import Rank as Rank
from ostinato.runtime.scheduler.policy import RoundRobin as RoundRobin
from ostinato.runtime.scheduler.policy import ShortestRemaining as ShortestRemaining
from ostinato.runtime.scheduler.policy import policies as policies
from ostinato.runtime.scheduler.policy import policy_named as policy_named
from ostinato.runtime.scheduler.snapshot import DEFAULT_TENANT as DEFAULT_TENANT
from ostinato.runtime.scheduler.snapshot import Decision as Decision
from ostinato.runtime.scheduler.snapshot import Device as Device
from ostinato.runtime.scheduler.snapshot import Placed as Placed
from ostinato.runtime.scheduler.snapshot import Ready as Ready
from ostinato.runtime.scheduler.snapshot import Snapshot as Snapshot
from ostinato.runtime.scheduler.snapshot import TenantShare as TenantShare
from ostinato.runtime.scheduler.snapshot import Waiting as Waiting
from ostinato.runtime.scheduler.watch import Level as Level
from ostinato.runtime.scheduler.watch import Outcome as Outcome
from ostinato.runtime.scheduler.watch import UnitRecord as UnitRecord
from ostinato.runtime.scheduler.watch import Witness as Witness
