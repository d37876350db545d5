"""JAX: immutable arrays, 64 bits only if its option is set, and tracers.

JAX reads memory after the call too. So memory that other code can change is copied first, and only JAX holds
the copy. Concrete arrays are computed at once, also while JAX traces the caller. A tracer passes only through
JAX's own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from xbridge._core.devices import CPU, SHARDED, Device, absent_device_error, device_named, is_of_kind
from xbridge._core.dtypes import DTYPES, category, is_inexact
from xbridge._core.protocol import (
    Array,
    ArrayFn,
    ArrayInfo,
    Exporter,
    Fast,
    Gap,
    HostArray,
    MemoryLayout,
    Transfers,
    Unsupported,
    c_strides,
)
from xbridge._host import memory as _host
from xbridge._host.memory import ALIGNMENT, LARGE, finite_extremes, not_finite_error
from xbridge.backends.jax import _private
from xbridge.backends.jax._devices import (
    asked,
    device_for_sharding,
    device_of_sharding,
    devices_by_name,
    find_default_device,
    host_device,
    is_c_order,
    name_device,
    several,
)
from xbridge.backends.jax._threads import capture_options, refuse_in_callback, with_options
from xbridge.errors import DeviceError, DTypeError, UnsupportedArrayError

_NATIVE = {
    word: np.dtype(getattr(jnp, word))
    for word, facts in DTYPES.items()
    if hasattr(jnp, word) and facts.bits != 6  # of which XLA knows no arrays
}
_NAMES = {dtype: word for word, dtype in _NATIVE.items()}
_WITHOUT_X64 = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
_BYTES = [word for word in _NATIVE if not DTYPES[word].is_packed]
"""The dtypes of whole bytes, which JAX has in memory as NumPy does."""
_SMALL = [_NATIVE[word] for word in _BYTES if DTYPES[word].kind == "float" and DTYPES[word].bits < 32]
_BITS = {dtype: np.dtype(f"uint{8 * dtype.itemsize}") for dtype in _SMALL}
_X32_DTYPES = frozenset(dtype for dtype, word in _NAMES.items() if word not in _WITHOUT_X64)
_EXPORTED = frozenset(dtype for dtype, word in _NAMES.items() if word != "bool")
"""The dtypes of which no other one is exported. A bool may be an int1."""
_Array = _private.Array
_Tracer = jax.core.Tracer
_DELETED = Unsupported(UnsupportedArrayError, "its memory was deleted or donated")
_SINGLES = ("complex64", *(word for word in _BYTES if DTYPES[word].is_extended))
_VIEW_FLAGS = (0x103, 0x101)
"""NumPy's `flags.num` for a read-only view in C order of memory that NumPy does not own.

The bits are 0x100 aligned and 0x1 C order. With at most one axis, 0x2 for Fortran order is set too.
"""
_is_alone = False
"""True once the first CPU device is known to be JAX's only one, so that all arrays are there.

