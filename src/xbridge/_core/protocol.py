"""The protocol of a backend: what xbridge asks of the module that adapts one array library.

A backend is a module, which imports its library at the top and defines functions in the order below. It must
define `name`, `array_types`, `to_numpy` and `from_numpy`. `Backend` completes it with a default for every
other name, so the core never finds one missing.

- *Flags and constants* decide the sharing rules and the tables in the documentation.
- *Verbs about arrays* (layout, dtypes, devices) read no element, and also accept arrays that cannot be
  converted.
- *Steps* are the parts of a plan. Each does one thing or raises.
- *Optional functions* are None by default: the core works without them.
- *`transfers`* is one object with all that serves moves and threads. Its class has a default for each method.
- `gaps` lists the features that the library lacks. Flags such as `readonly` are derived from it.
"""

# ruff: noqa: ARG002 -- defaults have the parameters of the functions that they stand for

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from types import FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from xbridge._core.devices import CPU, Device, absent_device_error, is_of_kind
from xbridge._core.dtypes import DTYPES
from xbridge.errors import (
    Chained,
    DeviceError,
    DTypeError,
    GradientError,
    UnsupportedArrayError,
    XBridgeError,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy as np

ArrayFn: TypeAlias = Callable[[list[object]], list[object]]

Notice: TypeAlias = Callable[[str, Any, object, float], None]
"""A callback for conversions by a library's own calls. It gets the call's name, array, result and seconds."""

HostArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
"""A NumPy array: the form of host memory through which all libraries convert."""

Grad: TypeAlias = Literal["keep", "detach"] | None
"""What happens to the gradients of a conversion, as documented for `to_backend`."""

Array: TypeAlias = Any
"""An array of some backend. Only the backend's own module knows its type."""


class Exporter(Protocol):
    """An object that exports memory by DLPack. The consumer passes its stream."""

    def __dlpack_device__(self) -> tuple[int, int]:  # pyright: ignore[reportReturnType] -- it is a protocol
        """Return the type and the number of the device."""

    def __dlpack__(self, *, stream: int | None = None, **options: object) -> object:
        """Return a capsule. Its memory is ready for any work that is queued on the stream after this call."""


def _decline(_: Any, /) -> None:
    """Return None, for an array that only a plan converts."""


def _unchanged(fn: Callable[[Any], Any], /) -> Callable[[Any], Any]:
    """Return a function itself, for a library without modes."""
    return fn


@dataclass(frozen=True)
class Fast:
    """What a library does with ordinary arrays in one step, without a plan.

    A backend has an instance as `fast`. Its functions get arrays of the exact types alone, and return None
    for an array that they do not convert, which is then planned. An exception is taken for a bug and reaches
    the user. So a backend catches those by which its library refuses an array, and returns None.
    """

    types: tuple[type, ...] = ()
    """Exact types that the fast path accepts. Default: `array_types`."""
    scalar_types: tuple[type, ...] = ()
    """Types of scalars that `numpy.asarray` converts to an array of a numeric dtype."""
    to_numpy: Callable[[Array], HostArray | None] = _decline
    """`to_numpy(x)`: NumPy's view of an array."""
    copy_to_numpy: Callable[[Array], HostArray | None] | None = None
    """`copy_to_numpy(x)`: a new copy of that view, for a library whose views are all read-only."""
    resolve_to_numpy: Callable[[Array], HostArray | None] | None = None
    """`resolve_to_numpy(x)`: a new host array, with the operation applied that is pending on an array."""
    from_numpy: Callable[[HostArray], Array | None] = _decline
    """`from_numpy(host)`: an array over a host array."""
    from_numpy_many: Callable[[list[HostArray]], list[Array] | None] | None = None
    """`from_numpy_many(hosts)`: `from_numpy` for each, or None if one is not ordinary."""
    from_fresh: Callable[[HostArray], Array | None] | None = None
    """`from_fresh(host)`: `from_numpy` for a dense copy that a cached call has just made.

    It shares that memory, or returns None for each array of its dtype.
    """
    stack_many: Callable[[list[Array]], Array | None] | None = None
    """`stack_many(xs)`: `stack` along one new axis; None if the arrays are not certain to be alike."""
    plan_state: Callable[[], object] | None = None
    """`plan_state()`: what plans depend on besides the array and the options, such as a default dtype.

    The result is hashable. With this function, the core repeats the plans of calls with options. So
    `from_numpy` copies only arrays whose dtype or flags show that they cannot be shared.
    """
    state_is_default_dtype: bool = False
    """True if `plan_state` matters only for ``dtype="default"`` and ``"nearest"``.

    The other functions here then look for modes in which they must decline.
    """
    plan_key: Callable[..., object] | None = None
    """`plan_key(x, graph=False)`: one hashable object of all facts about an array that plans depend on.

    These are its dtype and how it is stored, and with `graph` also what autograd does with it. The core
    repeats a plan within the library, or of an array with a pending operation, for each array with an equal
    key. None means that the array is planned, such as one on a device.
    """
    outside_modes: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] = _unchanged
    """`outside_modes(fn)`: `fn` outside of a mode, if one is on in a call, that is not part of `plan_state`.

    `from_numpy` and its like leave such a mode themselves, and `untraced` leaves it for a plan.
    """


