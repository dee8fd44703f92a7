"""Work as data: plans, calls, references, records."""

from ostinato.work._cost import CostModel as CostModel
from ostinato.work._op_work import CostKey as CostKey
from ostinato.work._op_work import DeviceRates as DeviceRates
from ostinato.work._op_work import Measured as Measured
from ostinato.work._op_work import OpWork as OpWork
from ostinato.work._plan import CacheRef as CacheRef
from ostinato.work._plan import Commit as Commit
from ostinato.work._plan import ComponentCall as ComponentCall
from ostinato.work._plan import Granularity as Granularity
from ostinato.work._plan import OutputOf as OutputOf
from ostinato.work._plan import PageId as PageId
from ostinato.work._plan import PageRef as PageRef
from ostinato.work._plan import WorkPlan as WorkPlan
from ostinato.work._plan import WorkResult as WorkResult
from ostinato.work._plan import WorkUnitKind as WorkUnitKind
from ostinato.work._plan import plain_tuple as plain_tuple
from ostinato.work._resources import UNLIMITED as UNLIMITED
from ostinato.work._resources import Resources as Resources
