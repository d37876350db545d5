"""Import objects of unregistered libraries as NumPy arrays: scalars, exporters, typed buffers.

The protocols are tried in the order of the information that they carry: DLPack, `__array_interface__`,
`__cuda_array_interface__`, `__array__`, the buffer protocol. The result is writable only if the protocol
allows it, and `__array__` does not say which object owns the memory it returns. The export is compared with
the dtype and shape that the object has.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from mmap import mmap
from operator import length_hint
from typing import Any

import numpy as np

from xbridge._core.dtypes import DTYPES, holds_every, is_inexact, keeps_complex
from xbridge._core.literals import LITERALS, NUMBERS
from xbridge._core.protocol import HostArray
from xbridge._host.advice import hint_for_items, hint_for_object, literal_error
from xbridge._host.dlpack import from_dlpack
from xbridge._host.exporters import (
    adapter_for,
    columns_of,
    dtype_of,
    has_astype,
    has_attribute,
    is_generic,
    is_of_library,
    name_of,
    names_of,
)
from xbridge._host.memory import (
    Window,
    as_readonly,
    astype,
    check_castable,
    fill,
    layout_of,
    native_dtype,
)
from xbridge._host.sequences import promote
from xbridge.errors import (
    Chained,
    CopyError,
    DeviceError,
    DTypeError,
    UnsupportedArrayError,
    XBridgeError,
    shown,
    type_of,
)

_OTHERS = ("__array_interface__", "__cuda_array_interface__", "__array__")
"""The protocols to try if an object has no DLPack, or raises in it."""
PROTOCOLS = ("__dlpack__", *_OTHERS)
_UNITS = frozenset(("units", "unit"))
_DIMENSIONLESS = ("", "1", "dimensionless", "unitless", "none")
_OWN, _UNKNOWN = "dtype is", "dtypes are"
"""What a message calls the dtype that an object has, and those of a table that does not tell them."""
_OPAQUE = ("string", "resource", "variant")
_TOP = max(sys.maxsize, 1 << 32)
"""The end of the address space."""


def import_array(x: Any, *, must_share: bool, fetch: bool, dtype: str | None = None) -> HostArray:
    """Return a host array of `x`.

    With `must_share`, raise if it would not be over the memory of `x`. With `fetch`, an exporter on a device
    may move its memory to the host. With the dtype that the caller named, a table whose columns have several
    dtypes is cast to it, and so are numbers of which some are missing, if it is floating.
    """
    if issubclass(type(x), np.generic):  # not isinstance: the `__class__` of a proxy may raise
        if must_share:
            raise no_sharing_error(x, "it hands out a copy")
        return np.asarray(x)
    if issubclass(type(x), type):
        reason = "it is a class, and its arrays are objects of it"
        raise UnsupportedArrayError.build(f"convert the class {shown(x)}", reason)
    if not must_share and (numbers := _read_numbers(x, dtype)) is not None:
        return numbers
    host, shares = _read_export(x, must_share=must_share, fetch=fetch, dtype=dtype)
    if must_share and host.size:
        # An object that shares its memory exports the same address each time.
        again, _ = _read_export(x, must_share=must_share, fetch=fetch)
        if not shares or layout_of(host) != layout_of(again):
            raise no_sharing_error(x, "it hands out a copy")
    return as_readonly(host) if host.flags.writeable and layout_of(host).may_overlap_itself() else host


def _read_export(
    x: Any, *, must_share: bool, fetch: bool, dtype: str | None = None
) -> tuple[HostArray, bool]:
    """Return the array that `x` exports, and False if that cannot be the memory of `x` itself."""
    host, shares = None, True
    protocol = ("__dlpack__", "__dlpack_device__")
    if all(_get_attribute(x, word) is not None for word in protocol) and not _is_opaque(x):
        try:
            host, shares = from_dlpack(x, fetch=fetch, must_share=must_share)
        except UnsupportedArrayError as error:  # one with a cause is of an exporter that raised
            if error.__cause__ is None or all(_get_attribute(x, word) is None for word in _OTHERS):
                raise
    if host is None:
        host = _read_otherwise(x, must_share=must_share)
    with chain_export_errors(x):
        _check_export(x, host, dtype)
    return host, shares


def _is_opaque(x: Any) -> bool:
    """Return True if an object has no memory of numbers. TensorFlow ends the process if it is to export."""
    with chain_export_errors(x):
        return name_of(dtype_of(x)) in _OPAQUE


def _read_otherwise(x: Any, *, must_share: bool) -> HostArray:
    """Return the array that `x` exports by a protocol other than DLPack."""
    if (interface := _get_attribute(x, "__array_interface__")) is not None:
        return _from_interface(x, interface)
    if _get_attribute(x, "__cuda_array_interface__") is not None:
        reason = "its memory is on a CUDA device, and it has no DLPack"
        raise DeviceError.build(f"read {type_of(x)}", reason)
    if _get_attribute(x, "__array__") is not None:
        return _from_array_method(x, must_share=must_share)
    return _from_buffer(x)


def unreadable_error(
    x: object, reason: str, hint: str = "", error: type[XBridgeError] = UnsupportedArrayError
) -> XBridgeError:
    return error.build(f"read {type_of(x)}", reason, hint)


def chain_export_errors(x: object) -> Chained:
    """Return a context in which an exception of an exporter becomes the cause of an `XBridgeError`."""
    return Chained(lambda error: unreadable_error(x, f"its export failed with {error!r}"))


def is_exporter(x: Any) -> bool:
    """Return True if an object has a protocol for arrays, or is a buffer of typed items."""
    if has_attribute(x, *PROTOCOLS):
        return True
    try:
        memoryview(x)
    except TypeError:
        return False
    except (BufferError, ValueError):  # a buffer that it cannot export now
        return True
    return not issubclass(type(x), (bytes, bytearray, mmap))


def _get_attribute(x: Any, name: str) -> Any:
    """Return an attribute of `x`, or None. Read it once and keep it: a second read may export again.

    What `__getattr__` finds is not asked for. It may belong to an object that `x` wraps, whose numbers are
    others: in another unit, or before they are scaled.
    """
    with chain_export_errors(x):
        return getattr(x, name, None) if has_attribute(x, name) else None


def _check_export(x: Any, host: HostArray, dtype: str | None) -> None:
    """Check an export against the memory of this machine, what the object says of its values, and a cast."""
    if host.dtype.kind not in "biufc" and host.dtype.name not in DTYPES:
        reason = f"it exports {host.dtype}, which is not a numeric dtype"
        said = _dtypes_said(x) if adapter_for(x).table(x) else []
        strange = [f"its {label} {word}" for label, word in said if word not in DTYPES]
        reason = f"{strange[0]}, and {reason}" if strange else reason
        raise unreadable_error(x, reason, _hint_for_objects(x, host), DTypeError)
    layout = layout_of(host)
    low, high = layout.span()
    if host.size and not 0 < layout.address + low < layout.address + high <= _TOP:
        raise unreadable_error(x, "its memory would be outside of this machine's")
    _check_shape(x, host.shape)
    _check_dtype(x, host.dtype.name)
    _refuse_unit(x)
    missing = sum(map(adapter_for(x).count_missing, columns_of(x)))
    marks = np.count_nonzero(host != host) if missing else 0  # noqa: PLR0124 -- NaN is not itself
    if marks < missing:
        reason = f"{missing} of its values are missing, and it exports numbers for them"
        raise unreadable_error(x, reason, _hint_for_cast(x, "float64"), DTypeError)
    if missing and dtype is not None:  # such as in lists, which are not cast column by column
        _check_column(x, host, dtype)


def _check_shape(x: Any, exported: tuple[int, ...]) -> None:
    shape = _shape(x)
    if shape is None and getattr(x, "shape", ()) is None:  # no data; an older NumPy makes a zero of it
        raise unreadable_error(x, f"its shape is None, and it exports {exported}")
    if shape is not None and exported[: len(shape) or None] != shape:
        raise unreadable_error(x, f"its shape is {shape}, and it exports {exported}", _hint_for_export(x))


def _check_dtype(x: Any, exported: str) -> None:
    """Raise unless the exported dtype agrees with those that an object says its values have.

    An array that has one dtype exports that dtype. Columns of a table, fields of a struct and values in a
    wrapper may be promoted to a dtype that has every value of each of them. Integers alone never become
    floats: such an export marks missing values.
    """
    said = _dtypes_said(x)
    marked = is_inexact(exported) and not any(is_inexact(word) for _, word in said)
    for label, word in said:
        if label == _OWN:
            fits = word not in DTYPES or word == exported
        elif label == _UNKNOWN:  # a table may have rounded its integers, or marked what is missing
            fits = not is_inexact(exported)
        else:
            fits = not marked and (word == "null" or holds_every(word, exported))
        if not fits:
            hint = _hint_for_cast(x, exported)
            if not hint and label == _OWN and holds_every(word, exported):  # such as one that scales
                hint = _hint_for_export(x)
            raise unreadable_error(x, f"its {label} {word}, and it exports {exported}", hint, DTypeError)


def _dtypes_said(x: Any) -> list[tuple[str, str]]:
    """Return a label and a name for each dtype that an object says its values have."""
    table = adapter_for(x).table(x)
    if table is not None:
        return [(f"column {label!r} is", word) for label, it in table for word in names_of(dtype_of(it))]
    own = dtype_of(x)
    if own is None:
        return [(_UNKNOWN, "unknown")] if has_attribute(x, "columns") else []
    words = names_of(own)
    return [(_OWN if words == [name_of(own)] else "values are", word) for word in words]


def _refuse_unit(x: Any) -> None:
    """Raise if an object has a unit, unless it is dimensionless."""
    units = [_get_attribute(x, name) for name in sorted(_UNITS, reverse=True)]
    named = [unit for unit in units if unit is not None and not callable(unit)]
    unit = next((unit for unit in named if not isinstance(unit, NUMBERS)), "")
    with chain_export_errors(x):
        text = str(unit)
    if text.lower() not in _DIMENSIONLESS:
        number = next((word for word in ("magnitude", "value") if has_attribute(x, word)), None)
        raise unreadable_error(x, f"its unit {text} would be lost", f"x.{number}" if number else "")


def _hint_for_objects(x: Any, host: HostArray) -> str:
    """Return the hint for an export of Python objects: of numbers, some of them missing, or of no numbers."""
    if _is_castable(x):
        return _hint_for_cast(x, "float64")
    adapter = adapter_for(x)
    may_lie = has_attribute(x, "__array_interface__")  # about its objects, which are not looked at
    if (hint := adapter.hint(x)) or not host.dtype.hasobject or may_lie:
        return hint or ""
    made = hint_for_items(host)
    is_lossy = adapter.table(x) is not None or adapter.count_missing(x)  # rows have NaN for what is missing
    if made.endswith("x.tolist()") or (is_lossy and "astype" not in made):
        return ""
    return made.replace("x.", "numpy.asarray(x).")


def _hint_for_cast(x: object, dtype: str) -> str:
    """Return the call that makes the promotion explicit."""
    if _is_castable(x):
        return f"to_numpy(x, dtype={dtype!r})"
    return f"x.astype({dtype!r})" if has_astype(x) else ""


def _hint_for_export(x: object) -> str:
    """Return the call that takes an export as it is; "" if that is not what `__array__` returns."""
    others = has_attribute(x, "__dlpack__", "__array_interface__")
    return "numpy.asarray(x)" if has_attribute(x, "__array__") and not others else ""


def _shape(x: Any) -> tuple[int, ...] | None:
    """Return the shape of `x`. If its elements are arrays, the export may have their axes after these."""
    shape = getattr(x, "shape", None)
    if shape is None:
        length = -1
        with suppress(XBridgeError), chain_export_errors(x):  # such as a table that was not computed yet
            length = length_hint(x, -1)
        return (length,) if length >= 0 else None
    return shape if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) else None


def _from_interface(x: object, interface: Any) -> HostArray:
    """Return a view of the memory that the interface of `x` describes, writable if the interface is.

    NumPy trusts the interface: it does not compare the shape and strides with the buffer, and does not keep
    the buffer from being resized under the array.
    """
    with chain_export_errors(x):
        interface = {**interface}
        data = interface.get("data")
        buffer = None if isinstance(data, tuple) else memoryview(x if data is None else data)  # type: ignore[arg-type] # it may not be a buffer
        if buffer is not None:
            interface["data"] = buffer
        host: HostArray = np.asarray(Window(interface, x))
    if interface.get("mask") is not None:
        raise unreadable_error(x, "its mask would be lost")
    if buffer is not None and host.size:
        low, high = layout_of(host).span()
        start = interface.get("offset") or 0
        if start + low < 0 or start + high > buffer.nbytes:
            reason = f"its shape and strides reach out of its buffer of {buffer.nbytes} bytes"
            raise unreadable_error(x, reason)
    return host


def _from_array_method(x: Any, *, must_share: bool) -> HostArray:
    if must_share:
        with Chained(lambda error: no_sharing_error(x, f"__array__(copy=False) failed with {error!r}")):
            host = x.__array__(copy=False)
    else:
        with chain_export_errors(x):
            host = x.__array__()
    masked: Any = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(host, masked) and not host.mask.any():
        host = host.data
    if type(host) not in (np.ndarray, np.memmap, np.matrix):
        raise unreadable_error(x, f"its __array__ returned {type_of(host)}")
    if host.dtype.hasobject and (numbers := _promote_columns(x)) is not None:
        host = numbers
    return host if host.dtype.hasobject else as_readonly(host.view(np.ndarray))


def names_in_table(x: Any) -> list[str]:
    """Return the names of the dtypes in a table or column of numbers; nothing for any other object."""
    with chain_export_errors(x):
        said = [] if is_generic(x) else _dtypes_said(x)
    names = {word for _, word in said}
    return sorted(names) if names.issubset(DTYPES) else []


def _is_castable(x: Any) -> bool:
    """Return True if a call that names a floating dtype reads the numbers of a table or column."""
    return bool(names_in_table(x) and _read_columns(x, "float64"))


def _read_numbers(x: Any, dtype: str | None) -> HostArray | None:
    """Return the numbers of a column or table as its library's adapter reads them; None if it is exported.

    An object of a class that is derived from the library's exports what its class says.
    """
    is_own = is_of_library(x) and _UNITS.isdisjoint(getattr(x, "__dict__", ()))
    if is_own and (numbers := adapter_for(x).numbers(x, dtype)) is not None:
        host, is_new = numbers
        if dtype is not None:
            _check_column(x, host, dtype)
            if is_new and dtype != host.dtype.name:
                return astype(host, dtype)
        return host if is_new else as_readonly(host)
    columns = [] if dtype is None else _read_columns(x, dtype)
    if not columns or dtype is None or _is_plain(columns, dtype):
        return None
    _refuse_unit(x)
    made = _cast_columns(x, columns, dtype)
    return made[:, 0] if len(columns) == 1 and adapter_for(x).table(x) is None else made


def _read_columns(x: Any, dtype: str) -> list[tuple[HostArray, bool]]:
    """Return the numbers of a column, or of each in a table, for a cast; nothing if one has others."""
    adapter = adapter_for(x)
    with chain_export_errors(x):
        found = [adapter.numbers(column, dtype) for column in columns_of(x)]
    numbers = [one for one in found if one is not None]
    return numbers if len(numbers) == len(found) else []


def _is_plain(columns: list[tuple[HostArray, bool]], dtype: str) -> bool:
    """Return True if a table exports its numbers as they are, and a cast of them as a whole keeps NaN."""
    (first, *others) = {host.dtype for host, _ in columns}
    is_whole = not others and not any(is_new for _, is_new in columns)
    return is_whole and (is_inexact(dtype) or not is_inexact(first.name))


def _promote_columns(x: Any) -> HostArray | None:
    """Return a table that exports objects in the dtype that has all its numbers; None if there is none."""
    columns = _read_columns(x, "float64") if adapter_for(x).table(x) else []
    with suppress(DTypeError, UnsupportedArrayError):  # no common dtype, or no cast
        return _cast_columns(x, columns, promote(names_in_table(x), [])) if columns else None
    return None


def _cast_columns(x: Any, columns: list[tuple[HostArray, bool]], dtype: str) -> HostArray:
    """Return a table of numbers in a dtype, cast column by column."""
    made = np.empty((len(columns[0][0]), len(columns)), native_dtype(dtype))
    for i, (host, _) in enumerate(columns):
        _check_column(x, host, dtype)
        fill(made[:, i], check_castable(host, made.dtype))
    return made


def _check_column(x: Any, host: HostArray, dtype: str) -> None:
    """Raise if a cast of a column, or of columns of one dtype, loses missing values or imaginary parts."""
    kind, reason = host.dtype.kind, ""
    if kind == "c" and not keeps_complex(dtype):
        reason = f"a cast from {host.dtype} to {dtype} drops the imaginary part"
    elif kind in "fc" and not is_inexact(dtype) and np.isnan(host).any():
        reason = f"some of its values are missing, and {dtype} has no NaN"
    if reason:
        hint = "to_numpy(x).real" if kind == "c" else _hint_for_cast(x, "float64")
        raise unreadable_error(x, reason, hint, DTypeError)


def _from_buffer(x: object) -> HostArray:
    if issubclass(type(x), LITERALS) and not hasattr(type(x), "_fields"):
        raise literal_error(x, "numpy")
    with chain_export_errors(x):
        try:
            view = memoryview(x)  # type: ignore[arg-type] # it raises if `x` is not a buffer
        except ValueError as error:
            raise unreadable_error(x, f"its export failed with {error!r}") from error
        except TypeError as error:
            reason, hint = "it is not an array, and it exports no memory", hint_for_object(x)
            if x is None:
                reason = "None is not an array, and a function without a return statement returns it"
            raise UnsupportedArrayError.build(
                f"convert {'None' if x is None else type_of(x)}", reason, hint
            ) from error
    if issubclass(type(x), (bytes, bytearray, mmap)):
        action, reason = f"convert {type(x).__name__}", "plain bytes have no dtype"
        raise UnsupportedArrayError.build(action, reason, "numpy.frombuffer(x, dtype)")
    with chain_export_errors(x):
        host: HostArray = np.asarray(view)
    return host


def no_sharing_error(x: object, reason: str) -> CopyError:
    return CopyError.build(f"share the memory of {type_of(x)}", reason, "copy=None")
