"""Read the declarations of backends from their source, so that their libraries need not be installed."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from xbridge._core.protocol import Gap
from xbridge.backends import INDEX

ACCELERATORS = {"torch": ("cuda", "mps", "xpu"), "jax": ("cuda", "tpu"), "cupy": ("cuda",)}
"""Kinds of device that a library can have, and that this machine lacks."""


class Declared(NamedTuple):
    """The declarations of a backend."""

    name: str
    gaps: dict[str, Gap]
    assumes_immutable: bool = False

    @property
    def readonly(self) -> bool:
        """True if its arrays can be read-only."""
        return "readonly" not in self.gaps

    @property
    def autograd(self) -> bool:
        """True if its arrays can require grad."""
        return "autograd" not in self.gaps

    @property
    def host_only(self) -> bool:
        """True if its arrays are in host memory only."""
        return "devices" in self.gaps

    @property
    def is_measured(self) -> bool:
        """True if its arrays can be in host memory, where everything can be measured."""
        return "host" not in self.gaps


def declarations() -> list[Declared]:
    """Return the declarations of each backend of the index."""
    return [_declared_in(str(entry.module)) for entry in INDEX.values()]


def _declared_in(module: str) -> Declared:
    spec = find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    found: dict[str, Any] = {}
    for line in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match line:
            case ast.Assign([ast.Name(word)], value) | ast.AnnAssign(ast.Name(word), _, ast.expr() as value):
                if word == "gaps":
                    found[word] = dict(_gaps_in(value))
                elif word in Declared._fields:
                    found[word] = ast.literal_eval(value)
    return Declared(**found)


def _gaps_in(value: ast.expr) -> Iterator[tuple[str, Gap]]:
    """Yield the entries of a dictionary of `Gap(status, reason)`."""
    assert isinstance(value, ast.Dict)
    for key, call in zip(value.keys, value.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(call, ast.Call)
        yield str(key.value), Gap(*map(ast.literal_eval, call.args))


def expected(source: Declared, target: Declared, *, guarded: bool) -> str:
    """Return the result that the contract gives two backends, for an array in one piece on one device."""
    if source.name == target.name:
        return "itself"
    if source.name == "dask":
        return "computed"
    if not _have_common_device(source, target) or (target.assumes_immutable and not source.assumes_immutable):
        return "copied"
    if not (guarded or source.assumes_immutable):
        return "shared"
    return "shared, read-only" if target.readonly else "copied"


def _have_common_device(source: Declared, target: Declared) -> bool:
    """Return True if a device can have arrays of both."""
    kinds = [
        {*ACCELERATORS.get(backend.name, ()), *(["cpu"] * backend.is_measured)}
        for backend in (source, target)
    ]
    return bool(kinds[0] & kinds[1])
