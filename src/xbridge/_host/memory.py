"""Copy, cast, check and compare host memory, and make it read-only: the steps of a plan on the host."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from contextvars import Context
from functools import partial, reduce
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np

from xbridge._core.dtypes import DTYPES, category, holds_integers
from xbridge._core.protocol import Array, HostArray, MemoryLayout
from xbridge.errors import DTypeError, MissingLibraryError, ValueLossError

_T = TypeVar("_T")

name = "numpy"
"""The library that a plan shows for these steps."""

ALIGNMENT = 64
"""The alignment in bytes of new memory that another library is to share, as JAX requires it."""

ALIGNED = 1 << 16
"""The size in bytes from which memory is aligned. Measured: below it, another copy costs less."""

WORKERS = min(4, os.cpu_count() or 1)

LARGE = 1 << (26 if WORKERS > 2 else 28)
"""The size in bytes from which a copy uses threads. Measured: below it, they cost more than they save."""

_WORK = 1000
"""The most candidate solutions that `np.shares_memory` tries before arrays are compared byte by byte."""

_COMPLEX = "W"
"""The code for the kind of the complex dtypes of ml_dtypes."""

_CODE = re.compile("[<>=|]?([biufc][0-9]{1,2}|[?bBhHiIlLqQpPefdgFDG])")


_NATIVE = {name: np.dtype(name) for name in DTYPES if hasattr(np, name)}

NATIVE = frozenset(_NATIVE.values())
"""NumPy's own dtypes of numbers, in native byte order."""


array_of_scalar = np.asarray
"""Return a new 0-d array of a scalar."""


def native_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype object of a canonical name, from ml_dtypes if necessary, or of a name of NumPy's."""
    if name in _NATIVE:
        return _NATIVE[name]
    if name in DTYPES:
        try:
            import ml_dtypes  # noqa: PLC0415 -- 100 ms, and only these dtypes need it
        except ImportError as error:
            reason = "NumPy knows it through ml_dtypes, which is not installed"
            raise MissingLibraryError.build(
                f"hold {name} in host memory", reason, "pip install ml_dtypes"
            ) from error
        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    return np.dtype(name)


def dtype_of_code(code: str) -> np.dtype[Any] | None:
    """Return the dtype of one of NumPy's codes for numbers, such as `<f4` or `d`; None for other strings."""
    try:
        return np.dtype(code) if _CODE.fullmatch(code) else None
    except TypeError:  # there is no such width
        return None


def with_named_bits(host: HostArray, dtype: str) -> HostArray:
    """Return raw items as a dtype of ml_dtypes, if they have its width: NumPy's files keep no more of it."""
    if type(host) is not np.ndarray or host.dtype.type is not np.void or host.dtype.names:
        return host
    named = DTYPES[dtype]
    return host.view(native_dtype(dtype)) if named.is_extended and host.itemsize == named.itemsize else host


def ones(dtype: np.dtype[Any]) -> HostArray:
    """Return an array for trials of a cast or an import, whose values every dtype has."""
    made = np.empty(2, dtype)
    made[:] = 1  # `numpy.ones` crashes for dtypes of ml_dtypes in NumPy 2.1
    return made


def copy(host: HostArray, order: Literal["C", "K"] = "K") -> HostArray:
    """Copy into fresh memory in one pass: dense, in native byte order and the same axis order.

    With order C, the copy is aligned so that a library can share it.
    """
    plain = type(host) is np.ndarray and host.nbytes < (LARGE if order == "K" else ALIGNED)
    if plain and (host.flags.forc or 0 not in host.strides):  # as `_cast_into_new`, without what a cast needs
        if host.dtype.isnative:
            return host.copy(order)
        if host.dtype.kind in "biufc":
            return host.astype(host.dtype.newbyteorder("="), order)
    return _cast_into_new(host, host.dtype.newbyteorder("="), order)


def as_c_order(host: HostArray) -> HostArray:
    return host if host.flags.c_contiguous else copy(host, "C")


def astype(host: HostArray, dtype: str, order: Literal["C", "K"] = "K") -> HostArray:
    """Cast into fresh memory in one pass, as NumPy does, without warnings about overflow."""
    native = native_dtype(dtype)
    if order == "K" and host.flags.forc and host.nbytes < LARGE:
        return cast_silently(host, native)  # as `_cast_into_new` does, with a defined order of axes
    return _cast_into_new(check_castable(host, native), native, order)


