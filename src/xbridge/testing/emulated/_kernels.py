"""Kernels of the device: allocations, copies, and a fallback for every operator.

There is no list of operators. An operator that makes a view runs on the tensor itself, at once. Any other
operator first runs on meta tensors, which give the shapes of the results or an error. Then it is queued in
the stream, and the host computes it when the stream reaches it. If meta tensors cannot run it, because the
result depends on values (`item`, `nonzero`, a mask as an index) or they have no kernel, it waits and computes
at once.

A few operators lead to kernels that the host does not have. The host's `convolution` and torch's own
decompositions of `lstm` and `gru` replace them.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decompositions
from torch.utils._pytree import tree_flatten, tree_unflatten

from xbridge.testing.emulated._memory import (
    CPU,
    DeviceMemory,
    allocate_like,
    is_pinned,
    make,
    memory_of,
    pin,
    share,
)
from xbridge.testing.emulated._streams import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload
    from torch.utils._pytree import TreeSpec

_aten = torch.ops.aten
_INDEXES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_META, _HOST = torch.device("meta"), torch.device("cpu")
_libraries: list[object] = []
_clone_on_host: Callable[[torch.UntypedStorage], torch.UntypedStorage] = torch.UntypedStorage.clone


def register() -> None:
    """Register the kernels of the device, and pinned memory on the host."""
    library: Callable[..., Any] = torch.library.Library
    aten, everything = library("aten", "IMPL"), library("_", "IMPL")
    _libraries.extend((aten, everything))  # kernels stay as long as their library
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for op in (_aten.empty.memory_format, _aten.empty_strided.default):
            aten.impl(op, _pinned_or_not(op), "CPU", with_keyset=True)
            aten.impl(op, _empty(op), "PrivateUse1")
        aten.impl("is_pinned", lambda x, device=None: is_pinned(x), "CPU")
        aten.impl("_pin_memory", lambda x, device=None: torch.empty_like(x, pin_memory=True).copy_(x), "CPU")
        aten.impl("record_stream", lambda x, stream: share(x), "PrivateUse1")
        aten.impl("_local_scalar_dense", _item, "PrivateUse1")
        aten.impl("_copy_from", _copy, "PrivateUse1")
        for pending in ("Conjugate", "Negative"):  # torch would recurse without end
            aten.impl("_copy_from", torch.library.fallthrough_kernel, pending)
        convolution = partial(_run_on_host, _aten.convolution.default)
        aten.impl("convolution_overrideable", convolution, "PrivateUse1")
        aten.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
        for layer in ("lstm", "gru"):
            for key in ("AutogradPrivateUse1", "PrivateUse1"):  # the second one in inference mode
                aten.impl(f"{layer}.input", getattr(decompositions, f"{layer}_impl"), key)
        everything.fallback(_run_on_host, "PrivateUse1")
        everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # deepcopy and load make bare storages, for which torch would allocate memory without asking
    torch.UntypedStorage.clone = _cloned  # type: ignore[method-assign, assignment]
    torch.serialization.register_package(0, lambda _storage: None, _loaded)  # type: ignore[arg-type] # of files, untyped


def _empty(op: OpOverload) -> Callable[..., torch.Tensor]:
    """Return the kernel that allocates memory of the device."""

    def empty(
        *args: object, device: torch.device, pin_memory: bool | None = None, **options: object
    ) -> torch.Tensor:
        if device.index:
            raise RuntimeError(f"there is no {device}: the emulated accelerator is one device, emu:0")
        if pin_memory:
            raise RuntimeError("only memory of the host can be pinned")
        return make(op(*args, device=_META, **options))

    return empty


def _pinned_or_not(op: OpOverload) -> Callable[..., torch.Tensor]:
    """Return the kernel that allocates host memory, and implements `pin_memory=True`."""
    theirs = torch.library.get_kernel(op, "CPU")

    def empty(
        keys: torch._C.DispatchKeySet, *args: object, pin_memory: bool | None = None, **options: object
    ) -> torch.Tensor:
        x: torch.Tensor = theirs.call_boxed(keys, *args, **options)
        return pin(x) if pin_memory else x

    return empty


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002 -- as torch calls it
    """Access pinned memory when the stream reaches the copy, and other host memory before returning."""
    source = source.expand_as(target)
    if source.dtype is target.dtype is torch.bool:  # torch would make an invalid byte True
        return _copy(source.view(torch.uint8), target.view(torch.uint8), non_blocking)
    pinned = all(is_pinned(each) for each in (source, target) if each.is_cpu)
    origin = source.clone() if source.is_cpu and not pinned else _there(source)
    goal = _there(target)
    stream = current_stream()
    stream.do(lambda: _moved(_open(goal), _open(origin)))
    if (source.is_cpu and not non_blocking) or (target.is_cpu and not (pinned and non_blocking)):
        stream.synchronize()
    return target


def _moved(goal: Any, origin: Any) -> None:
    """Copy; a pending conjugate or negative makes one NaN of all, as on a GPU."""
    _aten.copy_.default.redispatch(CPU, goal, origin)
    if origin.is_conj() or origin.is_neg():
        parts = torch.view_as_real(goal) if goal.is_complex() else goal
        parts.masked_fill_(parts.isnan(), torch.nan)


def _item(x: torch.Tensor) -> object:
    """Read a value, which meta tensors cannot do."""
    current_stream().synchronize()
    return memory_of(x).open().item()


def _run_on_host(op: OpOverload, *args: object, **options: object) -> object:
    """Run an operator on the host when the stream reaches it."""
    if _is_view(op):
        return op.redispatch(CPU, *args, **options)
    given, form = tree_flatten((args, options))
    _refuse_other_devices(op, given)
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(op._name, "CPU"):
        raise NotImplementedError(f"the host, which computes for the emulated accelerator, has no {op}")
    stream, do = current_stream(), _for_numbers(op, args)

    def compute(leaves: list[object]) -> tuple[list[object], TreeSpec]:
        args, options = tree_unflatten(leaves, form)
        return tree_flatten(do(*args, **options))

    try:
        taken, known = [_meta(each) for each in given], False
        results, shape = compute(taken)
    except RuntimeError:  # and NotImplementedError
        stream.synchronize()
        taken, known = [_open(_at_call(each)) for each in given], True
        results, shape = compute(taken)
    owners = {id(mine): theirs for mine, theirs in zip(taken, given, strict=True)}
    outputs = [_received(each, owners.get(id(each))) for each in results]
    goals = [_there(each) for each in outputs]

    def land(results: list[object]) -> None:
        for goal, result in zip(goals, results, strict=True):
            if isinstance(goal, DeviceMemory):
                goal.open().copy_(result)  # type: ignore[arg-type] # a tensor, like `goal`

    if known:
        land(results)
    else:
        given_now = [_at_call(each) for each in given]
        stream.do(lambda: land(compute([_open(each) for each in given_now])[0]))
    return tree_unflatten(outputs, shape)


def _convolution_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *args: object) -> object:
    """Add the size of the bias, which the host's operator needs."""
    transposed, groups = args[3], args[5]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]  # type: ignore[operator] # torch's stubs are wrong
    return _run_on_host(_aten.convolution_backward.default, grad, x, weight, [channels], *args)


