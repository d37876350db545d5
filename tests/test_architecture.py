"""The shape of the code, held by reading it: who may name and import whom, and how a file opens."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import xbridge
from xbridge._core import optional, protocol
from xbridge.backends import INDEX

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(xbridge.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
CORE = [path for path in FILES if path.parent == ROOT]
BACKENDS = [path for path in FILES if path.parent.name == "backends" and path.stem in INDEX]
BACKENDS += [path for path in FILES if path.parent.name in INDEX and path.stem == "__init__"]
LIBRARIES = {root for entry in INDEX.values() for root in entry.roots} | {"jax", "cupy", "dask"}


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def names_a_library(tree: ast.AST) -> list[str]:
    """Imports, names and strings in the code that name an array library; prose does not count."""
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    checked = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    only_types = {id(inner) for node in checked for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in prose or id(node) in only_types:
            continue
        words: list[str] = []
        if isinstance(node, ast.Import):
            words = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            words = [node.module or ""]
        elif isinstance(node, ast.Name):
            words = [node.id]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = [node.value]
        found += [root for word in words if (root := word.partition(".")[0]) in LIBRARIES]
    return found


@pytest.mark.parametrize("path", CORE, ids=short)
def test_the_core_names_no_library(path: Path) -> None:
    assert names_a_library(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_the_check_for_names_can_fail() -> None:
    for line in ("import torch", "from numpy import array", 'name = "cupy"', "torch.ones(2)"):
        assert names_a_library(ast.parse(line))


@pytest.mark.parametrize("path", sorted((ROOT / "_host").glob("*.py")), ids=short)
def test_host_memory_is_handled_in_numpy_and_nothing_else(path: Path) -> None:
    assert set(names_a_library(ast.parse(path.read_text(encoding="utf-8")))) <= {"numpy", "ml_dtypes"}


def public_functions(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


@pytest.mark.parametrize("path", BACKENDS, ids=short)
def test_every_backend_has_the_same_verbs_in_the_same_order(path: Path) -> None:
    present = [word for word in public_functions(path) if word in optional.OPTIONAL]
    assert public_functions(path) == [*protocol.VERBS, *present]


def test_the_protocol_and_its_list_of_verbs_agree() -> None:
    methods = methods_of("Backend", protocol)
    info = [node.name for node in methods if node.decorator_list]
    verbs = [node.name for node in methods if not node.decorator_list]
    assert (info, verbs) == (list(protocol.FACTS), list(protocol.VERBS))
    assert [node.name for node in methods_of("Extras", optional)] == list(optional.OPTIONAL)


def methods_of(protocol: str, module: ModuleType) -> list[ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == protocol)
    return [node for node in found.body if isinstance(node, ast.FunctionDef)]


def test_no_backend_has_an_optional_verb_by_halves() -> None:
    backends = [
        import_module(str(entry.module)) for name, entry in INDEX.items() if xbridge.is_available(name)
    ]
    for backend in backends:
        for verb in optional.OPTIONAL:
            mine = getattr(backend, verb, None)
            theirs = list(inspect.signature(getattr(optional.Extras, verb)).parameters)
            assert mine is None or list(inspect.signature(mine).parameters) == theirs[1:]


@pytest.mark.parametrize("path", BACKENDS, ids=short)
def test_a_backend_imports_its_library_plainly_at_its_top(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    assert short(path).removeprefix("backends/").partition("/")[0].removesuffix(".py") in plain


def test_every_backend_of_the_index_has_its_room() -> None:
    assert len(BACKENDS) == len(INDEX)


def test_only_the_registry_reaches_a_backend_and_only_by_a_string() -> None:
    for path in CORE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not (module or "").startswith("xbridge.backends."), short(path)


@pytest.mark.parametrize("path", FILES, ids=short)
def test_every_file_opens_with_its_idea(path: Path) -> None:
    opening = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert opening is not None
    assert opening.partition("\n")[0].endswith((".", "?"))


@pytest.mark.parametrize("path", FILES, ids=short)
def test_nothing_catches_everything(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.dump(node.type) if node.type else "Exception"
            assert "'Exception'" not in caught
            assert "'BaseException'" not in caught
            assert node.type is not None


def modules_after(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after running the code."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


HEAVY = LIBRARIES | {"array_api_compat", "dataclasses", "inspect", "importlib.metadata", "ctypes"}


@pytest.mark.parametrize(
    "use",
    [
        "import xbridge",
        "import xbridge; xbridge.known_backends; xbridge.Device('cuda:1'); xbridge.CopyError('x')",
    ],
)
def test_importing_xbridge_imports_no_array_library(use: str) -> None:
    assert modules_after(use) & HEAVY == set()


def test_the_import_test_can_fail() -> None:
    assert "numpy" in modules_after("import xbridge, numpy") & HEAVY


def test_numpy_alone_needs_no_other_library() -> None:
    use = (
        "import numpy as np, xbridge; xbridge.asarray([1, 2]); xbridge.to_numpy(np.ones(2), dtype='float32')"
    )
    assert modules_after(use) & (HEAVY - {"numpy", "dataclasses", "inspect", "ctypes"}) == set()
