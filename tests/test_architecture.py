"""The rules of the house that a reader would otherwise have to check by eye."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import is_dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.decoding import contract
from specdec_plugins.decoding.drafters import DRAFTERS
from specdec_plugins.decoding.rules import RULES
from specdec_plugins.decoding.schedules import SCHEDULES

PACKAGE = Path(__file__).parent.parent / "specdec_plugins"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Which parts of the package each part may import, itself and `errors` aside. Arrows point from
# what users touch down to the decoding core.
LAYERS: dict[str, set[str]] = {
    "cli": set(),
    "errors": set(),
    "decoding": set(),
    "models": {"decoding"},
    "criterions": set(),
    "formats": {"decoding"},
    "documents": {"formats", "text"},
    "training": {"corpus", "criterions", "decoding", "formats", "models", "tasks"},
    "tasks": {"decoding", "formats", "models"},
    "text": {"formats"},
    "corpus": {"decoding", "formats", "text"},
    "app": {"corpus", "decoding", "documents", "formats", "text", "training"},
    "serving": {"app", "corpus", "decoding", "documents", "formats", "text"},
}
WITH_FAIRSEQ = {"models", "criterions", "tasks", "formats", "corpus", "training"}
MAX_FUNCTION_LINES = 40  # fits a screen
MAX_FILE_LINES = 500


def imports(path: Path) -> Iterator[str]:
    """Absolute names of everything that a module imports, at any depth of nesting."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield str(node.module)
            if node.module == PACKAGE.name:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_graph(root: Path, *packages: str) -> dict[str, set[str]]:
    """Each module of the packages, and those of them that it imports, lazily or for types, too.

    What a package's `__init__` imports is its own; that of a parent package is not counted.
    """
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in packages
        for path in (root / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {module: set() for module in paths}
    for module, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                inner = alias.name
                if isinstance(node, ast.ImportFrom):
                    inner = f"{node.module}.{alias.name}"
                    inner = inner if inner in paths else str(node.module)
                graph[module] |= {inner} & paths.keys()
    return graph


def layer_faults(path: Path) -> list[str]:
    """What a module imports and may not; the package's own __init__ registers at run time."""
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert part in {*LAYERS, "__init__"}, f"enter {part!r} in LAYERS"
    allowed = {*LAYERS.get(part, LAYERS), part, "errors"}
    parts = (name.split(".") for name in imports(path))
    return [
        ".".join(name)
        for name in parts
        if (name[0] == PACKAGE.name and name[1:] and name[1] not in allowed)
        or (name[0] == "fairseq" and part not in WITH_FAIRSEQ)
    ]


def test_imports_follow_the_layers() -> None:
    assert {path: faults for path in MODULES if (faults := layer_faults(path))} == {}


def test_no_imports_go_in_circles() -> None:
    TopologicalSorter(import_graph(PACKAGE.parent, PACKAGE.name, "benchmarks")).prepare()


def test_decoding_imports_torch_and_the_standard_library_only() -> None:
    allowed = {*sys.stdlib_module_names, "torch", PACKAGE.name}
    for path in (PACKAGE / "decoding").rglob("*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= allowed, path


def test_no_device_and_no_randomness_is_hard_wired() -> None:
    forbidden = re.compile(
        r"\.cuda\(|torch\.manual_seed|random\.seed\(|weights_only=False|set_default_(dtype|device)"
    )
    for path in MODULES:
        found = forbidden.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found and found.group()}"


def test_functions_fit_a_screen_and_files_a_sitting() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < MAX_FILE_LINES, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno + 1 < MAX_FUNCTION_LINES, (path, node.name)


def uncommented_fields(text: str) -> list[str]:
    """Fields of settings classes (named ...Config or ...Params) without a comment on their line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    return [
        ast.unparse(field)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Config", "Params"))
        for field in node.body
        if isinstance(field, ast.AnnAssign) and field.end_lineno not in comments
    ]


def test_every_setting_says_what_it_means() -> None:
    for path in (PACKAGE / "decoding").rglob("*.py"):
        assert uncommented_fields(path.read_text(encoding="utf-8")) == [], path


def test_what_is_told_to_be_installed_exists() -> None:
    """Every extra that `not_installed` names is one of the package's."""
    setup = ast.parse((PACKAGE.parent / "setup.py").read_text(encoding="utf-8"))
    (extras,) = (
        {ast.literal_eval(key) for key in node.value.keys if key}
        for node in ast.walk(setup)
        if isinstance(node, ast.keyword)
        and node.arg == "extras_require"
        and isinstance(node.value, ast.Dict)
    )
    named = [
        ast.literal_eval(node.args[1])
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("imported", "not_installed")
        if isinstance(node.args[1], ast.Constant)
    ]
    assert named
    assert set(named) <= extras


def members(protocol: Any) -> set[str]:
    names = {n for cls in protocol.__mro__ for n in vars(cls) if not n.startswith("_")}
    assert names
    return names


REGISTERED = [
    *((contract.Drafter, DRAFTERS.get(name)) for name in DRAFTERS.names()),
    *((contract.AcceptanceRule, RULES.get(name)) for name in RULES.names()),
    *((contract.DraftSchedule, SCHEDULES.get(name)) for name in SCHEDULES.names()),
]


@pytest.mark.parametrize(("protocol", "cls"), REGISTERED, ids=lambda v: v.__name__)
def test_registered_classes_satisfy_their_protocol(protocol: Any, cls: Any) -> None:
    missing = members(protocol) - set(dir(cls)) - set(getattr(cls, "__annotations__", {}))
    assert not missing
    for name in members(protocol):
        wanted, got = getattr(protocol, name, None), getattr(cls, name, None)
        if callable(wanted):
            assert parameters(got) == parameters(wanted), name
    if protocol is contract.AcceptanceRule:
        assert is_dataclass(cls)
    else:
        cls.Config()  # every option has a default


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)
