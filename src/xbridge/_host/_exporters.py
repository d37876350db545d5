"""Admit what is no registered library's array: scalars, anybody's exporter, typed buffers.

The protocols are asked in the order of what they tell: DLPack, `__array_interface__` and its sister for
CUDA, `__array__`, the buffer protocol. An exporter's memory is writable to us only where the protocol says
so, and `__array__` says nothing of whose memory it returns. What comes is held against what the object says
of itself.
"""

from __future__ import annotations

import sys
from mmap import mmap
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._devices import Device
from xbridge._dtypes import DTYPES
from xbridge._host._dlpack import ElsewhereError, from_dlpack
from xbridge._host._interface import from_interface
from xbridge._host._memory import freeze, layout_of
from xbridge.errors import Chained, CopyError, DTypeError, UnsupportedArrayError

if TYPE_CHECKING:
    from xbridge._protocol import HostArray

_LITERALS = (bool, int, float, complex, list, tuple, range)
_ELSEWHERE = "in its own library first"
_IN_A_TREE = "xbridge.tree.to_backend for the arrays in it"
_WAYS_OUT = {
    "state_dict": "xbridge.tree.to_backend for the arrays of x.state_dict()",
    "toarray": "x.toarray()",
    "compute": "x.compute()",
    "result": "x.result()",
    "getbuffer": "numpy.frombuffer(x.getbuffer(), dtype)",
    "isdigit": "float(x) if it spells a number",
    "__float__": "float(x)",
    "__fspath__": "numpy.load(x)",
    **dict.fromkeys(("_fields", "__dataclass_fields__", "__attrs_attrs__"), _IN_A_TREE),
    "keys": f"dict(x), and {_IN_A_TREE}",
    **dict.fromkeys(
        ("__iter__", "__getitem__"), f"list(x), and asarray if it holds numbers, or {_IN_A_TREE}"
    ),
    "__dict__": f"vars(x), and {_IN_A_TREE}",
}
"""What a class has, and then what to type instead."""
_TOP = max(sys.maxsize, 1 << 32)
"""No program's memory lies higher."""


def admit(x: Any, *, must_share: bool, fetch: bool = False) -> HostArray:
    """A host array for `x`: with `must_share`, over its memory; with `fetch`, from whatever device."""
    if isinstance(x, np.generic):
        if must_share:
            raise _apart(x, "it hands out a copy")
        return np.asarray(x)
    host, shares = _read(x, must_share=must_share, fetch=fetch)
    if must_share and host.size:
        # Who shares memory shows the same memory twice.
        again, _ = _read(x, must_share=must_share, fetch=fetch)
        if not shares or layout_of(host) != layout_of(again):
            raise _apart(x, "it hands out a copy")
    return freeze(host) if host.flags.writeable and layout_of(host).repeats() else host


def _read(x: Any, *, must_share: bool, fetch: bool) -> tuple[HostArray, bool]:
    """What `x` exports, and whether it may be the memory of `x`."""
    shares = True
    if _asked(x, "__dlpack__") is not None and _asked(x, "__dlpack_device__") is not None:
        host, shares = from_dlpack(x, fetch=fetch)
    elif (interface := _asked(x, "__array_interface__")) is not None:
        host = from_interface(x, interface)
    elif (interface := _asked(x, "__cuda_array_interface__")) is not None:
        refused = ElsewhereError.because(
            f"read a {type(x).__name__}", "its memory is on a CUDA device", "moving it to the cpu first"
        )
        refused.device, refused.interface = Device("cuda"), interface
        raise refused
    elif _asked(x, "__array__") is not None:
        host = _from_array_method(x, must_share=must_share)
    else:
        host = _from_buffer(x)
    with Chained(lambda error: _failed(x, error)):
        _compare(x, host)
    return host, shares


def _asked(x: Any, protocol: str) -> Any:
    """What `x` has under that name. To read it once is enough: it may be the export itself."""
    with Chained(lambda error: _failed(x, error)):
        return getattr(x, protocol, None)


