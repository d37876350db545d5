"""The backend of PyTorch: tensors with devices, gradients and pending operations, which are never read-only.

Some tensors look ordinary and are not values in memory: they are fake, freed, traced or wrapped. Plans ask
`_unsupported.py` about each. The fast path makes a few cheap checks, and returns None if one of them fails.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache, reduce, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.fx import Proxy

from xbridge._core import tracing
from xbridge._core.devices import CPU, CUDA, CUDA_MANAGED, ROCM, Device, absent_device_error, device_named
from xbridge._core.dtypes import DTYPES, category, holds_every, holds_integers
from xbridge._core.guards import guard_of
from xbridge._core.protocol import ArrayInfo, Fast, Gap, MemoryLayout, Transfers, Unsupported
from xbridge._host import memory as _host
from xbridge._host.memory import native_dtype
from xbridge.backends.torch import _private
from xbridge.backends.torch._dtypes import (
    BIT_DTYPES,
    DTYPE_OF,
    NAME_BY_TORCH,
    TORCH_BY_NAME,
    defaults_of_calls,
)
from xbridge.backends.torch._dtypes import default_dtype as default_dtype_of_call
from xbridge.backends.torch._private import DECLINED, accelerators, dispatch_modes, dual_levels
from xbridge.backends.torch._unsupported import (
    apply_pending,
    check_readable,
    is_inside,
    is_whole,
    may_require_grad,
    outside_storage,
    overlaps,
    shape_of,
    why_not_memory,
    why_not_values,
)
from xbridge.errors import DeviceError, DTypeError, GradientError, UnsupportedArrayError, ValueLossError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType

    import numpy as np

    from xbridge._core.protocol import Array, Exporter, HostArray, Notice

P = ParamSpec("P")
R = TypeVar("R")

_PROMOTED_ALIKE = frozenset(dtype for dtype in NAME_BY_TORCH if not dtype.is_complex and dtype.itemsize > 2)
"""Dtypes that torch and NumPy promote alike if nothing is lost."""
_PRECHECKS = 500
"""The number of tensors that `fast_to_numpy` checks before it calls `Tensor.numpy`, after a call that failed.