def _error_context(**treatments: Any) -> Context:
    """Return a context in which NumPy treats floating-point errors like `np.errstate` with these options."""
    context = Context()
    context.run(np.seterr, **treatments)
    return context


_SILENT = _error_context(all="ignore")
"""A context without warnings. To run a function in a copy of it is six times as fast as `np.errstate`."""

_RAISING = _error_context(all="ignore", over="raise")


def cast_silently(host: HostArray, dtype: np.dtype[Any], order: Literal["C", "K"] = "K") -> HostArray:
    """Cast as NumPy does, without warnings, to an array of NumPy's own class."""
    if host.dtype.kind in "biufc" and dtype.kind != "V":
        return _SILENT.copy().run(host.astype, dtype, order, "unsafe", False)  # noqa: FBT003 -- `subok`; a name costs time
    host = check_castable(host, dtype)
    return _call_silently(host, host.astype, dtype, order, "unsafe", False)  # noqa: FBT003 -- `subok`; a name costs time


def dense_copier(like: HostArray, dtype: Any = None) -> Callable[[HostArray], HostArray]:
    """Return what `copy` or `astype` does with arrays of the class and dtype of `like`."""
    if type(like) is not np.ndarray or not like.dtype.isnative:
        return copy if dtype is None else partial(astype, dtype=dtype)
    if dtype is None:
        return lambda host: host.copy("K") if host.flags.forc and host.nbytes < LARGE else copy(host)
    cast = caster(like.dtype, dtype)
    return lambda host: cast(host) if host.flags.forc and host.nbytes < LARGE else astype(host, dtype)


def caster(source: np.dtype[Any], dtype: Any) -> Callable[[HostArray], HostArray]:
    """Return a function that casts arrays of a dtype as `cast_silently` does."""
    native, copy = native_dtype(dtype), _SILENT.copy
    if source.names or source.hasobject or source.kind == _COMPLEX or _is_finite(native):
        return lambda host: cast_silently(host, native)
    if source.kind in "biu" and native.kind in "biufc" and native.char != "e":  # there is nothing to warn of
        return lambda host: host.astype(native, "K", "unsafe", False)  # noqa: FBT003 -- as in `cast_silently`
    return lambda host: copy().run(host.astype, native, "K", "unsafe", False)  # noqa: FBT003 -- as above


def check_castable(host: HostArray, dtype: np.dtype[Any]) -> HostArray:
    """Return an array that NumPy casts as a whole; raise if it would drop a part of the values in silence.

    NumPy takes the first number of a record, and the real part of a complex number that is an object, or that
    ml_dtypes casts to a truth value. ml_dtypes makes numbers of NaN and infinity where a dtype has neither.
    """
    if dtype.kind == "O":
        return host
    if _is_finite(dtype) and not np.isfinite(host.astype(complex) if host.dtype.hasobject else host).all():
        raise not_finite_error(host.dtype, dtype)
    if host.dtype.names:
        raise _uncastable_error(host, dtype, "its items are records", f"x[{host.dtype.names[0]!r}]")
    if host.dtype.kind == _COMPLEX and dtype.kind == "b":
        return host.astype(np.complex64)
    if host.dtype.hasobject and dtype.kind != "c":
        numbers = (item for item in host.flat if isinstance(item, np.generic))
        if any(number.dtype.kind in ("c", _COMPLEX) for number in numbers):
            reason = "an imaginary part would be lost"
            raise _uncastable_error(host, dtype, reason, "x.astype(complex).real")
    return host


