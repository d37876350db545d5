"""A compiled program does not depend on the tables of repeated calls and of types."""

from __future__ import annotations

import re
from collections import UserList
from functools import partial, wraps
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from toylib import Toy, make_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Any], Any]

torch = pytest.importorskip("torch")

NUMBER = count()

untyped: Any = xbridge  # for calls that a type checker refuses
aligned: Any = xbridge.aligned
by_torch: Any = aligned(backend="torch")(lambda y: y * 2)
by_numpy: Any = aligned(backend="numpy", signature="()->()")(lambda y: y * 2)

CALLS: dict[str, Call] = {
    "to_backend": lambda x: xbridge.to_backend(x, "torch") * 2,
    "to_backend dtype": lambda x: xbridge.to_backend(x, "torch", dtype="float32") * 2,
    "to_backend module": lambda x: xbridge.to_backend(x, torch, copy=True) * 2,
    "to_torch": lambda x: xbridge.to_torch(x, dtype="float32") * 2,
    "partial": lambda x: partial(xbridge.to_backend, backend="torch")(x, dtype="float32") * 2,
    "asarray alone": lambda x: xbridge.asarray(x) * 2,
    "asarray": lambda x: xbridge.asarray(x, dtype="float32") * 2,
    "asarray like": lambda x: xbridge.asarray(x, like=x, copy=True) * 2,
    "asarray of a list": lambda x: xbridge.asarray([x, x + 1]) * 2,
    "align": lambda x: xbridge.align(x, x + 1, 2.5, dtype="float32")[1] * 2,
    "align lists": lambda x: xbridge.align(x, [x, x + 1], dtype={"float64": "float32"})[1] * 2,
    "align_back": lambda x: xbridge.align_back(x, x + 1)[1](x * 2, dtype=True),
    "tree.to_backend": lambda x: tree.to_backend({"x": x}, "torch", dtype="float32")["x"] * 2,
    "tree.align": lambda x: tree.align([x], (x, 1), like=x)[1][0] * 2,
    "tree.map": lambda x: tree.map(lambda y: y * 2, [x, {"x": x}])[0],
    "aligned": lambda x: by_torch(x) * 2,
    "aligned of numpy": lambda x: by_numpy(x) * 2,
    "backend_of": lambda x: x * len(xbridge.backend_of(x)),
    "dtype_of": lambda x: x * len(xbridge.dtype_of(x)),
    "device_of": lambda x: x * len(xbridge.device_of(x)),
    "array_namespace": lambda x: xbridge.array_namespace(x).sin(x),
}


@wraps(xbridge.to_backend)
def doubled(*args: Any, **options: Any) -> Any:
    return xbridge.to_backend(*args, **options) * 2


@wraps(by_torch)
def doubled_by_torch(x: Any) -> Any:
    return by_torch(x) * 2


CALLS["wrapper"] = lambda x: doubled(x, "torch", dtype="float32")
CALLS["wrapper of aligned"] = doubled_by_torch


def call_elsewhere() -> None:
    """Make calls for the first time, of functions and types that nothing else uses."""
    n = next(NUMBER)
    tensors, arrays = type(f"Tensor{n}", (torch.Tensor,), {}), type(f"Array{n}", (np.ndarray,), {})
    x = torch.ones(2).as_subclass(tensors)
    xbridge.to_numpy(x)
    assert xbridge.backend_of(np.ones(2).view(arrays)) == "numpy"
    for dtype in ("float16", "int32", "float64")[n % 3 :]:
        for copy in (None, True):
            xbridge.to_backend(np.ones(2), "torch", dtype=dtype, copy=copy)
            xbridge.to_backend(torch.ones(2), "torch", dtype=dtype, copy=copy)
    xbridge.align(*[np.ones(1)] * (n + 1), backend="torch")
    xbridge.asarray([1.5] * n, backend="torch")
    for scalar in [np.float16, np.int32, np.uint8, np.bool_, np.int64, np.float32, np.int8, np.float64][
        n % 8 :
    ]:
        xbridge.to_backend(scalar(1), "torch")
    tree.to_numpy(type(f"Items{n}", (UserList,), {})([torch.ones(1)]))
    for fn in (by_torch, by_numpy):
        fn(x)
        fn(y=np.ones(n + 1))


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_entry_points__compiled_program_is_not_compiled_again(call: Call, own_registry: None) -> None:
    """First calls elsewhere leave a compiled program as it is; another backend leaves its results."""
    x = torch.arange(3.0)
    expected = call(x)
    call_elsewhere()
    torch.compiler.reset()
    compiled = torch.compile(call, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(x), expected)
        call_elsewhere()
        assert torch.equal(compiled(x), expected)
    xbridge.register_backend("toylib", make_backend())
    assert isinstance(xbridge.to_backend(np.ones(1), "toylib"), Toy)
    assert torch.equal(compiled(x), expected)
    with xbridge.record(), xbridge.policy(copies="warn"):
        assert torch.equal(compiled(x), expected)


MISTAKES: dict[str, Call] = {
    "the arguments are not those of to_torch": lambda x: untyped.to_torch(x, "cuda"),
    "the arguments are not those of to_backend": lambda x: untyped.to_backend(x, "torch", dtyp="float32"),
    "try asarray(x, backend='torch') for one array": lambda x: xbridge.to_torch([x, x]),
}
"""What the error of a compiled program says -> the mistaken call in the program."""


@pytest.mark.parametrize("words", MISTAKES)
def test_entry_points__compiled_mistake_is_named(words: str) -> None:
    """The compiler reports what the call raised and not an internal line that it cannot trace."""
    torch.compiler.reset()
    compiled = torch.compile(MISTAKES[words], backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        compiled(torch.ones(2))
    assert re.search(rf"raised exception \w+\(.*{re.escape(words)}", str(caught.value))


def test_entry_points__compiled_code_catches_errors() -> None:
    """Compiled code can catch an error of xbridge and go on in one graph."""

    def call(x: Any) -> Any:
        try:
            return xbridge.to_torch(x, dtype="flaot32")
        except xbridge.DTypeError:
            pass
        try:
            return untyped.to_torch(x, "cuda")
        except xbridge.CallError:
            return x + 1

    torch.compiler.reset()
    assert torch.compile(call, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [2, 2]