`Tensor.numpy` raises for a tensor on a GPU, of bfloat16, or with a pending conjugate. To catch the error
takes ten times as long as a conversion, and to check first adds a tenth to each. Programs convert many
tensors of one kind in a row, so after one failure the next 500 tensors are checked first.
"""
_prechecks = 0
"""How many of these checks are left. Threads may lose a count to each other: only speed depends on it."""
_host_prechecks = 0
"""The same for `fast_from_numpy`, whose arrays may have a dtype or strides that torch refuses."""
_TRACKED_IS_WRITABLE = guard_of(requires_grad=True) is None
_OVERLAPPING_IS_WRITABLE = guard_of(overlaps=True) is None
# NumPy's `flags.num` has all flags of an array as bits of one integer: 0x1 C order, 0x2 Fortran order, 0x4
# NumPy owns the memory, 0x100 aligned, 0x400 writable. A view of a dense tensor has one of these six values:
# aligned, dense in one order or both, writable or not, and not the owner. To look for the integer in a set
# takes one attribute read in place of four. A tensor without memory makes NumPy allocate some, and own it.
_DENSE = frozenset(0x100 | order | write for order in (1, 2, 3) for write in (0, 0x400))
_is_dense = attrgetter("flags.carray")
"""Tell an aligned, writable array in C order, by one flag. `fast_from_numpy` accepts more, and is slower."""

_from_numpy = torch.from_numpy
_copy_dense = _host.dense_copier(_host.ones(native_dtype("uint8")))
_is_contiguous = torch.Tensor.is_contiguous
_is_wrapped = _private.is_wrapped
_is_traced = torch.compiler.is_dynamo_compiling
_is_recording = _private.is_recording
_is_inference_mode = torch.is_inference_mode_enabled
_default_dtype = torch.get_default_dtype
tracing.symbolic_numbers |= {torch.SymInt: "int", torch.SymFloat: "float"}
_compiler = _private.find_compiler
"""Compiled code ignores that a NumPy array is read-only, so such an array must not be made for it."""


name = "torch"
array_types: tuple[type, ...] = (torch.Tensor,)
_EXACT_TYPES: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)
gaps: dict[str, Gap] = {"readonly": Gap("never", "torch has no read-only tensors")}
samples = "xbridge.testing.samples.torch"
host_casts: frozenset[tuple[str, str]] = frozenset(
    {
        *(("float64", "float32"), ("float32", "float64"), ("complex128", "complex64")),
        *((wide, narrow) for wide in ("int64", "uint64") for narrow in ("int32", "uint32")),
        *((whole, "float32") for whole in ("int64", "int32", "uint8")),
    }
)


def _bypass_subclass(
    fn: Callable[Concatenate[torch.Tensor, P], R],
) -> Callable[Concatenate[torch.Tensor, P], R]:
    """Return `fn`, which does not call `__torch_function__` of a subclass: that may raise or have effects."""

    @wraps(fn)
    def plain(x: torch.Tensor, /, *args: P.args, **options: P.kwargs) -> R:
        if type(x) in _EXACT_TYPES:
            return fn(x, *args, **options)
        if issubclass(type(x), Proxy):
            raise UnsupportedArrayError.build(
                "convert a proxy of torch.fx",
                "it has no dtype and no device while the program is traced",
            )
        with _private.without_subclass():
            return fn(x, *args, **options)

    return plain


def to_numpy(x: torch.Tensor, /) -> HostArray:
    bits = BIT_DTYPES.get(x.dtype)
    if bits is None:
        return x.numpy()
    return x.view(bits).numpy().view(native_dtype(NAME_BY_TORCH[x.dtype]))


def from_numpy(host: HostArray, /) -> torch.Tensor:
    raw = _host.with_plain_strides(host if host.flags.writeable else _host.as_writable(host))
    if host.dtype.type.__module__ == "ml_dtypes":
        return torch.from_numpy(raw.view(f"u{host.itemsize}")).view(TORCH_BY_NAME[host.dtype.name])
    return torch.from_numpy(raw.view("u8") if host.dtype.char == "Q" else raw)


def owns(cls: type, /) -> bool:
    return issubclass(cls, (torch.Tensor, Proxy))


@_bypass_subclass
def array_info(x: torch.Tensor, /) -> ArrayInfo:
    return ArrayInfo(_name(x.dtype), _device(x), shape_of(x), may_require_grad(x))


def dtype_of(x: torch.Tensor, /) -> str:
    return _name(x.dtype) if type(x) in _EXACT_TYPES else array_info(x).dtype


def device_of(x: torch.Tensor, /) -> Device:
    if type(x) not in _EXACT_TYPES:
        return array_info(x).device
    return _device(x)


@_bypass_subclass
def unsupported(x: torch.Tensor, /, *, leaving: bool) -> Unsupported | None:
    if not leaving:
        return None
    return why_not_memory(x) or why_not_values(x)


@_bypass_subclass
def unreadable(x: torch.Tensor, /) -> Unsupported | None:
    return outside_storage(x)


@_bypass_subclass
def memory_layout(x: torch.Tensor, /) -> MemoryLayout:
    refused = unsupported(x, leaving=True)
    if refused:
        raise refused.error.build("look at the memory of a torch tensor", refused.reason, refused.hint)
    size = x.itemsize
    return MemoryLayout(
        x.data_ptr(),
        tuple(x.shape),
        tuple(stride * size for stride in x.stride()),
        size,
        materialized=not (x.is_conj() or x.is_neg() or _private.is_zerotensor(x)),
    )


def accepts_layout(info: ArrayInfo, layout: MemoryLayout, /) -> bool:
    # On the host, `from_numpy` replaces the strides of axes of one item.
    axes = zip(layout.shape, layout.strides, strict=True)
    strides = [s for n, s in axes if n != 1 or info.device != CPU]
    dense_items = all(s >= 0 and s % layout.itemsize == 0 for s in strides)
    return info.native_byteorder and layout.aligned and dense_items


def not_sharing() -> str | None:
    mode = _private.get_dispatch_mode(_private.FAKE)
    return None if mode is None else "a fake mode is running, and the result has no values"


def namespace(x: torch.Tensor, /) -> ModuleType:
    from array_api_compat import torch as compat  # noqa: PLC0415 -- 14 ms, and only this verb needs it

    return compat


def copy(x: torch.Tensor, /) -> torch.Tensor:
    return check_readable(x).clone()


def as_c_order(x: torch.Tensor, /) -> torch.Tensor:
    return check_readable(x).contiguous()


def stack(arrays: list[torch.Tensor], shape: tuple[int, ...], /) -> torch.Tensor:
    if any(x.is_quantized for x in arrays):
        raise UnsupportedArrayError.build(
            "stack quantized tensors", "each may have a scale of its own", "x.dequantize()"
        )
    stacked = torch.stack([check_readable(x) for x in arrays])
    return stacked.reshape((*shape, *arrays[0].shape)) if len(shape) > 1 else stacked


def stack_many(xs: list[torch.Tensor], /) -> torch.Tensor | None:
    # Torch would promote different dtypes, and read beyond a storage that was freed or shrunk, without an
    # error.
    first = xs[0]
    dtype = first.dtype
    if _is_traced() or first.is_quantized:
        return None
    try:
        # `torch.stack` refuses tensors of different shapes. Tensors of one shape that are dense, or have
        # equal strides, all reach equally far from their first element.
        reach = first.nbytes
        if not all(map(_is_contiguous, xs)):
            if len(set(map(torch.Tensor.stride, xs))) > 1 or not reach:
                return None
            ends = zip(first.shape, first.stride(), strict=True)
            reach = (1 + sum((n - 1) * stride for n, stride in ends)) * first.itemsize
        for x in xs:
            if x.dtype is not dtype:
                return _stack_promoted(xs)
            start = x.storage_offset()
            if len(x.untyped_storage()) < (reach + start * x.itemsize if start else reach):
                return None
        return torch.stack(xs)
    except DECLINED:  # the planned stack fails too, and explains why
        return None


def _stack_promoted(xs: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the stack of whole tensors of several dtypes; None if a value may be lost."""
    dtypes = {x.dtype for x in xs}
    if not (dtypes <= _PROMOTED_ALIKE and all(map(is_whole, xs))):
        return None
    common = reduce(torch.promote_types, dtypes)
    name = NAME_BY_TORCH[common]
    if not all(holds_every(NAME_BY_TORCH[dtype], name) for dtype in dtypes):
        return None
    return torch.stack([x.to(common) for x in xs])


