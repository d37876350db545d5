"""The shape of the code, held by reading it: who may name and import whom, and how a file opens."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import floors
import pytest
from fast_words import WORDS as FAST_WORDS

import xbridge
from xbridge._core import protocol
from xbridge._host import exporters
from xbridge.backends import INDEX

ROOT = Path(xbridge.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
BACKENDS = [path for path in FILES if path.parent.name == "backends" and path.stem in INDEX]
BACKENDS += [
    ROOT / "backends" / name / "__init__.py" for name in INDEX if (ROOT / "backends" / name).is_dir()
]
MODULES = {path: module for module, path in floors.FILES.items()}
LIBRARIES = {root for entry in INDEX.values() for root in entry.roots} | {"jax", "cupy", "dask"}
LIBRARIES |= {*exporters.INDEX}
COMPILERS = re.compile(r"^\S*(dynamo|compiler)\S*$")
"""Names that speak of the compiler of a library."""


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


FLOORS: tuple[dict[str, str], ...] = (
    {"errors": ""},
    {"_core": "errors"},
    {"_host": "_core errors", "protocol": "_core"},
    {"backends": "_host _core errors"},
    {"_registry": "backends _host _core errors"},
    {"_plan": "_registry backends _host _core errors"},
    {"_engine": "_plan _registry backends _host _core errors"},
    {
        "_api": "_engine _plan _registry backends _core errors",
        "_inspect": "_engine _plan _registry _core errors",
        "_observe": "_engine _plan _registry _core errors",
        "tree": "_engine _plan _registry backends _host _core errors",
    },
    {
        "_align_back": "_api tree _engine _plan _registry _core errors",
        "extend": "_observe tree _engine _plan _registry backends _host _core",
        "_transfer": "_observe tree _engine _plan _registry _core errors",
    },
    {"__init__": "_align_back _transfer _api _inspect _observe tree _plan _registry _core errors"},
    {"functions": "__init__ extend errors"},
    {"testing": "__init__ extend functions tree protocol errors"},
    {"files": "__init__ extend protocol errors"},
)
"""What each package may import from at run time, by floor, the lowest first."""


def table() -> dict[str, set[str]]:
    return {package: set(allowed.split()) for floor in FLOORS for package, allowed in floor.items()}


def test_imports__match_the_table() -> None:
    """Each package imports exactly the packages listed for it."""
    assert floors.packages() == table()


def test_imports__go_to_lower_floors() -> None:
    """The table lets a package import only from packages below it."""
    below: set[str] = set()
    for floor in FLOORS:
        for package, allowed in floor.items():
            assert set(allowed.split()) <= below, package
        below |= floor.keys()


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, the first again at the end, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_imports__have_no_cycles() -> None:
    """No two modules depend on each other, not even by name or for their types."""
    assert circle(floors.imports()) == []
    assert circle(floors.imports(types=True)) == [], "one of them needs only the types of another"
    assert circle(floors.references()) == [], "one of them imports another by a string"


def names_a_library(tree: ast.AST) -> list[str]:
    """Imports, names and strings in the code that name a library or a compiler; prose does not count."""
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
            words = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Name):
            words = [node.id]
        elif isinstance(node, ast.Attribute):
            words = [node.attr]
        elif isinstance(node, ast.FunctionDef):
            words = [node.name]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = [node.value]
        found += [root for word in words if (root := word.partition(".")[0]) in LIBRARIES]
        found += [word for word in words if COMPILERS.search(word)]
    return found


NAMED: dict[str, set[str]] = {
    "_api.py": {"cupy", "dask", "jax", "torch"},  # `to_jax` and the others
    "functions": {"numpy", "torch"},  # shapes by NumPy, and programs of torch's compiler
    "functions/libraries.py": {"dask", "jax", "numpy", "torch"},  # finds their modules here
    "_host": {"numpy", "ml_dtypes"},
    "_host/exporters": {"numpy", *exporters.INDEX},  # one adapter for each, which hands out NumPy arrays
    "_core/tracing.py": {  # what torch's compiler is told before torch is loaded
        *("_dynamo_marked_constant", "_torchdynamo_inline", "_torchdynamo_disable"),
    },
    "backends/__init__.py": {root for entry in INDEX.values() for root in entry.roots},  # the index
    "files": {"jax", "numpy", "torch"},  # reads and writes their files, asks for their accelerators
    "_registry/loading.py": {"cupy", "dask", "jax", "numpy", "torch"},  # what `np` and `jnp` stand for
    "tree/verbs.py": {"cupy", "dask", "jax", "torch"},  # as `_api.py`
    "tree/containers.py": {"torch"},  # finds its classes in `sys.modules`
    "tree/registered.py": {"jax", "torch"},  # finds their registries in `sys.modules`
}
"""The libraries that code may name, by file or folder. Backends and the test kit may name any library.

