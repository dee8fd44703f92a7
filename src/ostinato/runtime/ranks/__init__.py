"""Several ranks, one stream of decisions: rank 0 decides, the others do the same."""

from ostinato.runtime.ranks.channel import Channel as Channel
from ostinato.runtime.ranks.channel import TorchChannel as TorchChannel
from ostinato.runtime.ranks.follower import follow as follow
from ostinato.runtime.ranks.lead import Lead as Lead