def dtype_name(dtype: object, /) -> str | None:
    return _name(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else None


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype not in TORCH_BY_NAME:
        return Unsupported(DTypeError, f"torch has no {dtype}")
    if device.kind == "mps" and dtype in ("float64", "complex128"):
        return Unsupported(DTypeError, f"MPS has no {dtype}")
    return None


def default_dtype(category: str, device: Device, /) -> str:
    wide = default_dtype_of_call()
    if category == "float":
        return NAME_BY_TORCH[wide]
    if category == "complex":
        return "complex128" if wide == torch.float64 else "complex64"
    return "int64" if category == "int" else "bool"


def promote(dtypes: list[str], numbers: list[complex], /) -> str | None:
    try:
        dtype = reduce(torch.promote_types, (TORCH_BY_NAME[word] for word in dtypes))
        for number in numbers:
            dtype = torch.result_type(torch.empty((), dtype=dtype, device="meta"), number)
    except (KeyError, RuntimeError):  # a dtype without a canonical name, or without a common dtype
        return None
    return NAME_BY_TORCH.get(dtype)


def _caster(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype)


_CASTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{word: _caster(dtype) for word, dtype in TORCH_BY_NAME.items()},
    "float32": torch.Tensor.float,  # a method takes half the time of `Tensor.to`
    "float64": torch.Tensor.double,
    "float16": torch.Tensor.half,
    "bfloat16": torch.Tensor.bfloat16,
    "int64": torch.Tensor.long,
    "int32": torch.Tensor.int,
    "bool": torch.Tensor.bool,
}


