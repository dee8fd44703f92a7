"""Conformance suites: what a family, a loop, a cache or a connector is held to, as mixins.

A package, so that its modules are never importable by bare names: `loop`, `cache`, `values`.
"""

import pkgutil

import pytest

# Plain modules get pytest's account of a failed assertion only when they ask for it.
pytest.register_assert_rewrite(
    *(f"{__name__}.{found.name}" for found in pkgutil.iter_modules(__path__))
)