def _compare(x: Any, host: HostArray) -> None:
    """Hold what came against this machine, and against what the object says of itself."""
    if host.dtype.kind not in "biufc" and host.dtype.name not in DTYPES:
        raise DTypeError.because(
            f"read a {type(x).__name__}",
            f"it exports {host.dtype}, which is no numeric dtype",
            f"casting it {_ELSEWHERE}",
        )
    layout = layout_of(host)
    low, high = layout.span()
    if host.size and not 0 < layout.address + low < layout.address + high <= _TOP:
        raise _contradicts(x, "its memory would lie outside of this machine's")
    hold_to_its_word(x, host.dtype.name, host.shape)


def hold_to_its_word(x: Any, dtype: str, exported: tuple[int, ...]) -> None:
    """Refuse what exports another dtype or shape than it says it has."""
    shape = _shape(x)
    if shape is None and getattr(x, "shape", ()) is None:  # nothing, of which an older NumPy makes a zero
        raise _contradicts(x, f"its shape is None, and it exports {exported}")
    if shape is not None and exported[: len(shape) or None] != shape:
        raise _contradicts(x, f"its shape is {shape}, and it exports {exported}")
    said = _word(getattr(x, "dtype", getattr(x, "type", None)))
    if said in DTYPES and said != dtype:
        why = f"its dtype is {said}, and it exports {dtype}"
        raise DTypeError.because(
            f"read a {type(x).__name__}", why, f"filling what is missing, or casting it, {_ELSEWHERE}"
        )


def _shape(x: Any) -> tuple[int, ...] | None:
    """What it says of its shape. The axes of its elements, if they are arrays, may come behind that."""
    shape = getattr(x, "shape", None)
    if shape is None and (length := length_hint(x, -1)) >= 0:
        return (length,)
    return shape if isinstance(shape, tuple) and all(isinstance(n, int) for n in shape) else None


def _word(dtype: object) -> str:
    """A dtype in its library's words, as far as they are everybody's: `pandas.Int64Dtype()` says int64."""
    word = str(getattr(dtype, "__name__", dtype))
    return word.lower().partition("[")[0].rpartition(".")[2]


def _from_array_method(x: Any, *, must_share: bool) -> HostArray:
    if must_share:
        with Chained(lambda error: _apart(x, f"__array__(copy=False) failed with {error!r}")):
            host = x.__array__(copy=False)
    else:
        with Chained(lambda error: _failed(x, error)):
            host = x.__array__()
    if type(host) not in (np.ndarray, np.memmap, np.matrix):
        raise _contradicts(x, f"its __array__ returned a {type(host).__name__}")
    return host if host.dtype.hasobject else freeze(host.view(np.ndarray))


def _from_buffer(x: object) -> HostArray:
    if isinstance(x, _LITERALS) and not hasattr(type(x), "_fields"):
        raise UnsupportedArrayError.because(
            f"convert a {type(x).__name__}",
            "numbers and lists are no arrays",
            f"asarray(x), or {_IN_A_TREE}",
        )
    with Chained(lambda error: _failed(x, error)):
        try:
            view = memoryview(x)  # type: ignore[arg-type] # whether it is a buffer is the question
        except ValueError as error:
            raise UnsupportedArrayError.because(
                f"read a {type(x).__name__}",
                f"its export failed with {error!r}",
                "a buffer that is still there",
            ) from error
        except TypeError as error:
            raise UnsupportedArrayError.because(
                f"convert a {type(x).__name__}",
                "no backend owns the type and it exports no memory",
                _way_out(type(x)),
            ) from error
    if isinstance(x, (bytes, bytearray, mmap)):
        raise UnsupportedArrayError.because(
            f"convert {type(x).__name__}", "plain bytes have no dtype", "numpy.frombuffer(x, dtype)"
        )
    with Chained(lambda error: _failed(x, error)):
        host: HostArray = np.asarray(view)
    return host


def _way_out(cls: type) -> str:
    """What to type instead of an object; what its metaclass has, it has not."""
    words = {word for base in cls.__mro__ for word in vars(base)}
    return next((do for word, do in _WAYS_OUT.items() if word in words), "an array")


def _failed(x: object, error: Exception) -> UnsupportedArrayError:
    return _contradicts(x, f"its export failed with {error!r}")


def _contradicts(x: object, why: str) -> UnsupportedArrayError:
    return UnsupportedArrayError.because(f"read a {type(x).__name__}", why, f"converting it {_ELSEWHERE}")


def _apart(x: object, why: str) -> CopyError:
    return CopyError.because(f"share the memory of a {type(x).__name__}", why, "copy=None")
