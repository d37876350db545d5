"""Plan a conversion: the rules of the contract, as functions from facts about an array to a list of steps.

Memory passes from one library to another on the array's device, if both have that device, else on the host:

    source: detach, materialize, check, cast, copy, to_dlpack   target: from_dlpack, cast, move, require_grad
    source: detach, materialize, check, cast, move, to_numpy; or: detach, cast, materialize, to_numpy
        host: check, cast, copy or as_readonly                  target: from_numpy, cast, move, require_grad

Within one library every step is the library's own operation, so arrays that cannot leave their library
(tracers, sparse, fake) are accepted. Plans are made from facts alone: no rule tries an operation to see if it
fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from xbridge._core.devices import CPU, GPU, SHARDED, Device, absent_device_error
from xbridge._core.dtypes import DTYPES, UNNAMED, category, is_inexact, keeps_complex, nearest, no_wider
from xbridge._core.guards import GUARDS, Guard, guard_of
from xbridge._core.protocol import Array, ArrayInfo, Backend, MemoryLayout, Unsupported, c_strides
from xbridge._host import memory as _host
from xbridge._plan.casts import (
    axis_order,
    cast_step,
    check_step,
    choose_caster,
    fuse_transfer,
    order_cast_and_move,
)
from xbridge._plan.reasons import ASKED, ASKED_WRITABLE, CopyReason, reason
from xbridge._plan.steps import Conversion, Options, Plan, Step, in_words
from xbridge.errors import CopyError, DeviceError, DTypeError, GradientError, XBridgeError

_READONLY = Step(_host, "as_readonly")
"""The result is read-only from here on."""
_UNPROTECTED = reason("read_only", "NumPy cannot protect its items from writes where they are")


def plan_within(backend: Backend, x: Array, info: ArrayInfo, options: Options) -> Plan:
    """Plan a conversion within one library."""
    conversion = _choose_conversion(backend, backend, info, options)
    changes = [*check_step(conversion, backend), *cast_step(conversion, backend)]
    changes = order_cast_and_move(conversion, backend, changes)
    detached = options.grad == "detach" and info.requires_grad
    if options.order and backend.as_c_order:
        changes = [*changes, *_c_order_step(backend, _known_layout(backend, x), changes)]
    if not changes:
        guard = guard_of(requires_grad=detached)
        if guard and not backend.readonly:
            changes = [Step(backend, "copy", copy_reason=_guard_reason(guard, backend))]
        elif options.copy:
            changes = [Step(backend, "copy", copy_reason=ASKED)]
        elif options.writable and not backend.memory_layout(x).writable:
            changes = [Step(backend, "copy", copy_reason=ASKED_WRITABLE)]
    if options.writable is False and (changes or backend.memory_layout(x).writable):
        unprotected = _UNPROTECTED if _host.copies_to_protect(x) else None
        changes = [*changes, _READONLY._replace(copy_reason=unprotected)]
    if changes:
        refuse_unreadable(backend, x, info)
    if changes and options.grad == "keep" and info.requires_grad and not backend.is_grad_enabled():
        why_not = "grad='keep' was asked while gradients are off"
        raise GradientError.build(conversion.asked(), why_not, "grad=None")
    steps = [*([Step(backend, "detach")] if detached else []), *changes]
    if options.requires_grad and not steps and info.requires_grad and backend.is_leaf and backend.is_leaf(x):
        return Plan(conversion, ())  # it is a leaf that requires grad, as asked
    return _make_plan(conversion, steps)


def _known_layout(backend: Backend, x: Array) -> MemoryLayout | None:
    """Return the layout of an array; None for one without memory to look at, such as a traced one."""
    if backend.is_tracing():
        return None
    try:
        return backend.memory_layout(x)
    except XBridgeError:
        return None


def _c_order_step(
    module: Backend | ModuleType, layout: MemoryLayout | None, before: list[Step]
) -> list[Step]:
    """Return the step that brings elements in C order. After a copy, it decides by the array that it gets."""
    copied = any(step.copy_reason for step in before)
    is_done = layout and layout.is_c_order() and (layout.materialized or not copied)
    if is_done or (before and "C" in before[-1].args):  # or a cast on the host makes it so
        return []
    if copied:
        return [Step(module, "as_c_order")]
    message = "its layout is not C order" if layout else "its layout is not known to be C order"
    return [Step(module, "as_c_order", (), reason("strides", message))]


def refuse_unreadable(backend: Backend, x: Array, info: ArrayInfo) -> None:
    """Raise if the elements of an array cannot be read within its library, such as those of freed memory."""
    refused = backend.unreadable(x) if backend.unreadable else None
    if refused:
        raise refused.error.build(in_words(backend, info, backend), refused.reason, refused.hint)


def plan_between(source: Backend, target: Backend, x: Array, info: ArrayInfo, options: Options) -> Plan:
    """Plan a conversion from one library to another."""
    conversion = _choose_conversion(source, target, info, options)
    device = conversion.device
    if info.requires_grad and options.grad == "keep":
        why_not = "grad='keep' was asked, and a graph cannot leave its library"
        raise GradientError.build(conversion.asked(), why_not, "grad=None")
    layout = source.memory_layout(x)
    steps = [Step(source, "detach")] if info.requires_grad else []
    lazy, deferred = not layout.materialized and layout.is_unallocated(), []
    if not layout.materialized:
        why = reason("pending", "an operation is still pending on it")
        why = reason("lazy", "it is still to be computed") if lazy else why
        deferred = [Step(source, "materialize", copy_reason=why)]
    exchange = source.to_dlpack is not None and target.from_dlpack is not None
    if exchange and CPU not in (info.device, device) and info.device in target.devices():
        changes = _on_device(conversion, layout, copied=not layout.materialized)
        return _make_plan(conversion, [*steps, *deferred, *changes])
    backend = choose_caster(conversion, lazy=lazy)
    checks = check_step(conversion, source if backend is source else _host)
    casts = cast_step(conversion, backend)
    own = [*checks, *casts] if backend is source else []
    if lazy:  # the cast is part of what is computed
        deferred, own = [*own, *deferred], []
    steps += [*deferred, *order_cast_and_move(conversion, source, own, result_device=CPU)]
    steps.append(Step(source, "to_numpy"))
    # A target that assumes immutable memory shares what it gets, which never changes: the rules below copy
    # all other memory first.
    shares = target.assumes_immutable or "sharing" not in target.gaps
    apart = target.not_sharing() if target.not_sharing else None
    apart = apart if shares else target.gaps["sharing"].reason
    no_sharing = reason("no_sharing", apart) if apart else None
    taken = Step(target, "from_numpy", copy_reason=no_sharing)
    on_host = [] if backend is source else [*checks, *(casts if backend is _host else [])]
    if options.order and target.as_c_order:
        on_host += _c_order_step(_host, layout, [*steps, *on_host])
    later = order_cast_and_move(conversion, target, casts if backend is target else [], start=CPU)
    if not any(step.copy_reason for step in [*steps, *on_host]):
        # A later step makes a copy in any case, so a view is enough here. But a library that assumes
        # immutable memory may run a cast after the call has returned; only a move is complete by then.
        once = device != CPU if target.assumes_immutable else later
        on_host += _share_or_copy(conversion, layout, will_copy=bool(taken.copy_reason or once))
    elif source.readonly and options.writable is not False and not any(step.copy_reason for step in on_host):
        on_host.append(Step(_host, "as_writable"))  # new memory, which nobody else uses
    # Compiled code gets new memory, and the compiler fails at an array that it cannot make writable.
    if options.writable is False and not options.compiled and _READONLY not in on_host:
        later = [*later, _READONLY]
    return _make_plan(conversion, fuse_transfer(conversion, [*steps, *on_host, taken, *later]))


def _on_device(conversion: Conversion, layout: MemoryLayout, *, copied: bool) -> list[Step]:
    """Return the steps that pass device memory from source to target.

    The source makes any copy, because its stream runs the copy before later writes of the program to the
    source array. A copy on the target's stream might run after them, unless the host waited for it.
    """
    source, target, info = conversion.source, conversion.target, conversion.info
    before, casts = check_step(conversion, source), cast_step(conversion, target)
    if casts and target.unsupported_dtype(info.dtype, info.device) is not None:
        _refuse_dtype(conversion, source.unsupported_dtype(conversion.dtype, info.device))
        before, casts, copied = [*before, *cast_step(conversion, source)], [], True
    later = order_cast_and_move(conversion, target, casts)
    if conversion.options.order and target.as_c_order:
        if source.as_c_order:
            before = [*before, *_c_order_step(source, layout, before)]
            copied = copied or any(step.copy_reason for step in before)
        else:
            later = [*later, *_c_order_step(target, layout, later)]
    why = next(_reasons_not_to_share(conversion, layout), ASKED if conversion.options.copy else None)
    if later:
        shared = source.assumes_immutable and target.accepts_layout(info, layout)
        why = None if shared else later[0].copy_reason
    if why and not copied:
        before.append(Step(source, "copy", (), why))
    return [*before, Step(source, "to_dlpack"), Step(target, "from_dlpack"), *later]


def check_destination(source: Backend, target: Backend, info: ArrayInfo, options: Options) -> None:
    """Raise if an array with these facts, which is not made yet, could not be converted."""
    _require_grad(_choose_conversion(source, target, info, options))


def destination(target: Backend, asked: Device | None, near: Device) -> Device:
    """Return the device of a result: the one that was asked for, else that of the array."""
    if asked is None and target.host_only:
        asked = CPU
    elif asked is None and near == CPU and "host" in target.gaps:
        asked = GPU
    return target.resolve_device(_resolve_accelerator(target, asked or near), near)


def has_device(target: Backend, device: Device) -> bool:
    """Return True if a library can have arrays there. A name of several devices is one that it has given."""
    several = device.kind == SHARDED and target.on_one_device is not None
    return device == CPU or several or device in target.devices()


def _resolve_accelerator(target: Backend, asked: Device) -> Device:
    """Replace ``gpu:1`` by the name of the target's accelerator of that index; keep any other device."""
    if asked.kind != GPU or asked.index is None:
        return asked
    places = [place for place in target.devices() if place.kind != CPU]
    numbered = enumerate(place.index for place in places)
    numbers = [number if index is None else index for number, index in numbered]
    return places[numbers.index(asked.index)] if asked.index in numbers else asked