def astype(x: torch.Tensor, dtype: str, /) -> torch.Tensor:
    return _CASTS[dtype](x if is_whole(x) else check_readable(x))


def check_cast(x: torch.Tensor, dtype: str, /) -> torch.Tensor:
    given = check_readable(x).detach()
    if str(x.layout).startswith("torch.sparse"):  # what it does not store is zero
        given = (given.coalesce() if x.is_sparse else given).values()
    if given.numel() and _loses_values(given, dtype):
        raise ValueLossError.narrowing(_name(x.dtype), dtype)
    return x


def cast_matches_numpy(dtype: str, other: str, device: Device, /) -> bool:
    # A cast does if it is exact, wraps, or rounds as NumPy does. The bits of a NaN may differ. Casts to an
    # integer differ in values that do not fit, casts of float8 differ, and float64 to float16 rounds twice.
    # MPS is untested with large integers and subnormal numbers.
    kinds = category(dtype), category(other)
    rounds_as_numpy = all(DTYPES[word].rounds_as_numpy for word in (dtype, other) if word in DTYPES)
    rounds_otherwise = not rounds_as_numpy or (dtype, other) == ("float64", "float16")
    cuts = kinds in (("float", "int"), ("complex", "float"), ("complex", "int"))
    return not (cuts or rounds_otherwise or device.kind == "mps")


def devices() -> tuple[Device, ...]:
    return (CPU, *(Device(f"{kind}:{i}") for kind in accelerators() for i in range(_count(kind))))


def to_device(x: torch.Tensor, device: Device, /) -> torch.Tensor:
    from xbridge.backends.torch import _transfer  # noqa: PLC0415 -- for a device

    return _transfer.to_device(x, device)


def device_name(device: object, /) -> Device | None:
    if not isinstance(device, torch.device):
        return None
    return CPU if device.type == "cpu" else device_named(str(device))


def resolve_device(device: Device, near: Device, /) -> Device:
    kind, index = device.kind, device.index
    if kind == "gpu":
        kind = next(filter(_count, accelerators()), "")
        if not kind:
            raise absent_device_error(name, device, devices())
    if device == CPU and near.kind == "cpu":
        return CPU  # another library may have several, and its array may be on the second
    if kind == near.kind and (index in (None, near.index) or kind == "meta"):
        return near
    if near.kind == "meta":
        raise DeviceError.build(f"move a torch tensor from 'meta' to {device!r}", "meta holds no data")
    if index is None and kind in accelerators() and _count(kind):
        index = 0 if kind == "mps" else getattr(torch, kind).current_device()
    return device_named(kind if index is None else f"{kind}:{index}")


def to_dlpack(x: torch.Tensor, /) -> Exporter:
    from xbridge._host.device_exporter import OnDeviceExporter  # noqa: PLC0415 -- for a device

    module = getattr(torch, x.device.type, None)
    return OnDeviceExporter(x, getattr(module, "device", nullcontext)(x.device.index))


def from_dlpack(shown: Exporter, /) -> torch.Tensor:
    kind, number = shown.__dlpack_device__()
    with torch.cuda.device(number) if kind in (CUDA, ROCM, CUDA_MANAGED) else nullcontext():
        taken: torch.Tensor = torch.from_dlpack(shown)  # type: ignore[attr-defined] # it is public
        return taken