class Transfers:
    """How a library moves arrays between the host and its devices, beside `to_device`, and in other threads.

    A backend has an instance of a subclass as `transfers`. The defaults here move nothing: what a function
    declines is moved by a plan, with `to_device`.
    """

    has_packs: bool = False
    """True if `send_many` and `fetch_many` move small arrays together."""

    # -- one array that a plan would only move, without the plan -------------------------------------
    def fast_to_device(self, device: object, /) -> Callable[[HostArray], Array | None] | None:
        """Return a function that copies an ordinary host array to a device, and declines others by None.

        The device is what the caller gives. Without an index it means the current one of each call. The
        result is None for a device that only a plan can find.
        """
        return None

    def fast_from_device(self, x: Array, /) -> HostArray | None:
        """Return a new host array of an ordinary array on a device, or None to decline."""
        return None

    # -- many small arrays, in packs -----------------------------------------------------------------
    def send_many(self, hosts: list[HostArray], device: Device, /) -> list[Array | None] | None:
        """Return new arrays on a device for small ordinary host arrays, and None in place of each other one.

        They are complete when the call returns, and may share new memory. After an error, those that are left
        are None. The result is None if there is no such device or mode.
        """
        return None

    def fetch_many(self, xs: list[Array], /) -> list[HostArray | None] | None:
        """Return new host arrays for small ordinary arrays on one device, as `send_many` does.

        No result is a view of an array on the host.
        """
        return None

    def to_device_many(self, xs: list[Array], device: Device, /) -> list[Array] | None:
        """Do `to_device` for many small arrays, which may share new memory; None to do it one by one."""
        return None

    # -- large arrays, piece by piece ----------------------------------------------------------------
    def streams_to_device(self, nbytes: int, device: Device, /) -> bool:
        """Return True if `stream_to_device` accepts an array of that size."""
        return False

    def stream_to_device(self, host: HostArray, device: Device, dtype: str | None = None, /) -> Array:
        """Cast or copy on the host and move, piece by piece, so that the host never holds a whole copy.

        The result has the axis order that NumPy would have given it.
        """
        raise NotImplementedError

    def release_buffers(self) -> None:
        """Free the host memory that is kept for transfers, except what is in use."""

    # -- other threads -------------------------------------------------------------------------------
    def may_use_threads(self) -> bool:
        """Return True if another thread can convert all ordinary arrays now. Otherwise each is asked.

        With True, arrays with equal attributes `device` are on one device.
        """
        return False

    def threaded(self, fn: ArrayFn, device: Device, /) -> ArrayFn:
        """Return `fn` for another thread, on behalf of this thread.

        A call runs in the modes of this thread, and its result is complete and usable by this thread. It
        reads device memory after the work that this thread has queued so far, and does not wait for later
        work. Calls nest. Default: `fn`, after what `thread_context` returns.
        """
        take_over = self.thread_context()

        def in_thread(xs: list[object]) -> list[object]:
            take_over()
            return fn(xs)

        return in_thread

    def thread_context(self) -> Callable[[], object]:
        """Return a function that gives another thread the modes, device and streams of this one.

        They apply to the thread that calls it, until that thread ends.
        """
        return int

    def queue_mark(self, device: Device, /) -> Callable[[], object]:
        """Return a function that waits for the work that this thread has queued by then."""
        return int