def _is_finite(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "V" and dtype.name in DTYPES and DTYPES[dtype.name].is_finite


def not_finite_error(source: object, dtype: object) -> DTypeError:
    return DTypeError.build(f"cast {source} to {dtype}", f"{dtype} has neither NaN nor infinity")


def _uncastable_error(host: HostArray, dtype: np.dtype[Any], reason: str, hint: str = "") -> DTypeError:
    return DTypeError.build(f"cast a NumPy array of {host.dtype} to {dtype}", reason, hint)


def _call_silently(host: HostArray, fn: Callable[..., _T], *args: Any) -> _T:
    """Call a function that reads `host`, without warnings about its values."""
    if not host.dtype.hasobject:
        return _SILENT.copy().run(fn, *args)
    with np.errstate(all="ignore"):  # casts of objects run foreign code, which needs the caller's context
        return fn(*args)


def astype_checked(host: HostArray, dtype: str) -> HostArray:
    """Check and cast: in one pass if the processor reports that a value becomes infinite, else in two."""
    single = _SINGLES.get(host.dtype.char) == dtype
    if not single or host.nbytes >= LARGE:
        return astype(check_cast(host, dtype), dtype)
    try:
        order: Literal["C", "K"] = "C" if 0 in host.strides else "K"
        return _RAISING.copy().run(host.astype, _NATIVE[dtype], order, subok=False)
    except FloatingPointError as error:
        raise ValueLossError.narrowing(host.dtype.name, dtype) from error


def _reports_overflow() -> bool:
    """Return True if this machine reports that a cast makes a finite value infinite."""
    try:
        _RAISING.copy().run(np.full(9, 1e300).astype, _NATIVE["float32"])
    except FloatingPointError:
        return True
    return False


_SINGLES = {"d": "float32", "D": "complex64"} if _reports_overflow() else {}
"""The codes of dtypes from which, and the dtypes to which, a cast is checked while it runs."""


def _cast_into_new(host: HostArray, dtype: np.dtype[Any], order: Literal["C", "K"]) -> HostArray:
    """Cast `host` into new memory, in one pass: dense, in the same axis order.

    With order C, the result is in C order and aligned to be shared. The axis order of an array that repeats
    memory along an axis is not defined, so its result is in C order too.

    The first write to every page takes most of the time of a large copy. Threads share that work, because
    NumPy releases the interpreter lock while it copies. The threads end with the call, so a fork finds none.
    """
    is_shared = order == "C" and host.size * dtype.itemsize >= ALIGNED
    order = "C" if 0 in host.strides else order
    if host.nbytes < LARGE and not is_shared:
        return cast_silently(host, dtype, order)
    fresh = empty(host.shape, dtype) if is_shared else np.empty_like(host, dtype, order, subok=False)
    if host.nbytes < LARGE:
        fill(fresh, host)
        return fresh
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 -- 10 ms, and only this needs it

    # Cut along the axis with the largest stride, so that each thread writes to pages of its own.
    axis = max(range(fresh.ndim), key=lambda axis: fresh.strides[axis] * (fresh.shape[axis] > 1))
    cuts = [fresh.shape[axis] * turn // WORKERS for turn in range(WORKERS + 1)]
    parts = [(slice(None),) * axis + (slice(*cut),) for cut in pairwise(cuts)]
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(fill, [fresh[part] for part in parts], [host[part] for part in parts]))
    except RuntimeError:  # an interpreter that shuts down starts no threads
        fill(fresh, host)
    return fresh


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    """Allocate memory in C order. Large memory is aligned to be shared."""
    size = math.prod(shape) * dtype.itemsize
    if size < ALIGNED:
        return np.empty(shape, dtype)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, dtype, raw, start)


def fill(into: HostArray, values: HostArray) -> None:
    """Copy values into existing memory, cast as NumPy does."""
    _call_silently(values, np.copyto, into, values, "unsafe")


def as_readonly(host: HostArray) -> HostArray:
    """Return a read-only view that the user cannot make writable again.

    NumPy shows no raw memory with objects in it, and a buffer of nothing but objects. So records and strings
    are copied, and the write flag of the copy cannot be set through the view.
    """
    # A view by way of a buffer takes a thirtieth of the time.
    is_plain = (
        host.dtype in NATIVE
        and host.dtype.metadata is None
        and type(host) is np.ndarray
        and host.flags.aligned
    )
    if is_plain or host.dtype.kind == "O":
        view: HostArray = np.asarray(memoryview(host).toreadonly())  # type: ignore[arg-type] # it is a buffer
        return view if type(host) is np.ndarray else view.view(type(host))
    if copies_to_protect(host):
        copied = host.copy()
        copied.flags.writeable = False
        return copied.view()
    return _reinterpret(host, writable=False)


def copies_to_protect(host: HostArray) -> bool:
    """Return True if `as_readonly` copies: records with objects, and strings of variable width."""
    return host.dtype.hasobject and host.dtype.kind != "O"


def as_writable(host: HostArray) -> HostArray:
    """Return a view with the writable flag set, for a consumer that does not write."""
    return host if host.flags.writeable else _reinterpret(host, writable=True)


def _reinterpret(host: HostArray, *, writable: bool) -> HostArray:
    view = raw_view(layout_of(host)._replace(writable=writable), owner=host).view(host.dtype)
    if type(host) is np.ndarray:
        return view
    view = view.view(type(host))
    view.__array_finalize__(host)  # a class passes on what else it knows, such as a unit
    return view