def _choose_conversion(source: Backend, target: Backend, info: ArrayInfo, options: Options) -> Conversion:
    """Choose the dtype and the device of the result, or raise if the target cannot have such an array."""
    if info.device.kind == SHARDED and options.device is None and source is not target:
        why = "it is on several devices, and is gathered only if a device is named"
        hint = f"to_backend(x, {target.name!r}, device='cpu')"
        raise DeviceError.build(in_words(source, info, target), why, hint)
    is_there = options.device is not None and options.device == info.sharding and source is target
    device = info.device if is_there else destination(target, options.device, info.device)
    dtype = _choose_dtype(source, target, info, options, device)
    conversion = Conversion(source, target, info, options, dtype, device)
    if source is not target and not has_device(target, device):
        raise absent_device_error(target.name, device, target.devices(), conversion.asked())
    if category(info.dtype) == "complex" and not keeps_complex(dtype):
        why = f"a cast from {info.dtype} to {dtype} drops the imaginary part"
        hint = "x.real" if all(hasattr(cls, "real") for cls in source.array_types) else "to_numpy(x).real"
        if info.dtype.endswith("complex32"):  # NumPy's `real` of such a dtype of ml_dtypes is still complex
            hint = "asarray(x, dtype='complex64').real"
        raise DTypeError.build(conversion.asked(), why, hint)
    changes = (device, dtype) != (info.device, info.dtype)
    if source is not target or (changes and dtype in DTYPES):
        _refuse_dtype(conversion, target.unsupported_dtype(dtype, device))
    if options.grad == "keep" and info.requires_grad and not is_inexact(dtype):
        why = f"grad='keep' was asked, and no gradient flows through {dtype}"
        raise GradientError.build(conversion.asked(), why, "grad=None")
    return conversion