JAX finds its devices when it needs the first, and keeps them.
"""
_device_put = _private.device_put
# What it takes, kept because JAX makes each anew in a third of the time of a conversion.
_make_aval, _make_sharding = lru_cache(256)(jax.core.ShapedArray), lru_cache(64)(SingleDeviceSharding)

name = "jax"
array_types: tuple[type, ...] = (jax.Array, _Tracer)
gaps: dict[str, Gap] = {
    "autograd": Gap("never", "JAX differentiates functions, not arrays"),
    "sharing": Gap("never", "JAX reads memory later than the call, so what can change is copied"),
    "axis_order": Gap("never", "JAX arrays are in row-major order"),
}
assumes_immutable = True
samples = "xbridge.testing.samples.jax"
host_casts: frozenset[tuple[str, str]] = frozenset(
    {
        *((whole, to) for whole in _BYTES if category(whole) in ("bool", "int") for to in _BYTES),
        *(("float32", to) for to in _SINGLES),
        *((small, "float32") for small in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")),
    }
)
"""Other casts differ: JAX flushes subnormal numbers to zero, and floats that fit no integer saturate."""


def to_numpy(x: Array, /) -> HostArray:
    return np.asarray(x)


def from_numpy(host: HostArray, /) -> Array:
    host = _with_plain_booleans(host)
    taken = _wrap_without_copy(host)
    if taken is None:
        with _outside_traces(host), jax.default_device(host_device()):
            return jax.device_put(host)
    return taken


def array_info(x: Array, /) -> ArrayInfo:
    dtype = _NAMES.get(x.dtype) or str(x.dtype)
    if isinstance(x, _Tracer):
        return ArrayInfo(dtype, find_default_device(), x.shape, requires_grad=is_inexact(dtype))
    place = x.sharding
    return ArrayInfo(dtype, device_of_sharding(place), x.shape, sharding=asked.get(place))


def unsupported(x: Array, /, *, leaving: bool) -> Unsupported | None:
    if not leaving:
        return None
    if isinstance(x, _Tracer):
        reason = "a tracer has no values yet"
        hint = "a function with @xbridge.aligned, or jax.pure_callback"
    elif x.is_deleted():
        return _DELETED
    elif not x.is_fully_addressable:
        reason = "other processes hold parts of it"
        hint = "jax.experimental.multihost_utils.process_allgather(x, tiled=True)"
    elif x.dtype.name in DTYPES:
        return None
    elif jnp.issubdtype(x.dtype, jax.dtypes.extended):
        reason, hint = f"{x.dtype} is not a numeric dtype", "jax.random.key_data(x)"
    else:
        return Unsupported(DTypeError, f"{x.dtype} has no canonical name", "x.astype('int8')")
    return Unsupported(UnsupportedArrayError, reason, hint)


def unreadable(x: Array, /) -> Unsupported | None:
    return _DELETED if isinstance(x, _Array) and x.is_deleted() else None


def memory_layout(x: Array, /) -> MemoryLayout:
    refused = unsupported(x, leaving=True)
    if refused:
        raise refused.error.build("look at the memory of a JAX array", refused.reason, refused.hint)
    part, size = x.addressable_data(0), x.dtype.itemsize
    address, strides = part.unsafe_buffer_pointer(), c_strides(part.shape, size)
    bits = DTYPES[_NAMES[x.dtype]].bits
    if bits < 8:  # several items in a byte, which each conversion unpacks
        nbytes = -(-part.size * bits // 8)
        return MemoryLayout(address, (nbytes,), (1,), 1, writable=False, materialized=False)
    return MemoryLayout(address, part.shape, strides, size, writable=False, materialized=is_c_order(part))


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    in_rows = layout.strides == c_strides(layout.shape, layout.itemsize)
    return info.native_byteorder and in_rows and layout.address % ALIGNMENT == 0


def namespace(x: Array, /) -> ModuleType:
    return jnp  # random keys have no `__array_namespace__`


def copy(x: Array, /) -> Array:
    with _outside_traces(x):
        return x.copy()


def stack(arrays: list[Array], shape: tuple[int, ...], /) -> Array:
    with _outside_traces(*arrays) as traced:
        dtype = arrays[0].dtype
        # JAX stacks some dtypes by way of another one, which changes the bits of NaN. So they are stacked as
        # integers, unless a tracer needs gradients.
        bits = dtype if traced else _BITS.get(dtype, dtype)
        stacked = jnp.stack([x if bits == dtype else x.view(bits) for x in arrays])
        return (stacked if bits == dtype else stacked.view(dtype)).reshape((*shape, *arrays[0].shape))


def dtype_name(dtype: object, /) -> str | None:
    native = dtype.dtype if isinstance(dtype, type(jnp.float32)) else dtype
    return _NAMES.get(native) if isinstance(native, np.dtype) else None


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype not in _NATIVE:
        return Unsupported(DTypeError, f"JAX has no {dtype}")
    if dtype in _WITHOUT_X64 and not _is_x64_enabled():
        hint = "jax.config.update('jax_enable_x64', True)"
        return Unsupported(DTypeError, f"JAX has no {dtype} while its x64 mode is off", hint)
    return None


def default_dtype(category: str, device: Device, /) -> str:
    wide = {"int": "int64", "float": "float64", "complex": "complex128"}.get(category, category)
    return wide if _is_x64_enabled() else _WITHOUT_X64.get(wide, wide)


def promote(dtypes: list[str], numbers: list[complex], /) -> str | None:
    # Arrays keep their 64 bits when x64 is turned off, but JAX then promotes them as if they had 32.
    wide = nullcontext() if _WITHOUT_X64.keys().isdisjoint(dtypes) else jax.enable_x64(True)  # noqa: FBT003 -- JAX takes it by position
    try:
        with wide:
            return _NAMES.get(jnp.result_type(*(_NATIVE[word] for word in dtypes), *numbers))
    except (KeyError, ValueError):  # a dtype without a canonical name, or without a common dtype
        return None


def astype(x: Array, dtype: str, /) -> Array:
    with _outside_traces(x):
        if DTYPES[dtype].is_finite and not isinstance(x, _Tracer) and not jnp.isfinite(x).all():
            raise not_finite_error(x.dtype, dtype)
        return x.astype(_NATIVE[dtype])


def check_cast(x: Array, dtype: str, /) -> Array:
    if isinstance(x, _Tracer):
        action, reason = f"cast {x.dtype} to {dtype} without loss", "a tracer has no values to check"
        raise DTypeError.build(action, reason, f"dtype={dtype!r}")
    if x.size:
        with _outside_traces(x):
            near = array_info(x).device == CPU
            few = x if near else jax.device_put(finite_extremes(jnp, x), host_device())
            _host.check_cast(to_numpy(few), dtype)
    return x


def devices() -> tuple[Device, ...]:
    return tuple(devices_by_name())


def to_device(x: Array, device: Device, /) -> Array:
    (moved,) = _move(x, device=device)
    return moved


def device_name(device: object, /) -> Device | None:
    if isinstance(device, Sharding):
        return device_for_sharding(device)
    return name_device(device) if isinstance(device, jax.Device) else None


def resolve_device(device: Device, near: Device, /) -> Device:
    if device == near or device in several:
        return device
    present = devices()
    for each in (device, near, find_default_device(), *present):
        if each in present and is_of_kind(each, device):
            return each
    raise absent_device_error(name, device, present)


def on_one_device(x: Array, /) -> Array:
    whole = isinstance(x, _Array) and x.sharding.num_devices > 1 and x.is_fully_replicated
    return x.addressable_data(0) if whole and not x.is_deleted() else x


def to_dlpack(x: Array, /) -> Exporter:
    part: Exporter = x.addressable_data(0)
    return part


def from_dlpack(shown: Exporter, /) -> Array:
    with _outside_traces():
        made = jax.dlpack.from_dlpack(shown)
        return made.view(jnp.uint8) != 0 if made.dtype == np.bool_ else made  # as in `_copy_booleans`


def detach(x: Array, /) -> Array:
    return jax.lax.stop_gradient(x) if isinstance(x, _Tracer) else x


def is_grad_enabled() -> bool:
    return True


def materialize(x: Array, /) -> Array:
    if array_info(x).device.kind != "cpu":
        return copy(x)
    # JAX moves such an array in C order, but labels it as Fortran order. NumPy reads it correctly, JAX's own
    # copy does not.
    with _outside_traces(x):
        materialized = from_numpy(_host.copy(np.asarray(x.addressable_data(0)), "C"))
        return jax.device_put(materialized, x.sharding)


def fast_to_numpy(x: Array, /) -> HostArray | None:
    # `np.asarray` of a CPU array is a read-only view of its memory. For any other it would be a copy, or an
    # error for an array that was deleted.
    try:
        if not _is_alone and not _is_on_first_cpu(x.sharding):
            return None
        host = np.asarray(x)
    except (RuntimeError, TypeError, ValueError):  # deleted, on several devices, or of random keys
        return None
    # Other flags mean that JAX had to copy, or that the array is in another order, which only a plan handles.
    if host.flags.num not in _VIEW_FLAGS or not (host.dtype in _EXPORTED or x.dtype == bool):
        return None
    return host


def fast_copy_to_numpy(x: Array, /) -> HostArray | None:
    host = fast_to_numpy(x)
    if host is None:
        return None
    return host.copy() if host.nbytes < LARGE else _host.copy(host)


def fast_from_numpy(host: HostArray, /) -> Array | None:
    # JAX may read memory after the call, so it gets a copy that nobody else has. NumPy copies faster than
    # JAX, to aligned memory, which JAX then takes over as it is. Without x64 mode JAX has no dtypes of 64
    # bits.
    dtype = host.dtype
    if dtype in _X32_DTYPES or (dtype in _NAMES and _is_x64_enabled()):
        return _wrap_without_copy(_copy(host))
    return None


def plan_state() -> object:
    return _is_x64_enabled()


def plan_key(x: Array, /, *, graph: bool = False) -> object:
    return None if x.is_deleted() else (x.dtype, x.sharding)


fast: Fast = Fast(
    types=(_Array,),
    to_numpy=fast_to_numpy,
    copy_to_numpy=fast_copy_to_numpy,
    from_numpy=fast_from_numpy,
    plan_state=plan_state,
    plan_key=plan_key,
)


def follows(x: Array, /) -> bool:
    return isinstance(x, _Tracer)


class _Transfers(Transfers):
    def fast_to_device(self, device: object, /) -> Callable[[HostArray], Array | None] | None:
        asked = device_named(device) if isinstance(device, str) else device_name(device)
        if asked is None or asked.kind == SHARDED:
            return None

        def there(host: HostArray) -> Array | None:
            dtype = host.dtype
            if not (host.flags.carray and (dtype in _X32_DTYPES or (dtype in _NAMES and _is_x64_enabled()))):
                return None
            try:
                place = devices_by_name()[resolve_device(asked, CPU)]
            except DeviceError:  # such as "gpu:1", which the plan counts
                return None
            # JAX would share the memory with another CPU device. Any other one has read it when it is done.
            is_copied = place.platform == "cpu" or dtype.char == "?"
            made = _wrap_without_copy(_copy(host) if is_copied else host, place)
            return None if made is None else made.block_until_ready()

        return there

    def fast_from_device(self, x: Array, /) -> HostArray | None:
        try:
            place = x.sharding
            if x.is_deleted() or x.dtype not in _NAMES or place.num_devices > 1 or not x.is_fully_addressable:
                return None
            return None if _is_on_first_cpu(place) else _host.as_writable(np.asarray(to_device(x, CPU)))
        except RuntimeError:  # without memory, for example: the plan fails too, and says why
            return None

    def to_device_many(self, xs: list[Array], device: Device, /) -> list[Array]:
        return _move(*xs, device=device)

    def threaded(self, fn: ArrayFn, device: Device, /) -> ArrayFn:  # noqa: ARG002 -- options are no device's
        return with_options(fn)

    def thread_context(self) -> Callable[[], object]:
        return capture_options()


transfers: Transfers = _Transfers()


def _is_x64_enabled() -> bool:
    wide: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined] # set while JAX is imported
    return wide


def _wrap_without_copy(host: HostArray, place: jax.Device | None = None) -> Array | None:
    """Return an array of a device, by default of the host, by JAX's internal function.

    On a CPU device it shares the memory. Return None if this version of JAX refuses.
    """
    try:
        device = place or host_device()
        aval, sharding = _make_aval(host.shape, host.dtype), _make_sharding(device)
        return _device_put(aval, sharding, [host], [device], place is not None)  # type: ignore[misc]
    except (RuntimeError, TypeError):  # `jax.transfer_guard`, or another version of JAX
        return None


def _with_plain_booleans(host: HostArray) -> HostArray:
    """Return an array whose booleans have the bytes 0 and 1; a copy if they have others.

    JAX computes with the bytes, so that the `sum` of a mask of 255 would be -1.
    """
    plain = host.dtype.char != "?" or not host.size or host.view(np.uint8).max() <= 1
    return host if plain else _copy_booleans(host)


def _copy_booleans(host: HostArray) -> HostArray:
    """Copy booleans in C order, with the bytes 0 and 1."""
    return _host.astype(host.view(np.uint8), "bool", "C")


def _copy(host: HostArray) -> HostArray:
    """Copy to memory that only JAX has, in C order, with plain booleans."""
    return _copy_booleans(host) if host.dtype.char == "?" else _host.copy(host, "C")


def _move(*xs: Array, device: Device) -> list[Array]:
    """Copy arrays to new memory on a device, all in one call of JAX."""
    with _outside_traces(*xs) as traced:
        place = several.get(device) or (host_device() if device == CPU else devices_by_name()[device])
        moved: list[Array] = jax.device_put([_prepare_move(x) for x in xs], place, may_alias=False)
        return moved if traced else [y.block_until_ready() for y in moved]


def _prepare_move(x: Array) -> Array:
    """Return the array in a form that `device_put` copies to new memory, in C order."""
    if isinstance(x, _Array) and x.is_fully_replicated:
        x = x.addressable_data(0)  # else `device_put` would return the array itself
    elif isinstance(x, _Array) and x.is_fully_addressable and x.sharding.num_devices > 1:
        # `device_put` gathers the parts in the array's cache for NumPy, which the result then shares. So the
        # parts become another array, whose cache nobody else has.
        parts = [part.data for part in x.addressable_shards]
        x = jax.make_array_from_single_device_arrays(x.shape, x.sharding, parts)
    if isinstance(x, _Array) and not is_c_order(x):
        x = materialize(x)  # else JAX would compute with other numbers than those that were moved
    return x


@lru_cache(1024)  # its answer is found faster than the devices of a sharding
def _is_on_first_cpu(place: Any) -> bool:
    """Return True if a sharding is the first CPU device."""
    global _is_alone  # noqa: PLW0603 -- it is set once, when JAX has found its devices
    (device,) = _private.devices_of(place)
    if device.platform != "cpu" or device.local_hardware_id:
        return False
    _is_alone = sum(client.device_count() for client in _private.backends().values()) == 1
    return True


@contextmanager
def _outside_traces(*arrays: Array | HostArray) -> Iterator[bool]:
    """Enter a context in which JAX computes at once, on the device of the arrays and with 64 bits.

    Without this, JAX would add the computation to the trace of the caller, move arrays that are not committed
    to a device to the default one, and narrow 64 bits to 32 in a move between platforms. If one of the arrays
    is traced, the context changes nothing, and its value is True.
    """
    if any(isinstance(x, _Tracer) for x in arrays):
        yield True
        return
    refuse_in_callback()
    uncommitted = [] if _is_alone else [x for x in arrays if isinstance(x, _Array) and not x.committed]
    place = jax.default_device(next(iter(uncommitted[0].devices()))) if uncommitted else nullcontext()
    fits = _is_x64_enabled() or all(x.dtype in _X32_DTYPES for x in arrays)
    wide = nullcontext() if fits else jax.enable_x64(True)  # noqa: FBT003 -- JAX takes it by position
    with jax.core.eval_context(), wide, place:  # without those that change nothing, which take 20 us
        yield False
