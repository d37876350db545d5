"""Arrays as source code: plain values, and the properties that are put around them one by one.

A failure is worth a report if another person can run it. So the kit describes an array by an expression of
its own library. A property, such as negative strides or a pending conjugate, encodes the values and wraps the
expression around them. So one can be removed. An array is made by evaluating the wrappings around a dense one
of the same bits, and a program is run before it is printed.
"""

from __future__ import annotations

import ast
import cmath
import sys
from functools import cache, lru_cache
from inspect import getclosurevars, getsource
from textwrap import dedent
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge.extend import CPU, DTYPES, HOST, get_backend, native_dtype
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from xbridge import Device
    from xbridge.protocol import Array, Backend, HostArray

READONLY = "numpy_readonly"


class Wrap(NamedTuple):
    """A property: how it changes the values that are written down, and the expression around them."""

    expression: str
    """A template with `{}` for the inner expression, `{shape}`, `{length}`, and `{code}` for its dtype."""
    encode: Callable[[HostArray], HostArray] = lambda values: values
    takes: Callable[[HostArray], bool] = lambda _values: True


def _is_long(values: HostArray) -> bool:
    return values.ndim > 0 and values.shape[-1] > 1


def _is_folded(values: HostArray) -> bool:
    return values.ndim > 0 and len(values) > 1 and values.tobytes() == values[:1].tobytes() * len(values)


_TRANSPOSED = Wrap("{}.mT", lambda v: v.swapaxes(-1, -2), lambda v: v.ndim > 1 and min(v.shape[-2:]) > 1)
_BATCH = Wrap("{}.swapaxes(0, 1)", lambda v: v.swapaxes(0, 1), lambda v: v.ndim > 2 and min(v.shape[:2]) > 1)
_COLUMN = _TRANSPOSED._replace(takes=lambda v: v.ndim > 1 and v.shape[-1] == 1 < v.shape[-2])
"""The last axis has one element, and a long stride, which code that looks for the shortest one reads by."""

_REVERSED = Wrap("{}[..., ::-1]", lambda v: v[..., ::-1], _is_long)
_STRIDED = Wrap("{}[..., ::2]", lambda v: np.repeat(v, 2, -1), _is_long)
_OFFSET = Wrap("{}[1:]", lambda v: np.concatenate([v[:1], v]), lambda v: v.ndim > 0 and len(v) > 0)
_UNALIGNED = "np.frombuffer(bytearray(b'-' + {}.tobytes()), '{code}', offset=1).reshape({shape})"

AROUND = "other numbers around"
_SURROUNDED = "np.pad({}.ravel(), 64, constant_values=77)[64:-64].reshape({shape})"
"""The memory before and after the array is known, so that a read outside of it is no accident."""

_WRAPS: dict[str, dict[str, Wrap]] = {
    "numpy": {
        AROUND: Wrap(_SURROUNDED, takes=lambda v: v.dtype.kind in "iufc" and v.size > 0),
        "transposed": _TRANSPOSED,
        "transposed batch": _BATCH,
        "transposed column": _COLUMN,
        "reversed": _REVERSED,
        "strided": _STRIDED,
        "broadcast": Wrap("np.broadcast_to({}, {shape})", lambda v: v[:1], _is_folded),
        "read-only": Wrap("np.broadcast_to({}, {shape})"),
        "byte-swapped": Wrap(
            "{}.astype('>{code}')", takes=lambda v: v.itemsize > 1 and v.dtype.kind in "iufc"
        ),
        "unaligned": Wrap(
            _UNALIGNED, takes=lambda v: v.itemsize > 1 and v.dtype.kind in "iufc" and v.size > 0
        ),
    },
    "torch": {
        "transposed": _TRANSPOSED,
        "transposed batch": _BATCH,
        "strided": _STRIDED,
        "offset": _OFFSET,
        "expanded": Wrap("{}.expand({shape})", lambda v: v[:1], _is_folded),
        "neg": Wrap("torch._neg_view({})", np.negative, lambda v: v.dtype.kind in "fc"),
        "conj": Wrap("{}.conj()", np.conj, lambda v: v.dtype.kind == "c"),
        "requires_grad": Wrap("{}.requires_grad_()", takes=lambda v: v.dtype.kind in "fc"),
        "inference": Wrap("torch.inference_mode()(lambda: {})()"),
    },
    "array_api_strict": {"transposed": _TRANSPOSED, "reversed": _REVERSED, "strided": _STRIDED},
    "cupy": {"transposed": _TRANSPOSED, "reversed": _REVERSED, "strided": _STRIDED},
    "dask": {
        "several chunks": Wrap("{}.rechunk(2)", takes=_is_long),
        "unknown chunks": Wrap("{}[da.ones({length}, dtype=bool)]", takes=lambda v: v.ndim > 0),
    },
}
_WRAPS[READONLY] = {
    name: wrap for name, wrap in _WRAPS["numpy"].items() if name not in ("read-only", "byte-swapped")
}

