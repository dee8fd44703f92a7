"""Witnesses of the scheduler: several at once, a timeline, a record of decisions, a profile.

`ostinato.runtime.witness.metrics` is imported by its full name: its library brings an HTTP server,
which nothing below `serving` should load.
"""

from ostinato.runtime.witness.decisions import DecisionLog as DecisionLog
from ostinato.runtime.witness.decisions import DecisionRecord as DecisionRecord
from ostinato.runtime.witness.decisions import Difference as Difference
from ostinato.runtime.witness.decisions import Replay as Replay
from ostinato.runtime.witness.decisions import read_decisions as read_decisions
from ostinato.runtime.witness.decisions import replay as replay
from ostinato.runtime.witness.profile import Profile as Profile
from ostinato.runtime.witness.profile import ProfileRow as ProfileRow
from ostinato.runtime.witness.profile import profile_table as profile_table
from ostinato.runtime.witness.several import Bystander as Bystander
from ostinato.runtime.witness.several import Witnesses as Witnesses
from ostinato.runtime.witness.timeline import Timeline as Timeline