Names of a compiler are in a single place beside them.
"""
GUESTS = [f"xbridge.functions.{name}" for name in INDEX]
"""The modules and packages that serve one library to a guest."""
CORE = [
    path
    for path, module in MODULES.items()
    if (floors.package_of(module) not in ("backends", "testing") or path == ROOT / "backends/__init__.py")
    and not any(f"{module}.".startswith(f"{one}.") for one in GUESTS)
]


def entry_for(path: Path) -> str:
    """The longest entry of `NAMED` that a file is in; "" if there is none."""
    return max((name for name in NAMED if short(path).startswith(name)), key=len, default="")


def test_core__names_no_library() -> None:
    """No module of the core names an array library but for the exceptions, each of which is needed."""
    named: dict[str, set[str]] = {}
    for path in CORE:
        found = names_a_library(ast.parse(path.read_text(encoding="utf-8")))
        named.setdefault(entry_for(path), set()).update(found)
    assert named == {"": set(), **NAMED}


def test_core__check_for_names_finds_violations() -> None:
    """The check for library names finds imports, strings and attributes."""
    for line in (
        *("import torch", "from numpy import array", 'name = "cupy"', "torch.ones(2)"),
        *("x.is_dynamo_compiling()", 'mark = "_torchdynamo_inline"', "from m import compiler"),
    ):
        assert names_a_library(ast.parse(line))


def public_functions(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


@pytest.mark.parametrize("path", BACKENDS, ids=short)
def test_backends__functions_follow_protocol_order(path: Path) -> None:
    """Each backend defines its functions in the order of the protocol, those of `fast`, and no others."""
    names = [word for word in vars(protocol.Backend) if not word.startswith("_")]
    functions = [word for word in public_functions(path) if word not in FAST_WORDS]
    assert [word for word in functions if word not in names] == []
    assert functions == sorted(functions, key=names.index)


def test_protocol__lists_each_name_once() -> None:
    """Every name of the protocol is in exactly one group."""
    names = [word for word in vars(protocol.Backend) if not word.startswith("_")]
    lists = [*protocol.CONSTANTS, *protocol.DERIVED, *protocol.VERBS, *protocol.OPTIONAL]
    assert sorted(lists) == sorted(names)
    assert set(protocol.REQUIRED) <= {*protocol.CONSTANTS, *protocol.VERBS}
    together = {word for group in protocol.REQUIRED_TOGETHER for word in group}
    assert together <= {*protocol.VERBS, *protocol.OPTIONAL}


def test_backends__index_matches_modules() -> None:
    """There is one module for each backend in the index."""
    assert len(BACKENDS) == len(INDEX)


TESTED = {
    "api": "_api _inspect _align_back",
    "backends": "backends _registry _core.protocol _host",
    "files": "files __main__ _host.memory",
    "contract": "",
    "core": "_core",
    "emulated": "backends.torch _transfer",
    "engine": "_engine _plan _host _registry.call_cache",
    "functions": "functions",
    "host": "_host",
    "kit": "",
    "observe": "_observe",
    "plan": "_plan",
    "transfer": "_transfer",
    "tree": "tree",
}
"""What the tests of a folder test: packages and modules that they may import, although they are private."""


@pytest.mark.parametrize("folder", TESTED)
def test_tests__import_private_modules_of_what_they_test(folder: str) -> None:
    """A test imports private modules of its unit or the kit; helpers have what it needs of others."""
    own = tuple(f"xbridge.{unit}." for unit in (*TESTED[folder].split(), "testing"))
    for path in (Path(__file__).parents[1] / folder).rglob("test_*.py"):
        imported = floors.imported(ast.parse(path.read_text(encoding="utf-8")), by_name=True, types=True)
        private = {module for module in imported if "._" in module and not f"{module}.".startswith(own)}
        assert private == set(), path