ON_REQUEST = ("requires_grad", "inference", "unknown chunks")
"""Properties that restrict what the library itself can do."""

_IMPORTS = {
    "numpy": ("np", "import numpy as np"),
    "torch": ("torch", "import torch"),
    "jax": ("jnp", "import jax.numpy as jnp"),
    "cupy": ("cupy", "import cupy"),
    "dask": ("np", "import numpy as np"),
    "array_api_strict": ("xp", "import array_api_strict as xp"),
    READONLY: ("np", "import numpy as np"),
}
_DEFAULTS = {
    "torch": ("float32", "int64", "bool", "complex64"),
    **dict.fromkeys(("jax", "array_api_strict"), ("bool",)),  # that depends on settings, and on the device
}
_USUAL = ("float64", "int64", "bool", "complex128")
"""The dtypes that arrays of Python's numbers have if none is given."""


_READ = {
    "numpy": "{}",
    READONLY: "{}",
    "torch": "{}.numpy(force=True)",
    "array_api_strict": "np.from_dlpack({}.to_device(xp.Device('CPU_DEVICE')))",
    "cupy": "{}.get()",
}


class Recipe(NamedTuple):
    """An array: its library, values and device, and its properties from the inside to the outside."""

    backend: str
    values: HostArray
    """The values: a dense array in native byte order."""
    device: Device = CPU
    properties: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return _name_of(self.values.dtype)

    def _wrapped(self) -> tuple[HostArray, str]:
        """Return the values that are written down, and the expression around them, which has `{}` there."""
        values, code = self.values, "{}"
        for wrap in reversed([_WRAPS[self.backend][name] for name in self.properties]):
            shape = values.shape
            names = {"shape": shape, "length": [*shape, 0][0], "code": values.dtype.str[1:]}
            code = code.replace("{}", wrap.expression.format("{}", **names))
            values = wrap.encode(values)
        return values, code

    def expression(self) -> str:
        """Return source code that makes the array, with the names of `imports`."""
        values, around = self._wrapped()
        code = around.replace("{}", _dense(self.backend, values, self.device))
        if self.backend == READONLY:
            return _WRAPS["numpy"]["read-only"].expression.format(code, shape=self.values.shape)
        return code

    def imports(self) -> list[str]:
        """Return the import statements that the expression needs."""
        more = ["import dask.array as da"] if self.backend == "dask" else []
        if self.device.kind == "emu":
            more += ["from xbridge.testing import emulated", "emulated.install()"]
        if (facts := DTYPES.get(self.dtype)) and facts.is_extended:
            more.append("import ml_dtypes")
        return [_IMPORTS[self.backend][1], *more]

    def make(self) -> Array:
        """Make the array."""
        values, around = self._wrapped()
        host = np.array(values, order="C")
        if self.backend == READONLY:
            made = _evaluate(around, host, _IMPORTS[HOST][1]) if self.properties else host
            return get_backend(READONLY).from_numpy(made)
        backend = get_backend(self.backend)
        dense = backend.from_numpy(host)
        if self.device != CPU:
            dense = backend.to_device(dense, self.device)
        return _evaluate(around, dense, "\n".join(self.imports())) if self.properties else dense

    def with_values(self, values: HostArray) -> Recipe:
        """Return the recipe of other values, with those properties that they can have."""
        fit = tuple(name for name in self.properties if self._replace(values=values).takes(name))
        return self._replace(values=values, properties=fit)

    def without(self, name: str) -> Recipe:
        """Return the recipe without one property."""
        return self._replace(properties=tuple(word for word in self.properties if word != name))

    def takes(self, name: str) -> bool:
        """Return True if the array can have a further property."""
        wrap = _WRAPS.get(self.backend, {}).get(name)
        return wrap is not None and wrap.takes(self.values)


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, for which NumPy runs much Python."""
    return dtype.name


def _evaluate(around: str, dense: Array, imports: str) -> Array:
    """Evaluate an expression around a dense array."""
    return eval(_compiled(around), {**_modules(imports), "dense": dense})  # noqa: S307 -- our own source


@lru_cache
def _compiled(around: str) -> CodeType:
    """Compile an expression once: most calls are repeated with the same arrays."""
    return compile(around.format("dense"), "<array>", "eval")


@cache
def _modules(imports: str) -> dict[str, Any]:
    """Return the names that import statements define."""
    names: dict[str, Any] = {}
    exec(imports, names)  # noqa: S102 -- our own source
    return names


def properties_of(backend: str) -> list[str]:
    """Return the names of the properties that arrays of a backend can have."""
    return list(_WRAPS.get(backend, {}))


def recipe_of(x: Array, backend: Backend) -> Recipe:
    """Describe a given array. Properties that the kit has no words for are left out."""
    info, values = backend.array_info(x), samples_of(backend.name).read(x)
    device = CPU if info.device == backend.devices()[0] else info.device
    return Recipe(backend.name, values, device, tuple(_properties(x, backend, values)))


def _properties(x: Array, backend: Backend, values: HostArray) -> Iterator[str]:
    """Yield the properties of an array, those of its memory first."""
    layout = backend.memory_layout(x)
    axes = [(s, n) for s, n in zip(layout.strides, layout.shape, strict=True) if n > 1]
    steps = [abs(s) for s, _ in axes]
    flags = {
        "broadcast": 0 in steps,
        "expanded": 0 in steps,
        "unaligned": not layout.aligned,
        "strided": bool(steps) and min(steps) > layout.itemsize,
        "offset": bool(getattr(x, "storage_offset", int)()),
        "transposed": steps != sorted(steps, reverse=True) and 0 not in steps,
        "reversed": any(s < 0 for s, _ in axes),
        "several chunks": getattr(x, "npartitions", 1) > 1,
        "unknown chunks": any(n != n for n in getattr(x, "shape", ())),  # noqa: PLR0124 -- a NaN
        "neg": getattr(x, "is_neg", bool)(),
        "conj": getattr(x, "is_conj", bool)(),
        "byte-swapped": not backend.array_info(x).native_byteorder,
        "read-only": backend.name == HOST and not layout.writable and 0 not in layout.strides,
        "inference": getattr(x, "is_inference", bool)(),
        "requires_grad": getattr(x, "requires_grad", False) is True,
    }
    known = _WRAPS.get(backend.name, {})
    for name, is_so in flags.items():
        if is_so and name in known and known[name].takes(values):
            yield name


def _dense(backend: str, values: HostArray, device: Device) -> str:
    """Return an expression for an array with these values in the simplest layout."""
    module, _ = _IMPORTS[backend]
    dtype = values.dtype.name
    numbers = values if values.dtype.kind in "biufc" else values.astype(np.float64)
    if 0 in values.shape:
        code, call = str(values.shape), "empty"
    else:
        code = literal(numbers, module)
        call = {"torch": "tensor", "array_api_strict": "asarray"}.get(backend, "array")
    is_usual = dtype in _DEFAULTS.get(backend, _USUAL) and call != "empty"
    word = f"{module}.{dtype}" if backend in ("torch", "array_api_strict") else repr(dtype)
    options = [] if is_usual else [f"dtype={word}"]
    if device != CPU:
        there = f"xp.Device({str(device)!r})" if backend == "array_api_strict" else repr(str(device))
        options.append(f"device={there}")
    made = f"{module}.{call}({', '.join([code, *options])})"
    return f"da.from_array({made}, chunks=-1)" if backend == "dask" else made


def read_expression(backend: str, name: str) -> str:
    """Return source code that reads an array of a library as NumPy's."""
    return _READ.get(backend, "np.asarray({})").format(name)


