"""The conversions of autoray by xbridge, between NumPy, PyTorch, JAX, Dask and CuPy.

`convert` takes the place of `_convert_array` in `autoray.to`, for a source and a target of these libraries.
The others, such as TensorFlow, keep autoray's own code. `to_numpy` and `from_numpy` are registered by
autoray's own means.
"""

import sys
from functools import partial
from typing import Any

import autoray
from autoray import autoray as theirs

import xbridge

LIBRARIES = frozenset({"numpy", "torch", "jax", "dask", "cupy"})

original_to = autoray.to


def convert(x: Any, backend: str | None, dtype: str | None, device: Any) -> Any:
    """Convert one array. As in autoray, a dtype is for floating and complex arrays."""
    source = autoray.infer_backend(x)
    target = backend or source
    if not {source, target} <= LIBRARIES:
        return original_to(x, backend=backend, dtype=dtype, device=device)
    is_cast = dtype and theirs._dtype_is_inexact(dtype) and theirs._dtype_is_inexact(xbridge.dtype_of(x))
    return xbridge.to_backend(x, target, dtype=dtype if is_cast else "nearest", device=device)


def to(
    tree: Any, like: Any = None, *, backend: str | None = None, dtype: Any = None, device: Any = None
) -> Any:
    """Convert an array, or a tree of arrays, with the arguments of `autoray.to`."""
    if isinstance(like, str):
        named = theirs._parse_compound_backend_spec(like)
    elif like is not None:
        of_like = theirs.infer_backend_device_dtype(like, device=device, dtype=dtype)
        named = (of_like[0], of_like[2], of_like[1])
    else:
        named = (None, None, None)
    backend, dtype, device = backend or named[0], dtype or named[1], device or named[2]
    if dtype is not None and not isinstance(dtype, str):
        dtype = theirs._dtype_to_name_cached(dtype)
    done: dict[int, Any] = {}

    def leaf(x: Any) -> Any:
        if not autoray.is_array(x):
            return x
        if id(x) not in done:
            done[id(x)] = convert(x, backend, dtype, device)
        return done[id(x)]

    return autoray.tree_map(leaf, tree)


def from_numpy(library: str, x: Any, dtype: Any = None, device: Any = None) -> Any:
    """Convert an array, a list or a number. A dtype that the library lacks becomes the nearest one."""
    return xbridge.asarray(x, backend=library, dtype=dtype or "nearest", device=device)


def install() -> None:
    """Replace `autoray.to`, and register the conversions from and to NumPy."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == "autoray" and vars(module).get("to") is original_to:
            module.to = to
    for library in LIBRARIES - {"numpy"}:
        autoray.register_function(library, "to_numpy", xbridge.to_numpy)
        autoray.from_numpy.register(library)(partial(from_numpy, library))
