"""Model cards: the (recipe, runtime) pair as data."""

from ostinato.card._card import ModelCard as ModelCard
from ostinato.card._source import ModelSource as ModelSource
from ostinato.card._spec import AttentionContext as AttentionContext
from ostinato.card._spec import Capabilities as Capabilities
from ostinato.card._spec import ComponentSpec as ComponentSpec
from ostinato.card._spec import Defaults as Defaults
from ostinato.card._spec import Determinism as Determinism
from ostinato.card._spec import FileDigest as FileDigest
from ostinato.card._spec import GuidanceForm as GuidanceForm
from ostinato.card._spec import LoopSpec as LoopSpec
from ostinato.card._spec import ParentRef as ParentRef
from ostinato.card._spec import ParityLevel as ParityLevel
from ostinato.card._spec import ParitySpec as ParitySpec
from ostinato.card._spec import PrecisionSpec as PrecisionSpec
from ostinato.card._spec import ProgramSpec as ProgramSpec
from ostinato.card._spec import RecipeSpec as RecipeSpec
from ostinato.card._spec import Scalar as Scalar
from ostinato.card._spec import ScheduleAssumption as ScheduleAssumption
from ostinato.card._spec import SizeRange as SizeRange
