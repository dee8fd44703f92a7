"""House rules that no linter knows: sizes, module state, pickle, docstrings, mirrored tests."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = tuple(sorted((ROOT / "src").rglob("*.py")))
TESTS = tuple(sorted((ROOT / "tests").rglob("*.py")))

# Files over 400 lines, each with its reason.
LONG_FILES: tuple[tuple[str, str], ...] = ()
_REASON_LINES, _MAX_LINES, _MAX_FUNCTION_LINES = 400, 600, 50

_MUTABLE_TYPES = ("dict", "list", "set", "bytearray", "defaultdict", "OrderedDict", "Counter")
_MUTABLE_OTHERS = ("deque", "ContextVar", "Lock", "RLock", "Event", "Condition", "Queue", "local")
_FORBIDDEN_IMPORTS = ("pickle", "cPickle", "dill", "joblib", "cloudpickle", "shelve", "marshal")
_FORBIDDEN_CALLS = ("eval", "exec", "torch.load", "torch.save")

# A lock is no state of ours: it guards a setting that a library keeps for the whole process.
PROCESS_LOCKS = (
    ("src/ostinato/backend/loading.py", "_LOCK", "settings and patches of torch are the process's"),
)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def _called(node: ast.expr) -> str:
    """Return the dotted name of what a call calls, without type arguments."""
    function = node.func if isinstance(node, ast.Call) else node
    if isinstance(function, ast.Subscript):
        function = function.value
    return ast.unparse(function)


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    if isinstance(value, ast.BinOp):
        return _is_mutable(value.left) or _is_mutable(value.right)
    if isinstance(value, ast.IfExp):
        return _is_mutable(value.body) or _is_mutable(value.orelse)
    return isinstance(value, ast.Call) and _called(value).rpartition(".")[2] in (
        *_MUTABLE_TYPES,
        *_MUTABLE_OTHERS,
    )


def _module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what runs at import, also below `if` and `try`, not inside functions."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for child in ast.iter_child_nodes(statement):
                if isinstance(child, ast.stmt):
                    yield from _module_statements([child])
        if isinstance(statement, ast.ClassDef):
            yield from _module_statements(statement.body)


def mutable_state(tree: ast.Module) -> list[str]:
    """Return module- and class-level names bound to something that can be changed in place."""
    found: list[str] = []
    for statement in _module_statements(tree.body):
        targets, value = [], None
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
            targets, value = [statement.target], statement.value
        names = [ast.unparse(target) for target in targets]
        if value is not None and names != ["__all__"] and _is_mutable(value):
            found += [f"line {statement.lineno}: {name}" for name in names]
    return [
        *found,
        *(f"line {n.lineno}: global" for n in ast.walk(tree) if isinstance(n, ast.Global)),
    ]


def unsafe_code(tree: ast.Module) -> list[str]:
    """Return imports and calls that can run what a file or a string says."""
    found: list[str] = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        roots = {name.partition(".")[0] for name in names}
        if roots & set(_FORBIDDEN_IMPORTS):
            found.append(f"line {node.lineno}: imports {', '.join(names)}")  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and _called(node) in _FORBIDDEN_CALLS:
            found.append(f"line {node.lineno}: calls {_called(node)}")
    return found


def _offenders(paths: Iterable[Path], rule: Callable[[ast.Module], object]) -> dict[str, object]:
    """Return what a rule finds, by file."""
    found = {_name(path): rule(_tree(path)) for path in paths}
    return {name: problems for name, problems in found.items() if problems}


def long_functions(tree: ast.Module) -> list[str]:
    """Return functions that do not fit a screen; one that only builds a value is a table."""
    return [
        f"{node.name} has {lines} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > _MAX_FUNCTION_LINES
        and len(node.body) > 2
    ]


def test_files_are_short() -> None:
    lengths = {_name(path): len(path.read_text().splitlines()) for path in (*SOURCES, *TESTS)}
    assert {name: lines for name, lines in lengths.items() if lines > _MAX_LINES} == {}
    long = {name for name, lines in lengths.items() if lines > _REASON_LINES}
    assert long == {name for name, reason in LONG_FILES if reason}, (
        "LONG_FILES gives the reason of each file over 400 lines, and of no other"
    )


def test_functions_fit_a_screen() -> None:
    assert _offenders(SOURCES, long_functions) == {}


def test_no_module_level_state() -> None:
    found = _offenders(SOURCES, mutable_state)
    for name, lock, reason in PROCESS_LOCKS:
        kept = [problem for problem in found.pop(name, []) if not problem.endswith(f": {lock}")]  # type: ignore[attr-defined]
        assert reason
        assert kept == []
    assert found == {}


def test_nothing_is_unpickled_or_evaluated() -> None:
    assert _offenders(SOURCES, unsafe_code) == {}


def test_modules_say_what_they_are() -> None:
    silent = _offenders(SOURCES, lambda tree: tree.body and not ast.get_docstring(tree))
    assert silent == {}
    empty = [_name(path) for path in SOURCES if not path.read_text().strip()]
    assert [name for name in empty if not name.endswith("/__init__.py")] == []


def test_sources_are_ascii() -> None:
    assert [_name(path) for path in (*SOURCES, *TESTS) if not path.read_text().isascii()] == []


def test_every_room_has_tests() -> None:
    """Rooms of src have a folder of the same name in tests; modules may be tested from above."""
    package = ROOT / "src" / "ostinato"
    rooms = [path.parent for path in package.glob("*/__init__.py")]
    untested = [room.name for room in rooms if not any((ROOT / "tests" / room.name).rglob("*.py"))]
    assert untested == []


def test_test_files_have_unique_names() -> None:
    """Test folders are no packages, so pytest tells their modules apart by name alone."""
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize(
    "code",
    [
        "X = []",
        "X = {'a': 1}",
        "X: dict[str, int] = {}",
        "X = {n: n for n in range(3)}",
        "X = dict[str, int]()",
        "X = collections.defaultdict(list)",
        "X = () or 1\nY = [1] + [2]",
        "if True:\n    X = set()",
        "class A:\n    cache = {}",
        "def f():\n    global X\n    X = 1",
    ],
)
def test_rule_finds_state(code: str) -> None:
    assert len(mutable_state(ast.parse(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "__all__ = ['f']",
        "X = (1, 2)",
        "X = frozenset({'a'})",
        "X = MappingProxyType({'a': [1]})",
        "def f():\n    x = []\n    return x",
        "X: tuple[int, ...] = tuple([1, 2])",
        "class A:\n    items: list[int] = field(default_factory=list)",
        "T = dict[str, int]",
    ],
)
def test_rule_lets_constants_be(code: str) -> None:
    assert mutable_state(ast.parse(code)) == []


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from pickle import loads", "torch.load(f)", "eval('1')", "exec(x)"],
)
def test_rule_finds_unsafe_code(code: str) -> None:
    assert len(unsafe_code(ast.parse(code))) == 1


def test_rule_lets_model_eval_be() -> None:
    assert unsafe_code(ast.parse("model.eval()\nresult = re.compile('x')")) == []