def _is_view(op: OpOverload) -> bool:
    """Return True if an operator returns a view without reading memory."""
    aliases = [returned.alias_info for returned in op._schema.returns]
    return op._schema.name == "aten::set_" or any(alias and not alias.is_write for alias in aliases)


def _for_numbers(op: OpOverload, args: tuple[object, ...]) -> Callable[..., object]:
    """Return the operator, or its packet if torch passes a number for a tensor."""
    wanted = zip(args, op._schema.arguments, strict=False)
    numbers = (y for x, y in wanted if isinstance(x, bool | int | float | complex))
    return op.overloadpacket if any(str(y.type) == "Tensor" for y in numbers) else op


def _refuse_other_devices(op: OpOverload, given: list[object]) -> None:
    """Raise if a tensor is on the host, unless it is 0-d or an index."""
    for each in given:
        if isinstance(each, torch.Tensor) and each.device.type != "emu":
            if each.is_cpu and (not each.dim() or op._schema.name in _INDEXES):
                continue
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {op} found emu:0 and {each.device}"
            )


def _received(result: object, owner: object) -> object:
    """Return the device tensor for a result: the argument that it belongs to, or a new one."""
    if not isinstance(result, torch.Tensor):
        return result
    if not isinstance(owner, torch.Tensor):
        return make(result)
    if owner.is_cpu:
        raise RuntimeError("Expected out tensor to be on device emu:0, but found one on cpu")
    return owner if owner.shape == result.shape else allocate_like(owner, result)


def _meta(given: object) -> object:
    """Return an argument as a meta tensor, if it is a tensor."""
    if isinstance(given, torch.Tensor):
        return torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=_META)
    return _META if isinstance(given, torch.device) else given


def _at_call(given: object) -> object:
    """Return an argument as it is at the call; host memory is copied, because it may change."""
    if isinstance(given, torch.Tensor) and given.is_cpu:
        return given.clone()
    return _HOST if isinstance(given, torch.device) else _there(given)


def _there(given: object) -> object:
    """Return the memory of a device tensor, and anything else unchanged."""
    return memory_of(given) if isinstance(given, torch.Tensor) and not given.is_cpu else given


def _open(memory: object) -> object:
    return memory.open() if isinstance(memory, DeviceMemory) else memory


def _cloned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Copy a storage on its device."""
    if storage.device.type != "emu":
        return _clone_on_host(storage)
    return torch.empty(0, dtype=torch.uint8, device="emu").set_(storage).clone().untyped_storage()


def _loaded(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    """Move a storage from a file to the device if its location says so."""
    if torch.device(location).type != "emu":
        return None
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).to("emu").untyped_storage()