def _refuse_dtype(conversion: Conversion, lacks: Unsupported | None) -> None:
    """Raise if the target lacks the dtype. The hint is `dtype="nearest"` if that would work."""
    if lacks:
        named = conversion.options.dtype not in (None, *UNNAMED)
        strange = category(conversion.dtype) == "other"  # such as dates, asked of an array of numbers
        meant = conversion.dtype if named and not strange else conversion.info.dtype
        near = chosen("nearest", meant, conversion.target, conversion.device)
        hint = lacks.hint
        if conversion.target.unsupported_dtype(near, conversion.device) is None:
            dtype = f"dtype={near if named else 'nearest'!r}"
            hint = f"{dtype}, or {lacks.hint}" if lacks.hint and not strange else dtype
            if conversion.options.unsafe:  # `unsafe_share` takes no options
                hint = f"to_backend(x, {conversion.target.name!r}, {dtype})"
            elif conversion.options.copy is False:  # any cast is a copy
                hint = f"{dtype}, copy=None"
        raise lacks.error.build(conversion.asked(), lacks.reason, hint)


def chosen(word: str, dtype: str, target: Backend, device: Device) -> str:
    """Return the dtype that "default" or "nearest" stands for, for an array of `dtype` on a device."""
    if word == "nearest":
        return nearest(dtype, lambda other: target.unsupported_dtype(other, device) is None)
    return no_wider(dtype, target.default_dtype(category(dtype), device)) if dtype in DTYPES else dtype


