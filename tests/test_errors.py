"""Error codes are a promise: a code, its status or its exit code changes here, or not at all."""

from __future__ import annotations

import re

import pytest

from ostinato import errors
from ostinato.errors import BadInput, OstinatoError

# name: (code, http_status, exit_code)
TABLE = {
    "OstinatoError": ("internal", 500, 1),
    "BadInput": ("bad_input", 400, 2),
    "InvalidRequest": ("invalid_request", 400, 2),
    "UnknownField": ("unknown_field", 400, 2),
    "UnsupportedTask": ("unsupported_task", 400, 2),
    "RecipeMismatch": ("recipe_mismatch", 400, 2),
    "UnknownModel": ("unknown_model", 404, 2),
    "InvalidCard": ("invalid_card", 400, 2),
    "InvalidCheckpoint": ("invalid_checkpoint", 400, 2),
    "UnsafeCheckpoint": ("unsafe_checkpoint", 400, 2),
    "InvalidOutput": ("invalid_output", 400, 2),
    "OutputNotWritten": ("output_not_written", 500, 1),
    "InvalidProgram": ("invalid_program", 400, 2),
    "UndeclaredAccess": ("undeclared_access", 500, 1),
    "InvalidPlan": ("invalid_plan", 500, 1),
    "PageViolation": ("page_violation", 500, 1),
    "NonFinite": ("non_finite", 500, 1),
    "RequestCancelled": ("cancelled", 409, 1),
    "DeadlineExceeded": ("deadline_exceeded", 504, 1),
    "AdmissionInfeasible": ("admission_infeasible", 422, 1),
    "EngineLost": ("engine_lost", 503, 1),
    "RankLost": ("rank_lost", 503, 1),
    "InvalidMessage": ("invalid_message", 502, 1),
    "InternalError": ("internal", 500, 1),
    "EngineClosed": ("engine_closed", 503, 1),
    "OutputMissing": ("output_missing", 500, 1),
}


def declared() -> dict[str, type[OstinatoError]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, OstinatoError)
    }


def test_the_table_is_frozen() -> None:
    found = {n: (e.code, e.http_status, e.exit_code) for n, e in declared().items()}
    assert found == TABLE


def test_codes_are_unique_but_for_the_root_and_its_leaf() -> None:
    codes = [kind.code for name, kind in declared().items() if name != "OstinatoError"]
    assert sorted(codes) == sorted(set(codes))


def test_every_leaf_declares_its_own_code() -> None:
    for name, kind in declared().items():
        assert "code" in vars(kind), name
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code), kind.code


def test_bad_input_is_the_callers_fault_everywhere() -> None:
    for kind in declared().values():
        assert issubclass(kind, BadInput) == (kind.exit_code == 2)
        assert issubclass(kind, ValueError) == issubclass(kind, BadInput)


def test_output_missing_is_a_lookup_error() -> None:
    with pytest.raises(LookupError):
        raise errors.OutputMissing("no video")