def detach(x: torch.Tensor, /) -> torch.Tensor:
    return x.detach()


def require_grad(x: torch.Tensor, /) -> torch.Tensor:
    if x.is_inference() and not torch.is_inference_mode_enabled():
        action, reason = "make a torch tensor require grad", "it was made in inference mode"
        raise GradientError.build(action, reason, "copy=True")
    return x.detach().requires_grad_()


def is_grad_enabled() -> bool:
    return torch.is_grad_enabled()


@_bypass_subclass
def is_leaf(x: torch.Tensor, /) -> bool:
    return x.requires_grad and x.is_leaf


def materialize(x: torch.Tensor, /) -> torch.Tensor:
    if _private.is_zerotensor(x):
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return apply_pending(x)


def fast_to_numpy(x: torch.Tensor, /) -> HostArray | None:  # noqa: C901, PLR0911 -- a call less each time
    global _prechecks  # noqa: PLW0603 -- only the speed depends on it
    # The rest of this function relies on `x` being exactly a `Tensor` or `Parameter`: `_EXACT_TYPES` says so.
    # A compiler, forward-mode differentiation or a dispatch mode may still give the tensor another meaning
    # than its memory has. These are global states, which are cheap to read.
    if _is_traced() or dual_levels._current_level >= 0 or dispatch_modes._is_in_torch_dispatch_mode:
        return None
    try:
        left = _prechecks
        if left:
            if x.dtype in BIT_DTYPES:
                return _bits_to_numpy(x)
            if x.is_conj() or x.is_neg() or not x.is_cpu:
                return None
            _prechecks = left - 1
        if x.requires_grad:
            if _compiler():
                return None
            # `Tensor.numpy` refuses a tensor that requires grad. `x.data` shares its memory without the
            # graph, and is faster than `x.detach()`.
            host = x.data.numpy()
            host.setflags(_TRACKED_IS_WRITABLE)  # type: ignore[call-arg] # faster than by keyword
        else:
            host = x.numpy()
        if host.flags.num not in _DENSE:
            if host.flags.owndata:  # NumPy's, because the tensor has no memory
                return None if host.size else host
            return _check_strided(x, host)
        # `untyped_storage().resize_()` can free or shrink the memory, as FSDP does, and `Tensor.numpy` does
        # not notice. A dense view is inside of its storage if its first and its last byte are. Without an
        # offset, the length of the storage in bytes, which is 0 after it was freed, tells both.
        start = x.storage_offset()
        if not start:
            return host if len(x.untyped_storage()) >= host.nbytes else None
        start *= host.itemsize
        # `data_ptr()` is the address of the storage plus the offset in bytes. The storage has an address, and
        # was not freed, if the sum is more than the offset alone. The last byte must be inside too.
        return host if x.data_ptr() > start and len(x.untyped_storage()) >= start + host.nbytes else None
    except TypeError:  # NumPy has no such dtype (bfloat16), or the tensor is on another device
        return _bits_to_numpy(x)
    except (RuntimeError, ValueError):  # sparse, quantized, conjugate, or wrapped by a transform
        _prechecks = _PRECHECKS
        return None