def literal(values: HostArray, module: str = "np") -> str:
    """Return source code of numbers, with those of a module for NaN and infinity."""
    numbers: Any = values.tolist()
    is_plain = values.dtype.kind in "biu" or (values.dtype.kind == "f" and np.isfinite(values).all())
    return str(numbers) if is_plain else _written(numbers, module)


def _written(x: Any, module: str) -> str:
    if isinstance(x, list):
        return f"[{', '.join(_written(part, module) for part in x)}]"
    text = str(x)
    if isinstance(x, complex) and (text[0] == "-" or "-0" in text or not cmath.isfinite(x)):
        return f"complex({text.strip('()')!r})"  # an expression would lose the signs of zeros
    is_finite = isinstance(x, int | complex) or cmath.isfinite(x)
    return repr(x) if is_finite else f"{'-' * (text[0] == '-')}{module}.{abs(x)}"


def is_described(backend: str) -> bool:
    """Return True if the kit has source code for the arrays of a backend."""
    return backend in _IMPORTS


def host_copy(values: HostArray) -> HostArray:
    """Return a new array of the same values, in native byte order."""
    return np.array(values, native_dtype(values.dtype.name))


def definition_of(f: Callable[..., Any]) -> list[str]:
    """Return statements that define a function by modules, functions and numbers alone; else none.

    A test of a contract is such a function, whose name means the test and not the function in it. A lambda
    gets the name `f`.
    """
    if not isinstance(f, FunctionType):
        return []
    try:
        variables = getclosurevars(f)
    except ValueError:  # a variable of an outer function has no value yet
        return []
    lines = []
    for name, x in {**variables.globals, **variables.nonlocals}.items():
        found = (x.__name__, "") if isinstance(x, ModuleType) else find_function(x) if callable(x) else None
        if found is not None:
            module, word = found
            whole = f"from {module} import {word}" if word else f"import {module}"
            lines.append(whole if (word or module) == name else f"{whole} as {name}")
        elif type(x) in (bool, int, float, str, type(None)):
            lines.append(f"{name} = {x!r}")
        else:
            return []
    node = _node_of(f)
    if node is None or any(isinstance(one, ast.Nonlocal) for one in ast.walk(node)):
        return []
    if isinstance(node, ast.FunctionDef):
        node.decorator_list, node.returns = [], None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        return [*lines, ast.unparse(node)]
    return [*lines, f"f = {ast.unparse(node)}"]