def with_plain_strides(host: HostArray) -> HostArray:
    """Return a view whose axes of one item have the strides of a dense array, or a copy of an empty array."""
    return np.asarray(host).squeeze().reshape(host.shape) if host.size else host.copy()


def check_cast(host: HostArray, dtype: str) -> HostArray:
    """Return the array if a cast keeps its integers exact and its finite values finite; else raise."""
    target = native_dtype(dtype)
    if host.size == 0:
        return host
    if category(host.dtype.name) in ("bool", "int"):
        lost = not holds_integers(dtype, int(host.min()), int(host.max()))
    else:
        lost = _may_overflow(host, target)
    if lost:
        raise ValueLossError.narrowing(host.dtype.name, dtype)
    return host


def _may_overflow(host: HostArray, target: np.dtype[Any]) -> bool:
    """Return True if a cast, by any library, may make a finite value infinite or NaN in a narrower dtype."""
    narrow = target.type(0).real.dtype
    # Some libraries cast to half precision in two steps, which may round up a value that one step rounds
    # down.
    ways = [np.dtype(np.float32), narrow] if narrow.itemsize < 4 else [narrow]
    parts = (np.real(host), np.imag(host)) if host.dtype.kind == "c" else (host,)
    with np.errstate(all="ignore"):
        ends = np.array([end for part in parts for end in (part.min(), part.max())])
        if not np.isfinite(ends).all():
            ends = finite_extremes(np, host)
        for way in ways:
            ends = ends.astype(way)
        return not np.isfinite(ends).all()  # a dtype without infinities has NaN instead


def finite_extremes(xp: ModuleType, x: Array) -> Array:
    """Return the least and the greatest finite value, which tell `check_cast` as much as the whole array."""
    if x.dtype.kind in "biu":
        return xp.stack([x.min(), x.max()])
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    finite = [xp.where(xp.isfinite(part), part, part.dtype.type(0)) for part in parts]
    return xp.stack([end for part in finite for end in (part.min(), part.max())])


def overlap(a: MemoryLayout, b: MemoryLayout) -> bool:
    """Return True if two arrays in one address space have a byte in common, without reading them."""
    if a.is_unallocated() or b.is_unallocated():
        return False
    return overlap_of_views(raw_view(_drop_constant_axes(a)), raw_view(_drop_constant_axes(b)))


def overlap_of_views(a: HostArray, b: HostArray) -> bool:
    """Return True if two host arrays have a byte in common.

    Bounding ranges and NumPy's solver decide nearly every pair. If the solver gives up, because its time may
    grow exponentially with the axes, the addresses of all bytes are compared.
    """
    try:
        return bool(np.shares_memory(a, b, max_work=_WORK))  # type: ignore[arg-type] # any int
    except np.exceptions.TooHardError:
        return bool(np.intersect1d(_addresses(layout_of(a)), _addresses(layout_of(b))).size)


def _addresses(layout: MemoryLayout) -> HostArray:
    axes = [*zip(layout.shape, layout.strides, strict=True), (layout.itemsize, 1)]
    steps = [np.arange(n) * stride for n, stride in axes]
    return reduce(np.add.outer, steps, np.asarray(layout.address)).ravel()


def _drop_constant_axes(layout: MemoryLayout) -> MemoryLayout:
    """Drop the axes of length 1 or stride 0, of which a layout may have more than NumPy allows."""
    axes = [(n, s) for n, s in zip(layout.shape, layout.strides, strict=True) if n > 1 and s]
    return layout._replace(shape=tuple(n for n, _ in axes), strides=tuple(s for _, s in axes))


class Window:
    """An array interface that NumPy can view. The view keeps the owner of the memory alive."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__, self.owner = interface, owner


def raw_view(layout: MemoryLayout, owner: object = None) -> HostArray:
    """Return an array of raw items over a layout. The caller keeps the memory alive, or passes its owner."""
    interface = {
        "typestr": f"|V{layout.itemsize}",
        "data": (layout.address, not layout.writable),
        "shape": layout.shape,
        "strides": layout.strides,
    }
    return np.asarray(Window(interface, owner))


def layout_of(host: HostArray) -> MemoryLayout:
    flags = host.flags
    address = int(host.__array_interface__["data"][0])
    return MemoryLayout(address, host.shape, host.strides, host.itemsize, flags.writeable, flags.aligned)
