"""The backend of NumPy: arrays in host memory, which may be read-only, without devices and gradients."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import DTYPES, category, holds_every
from xbridge._core.protocol import ArrayInfo, Fast, Gap, Unsupported
from xbridge._host import memory as _host
from xbridge._host.memory import NATIVE, cast_silently, check_castable, layout_of, native_dtype
from xbridge.errors import DTypeError, OptionError, UnsupportedArrayError, type_of

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import HostArray, MemoryLayout

_MOST_AXES = 64

name = "numpy"
array_types: tuple[type, ...] = (np.ndarray,)
scalar_types: tuple[type, ...] = (np.generic,)
gaps: dict[str, Gap] = {
    "devices": Gap("never", "NumPy arrays are in host memory"),
    "autograd": Gap("never", "NumPy does not differentiate"),
}
samples = "xbridge.testing.samples.numpy"

_NAMES = {np.dtype(word).num: word for word in DTYPES if hasattr(np, word)}
_FIRST_FOREIGN_NUM = 256
"""The least `dtype.num` of dtypes that other packages, such as ml_dtypes, have registered with NumPy."""
_ABSTRACT = (
    *(np.generic, np.flexible, np.character, np.number, np.integer, np.signedinteger),
    *(np.unsignedinteger, np.inexact, np.floating, np.complexfloating),
)
"""Scalar classes that stand for no single dtype, though an older NumPy converts some, with a warning."""
_PLAIN_CLASSES = (np.ndarray, np.memmap, np.matrix)
_DEFAULTS = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}
_NOTHING = np.dtype([("float0", np.void, 0)])
"""The dtype of JAX's gradients of integers, which have no values."""
_HINTS = {
    "M": "x.astype('int64')",
    "m": "x.astype('int64')",
    "V": "x.view(dtype), with the dtype of the items",
}


def to_numpy(x: HostArray, /) -> HostArray:
    return x.view(np.ndarray)  # also of an array, whose flags and shape a backend may set


def from_numpy(host: HostArray, /) -> HostArray:
    return host


def array_info(x: HostArray, /) -> ArrayInfo:
    bare = _as_base_array(x)
    return ArrayInfo(_name(bare.dtype), CPU, bare.shape, native_byteorder=bare.dtype.isnative)


def dtype_of(x: HostArray, /) -> str:
    return _name(_as_base_array(x).dtype)


def device_of(x: HostArray, /) -> Device:
    return CPU