def _node_of(f: FunctionType) -> ast.FunctionDef | ast.Lambda | None:
    """Return the definition of a function, or the only lambda in its lines that can be it."""
    try:
        tree = ast.parse(dedent(getsource(f)))
    except (OSError, SyntaxError, ValueError):
        return None
    if isinstance(tree.body[0], ast.FunctionDef) and tree.body[0].name == f.__name__:
        return tree.body[0]
    found = {ast.unparse(node): node for node in ast.walk(tree) if isinstance(node, ast.Lambda)}
    if len(found) > 1:
        found = {text: node for text, node in found.items() if _words(compile(text, "", "eval")) == _words(f)}
    return next(iter(found.values())) if len(found) == 1 else None


def _words(f: FunctionType | CodeType) -> tuple[object, ...]:
    """Return the constants and names of a lambda, or of the only one in a code."""
    code = f.__code__ if isinstance(f, FunctionType) else f.co_consts[0]
    return code.co_consts, code.co_varnames, {*code.co_names, *code.co_freevars}


def find_function(f: Callable[..., Any]) -> tuple[str, str] | None:
    """Return the shortest module and the name by which a function can be imported; None if it cannot be."""
    name, module = getattr(f, "__name__", ""), getattr(f, "__module__", None) or ""
    path = module.split(".")
    places = [".".join(path[: n + 1]) for n in range(len(path))] if module else list(_IMPORTS)
    for place in places:
        if getattr(sys.modules.get(place), name, None) is f and place != "__main__":
            return place, name
    return None
