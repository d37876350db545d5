"""A stub of CuPy: NumPy's memory behind arrays that do not show it, for machines without a GPU.

It is no proof of what CuPy does. It holds the backend to the rules by which CuPy works, and is stricter: an
array is touched only where its device is current; what is sent without waiting is read when the device's
stream gets there, and until then the memory holds junk; a capsule is exported only by the device it is on.
Exports are real DLPack capsules that say CUDA, so nobody but this stub may take them.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from exporters import _TENSOR, capsule

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 2
JUNK = 0xA5
_CODES = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""


class Stream:
    """What its device is still to do, in order."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr
        self.work: list[Callable[[], None]] = []
        self.waits = 0
        self._lock = threading.Lock()
        self._before: list[Stream] = []

    def __enter__(self) -> Self:
        self._before.append(state.stream)
        state.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        state.stream = self._before.pop()

    def use(self) -> Self:
        state.stream = self
        return self

    def synchronize(self) -> None:
        self.waits += 1
        self.drain()

    def drain(self) -> None:
        with self._lock:
            while self.work:
                self.work.pop(0)()


class State:
    """The driver: which device is current, and the stream of each, unless a thread has chosen another."""

    def __init__(self) -> None:
        self._here = threading.local()
        self.streams = [Stream(100 + index) for index in range(COUNT)]
        self.to_numpy = self.to_device = 0

    @property
    def stream(self) -> Stream:
        """The current one of this thread, on the current device."""
        chosen: Stream = vars(self._here).get(f"stream {self.current}", self.streams[self.current])
        return chosen

    @stream.setter
    def stream(self, stream: Stream) -> None:
        vars(self._here)[f"stream {self.current}"] = stream

    @property
    def current(self) -> int:
        """Of this thread."""
        return getattr(self._here, "current", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._here.current = index


state = State()


class Device:
    """As CuPy's: a place, and a context in which it is the current one."""

    __hash__ = None  # type: ignore[assignment] # as CuPy's

    def __init__(self, device: int | None = None) -> None:
        self.id = state.current if device is None else int(device)
        self._before: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __enter__(self) -> Self:
        self._before.append(state.current)
        state.current = self.id
        return self

    def __exit__(self, *_: object) -> None:
        state.current = self._before.pop()

    def use(self) -> None:
        state.current = self.id


class ndarray:  # noqa: N801 -- its name
    """An array on a device, over NumPy's memory that nobody sees."""

    __module__ = "cupy"

    def __init__(self, memory: Any, device: int, owner: object = None) -> None:
        self._memory, self._device, self._owner = memory, device, owner

    # -- what it is ------------------------------------------------------------------------------

    dtype = property(lambda self: self._memory.dtype)
    shape = property(lambda self: self._memory.shape)
    strides = property(lambda self: self._memory.strides)
    ndim = property(lambda self: self._memory.ndim)
    size = property(lambda self: self._memory.size)
    itemsize = property(lambda self: self._memory.itemsize)
    nbytes = property(lambda self: self._memory.nbytes)
    flags = property(lambda self: self._memory.flags)
    device = property(lambda self: Device(self._device))

    @property
    def data(self) -> SimpleNamespace:
        return SimpleNamespace(ptr=self._memory.__array_interface__["data"][0], device_id=self._device)

    def __array__(self, *_: object, **__: object) -> None:
        message = "Implicit conversion to a NumPy array is not allowed. Please use `.get()`"
        raise TypeError(message)

    # -- what is done on its device --------------------------------------------------------------

    def _there(self) -> Any:
        """Its memory, for work in its device's stream."""
        if state.current != self._device:
            message = f"The device {state.current} is current, and the array is on {self._device}"
            raise ValueError(message)
        state.stream.drain()
        return self._memory

    def _like(self, memory: Any, owner: object = None) -> ndarray:
        return type(self)(memory, self._device, owner)

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        if self.dtype == dtype:
            return self.copy("K") if copy else self
        memory, goal = self._there(), np.dtype(dtype).char
        with np.errstate(all="ignore"):
            if goal in "dD?" and memory.dtype.name in ("bfloat16", "float32", "complex64"):
                memory = _flushed(memory.astype("F" if memory.dtype.char == "F" else "f", order="K"))
            made = memory.astype(dtype, order="K")
            return self._like(_flushed(made) if memory.dtype.char in "dD" and goal in "fF" else made)

    def copy(self, order: str = "C") -> ndarray:
        if state.current == self._device:
            return self._like(self._there().copy(order=order))
        if not self._memory.flags.forc:
            message = "CuPy cannot copy non-contiguous array between devices."
            raise NotImplementedError(message)
        return _sent(self._memory, order)

    def get(self, order: str = "C") -> Any:
        memory = self._there()
        state.to_numpy += 1
        return memory.copy(order=order)

    def view(self, dtype: Any = None, type: Any = None) -> ndarray:  # noqa: A002 -- their word
        hash(dtype)  # they look it up
        cls = ndarray if type is None else type
        return cls(self._memory.view(self.dtype if dtype is None else dtype), self._device, self)

    def reshape(self, shape: Any) -> ndarray:
        return self._like(self._memory.reshape(shape), self)

    def ravel(self) -> ndarray:
        return self._like(self._there().ravel(), self)

    def transpose(self, *axes: Any) -> ndarray:
        return self._like(self._memory.transpose(*axes), self)

    def tobytes(self) -> bytes:
        return bytes(self.get().tobytes())

    def min(self) -> ndarray:
        return self._like(np.asarray(self._there().min()))

    def max(self) -> ndarray:
        return self._like(np.asarray(self._there().max()))

    real = property(lambda self: self._like(self._memory.real, self))
    imag = property(lambda self: self._like(self._memory.imag, self))

    def __getitem__(self, where: Any) -> ndarray:
        key = where if isinstance(where, tuple) else (where,)
        return self._like(self._memory[key if Ellipsis in key else (*key, ...)], self)  # never a scalar

    def __setitem__(self, where: Any, values: ndarray) -> None:
        self._there()[where] = values._there()

    # -- what it shows ---------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._device

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None, **_: object) -> object:
        self._there()
        exports.append((self._device, stream))
        name = b"dltensor_versioned" if max_version else b"dltensor"
        shown: Any = capsule(self._memory, name=name, device=(2, self._device), **_code(self.dtype))
        _kept.append(shown)
        return shown.__dlpack__()