def fast_from_numpy(host: HostArray, /) -> torch.Tensor | None:  # noqa: C901, PLR0911 -- a call less each time
    global _host_prechecks  # noqa: PLW0603 -- only the speed depends on it
    # In a dispatch mode or a traced program, the result would not be an ordinary tensor.
    if _is_traced() or dispatch_modes._is_in_torch_dispatch_mode:
        return None
    if _is_inference_mode():
        with _private.outside_inference_mode():
            return fast_from_numpy(host)
    try:
        left = _host_prechecks
        if left:
            _host_prechecks = left - 1
            if host.dtype not in DTYPE_OF:
                return _bits_from_numpy(host)
            if 1 in host.shape:
                host = _host.with_plain_strides(host)
        # NumPy's flag `behaved` means aligned and writable. Torch has no read-only tensors, so other arrays
        # are copied. `forc` means dense in C or Fortran order, and `carray` is both, in C order. Other
        # strides take longer to check: `torch.from_numpy` refuses negative ones, and elements that share
        # memory must not become writable.
        flags = host.flags
        if flags.carray:  # as most arrays are
            return _from_numpy(host)
        if host.dtype not in DTYPE_OF:
            return _bits_from_numpy(host)
        if flags.forc:
            return _from_numpy(host if flags.behaved else _copy_dense(host))
        shared = flags.behaved and _has_accepted_strides(host)
        return _from_numpy(host if shared else _host.copy(host))
    except (TypeError, ValueError):
        if left:  # an integer by its other C name, `ulonglong`, or an odd stride of an empty array
            return None
        _host_prechecks = _PRECHECKS
        return fast_from_numpy(host)


def fast_resolve_to_numpy(x: torch.Tensor, /) -> HostArray | None:
    is_pending = not _is_traced() and x.is_cpu and (x.is_conj() or x.is_neg())
    if not is_pending or x.dtype not in NAME_BY_TORCH:
        return None
    is_changed = dual_levels._current_level >= 0 or dispatch_modes._is_in_torch_dispatch_mode
    may_be_refused = is_changed or _private.is_functional(x) or not is_whole(x)
    if may_be_refused and (_private.is_zerotensor(x) or unsupported(x, leaving=True)):
        return None
    try:
        return to_numpy(apply_pending(x.data if x.requires_grad else x))
    except (ImportError, RuntimeError):  # without ml_dtypes, or without memory
        return None


def fast_from_numpy_many(hosts: list[HostArray], /) -> list[torch.Tensor] | None:
    if dispatch_modes._is_in_torch_dispatch_mode:
        return None
    if _is_inference_mode():
        with _private.outside_inference_mode():
            return fast_from_numpy_many(hosts)
    # `all`, `map` and `list` run in C, so the cost for each array is little more than that of `from_numpy`.
    # One array that is not ordinary declines all of them, because to sort them out would need a loop of
    # Python.
    if not all(map(_is_dense, hosts)):
        return None
    try:
        return list(map(torch.from_numpy, hosts))
    except (TypeError, ValueError):
        return None


def fast_from_fresh(host: HostArray, /) -> torch.Tensor | None:
    # The core has just made this copy, aligned and writable, so its flags and dtype are not checked.
    if dispatch_modes._is_in_torch_dispatch_mode:
        return None
    if _is_inference_mode():
        with _private.outside_inference_mode():
            return fast_from_fresh(host)
    try:
        return _from_numpy(host)
    except TypeError:  # a dtype of ml_dtypes, or an integer by its other C name, such as `ulonglong`
        return None


def plan_state() -> object:
    if _is_traced():
        return None
    if _is_recording():  # it compares the lines of two runs, so no call is cached between them
        return object()
    return default_dtype_of_call() if defaults_of_calls else _default_dtype()


def outside_modes(fn: Callable[[Any], R], /) -> Callable[[Any], R]:
    # Autograd refuses a tensor that was made in inference mode. So `untraced`, for plans, and this function
    # leave it for each tensor that is made of another library's array.
    def call_outside(x: Any) -> R:
        if not _is_inference_mode():
            return fn(x)
        with _private.outside_inference_mode():
            return fn(x)

    return call_outside


def plan_key(x: torch.Tensor, /, *, graph: bool = False) -> object:
    if not x.is_cpu or _is_traced():
        return None
    in_mode = dispatch_modes._is_in_torch_dispatch_mode
    if not graph:
        return (x.dtype, True) if in_mode else x.dtype
    # A transform, or forward-mode differentiation, may hide that it follows the tensor.
    if dual_levels._current_level >= 0 or _is_wrapped(x):
        return None
    return x.dtype, x.requires_grad, x.is_leaf, torch.is_grad_enabled(), in_mode


