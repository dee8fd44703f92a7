"""Clips as artifacts: frames in memory, and the containers people ask for."""

from ostinato.media._decode import decode as decode
from ostinato.media._destination import SUFFIXES as SUFFIXES
from ostinato.media._destination import check_destination as check_destination
from ostinato.media._destination import replacing as replacing
from ostinato.media._video import Video as Video