class ArrayInfo(NamedTuple):
    """The properties of an array that do not depend on its memory, so that tracers have them too."""

    dtype: str
    """Canonical name, or the library's own word if there is none."""
    device: Device
    shape: tuple[int, ...]
    """The length of an axis is NaN if it is known only after the array is computed."""
    requires_grad: bool = False
    """True if autograd records operations on the array."""
    native_byteorder: bool = True
    """True if the bytes are in this machine's order."""
    sharding: Device | None = None
    """The name of its distribution over several devices, if arrays were asked for by it."""


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of an array in C order, in bytes."""
    strides = tuple(accumulate((itemsize, *shape[:0:-1]), mul))
    return strides[: len(shape)][::-1]


def is_aligned(address: int, strides: tuple[int, ...], itemsize: int) -> bool:
    """Return True if every element begins at a multiple of the item size."""
    return all(offset % itemsize == 0 for offset in (address, *strides))


class MemoryLayout(NamedTuple):
    """The memory layout of an array that can be read."""

    address: int
    """The address of the first element; 0 if the array has no memory before it is materialized."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Strides in bytes."""
    itemsize: int
    writable: bool = True
    aligned: bool = True
    materialized: bool = True
    """False while an operation is still pending on the bytes, as with a conjugate bit."""

    @classmethod
    def unallocated(cls, shape: tuple[int, ...], itemsize: int, *, writable: bool = True) -> MemoryLayout:
        """Make the layout of an array without memory, which is in row-major order once it is materialized."""
        return cls(0, shape, c_strides(shape, itemsize), itemsize, writable=writable, materialized=False)

    def is_unallocated(self) -> bool:
        """Return True if the array has no bytes in memory: it is empty, or not yet computed."""
        return 0 in self.shape or not self.address

    def span(self) -> tuple[int, int]:
        """Return the range of bytes that the elements lie in, relative to the first element."""
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(r for r in reach if r < 0)
        return low, sum(r for r in reach if r > 0) + self.itemsize

    def is_c_order(self) -> bool:
        """Return True if the elements follow each other in C order, as NumPy and torch define it."""
        dense = c_strides(self.shape, self.itemsize)
        axes = zip(self.shape, self.strides, dense, strict=True)
        return 0 in self.shape or all(n == 1 or stride == other for n, stride, other in axes)

    def may_overlap_itself(self) -> bool:
        """Return True if two elements share memory or may do so: an exact answer can take long."""
        if 0 in self.shape:
            return False
        behind = self.itemsize
        axes = zip(self.shape, self.strides, strict=True)
        for stride, n in sorted((abs(s), n) for n, s in axes if n > 1):
            if stride < behind:
                return True
            behind += (n - 1) * stride
        return False


class Unsupported(NamedTuple):
    """The reason why an array cannot be read, and the call to type instead."""

    error: type[XBridgeError]
    reason: str
    hint: str = ""


class Gap(NamedTuple):
    """A feature that a library does not have."""

    status: Literal["never", "notyet", "notimpl"]
    """`never`: the library will not have it; `notyet`: it may come; `notimpl`: the backend lacks it."""
    reason: str

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}"


FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "readonly": "Its arrays can be read-only, over memory that must not be written.",
        "host": "Its arrays can be in host memory.",
        "devices": "Its arrays can be on other devices than the host.",
        "autograd": "Its operations record a graph, through which gradients flow.",
        "namespace": "Its arrays have an array API namespace of their own.",
        "sharing": "Its arrays can use dense host memory without a copy.",
        "axis_order": "A copy keeps the order of the axes in memory.",
    }
)
"""Every feature that can be a gap. A backend has all features that it does not list in `gaps`."""


