"""The procedural world of the built-in model: scenes, captions, and exact measurement of clips."""

from ostinato.models.builtin.world.analysis import Analysis as Analysis
from ostinato.models.builtin.world.analysis import analyse as analyse
from ostinato.models.builtin.world.captions import canonical_prompt as canonical_prompt
from ostinato.models.builtin.world.captions import caption as caption
from ostinato.models.builtin.world.prompt import ParsedPrompt as ParsedPrompt
from ostinato.models.builtin.world.prompt import normalize as normalize
from ostinato.models.builtin.world.prompt import parse_prompt as parse_prompt
from ostinato.models.builtin.world.render import render as render
from ostinato.models.builtin.world.scene import FPS as FPS
from ostinato.models.builtin.world.scene import ObjectSpec as ObjectSpec
from ostinato.models.builtin.world.scene import Scene as Scene
from ostinato.models.builtin.world.scene import Split as Split
from ostinato.models.builtin.world.scene import is_held_out as is_held_out
from ostinato.models.builtin.world.scene import place_object as place_object
from ostinato.models.builtin.world.scene import sample_scene as sample_scene
from ostinato.models.builtin.world.vocabulary import Background as Background
from ostinato.models.builtin.world.vocabulary import Colour as Colour
from ostinato.models.builtin.world.vocabulary import Motion as Motion
from ostinato.models.builtin.world.vocabulary import Shape as Shape
from ostinato.models.builtin.world.vocabulary import words as words
