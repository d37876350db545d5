"""Names of torch and JAX that are not public stand in one module of each backend, and exist."""

from __future__ import annotations

import ast
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

import xbridge

BACKENDS = Path(xbridge.__file__).parent / "backends"
MODULES = ("torch", "jax")
PRIVATE = re.compile(r"(?<![.\w])(torch|jax|jaxlib)(\.\w+)*\._(?!_)\w+|\bfrom (torch|jax|jaxlib)\S*\._\w+")
MOST = 30


def names(library: str) -> dict[str, str]:
    """The names that the module of a library defines, and the expressions that they stand for."""
    tree = ast.parse((BACKENDS / library / "_private.py").read_text("utf-8"))
    return {
        node.targets[0].id: ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@pytest.mark.parametrize(("library", "name"), [(each, name) for each in MODULES for name in names(each)])
def test_private_names__exist(library: str, name: str) -> None:
    """The installed version has each name."""
    pytest.importorskip(library)
    module = import_module(f"xbridge.backends.{library}._private")
    found = getattr(module, name)
    written = names(library)[name]
    if re.fullmatch(r"torch(\.\w+)+", written):
        assert found is reduce(getattr, written.split(".")[1:], import_module("torch"))


def test_private_names__attributes_that_change_exist() -> None:
    """The installed torch has the attributes that are read in each call."""
    pytest.importorskip("torch")
    module = import_module("xbridge.backends.torch._private")
    assert module.dispatch_modes._is_in_torch_dispatch_mode is False
    assert module.dual_levels._current_level < 0


def test_private_names__are_few() -> None:
    """Both backends together use few private names."""
    assert sum(len(names(each)) for each in MODULES) <= MOST


@pytest.mark.parametrize(
    "path", [path for each in MODULES for path in sorted((BACKENDS / each).glob("*.py"))], ids=str
)
def test_private_names__stand_in_one_module(path: Path) -> None:
    """No other module of a backend names a private module or function of its library."""
    text = path.read_text("utf-8")
    assert path.name == "_private.py" or [found[0] for found in PRIVATE.finditer(text)] == []


def test_private_names__check_finds_violations() -> None:
    """The check finds calls and imports of private names."""
    for line in (
        "torch._C.f(x)",
        "torch.utils._pytree",
        "from torch._C import f",
        "from jax._src.lib import a",
    ):
        assert PRIVATE.search(line)