def unsupported(x: HostArray, /, *, leaving: bool) -> Unsupported | None:  # noqa: PLR0911 -- one for each reason
    # `numpy.ma` takes 13 ms to import. If nobody has imported it, no array has a mask.
    if isinstance(x, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        if np.asarray(vars(x).get("_mask", True)).tobytes().strip(b"\0"):  # of records too
            return Unsupported(UnsupportedArrayError, "its mask would be lost", "x.filled(value)")
        return Unsupported(UnsupportedArrayError, "its mask masks nothing, and would be lost", "x.data")
    if not leaving:
        return None
    if _as_base_array(x).dtype == _NOTHING:
        return Unsupported(DTypeError, f"{x.dtype} has no values", "numpy.zeros(x.shape)")
    if type(x) not in _PLAIN_CLASSES:
        reason = f"{type_of(x)} may mean more than its numbers"
        names = _as_base_array(x).dtype.names
        hint = f"x[{names[0]!r}]" if names else "x.view(numpy.ndarray)"
        return Unsupported(UnsupportedArrayError, reason, hint)
    kind = x.dtype.kind
    if kind in "biufc" or _name(x.dtype) in DTYPES:
        return None
    from xbridge._host.advice import hint_for_items  # noqa: PLC0415 -- only an error needs it

    hint = f"x[{x.dtype.names[0]!r}]" if x.dtype.names else _HINTS.get(kind) or hint_for_items(x)
    if x.dtype.type.__module__ == "ml_dtypes":
        hint = f"x.astype({'complex64' if category(x.dtype.name) == 'complex' else 'float32'!r})"
    if kind in "mM" and np.isnat(x).any():  # its integer is the lowest one
        hint = "x[~numpy.isnat(x)].astype('int64')"
    return Unsupported(DTypeError, f"{x.dtype} is not a numeric dtype", hint)


def memory_layout(x: HostArray, /) -> MemoryLayout:
    return layout_of(_as_base_array(x))


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    return True


def namespace(x: HostArray, /) -> ModuleType:
    from array_api_compat import numpy as compat  # noqa: PLC0415 -- 14 ms, and only this verb needs it

    return compat


def copy(x: HostArray, /) -> HostArray:
    return x.copy("K")


def as_c_order(x: HostArray, /) -> HostArray:
    return x if x.flags.c_contiguous else x.copy("C")


def stack(arrays: list[HostArray], shape: tuple[int, ...], /) -> HostArray:
    axes = len(shape) + arrays[0].ndim
    if axes > _MOST_AXES:
        raise OptionError.build(
            "make an array of this list",
            f"it would have {axes} axes, and NumPy has {_MOST_AXES} at most",
        )
    plain = [fast_to_numpy(x) for x in arrays]
    # `numpy.array` is faster, but makes arrays of no axes items of an array of objects.
    stacked = np.stack(plain) if plain[0].dtype.hasobject else np.array(plain)
    if not stacked.dtype.isnative:  # `numpy.array` keeps the byte order of a single array
        stacked = stacked.astype(stacked.dtype.newbyteorder("="))
    return stacked.reshape((*shape, *arrays[0].shape)) if len(shape) > 1 else stacked


def stack_many(xs: list[HostArray], /) -> HostArray | None:
    dtype = xs[0].dtype
    for x in xs:
        if x.dtype is not dtype and x.dtype != dtype:  # NumPy has one object for most dtypes
            return _stack_promoted(xs)
    try:
        if dtype in NATIVE:
            return np.array(xs)
        if dtype.name not in DTYPES:  # NumPy computes the name in Python
            return None
        row = np.array(xs)
    except ValueError:  # they differ in shape, or have the most axes
        return None
    return row if dtype.isnative else row.astype(dtype.newbyteorder("="))


def _stack_promoted(xs: list[HostArray]) -> HostArray | None:
    """Return the stack of arrays of several dtypes; None if a value may be lost."""
    common = _common_dtype(frozenset([x.dtype for x in xs]))
    try:
        return None if common is None else np.array(xs, common)
    except ValueError:  # as in `stack_many`
        return None


@lru_cache(256)
def _common_dtype(dtypes: frozenset[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the dtype that NumPy promotes others to, if it has every value of each; else None."""
    if not dtypes <= NATIVE:
        return None
    common = np.result_type(*dtypes)
    return common if all(holds_every(_name(dtype), _name(common)) for dtype in dtypes) else None


def dtype_name(dtype: object, /) -> str | None:
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        if dtype in _ABSTRACT:
            return None
        try:
            found = np.dtype(dtype)
        except TypeError:  # a subclass of one of them
            return None
        return _name(found) if found.type is dtype else None
    # An array's dtype may be in the other byte order, and results are in that of this machine.
    return _name(dtype.newbyteorder("=")) if isinstance(dtype, np.dtype) else None


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    try:
        found = native_dtype(dtype)
    except ImportError:
        reason = f"NumPy knows {dtype} through ml_dtypes, which is not installed"
        return Unsupported(DTypeError, reason, "pip install ml_dtypes")
    except TypeError:
        found = None
    if found is None or (
        dtype not in DTYPES and (found.num >= _FIRST_FOREIGN_NUM or found.kind not in "biufcmM")
    ):
        return Unsupported(DTypeError, f"NumPy has no {dtype}")
    return None


def default_dtype(category: str, device: Device, /) -> str:
    return _DEFAULTS[category]


def astype(x: HostArray, dtype: str, /) -> HostArray:
    if type(x) is np.ndarray:
        return cast_silently(x, native_dtype(dtype))
    native = native_dtype(dtype)
    with np.errstate(all="ignore"):
        return check_castable(x, native).astype(native)


def check_cast(x: HostArray, dtype: str, /) -> HostArray:
    return _host.check_cast(x, dtype)


def fast_to_numpy(x: HostArray, /) -> HostArray:
    return x if type(x) is np.ndarray else x.view(np.ndarray)


fast: Fast = Fast(
    types=_PLAIN_CLASSES,
    scalar_types=tuple(dtype.type for dtype in NATIVE),
    to_numpy=fast_to_numpy,
    from_numpy=from_numpy,
    stack_many=stack_many,
    plan_state=lambda: None,
)


def _as_base_array(x: HostArray) -> HostArray:
    """View the array as one of NumPy's own class, because attributes of a subclass may raise."""
    mine = type(x) not in _PLAIN_CLASSES and isinstance(x, np.ndarray)
    return np.ndarray.view(x, np.ndarray) if mine else x


def _name(dtype: np.dtype[Any]) -> str:
    """Return the canonical name of a dtype, or NumPy's own name if there is none."""
    if dtype.kind in "biufc":
        # A look-up by number is faster than `dtype.name`, which runs Python code of NumPy.
        if dtype.num in _NAMES:
            return _NAMES[dtype.num]
        return {"g": "longdouble", "G": "clongdouble"}.get(dtype.char, dtype.name)
    return dtype.name if dtype.type.__module__ == "ml_dtypes" else str(dtype)
