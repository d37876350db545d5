"""Names of torch and JAX that are not public stand in one module of each package, and exist."""

from __future__ import annotations

import ast
import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

import xbridge

ROOT = Path(xbridge.__file__).parent
MODULES = {
    "backends/torch/_private.py": 23,
    "backends/jax/_private.py": 7,
    "functions/torch/private.py": 15,
    "functions/jax/private.py": 10,
}
"""The modules, and the most names that they may have."""

LIBRARIES = r"(?<![.\w])(torch(?!\.ops\.)|jax|jaxlib)"
PRIVATE = re.compile(rf"{LIBRARIES}(\.\w+)*\._(?!_)\w+|\bfrom (torch|jax|jaxlib)\S*( import _(?!_)|\._)\w+")


def names(module: str) -> dict[str, str]:
    """The names that a module has for others, and the expressions that they stand for, if it assigns them."""
    body = ast.parse((ROOT / module).read_text("utf-8")).body
    found = {
        ast.unparse(node.targets[0]): ast.unparse(node.value) for node in body if isinstance(node, ast.Assign)
    }
    return found if "__all__" not in found else dict.fromkeys(ast.literal_eval(found["__all__"]), "")


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in MODULES for name in names(module)])
def test_private_names__exist(module: str, name: str) -> None:
    """The installed version has each name."""
    pytest.importorskip(module.split("/")[1])
    found = getattr(import_module(f"xbridge.{module.removesuffix('.py').replace('/', '.')}"), name)
    written = names(module)[name]
    if re.fullmatch(r"torch(\.\w+)+", written):
        assert found is reduce(getattr, written.split(".")[1:], import_module("torch"))


@pytest.mark.parametrize("module", ["xbridge.backends.torch._private", "xbridge.functions.torch.private"])
def test_private_names__attributes_that_change_exist(module: str) -> None:
    """The installed torch has the attributes that are read in each call."""
    pytest.importorskip("torch")
    private = import_module(module)
    assert private.dispatch_modes._is_in_torch_dispatch_mode is False
    assert private.dual_levels._current_level < 0


def test_private_names__attributes_of_objects_exist() -> None:
    """The installed torch has the attributes of tensors, modules and operations that functions read."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)
    assert [*module._modules, *module._parameters, *module._buffers] == ["weight", "bias"]
    assert isinstance(module.weight._version, int)
    assert module.weight.untyped_storage()._cdata == module.weight.detach().untyped_storage()._cdata
    assert torch.ops.aten.add_.Tensor._schema.is_mutable


@pytest.mark.parametrize("module", MODULES)
def test_private_names__stand_in_one_module_and_are_few(module: str) -> None:
    """No other module of the package names a private module or function of a library."""
    assert len(names(module)) <= MODULES[module]
    for path in sorted((ROOT / module).parent.glob("*.py")):
        found = [found[0] for found in PRIVATE.finditer(path.read_text("utf-8"))]
        assert found == [] or path == ROOT / module, (path, found)


def test_private_names__check_finds_violations() -> None:
    """The check finds calls and imports of private names."""
    for line in ("torch._C.f(x)", "torch.utils._pytree", "from torch._C import f", "from torch import _VF"):
        assert PRIVATE.search(line)
