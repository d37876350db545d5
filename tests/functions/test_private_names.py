"""Names of torch that are not public stand in one module of functions, and exist."""

from __future__ import annotations

import ast
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

import xbridge

pytest.importorskip("torch")

FOLDER = Path(xbridge.__file__).parent / "functions" / "torch"
PRIVATE = re.compile(
    r"(?<![.\w])torch(?!\.ops\.)(\.\w+)*\._(?!_)\w+|\bfrom torch\S*\._\w+|\bfrom torch\S* import _\w+"
)
MOST = 15


def names() -> dict[str, str]:
    """The names that the module defines, and the expressions that they stand for."""
    return {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in ast.parse((FOLDER / "private.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) != "shared_flags"
    }


@pytest.mark.parametrize("name", names())
def test_private_names__exist(name: str) -> None:
    """The installed version has each name."""
    found = getattr(import_module("xbridge.functions.torch.private"), name)
    written = names()[name]
    if re.fullmatch(r"torch(\.\w+)+", written):
        assert found is reduce(getattr, written.split(".")[1:], import_module("torch"))


def test_private_names__attributes_that_change_exist() -> None:
    """The installed torch has the attributes that are read in each call."""
    module = import_module("xbridge.functions.torch.private")
    assert module.dispatch_modes._is_in_torch_dispatch_mode is False
    assert module.dual_levels._current_level < 0


def test_private_names__are_few() -> None:
    """Functions use few private names of torch."""
    assert len(names()) <= MOST


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_private_names__stand_in_one_module(path: Path) -> None:
    """No other module names a private module or function of torch."""
    found = [found[0] for found in PRIVATE.finditer(path.read_text("utf-8"))]
    assert bool(found) is (path.name == "private.py"), found


def test_private_names__of_jax_exist_and_are_few() -> None:
    """The installed JAX has each name, which stand in one module."""
    pytest.importorskip("jax")
    private = import_module("xbridge.functions.jax.private")
    assert all(getattr(private, name) is not None for name in private.__all__)
    assert len(private.__all__) <= 10
