"""Programs: loops and components composed into tasks, as data."""

from ostinato.program._graph import ComponentNode as ComponentNode
from ostinato.program._graph import LoopNode as LoopNode
from ostinato.program._graph import Node as Node
from ostinato.program._graph import Program as Program
from ostinato.program._run import Piece as Piece
from ostinato.program._run import ProgramRun as ProgramRun
from ostinato.program._run import ProgramState as ProgramState
from ostinato.program._run import SlotView as SlotView