fast: Fast = Fast(
    types=_EXACT_TYPES,
    to_numpy=fast_to_numpy,
    resolve_to_numpy=fast_resolve_to_numpy,
    from_numpy=fast_from_numpy,
    from_numpy_many=fast_from_numpy_many,
    from_fresh=fast_from_fresh,
    stack_many=stack_many,
    plan_state=plan_state,
    state_is_default_dtype=True,
    plan_key=plan_key,
    outside_modes=outside_modes,
)


def _late(word: str) -> Callable[..., Any]:
    """Return a method that calls the one of `_transfer.transfers`."""

    def call(_: Transfers, *args: Any) -> Any:
        from xbridge.backends.torch import _transfer  # noqa: PLC0415 -- for a device or a thread

        return getattr(_transfer.transfers, word)(*args)

    return call


class _LateTransfers(Transfers):
    """The transfers of `_transfer.py`, imported when one is first needed: most programs move nothing."""

    has_packs = True

    def fetch_many(self, xs: list[torch.Tensor], /) -> list[HostArray | None] | None:
        return None if xs[0].is_cpu and xs[-1].is_cpu else _late("fetch_many")(self, xs)


for _word, _default in vars(Transfers).items():
    if callable(_default) and _word not in vars(_LateTransfers):
        setattr(_LateTransfers, _word, _late(_word))
transfers: Transfers = _LateTransfers()


def is_tracing() -> bool:
    return _is_traced() or bool(_compiler()) or torch.compiler.is_exporting()


def untraced(fn: Callable[..., Array], /) -> Callable[..., Array]:
    def plain(*args: object) -> Array:
        with _private.without_subclass():
            return fn(*args)

    if is_tracing():
        return torch.compiler.disable(plain)  # type: ignore[no-any-return, no-untyped-call] # no types
    return torch.inference_mode(mode=False)(plain) if torch.is_inference_mode_enabled() else plain


def watch(notice: Notice, /) -> AbstractContextManager[object]:
    from xbridge.backends.torch import _watch  # noqa: PLC0415 -- for a record or a policy

    return _watch.Watch(notice)


def follows(x: torch.Tensor, /) -> bool:
    if type(x) in _EXACT_TYPES:
        return _is_followed(x)
    return _is_traced() or _is_subclass_followed(x)


def _is_followed(x: torch.Tensor) -> bool:
    """Return True if autograd, a transform or a mode takes part in the operations on a tensor."""
    return (
        _is_traced()
        or (x.requires_grad and torch.is_grad_enabled())
        or _is_wrapped(x)
        or dual_levels._current_level >= 0
        or dispatch_modes._is_in_torch_dispatch_mode
        or x.is_meta
    )


_is_subclass_followed = _bypass_subclass(_is_followed)


def _has_accepted_strides(host: HostArray) -> bool:
    """Return True if torch has such strides, and no two elements share memory."""
    size = behind = host.itemsize
    strides = host.strides
    if len(strides) == 1 and strides[0] < 0:  # a reversed array, in a third of the time
        return len(host) == 1
    # `behind` is the size in bytes of the block that the axes with smaller strides span. If the next stride
    # is at least that large, its blocks lie behind each other, and no two elements share memory.
    axes = zip(strides, host.shape)  # noqa: B905 -- of one array
    for stride, n in sorted(axes) if len(strides) > 1 else axes:
        if n != 1 and (stride < 0 or stride % size or (n and stride < behind)):
            return False
        behind += (n - 1) * stride
    return True


def _check_strided(x: torch.Tensor, host: HostArray) -> HostArray | None:
    """Return a view that is not dense, guarded if elements share memory; None if it leaves the storage."""
    if not is_inside(x, host):
        return None
    if overlaps(host):
        if _compiler():
            return None
        host.setflags(write=_OVERLAPPING_IS_WRITABLE)
    return host


