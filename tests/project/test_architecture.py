"""The shape of the code, held by reading it: who may name and import whom, and how a file opens."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import floors
import pytest

import xbridge
from xbridge._core import protocol
from xbridge._host import exporters
from xbridge._registry.registry import get
from xbridge.backends import INDEX

ROOT = Path(xbridge.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
BACKENDS = [path for path in FILES if path.parent.name == "backends" and path.stem in INDEX]
BACKENDS += [path for path in FILES if path.parent.name in INDEX and path.stem == "__init__"]
MODULES = {path: module for module, path in floors.FILES.items()}
LIBRARIES = {root for entry in INDEX.values() for root in entry.roots} | {"jax", "cupy", "dask"}
LIBRARIES |= {*exporters.INDEX}


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


FLOORS: tuple[dict[str, str], ...] = (
    {"_deprecation": ""},
    {"errors": "_deprecation"},
    {"_core": "errors"},
    {"_host": "_core errors", "protocol": "_core"},
    {"_derive": "_host _core errors"},
    {"backends": "_derive _host _core errors"},
    {"_pyinstaller": "backends _host", "_registry": "backends _host _core errors"},
    {"_plan": "_registry backends _host _core errors"},
    {"_engine": "_plan _registry backends _host _core errors"},
    {
        "_api": "_engine _plan _registry backends _core errors",
        "_inspect": "_engine _plan _registry _core errors",
        "_observe": "_engine _plan _registry _core errors",
        "tree": "_engine _plan _registry backends _host _core errors _deprecation",
    },
    {
        "_align_back": "tree _engine _plan _registry _core errors",
        "_functions": "tree _engine _plan _registry backends _derive _core errors",
        "_transfer": "_observe tree _engine _plan _registry backends _core errors",
        "testing": "_api _inspect _engine _plan _registry backends _derive _host _core errors",
    },
    {
        "__init__": "_functions _align_back _transfer _api _inspect _observe tree _plan _registry _core "
        "errors _deprecation",
        "_cli": "testing _api _inspect _registry backends _host _core errors",
    },
)
"""What each package may import from at run time, by floor, the lowest first."""


def table() -> dict[str, set[str]]:
    return {package: set(allowed.split()) for floor in FLOORS for package, allowed in floor.items()}


@pytest.mark.parametrize("package", sorted(table().keys() | floors.packages().keys()))
def test_a_package_imports_from_the_packages_that_the_table_allows_and_needs_each(package: str) -> None:
    assert floors.packages()[package] == table()[package]


def test_the_table_allows_a_package_to_import_from_lower_floors_only() -> None:
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


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(floors.imports()) == []
    assert circle(floors.references()) == [], "one of them imports another by a string"


def test_the_checks_of_imports_see_those_in_functions_and_not_those_for_types() -> None:
    code = "from xbridge import _host\nimport numpy\ndef f():\n    from xbridge._plan.casts import g, h\n"
    types = "if TYPE_CHECKING:\n    import xbridge._api\nelse:\n    import xbridge.tree\n"
    found = floors.imported(ast.parse(code + types))
    assert found == {"xbridge._host", "xbridge._plan.casts", "xbridge.tree"}
    assert floors.imported(ast.parse("f('xbridge.tree', 'tree')"), by_name=True) == {"xbridge.tree"}
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def test_the_picture_has_a_floor_for_every_package() -> None:
    assert [sorted(floor) for floor in FLOORS] == floors.floors()


def test_of_the_plan_only_the_options_ask_the_registry() -> None:
    asking = [module for module, others in floors.imports().items() if "xbridge._registry.registry" in others]
    assert [one for one in asking if floors.package_of(one) == "_plan"] == ["xbridge._plan.options"]


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


NAMED: dict[str, set[str]] = {
    "_api.py": {"cupy", "dask", "jax", "torch"},  # `to_jax` and the others
    "_derive": {"numpy", "torch"},  # the functions of NumPy, and programs of torch's compiler
    "_host": {"numpy", "ml_dtypes"},
    "_host/exporters": {*exporters.INDEX},  # one adapter for each
    "_cli/formats": {"numpy", "torch"},  # the readers and writers of their files
    "_cli/info.py": {"jax", "torch"},  # asks them for their accelerators
    "_cli/matrix.py": {"numpy"},
    "_registry/defaults.py": {"numpy"},  # the backend that does what another one leaves out
    "_registry/loading.py": {"cupy", "dask", "jax", "numpy"},  # what `np` and `jnp` stand for
    "tree/verbs.py": {"cupy", "dask", "jax", "torch"},  # as `_api.py`
    "tree/containers.py": {"jax", "torch"},  # finds their classes in `sys.modules`
}
"""The libraries that code may name, by file or folder. Backends and the test kit may name any library."""
CORE = [path for path in FILES if floors.package_of(MODULES[path]) not in ("backends", "testing")]


def entry_for(path: Path) -> str:
    """The longest entry of `NAMED` that a file is in; "" if there is none."""
    return max((name for name in NAMED if short(path).startswith(name)), key=len, default="")


def libraries_for(path: Path) -> set[str]:
    return NAMED.get(entry_for(path), set())


@pytest.mark.parametrize("path", CORE, ids=short)
def test_the_core_names_no_library(path: Path) -> None:
    named = names_a_library(ast.parse(path.read_text(encoding="utf-8")))
    assert set(named) <= libraries_for(path)


@pytest.mark.parametrize("name", NAMED)
def test_code_that_may_name_a_library_does(name: str) -> None:
    files = [path for path in CORE if entry_for(path) == name]
    named = [word for path in files for word in names_a_library(ast.parse(path.read_text(encoding="utf-8")))]
    assert set(named) == NAMED[name]


def test_the_containers_of_trees_import_no_array_library() -> None:
    tree = ast.parse((ROOT / "tree" / "containers.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert names_a_library(node) == []


def test_the_check_for_names_can_fail() -> None:
    for line in ("import torch", "from numpy import array", 'name = "cupy"', "torch.ones(2)"):
        assert names_a_library(ast.parse(line))


def public_functions(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


@pytest.mark.parametrize("path", BACKENDS, ids=short)
def test_every_backend_writes_its_verbs_in_the_order_of_the_protocol(path: Path) -> None:
    names = [word for word in vars(protocol.Backend) if not word.startswith("_")]
    functions = public_functions(path)
    assert [word for word in functions if word not in names] == []
    assert functions == sorted(functions, key=names.index)


def test_the_protocol_lists_every_name_in_one_group() -> None:
    names = [word for word in vars(protocol.Backend) if not word.startswith("_")]
    lists = [*protocol.CONSTANTS, *protocol.DERIVED, *protocol.VERBS, *protocol.OPTIONAL]
    assert sorted(lists) == sorted(names)
    assert set(protocol.REQUIRED) <= {*protocol.CONSTANTS, *protocol.VERBS}
    assert {word for group in protocol.REQUIRED_TOGETHER for word in group} <= {
        *protocol.VERBS,
        *protocol.OPTIONAL,
    }


def parameters(verb: str) -> list[str]:
    """The names of the parameters of a verb; an optional one has them in its docstring."""
    member = vars(protocol.Backend)[verb]
    if not isinstance(member, property):
        return list(inspect.signature(member).parameters)[1:]
    found = re.match(rf"`{verb}\((.*?)\)`: ", member.__doc__ or "")
    assert found, f"the docstring of {verb} does not begin with a call of it"
    return [word for word in found[1].split(", ") if word]


@pytest.mark.parametrize("name", [name for name in INDEX if xbridge.is_available(name)])
def test_every_verb_of_a_backend_has_the_parameters_of_the_protocol(name: str) -> None:
    backend = get(name)
    for verb in (*protocol.VERBS, *protocol.OPTIONAL):
        function = getattr(backend, verb)
        if function is not None:
            own = list(inspect.signature(function).parameters)
            assert own == parameters(verb), verb


@pytest.mark.parametrize("path", BACKENDS, ids=short)
def test_a_backend_imports_its_library_plainly_at_its_top(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    assert short(path).removeprefix("backends/").partition("/")[0].removesuffix(".py") in plain


def test_every_backend_of_the_index_has_its_module() -> None:
    assert len(BACKENDS) == len(INDEX)


CORE_BUT_COMMANDS = [path for path in CORE if floors.package_of(MODULES[path]) != "_cli"]
CORE_BUT_COMMANDS.remove(ROOT / "_registry" / "defaults.py")  # which asks NumPy's backend


@pytest.mark.parametrize("path", CORE_BUT_COMMANDS, ids=short)
def test_only_the_registry_reaches_a_backend_and_only_by_a_string(path: Path) -> None:
    others = {other.removeprefix("xbridge.backends.") for other in floors.imports()[MODULES[path]]}
    assert [other for other in others if other.partition(".")[0] in INDEX] == []


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