def _choose_dtype(source: Backend, target: Backend, info: ArrayInfo, options: Options, device: Device) -> str:
    """Return the dtype of the result. A dtype without a canonical name stays within its library."""
    if options.dtype not in UNNAMED:
        return options.dtype or info.dtype
    if source is target and info.dtype not in DTYPES:
        return info.dtype
    return chosen(options.dtype, info.dtype, target, device)


def _require_grad(conversion: Conversion) -> list[Step]:
    """Return the step that makes the result a new leaf if that was asked for; raise if it cannot be one."""
    if not conversion.options.requires_grad:
        return []
    target, info = conversion.target, conversion.info
    why = hint = ""
    if not target.autograd:
        why, hint = target.gaps["autograd"].reason, "backend='torch'"
    elif not is_inexact(conversion.dtype):
        why, hint = f"no gradient flows through {conversion.dtype}", "dtype='float32'"
    elif info.requires_grad and conversion.options.grad != "detach":
        why, hint = "a new leaf would cut the graph that it has", "grad='detach' to cut it"
    if why:
        raise GradientError.build(f"{conversion.asked()} with requires_grad=True", why, hint)
    return [Step(target, "require_grad")]


def _share_or_copy(conversion: Conversion, layout: MemoryLayout, *, will_copy: bool) -> list[Step]:
    """Apply the sharing rules: return the step on the host that copies or protects the memory, if any.

    With `will_copy`, a later step copies the memory, and needs only a view that the target can express.
    """
    target, info = conversion.target, conversion.info
    if will_copy and target.accepts_layout(info, layout):
        return []
    why = next(_reasons_not_to_share(conversion, layout), ASKED if conversion.options.copy else None)
    if why:
        return [Step(_host, "copy", axis_order(target), why)]
    return [_READONLY] if _find_guard(info, layout) else []


def _find_guard(info: ArrayInfo, layout: MemoryLayout) -> Guard | None:
    """Return why the memory of an array is shared read-only; None if it is not."""
    overlaps = layout.may_overlap_itself()
    return guard_of(writable=layout.writable, overlaps=overlaps, requires_grad=info.requires_grad)


def _reasons_not_to_share(conversion: Conversion, layout: MemoryLayout) -> Iterator[CopyReason]:
    """Yield the reasons why the target cannot share the memory, or not safely."""
    source, target, info = conversion.source, conversion.target, conversion.info
    if target.assumes_immutable and not source.assumes_immutable and not conversion.options.unsafe:
        yield reason("mutable", f"its memory can change, and {target.name} reads it later")
    if not target.accepts_layout(info, layout):
        yield _layout_reason(target, info, layout)
    if conversion.options.unsafe:
        return
    guard, options = _find_guard(info, layout), conversion.options
    if guard and not target.readonly:
        yield _guard_reason(guard, target)
    elif guard and options.writable:
        yield ASKED_WRITABLE
    elif options.compiled and target.readonly and (guard or options.writable is False):
        yield reason("compiled", "a compiler would make its read-only array writable")
    elif options.compiled and source.readonly and not target.readonly:
        yield reason("compiled", "a compiler does not show whether it is read-only")


def _layout_reason(target: Backend, info: ArrayInfo, layout: MemoryLayout) -> CopyReason:
    if not info.native_byteorder:
        return reason("byte_order", "its bytes are in foreign order")
    if not layout.aligned:
        return reason("alignment", "its memory is not aligned")
    if layout.strides == c_strides(layout.shape, layout.itemsize):
        return reason("alignment", f"its memory is not aligned as {target.name} needs it")
    return reason("strides", f"{target.name} does not support its strides")


def _guard_reason(guard: Guard, backend: Backend) -> CopyReason:
    return reason(guard, f"{GUARDS[guard]}, and {backend.name} has no read-only arrays")


def _make_plan(conversion: Conversion, steps: list[Step]) -> Plan:
    """Make the plan, or raise if it copies in spite of `copy=False`. Empty arrays have nothing to copy."""
    steps = [*steps, *_require_grad(conversion)]
    if conversion.options.copy is False:
        empty = 0 in conversion.info.shape
        copies = (step.copy_reason for step in steps if step.op == "astype" or not empty)
        why = next(filter(None, copies), None)
        if why:
            how, hint = "with copy=False", "copy=None"
            if conversion.options.unsafe:
                how, hint = "without a copy", f"to_backend(x, {conversion.target.name!r})"
            raise CopyError.build(f"{conversion.asked()} {how}", why.message, hint)
    return Plan(conversion, tuple(steps))
