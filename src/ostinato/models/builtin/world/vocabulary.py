"""Names what can appear in the built-in world, and every word that people may use for it.

Invariant: a phrase means one thing. Two entries of these tables never share a phrase, so a caption
can be read back exactly; `words()` lists every word that a caption can contain.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

RGB: TypeAlias = tuple[int, int, int]


class Shape(StrEnum):
    """Silhouette of an object."""

    CIRCLE = "circle"
    SQUARE = "square"
    TRIANGLE = "triangle"
    DIAMOND = "diamond"
    RING = "ring"


class Colour(StrEnum):
    """Colour of an object."""

    RED = "red"
    ORANGE = "orange"
    YELLOW = "yellow"
    GREEN = "green"
    CYAN = "cyan"
    BLUE = "blue"
    PURPLE = "purple"
    PINK = "pink"


class Motion(StrEnum):
    """How an object moves; the four straight ones wrap around the border."""

    LEFT = "left"
    RIGHT = "right"
    UP = "up"
    DOWN = "down"
    BOUNCING = "bouncing"
    STILL = "still"


class Background(StrEnum):
    """What lies behind: four flat colours, four soft patterns each bound to its own colour."""

    BLACK = "black"
    WHITE = "white"
    GRAY = "gray"
    NAVY = "navy"
    STRIPED = "striped teal"
    CHECKERED = "checkered brown"
    DOTTED = "dotted maroon"
    WAVY = "wavy olive"


# Chosen so that every object colour is at least 100 apart (Euclidean, 0..255 per channel) from
# every other object colour and from every background pixel: a nearest-colour decision then
# survives a codec at 30 dB (noise of about 8 per channel) with a wide margin.
PALETTE = MappingProxyType(
    {
        Colour.RED: (226, 28, 36),
        Colour.ORANGE: (255, 134, 0),
        Colour.YELLOW: (255, 236, 40),
        Colour.GREEN: (30, 205, 66),
        Colour.CYAN: (40, 222, 236),
        Colour.BLUE: (36, 92, 250),
        Colour.PURPLE: (150, 40, 214),
        Colour.PINK: (255, 120, 208),
    }
)

BACKGROUND_COLOUR = MappingProxyType(
    {
        Background.BLACK: (10, 10, 10),
        Background.WHITE: (238, 238, 238),
        Background.GRAY: (128, 128, 128),
        Background.NAVY: (16, 22, 84),
        Background.STRIPED: (18, 84, 94),
        Background.CHECKERED: (124, 66, 38),
        Background.DOTTED: (92, 16, 48),
        Background.WAVY: (72, 96, 18),
    }
)

# The first phrase of each entry is the canonical one.
SHAPE_PHRASES = MappingProxyType(
    {
        Shape.CIRCLE: ("circle", "disc", "disk", "ball"),
        Shape.SQUARE: ("square", "box", "block"),
        Shape.TRIANGLE: ("triangle",),
        Shape.DIAMOND: ("diamond", "rhombus"),
        Shape.RING: ("ring", "hoop", "donut"),
    }
)

COLOUR_PHRASES = MappingProxyType(
    {
        Colour.RED: ("red",),
        Colour.ORANGE: ("orange",),
        Colour.YELLOW: ("yellow",),
        Colour.GREEN: ("green",),
        Colour.CYAN: ("cyan", "turquoise"),
        Colour.BLUE: ("blue",),
        Colour.PURPLE: ("purple", "violet"),
        Colour.PINK: ("pink",),
    }
)

BACKGROUND_PHRASES = MappingProxyType(
    {
        Background.BLACK: ("black",),
        Background.WHITE: ("white",),
        Background.GRAY: ("gray", "grey"),
        Background.NAVY: ("navy", "navy blue", "dark blue"),
        Background.STRIPED: ("striped teal", "teal striped", "striped", "teal"),
        Background.CHECKERED: (
            "checkered brown",
            "brown checkered",
            "checkered",
            "checkerboard",
            "brown",
        ),
        Background.DOTTED: ("dotted maroon", "maroon dotted", "dotted", "maroon"),
        Background.WAVY: ("wavy olive", "olive wavy", "wavy", "olive"),
    }
)

# What follows a noun: "a red circle ... on navy".
MOTION_PHRASES = MappingProxyType(
    {
        Motion.LEFT: (
            "moving left",
            "moving to the left",
            "sliding left",
            "sliding to the left",
            "drifting left",
            "going left",
        ),
        Motion.RIGHT: (
            "moving right",
            "moving to the right",
            "sliding right",
            "sliding to the right",
            "drifting right",
            "going right",
        ),
        Motion.UP: (
            "moving up",
            "rising",
            "floating up",
            "going up",
            "moving upward",
            "drifting up",
        ),
        Motion.DOWN: (
            "moving down",
            "falling",
            "drifting down",
            "going down",
            "moving downward",
            "sinking",
        ),
        Motion.BOUNCING: ("bouncing", "bouncing around", "bouncing off the walls", "hopping"),
        Motion.STILL: ("standing still", "resting", "staying still", "not moving", "motionless"),
    }
)

# What follows "that" or a noun without "is": "a red circle that ...".
MOTION_VERBS = MappingProxyType(
    {
        Motion.LEFT: ("moves left", "moves to the left", "slides left", "goes left"),
        Motion.RIGHT: ("moves right", "moves to the right", "slides right", "goes right"),
        Motion.UP: ("moves up", "rises", "floats up", "goes up"),
        Motion.DOWN: ("moves down", "falls", "drifts down", "goes down"),
        Motion.BOUNCING: ("bounces", "bounces around", "hops"),
        Motion.STILL: ("stands still", "rests", "stays still", "does not move"),
    }
)

# What stands before a noun: "... red circle, navy".
MOTION_ADJECTIVES = MappingProxyType(
    {
        Motion.LEFT: ("left moving",),
        Motion.RIGHT: ("right moving",),
        Motion.UP: ("rising", "upward moving"),
        Motion.DOWN: ("falling", "downward moving"),
        Motion.BOUNCING: ("bouncing", "hopping"),
        Motion.STILL: ("still", "motionless", "resting"),
    }
)

# The words that decide a motion, wherever they stand in a sentence.
MOTION_KEYWORDS = MappingProxyType(
    {
        Motion.LEFT: ("left",),
        Motion.RIGHT: ("right",),
        Motion.UP: ("up", "upward", "rising", "rises"),
        Motion.DOWN: ("down", "downward", "falling", "falls", "sinking"),
        Motion.BOUNCING: ("bouncing", "bounces", "hopping", "hops"),
        Motion.STILL: (
            "still",
            "resting",
            "rests",
            "motionless",
            "not moving",
            "does not move",
        ),
    }
)

# Nouns that say "this is about the background".
BACKDROP_NOUNS = ("background", "wall", "backdrop")

# Words of the sentence templates that carry no attribute.
TEMPLATE_WORDS = (
    *("a", "an", "the", "and", "in", "is", "of", "on", "that", "with"),
    *("across", "against", "front", "over"),
    *("clip", "me", "show", "video"),
)


def words() -> tuple[str, ...]:
    """Return every word that a caption can contain, sorted, lower case."""
    tables = (
        SHAPE_PHRASES,
        COLOUR_PHRASES,
        BACKGROUND_PHRASES,
        MOTION_PHRASES,
        MOTION_VERBS,
        MOTION_ADJECTIVES,
    )
    phrases = [phrase for table in tables for entry in table.values() for phrase in entry]
    spoken = {word for phrase in phrases for word in phrase.split()}
    return tuple(sorted(spoken | set(BACKDROP_NOUNS) | set(TEMPLATE_WORDS)))