class Backend(ModuleType):
    """A backend with every name of the protocol: those that its module writes, and these defaults.

    A module's own names take precedence, so a default that calls another function of the protocol gets the
    module's, if there is one. A completed backend is a module too, because a compiler can follow those.

    Parameters
    ----------
    module : module
        The module of the backend, which stays as it is.
    host : module
        NumPy's backend, with which the defaults compute in host memory.
    """

    def __init__(self, module: ModuleType, host: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        self._host: Backend = host
        own = vars(self)
        own.update({word: getattr(module, word) for word in names_written(module)})
        if not self.fast.types:
            self.fast = replace(self.fast, types=self.array_types)
        self.gaps = {**_implied_gaps(own), **self.gaps}
        self.readonly = "readonly" not in self.gaps
        self.autograd = "autograd" not in self.gaps
        self.host_only = "devices" in self.gaps

    # -- always: every backend writes these four names ----------------------------------------------
    name: str = ""
    """The name that users type."""
    array_types: tuple[type, ...] = ()
    """Types of its arrays; instances of subclasses are its arrays too."""

    def to_numpy(self, x: Array, /) -> HostArray:
        """Return a view of an array in host memory: no copy. The array has no graph."""
        raise NotImplementedError

    def from_numpy(self, host: HostArray, /) -> Array:
        """Return an array over the memory of a host array, which may be read-only.

        With the gap `sharing`, return an array of the same values in new memory, unless the library is
        `assumes_immutable`. A library with the gap `host` uses NumPy's arrays on the host: this function and
        `to_numpy` return their argument, and `to_device` takes and returns NumPy's arrays there.
        """
        raise NotImplementedError

    # -- flags ---------------------------------------------------------------------------------------
    gaps: Mapping[str, Gap] = MappingProxyType({})
    """Features that the library does not have.

    Three follow from what the module lacks: `devices` and `autograd` from the verbs `devices` and
    `require_grad`, and `namespace` if neither the verb nor the array types have an array API namespace.
    """
    assumes_immutable: bool = False
    """The library may read memory after a call, so it shares only immutable memory."""
    samples: str = ""
    """The import path of the library's samples for the test kit; empty for no samples."""
    readonly: bool = False
    """Derived: arrays can be read-only, so read-only memory can be shared."""
    autograd: bool = False
    """Derived: arrays can require grad."""
    host_only: bool = False
    """Derived: arrays are in host memory only."""

    # -- layout and properties -----------------------------------------------------------------------
    scalar_types: tuple[type, ...] = ()
    """Types of its scalars, each of which stands for a 0-d array on the host."""

    def owns(self, cls: type, /) -> bool:
        """Return True if instances of the class are the library's arrays or scalars."""
        return issubclass(cls, (*self.array_types, *self.scalar_types))

    def array_info(self, x: Array, /) -> ArrayInfo:
        """Describe any array of the library, convertible or not."""
        return self._host.array_info(self.to_numpy(x))

    def dtype_of(self, x: Array, /) -> str:
        """Return the dtype in `array_info(x)`. A function of the backend's own takes less time."""
        return self.array_info(x).dtype

    def device_of(self, x: Array, /) -> Device:
        """Return the device in `array_info(x)`, as `dtype_of` does."""
        return CPU if self.host_only else self.array_info(x).device

    def unsupported(self, x: Array, /, *, leaving: bool) -> Unsupported | None:
        """Say why `x` cannot be converted, within the library or to another one; None if it can."""
        if self.host_only:
            return self._host.unsupported(self.to_numpy(self.detach(x)), leaving=leaving)
        dtype = self.array_info(x).dtype
        if not leaving or dtype in DTYPES:
            return None
        return Unsupported(DTypeError, f"{dtype} is not a numeric dtype")

    unreadable: Callable[[Array], Unsupported | None] | None = None
    """`unreadable(x)`: why the elements cannot be read within the library; None if they can.

    It is asked for arrays that would be copied, cast or moved. Without it, all can be read.
    """

    def memory_layout(self, x: Array, /) -> MemoryLayout:
        """Describe the memory of a supported array."""
        return self._host.memory_layout(self.to_numpy(self.detach(x)))

    def accepts_layout(self, info: ArrayInfo, layout: MemoryLayout, /) -> bool:
        """Return True if `from_numpy` accepts such host memory."""
        return info.native_byteorder

    not_sharing: Callable[[], str | None] | None = None
    """`not_sharing()`: why no array can share host memory now, such as in a mode without values.

    None if arrays can. Without it, only the gap `sharing` decides.
    """

    def namespace(self, x: Array, /) -> ModuleType:
        """Return the array API namespace of `x`."""
        if "namespace" in self.gaps:
            raise self._without_namespace(self.gaps["namespace"].reason)
        with Chained(lambda error: self._without_namespace(f"__array_namespace__ failed with {error!r}")):
            return x.__array_namespace__()  # type: ignore[no-any-return] # what the class says it is

    def copy(self, x: Array, /) -> Array:
        """Copy to new dense memory, in the same axis order."""
        if "namespace" in self.gaps:
            return self._by_numpy(self._host.copy(self._read(x)), x)
        return self.namespace(x).asarray(x, copy=True)

    as_c_order: Callable[[Array], Array] | None = None
    """`as_c_order(x)`: `x` if its elements are in C order in memory, else a copy that has them so.

    Without it, users cannot see the order of the elements in memory.
    """

    def stack(self, arrays: list[Array], shape: tuple[int, ...], /) -> Array:
        """Stack arrays of one dtype, shape and device: shape + the arrays' shape."""
        if "namespace" in self.gaps:
            return self._by_numpy(self._host.stack([self._read(x) for x in arrays], shape), arrays[0])
        xp = self.namespace(arrays[0])
        return xp.reshape(xp.stack(arrays), (*shape, *arrays[0].shape))

    # -- dtypes --------------------------------------------------------------------------------------
    def dtype_name(self, dtype: object, /) -> str | None:
        """Name one of its dtype objects; None for anything else."""
        return self._host.dtype_name(dtype)

    def unsupported_dtype(self, dtype: str, device: Device, /) -> Unsupported | None:
        """Say why it cannot have arrays of that dtype there; None if it can."""
        return self._host.unsupported_dtype(dtype, device)

    def default_dtype(self, category: str, device: Device, /) -> str:
        """Return the dtype that Python numbers of a category become."""
        return self._host.default_dtype(category, device)

    promote: Callable[[list[str], list[complex]], str | None] | None = None
    """`promote(dtypes, numbers)`: the dtype of arrays of these dtypes beside Python numbers.

    The result is None for dtypes that the library does not promote. NumPy's rules then hold for a list,
    as they do without this function.
    """

    def astype(self, x: Array, dtype: str, /) -> Array:
        """Cast as the library does; new memory."""
        if "namespace" in self.gaps:
            return self._by_numpy(self._host.astype(self._read(x), dtype), x)
        xp = self.namespace(x)
        return xp.astype(x, getattr(xp, dtype))

    def check_cast(self, x: Array, dtype: str, /) -> Array:
        """Return `x` if a cast to the dtype loses no value; else raise."""
        self._host.check_cast(self._read(x), dtype)
        return x

    host_casts: frozenset[tuple[str, str]] = frozenset()
    """Casts (from, to) in which NumPy gives the same bits as any device, faster."""

    def cast_matches_numpy(self, dtype: str, other: str, device: Device, /) -> bool:
        """Return True if the library's cast on the device gives NumPy's numbers, faster or not."""
        return self.host_only or (dtype, other) in self.host_casts

    # -- devices: `devices`, `to_device`, `array_info` and `memory_layout` come together -------------
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that are present now."""
        return (CPU,)

    def to_device(self, x: Array, device: Device, /) -> Array:
        """Copy to new memory on another device, complete when the call returns."""
        return x

    def device_name(self, device: object, /) -> Device | None:
        """Name one of its device objects; None for anything else."""
        return None

    def resolve_device(self, device: Device, near: Device, /) -> Device:
        """Return one existing device for a name that may omit the index or say `gpu`.

        This is the named device, else `near` or the first one of that kind.
        """
        present = self.devices()
        for each in (device, near, *present):
            if each in present and is_of_kind(each, device):
                return each
        if not self.host_only:
            raise absent_device_error(self.name, device, present)
        action, reason = f"put an array of {self.name} on {device!r}", self.gaps["devices"].reason
        raise DeviceError.build(action, reason, "device='cpu'")

    on_one_device: Callable[[Array], Array] | None = None
    """`on_one_device(x)`: one copy of an array that several devices hold as a whole; else `x`.

    An array leaves its library in this form. Only a library with this function has arrays on devices of
    the kind `sharded`.
    """
    to_dlpack: Callable[[Array], Exporter] | None = None
    """`to_dlpack(x)`: export the memory of an array on its device by DLPack, whatever device is current.

    Without it, arrays move between devices of two libraries through host memory.
    """
    from_dlpack: Callable[[Exporter], Array] | None = None
    """`from_dlpack(shown)`: an array over exported memory, in order of its device's current stream."""

    # -- autograd: `require_grad`, `detach` and `array_info` come together ---------------------------
    def detach(self, x: Array, /) -> Array:
        """Return the same memory without its graph, read-only if the library can do that."""
        return x

    def require_grad(self, x: Array, /) -> Array:
        """Return a new leaf over the same memory."""
        action, reason = f"make an array of {self.name} require grad", self.gaps["autograd"].reason
        raise GradientError.build(action, reason, "backend='torch'")

    def is_grad_enabled(self) -> bool:
        """Return True if operations record a graph now."""
        return "require_grad" in vars(self)

    is_leaf: Callable[[Array], bool] | None = None
    """`is_leaf(x)`: True if the graph of an array that requires grad begins with it."""

    # -- lazy ----------------------------------------------------------------------------------------
    def materialize(self, x: Array, /) -> Array:
        """Apply pending operations, into new memory."""
        return x

    materialize_many: Callable[[list[Array]], list[Array]] | None = None
    """`materialize_many(xs)`: `materialize` for many at once, with shared parts computed once."""

    # -- speed ---------------------------------------------------------------------------------------
    fast: Fast = Fast()
    """What the library does with ordinary arrays in one step; see `Fast`."""

    # -- compilers and threads -----------------------------------------------------------------------
    transfers: Transfers = Transfers()
    """Moves that are faster than `to_device`, and conversions in other threads; see `Transfers`."""

    def is_tracing(self) -> bool:
        """Return True if a compiler of the library traces the caller now."""
        return False

    def untraced(self, fn: Callable[..., Array], /) -> Callable[..., Array]:
        """Return `fn`, made to run outside modes that would change its result."""
        return fn

    watch: Callable[[Notice], AbstractContextManager[object]] | None = None
    """`watch(notice)`: a context that notices conversions by the library's own calls in this thread.

    After each one it calls `notice(name, source, result, seconds)`, directly from the function that the
    library calls back. It uses a hook that the library offers, and replaces nothing.
    """

    # -- calls of functions --------------------------------------------------------------------------
    follows: Callable[[Array], bool] | None = None
    """`follows(x)`: True if a graph, a transform or a compiler follows an array."""
    functions: Any = None
    """An object with what `aligned` can use of the library: see `xbridge.functions.libraries`."""

    # -- what the defaults share ---------------------------------------------------------------------
    def _without_namespace(self, reason: str) -> UnsupportedArrayError:
        action = f"find the namespace of an array of {self.name}"
        return UnsupportedArrayError.build(action, reason, "to_numpy(x)")

    def _read(self, x: Array) -> HostArray:
        """Return the values of an array in host memory."""
        x = self.materialize(self.detach(x))
        return self.to_numpy(x if self.array_info(x).device == CPU else self.to_device(x, CPU))

    def _by_numpy(self, host: HostArray, like: Array) -> Array:
        """Return a result of NumPy as an array of the library, on the device of another array."""
        x, device = self.from_numpy(host), self.array_info(like).device
        return x if device == CPU else self.to_device(x, device)


REQUIRED = ("name", "array_types", "to_numpy", "from_numpy")

CONSTANTS: dict[str, type] = {
    "name": str,
    "array_types": tuple,
    "gaps": Mapping,
    "assumes_immutable": bool,
    "samples": str,
    "scalar_types": tuple,
    "host_casts": frozenset,
    "fast": Fast,
    "transfers": Transfers,
    "functions": object,
}
"""What a backend may write that is no function, and the types."""

DERIVED = ("readonly", "autograd", "host_only")

_DEFAULTS = {word: default for word, default in vars(Backend).items() if word[0] != "_"}

VERBS = tuple(word for word, default in _DEFAULTS.items() if isinstance(default, FunctionType))
"""Functions of every completed backend."""

OPTIONAL = tuple(word for word, default in _DEFAULTS.items() if default is None and word not in CONSTANTS)
"""Functions that are None if the backend does not write them."""

REQUIRED_TOGETHER = (
    ("devices", "to_device", "array_info", "memory_layout"),
    ("to_device", "devices", "array_info"),
    ("require_grad", "detach", "array_info"),
    ("to_dlpack", "devices"),
    ("from_dlpack", "devices"),
    ("materialize_many", "materialize"),
)
"""Groups of names: a backend that writes the first one writes the others too."""


def names_written(module: ModuleType) -> list[str]:
    """Return the names of the protocol that a module defines itself."""
    words = (*CONSTANTS, *VERBS, *OPTIONAL)
    return [word for word in words if getattr(module, word, None) is not None]


def _implied_gaps(own: Mapping[str, Any]) -> dict[str, Gap]:
    reasons = {}
    if "devices" not in own:
        reasons["devices"] = "has arrays in host memory only"
    if "require_grad" not in own:
        reasons["autograd"] = "has no gradients"
    if "namespace" not in own and not any(hasattr(cls, "__array_namespace__") for cls in own["array_types"]):
        reasons["namespace"] = "has no array API namespace"
    return {feature: Gap("notimpl", f"{own['name']} {reason}") for feature, reason in reasons.items()}