_NATIVE = {dtype.newbyteorder("S"): dtype for dtype in DTYPE_OF if dtype.itemsize > 1}
"""NumPy's dtypes in this machine's byte order, by those in the other one."""
_ml_dtypes: dict[torch.dtype, np.dtype[Any]] = {}
"""The dtypes of ml_dtypes, which is optional, by torch's. An index takes a third of a cached call."""


def _bits_to_numpy(x: torch.Tensor) -> HostArray | None:
    """Return `fast_to_numpy` of a tensor that `Tensor.numpy` refuses, if its dtype is one of ml_dtypes."""
    global _prechecks  # noqa: PLW0603 -- as in `fast_to_numpy`
    try:
        if not x.is_cpu:
            _prechecks = _PRECHECKS
            return None
        # Torch hands the bytes to NumPy as integers of the same size, and NumPy views them as the dtype.
        dtype, tracked = x.dtype, x.requires_grad
        bits = BIT_DTYPES.get(dtype)
        if bits is None or (tracked and _compiler()):
            return None
        _prechecks = 0  # `Tensor.numpy` takes integers, and refuses a pending negative
        host = fast_to_numpy((x.data if tracked else x).view(bits))
        _prechecks = _PRECHECKS
        if host is None:
            return None
        if tracked:
            host.setflags(write=_TRACKED_IS_WRITABLE)
        if dtype not in _ml_dtypes:
            _ml_dtypes[dtype] = native_dtype(NAME_BY_TORCH[dtype])
        return host.view(_ml_dtypes[dtype])
    except (RuntimeError, TypeError, ValueError, ImportError):
        return None


def _bits_from_numpy(host: HostArray) -> torch.Tensor | None:
    """Return `fast_from_numpy` of an array in foreign byte order, or of a dtype of ml_dtypes."""
    native = _NATIVE.get(host.dtype)
    if native:
        is_dense = host.flags.forc and host.nbytes < _host.LARGE
        return _from_numpy(host.astype(native, "K") if is_dense else _host.copy(host))
    dtype = _torch_dtype_of(host.dtype)
    if dtype is None or dtype not in BIT_DTYPES or not host.dtype.isnative:
        return None
    made = fast_from_numpy(host.view(f"u{host.itemsize}"))
    return None if made is None else made.view(dtype)


@lru_cache(64)  # there may be any number of dtypes with fields
def _torch_dtype_of(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return torch's dtype for one of NumPy, which computes `dtype.name` in slow Python."""
    return TORCH_BY_NAME.get(dtype.name)


def _loses_values(x: torch.Tensor, dtype: str) -> bool:
    """Return True if an integer leaves the exact range of a dtype, or a finite value becomes infinite."""
    if not x.is_floating_point() and not x.is_complex():
        sign = -(1 << 63)
        signed = x.view(torch.int64) ^ sign if x.dtype == torch.uint64 else x.to(torch.int64)
        low, high = (int(end) - (x.dtype == torch.uint64) * sign for end in torch.aminmax(signed))
        return not holds_integers(dtype, low, high)
    if x.is_complex():
        x, dtype = torch.view_as_real(x.resolve_conj()), "float32"
    ends = torch.stack(torch.aminmax(x))
    if ends.to(TORCH_BY_NAME[dtype]).isfinite().all():
        return False
    finite = x[x.isfinite()]
    return not finite.to(TORCH_BY_NAME[dtype]).isfinite().all()


def _count(kind: str) -> int:
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None else 0


def _device(x: torch.Tensor) -> Device:
    return CPU if x.is_cpu else device_named(str(x.device))


def _name(dtype: torch.dtype) -> str:
    """Return the canonical name of a dtype, or torch's own name if there is none."""
    known = NAME_BY_TORCH.get(dtype)
    if known:
        return known
    own = str(dtype).removeprefix("torch.")
    return str(dtype) if own in DTYPES else own  # torch has names of small dtypes, and no arrays of them