exports: list[tuple[int, int | None]] = []
"""What was exported: from which device, for which stream."""

_kept: list[object] = []


def _code(dtype: Any) -> dict[str, Any]:
    return {"code": 4} if dtype.name == "bfloat16" else {}


def _sent(values: Any, order: str) -> ndarray:
    """New memory on the current device, filled when its stream gets there."""
    fresh = np.empty_like(values, order=order)  # type: ignore[call-overload] # any order
    fresh.reshape(-1, order="A").view(np.uint8)[...] = JUNK if values.dtype != bool else 0
    state.stream.work.append(lambda: np.copyto(fresh, values))
    return ndarray(fresh, state.current)


def asarray(a: Any, *, order: str = "K", blocking: bool = False) -> ndarray:
    """NumPy's arrays are sent, and what shows device memory is looked at."""
    if isinstance(a, np.ndarray):
        native = a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("="))
        if not native.ndim and not native:
            native = np.zeros_like(native)  # as one number, which fills memory with zeros: its sign is lost
        sent = _sent(native, "F" if a.flags.fnc and order == "K" else "C")
        state.to_device += 1
        if blocking:
            state.stream.synchronize()
        return sent
    shown = dict(a.__cuda_array_interface__)
    shown.pop("stream", None)
    if 0 in shown["shape"]:
        shown["data"] = np.empty(0)  # NumPy 2.1 takes no memory at the address 0
    looked = np.asarray(SimpleNamespace(__array_interface__=shown, owner=a))
    return ndarray(looked, state.current, a)


