"""A component's operations by name, as plans name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias, cast

from ostinato.errors import InvalidPlan

Op: TypeAlias = Callable[..., Mapping[str, object]]

# Any: each operation states what it takes under which name.
Inputs: TypeAlias = Mapping[str, Any]
"""Inputs of one call by name."""


class Operations:
    """Looks operations up among the methods that `OPS` lists, and no others.

    They are looked up at each call: a table of bound methods on the object would be a cycle, and
    weights would outlive the last reference to their component.
    """

    OPS: ClassVar[tuple[str, ...]] = ()

    def op(self, name: str) -> Op:
        """Return an operation; raises InvalidPlan with the valid names."""
        if name not in self.OPS:
            raise InvalidPlan(
                f"{type(self).__name__} has no op {name!r}; valid: {sorted(self.OPS)}"
            )
        return cast("Op", getattr(self, name))