def from_dlpack(x: Any) -> ndarray:
    """An array over the memory that a capsule describes."""
    kind, number = x.__dlpack_device__()
    if kind != 2:
        message = f"Unsupported array type: {kind}"
        raise TypeError(message)
    with Device(number):
        stream = state.stream.ptr
        try:
            taken = x.__dlpack__(stream=stream, max_version=(1, 0), copy=None)
        except TypeError:
            taken = x.__dlpack__(stream=stream)
    name = b"dltensor_versioned"
    skip = 32
    try:
        address = _pointer(taken, name)
    except ValueError:
        address, skip, name = _pointer(taken, b"dltensor"), 0, b"dltensor"
    raw = ctypes.string_at(address + skip, struct.calcsize(_TENSOR))
    data, _, number, axes, code, bits, _, lengths, steps, offset = struct.unpack(_TENSOR, raw)
    shape = [ctypes.c_int64.from_address(lengths + 8 * axis).value for axis in range(axes)]
    strides = None
    if steps:
        strides = tuple(
            ctypes.c_int64.from_address(steps + 8 * axis).value * bits // 8 for axis in range(axes)
        )
    dtype: Any = "bfloat16"
    if code != 4:
        dtype = np.dtype(f"{_CODES[code]}{bits // 8}")
    else:
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    backend = {
        "version": 3,
        "typestr": f"|V{dtype.itemsize}",
        "data": (data + offset, False),
        "shape": tuple(shape),
        "strides": strides,
    }
    _rename(taken, USED)
    view = np.asarray(SimpleNamespace(__array_interface__=backend, owner=x)) if 0 not in shape else None
    return ndarray(np.empty(shape, dtype) if view is None else view.view(dtype), number, (x, taken))


USED = b"used_dltensor"


def _each(arrays: list[ndarray]) -> list[Any]:
    return [x._there() for x in arrays]


def stack(arrays: list[ndarray]) -> ndarray:
    return arrays[0]._like(np.stack(_each(arrays)))


def concatenate(arrays: list[ndarray]) -> ndarray:
    return arrays[0]._like(np.concatenate(_each(arrays)))


def empty(shape: tuple[int, ...], dtype: Any) -> ndarray:
    """New memory of the current device, to which its stream may still have something to write."""
    fresh = np.empty(shape, dtype)
    state.stream.work.append(lambda: fresh.reshape(-1).view(np.uint8).fill(JUNK))
    return ndarray(fresh, state.current)


def ascontiguousarray(x: ndarray) -> ndarray:
    memory = x._there()
    return x if memory.flags.c_contiguous else x._like(memory.copy(order="C"))


def empty_like(x: ndarray, dtype: Any) -> ndarray:
    return x._like(np.empty_like(x._there(), dtype))


def _flushed(values: Any) -> Any:
    """As CuPy compiles kernels: subnormal numbers of 32 bits are zeros."""
    made = values.copy(order="K")
    for part in (made.real, made.imag) if made.dtype.char == "F" else (made,):
        part[np.abs(part) < np.finfo("f4").tiny] *= 0
    return made


class ElementwiseKernel:
    """A cast that flushes nothing, whatever its code."""

    def __init__(self, inputs: str, outputs: str, code: str, name: str) -> None:
        self.words = inputs, outputs, code, name

    def __call__(self, x: ndarray, made: ndarray) -> None:
        with np.errstate(all="ignore"):
            made._there()[...] = x._there()


def where(mask: ndarray, x: ndarray, other: Any) -> ndarray:
    return x._like(np.where(mask._there(), x._there(), other))


def isfinite(x: ndarray) -> ndarray:
    return x._like(np.isfinite(x._there()))


def broadcast_to(x: ndarray, shape: Any) -> ndarray:
    view = np.broadcast_to(x._there(), shape)
    view.flags.writeable = True
    return x._like(view, x)


def module(count: int | RuntimeError = COUNT, version: str = "14.2.0", *, hip: bool = False) -> ModuleType:
    """The stub under CuPy's name, with so many devices, or with a driver that raises."""
    global state  # noqa: PLW0603 -- the driver starts anew
    state = State()

    def devices() -> int:
        if isinstance(count, RuntimeError):
            raise count
        return count

    made = ModuleType("cupy")
    vars(made).update({word: it for word, it in globals().items() if not word.startswith("_")})
    made.__version__ = version  # type: ignore[attr-defined] # as CuPy has it
    made.cuda = SimpleNamespace(  # type: ignore[attr-defined] # as CuPy has it
        Device=Device,
        Stream=Stream,
        runtime=SimpleNamespace(getDeviceCount=devices, getDevice=lambda: state.current, is_hip=hip),
        get_current_stream=lambda: state.stream,
    )
    return made


def install(monkeypatch: Any, made: ModuleType) -> None:
    """Let the next who imports CuPy, or what imports it, have the stub."""
    monkeypatch.setitem(sys.modules, "cupy", made)
    for word in ("xbridge.backends.cupy", "xbridge.testing.samples.cupy"):
        monkeypatch.setitem(sys.modules, word, made)  # so that what comes in its place goes, too
        del sys.modules[word]
