"""Choose where a cast runs, and if it runs before or after a move between devices.

By default the target casts. If it lacks the dtype to cast from, the source casts, and if the source lacks the
other dtype, NumPy. NumPy also casts if no value may change, and the target would change some. Otherwise,
another place is chosen only if it gives the same numbers: the source, if fewer bytes leave its device then,
or if the array is still to be computed and no value has to be checked; and NumPy, where it is faster and no
more bytes go to a device. If the target can stream, NumPy casts a large array piece by piece during its
transfer, so that no whole copy is made.
"""

from __future__ import annotations

from types import ModuleType

from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import DTYPES, UNNAMED, holds_every
from xbridge._core.protocol import Backend
from xbridge._host import memory as _host
from xbridge._plan.reasons import CopyReason, reason
from xbridge._plan.steps import Conversion, Step, nbytes_of


def choose_caster(conversion: Conversion, *, lazy: bool = False) -> Backend | ModuleType:
    """Return the backend that performs the cast in a conversion through host memory."""
    source, target, info = conversion.source, conversion.target, conversion.info
    before, after, start, result_device = info.dtype, conversion.dtype, info.device, conversion.device
    may_defer = not (lazy and check_step(conversion, source))  # a check would compute the array once more
    if after != before and target.unsupported_dtype(before, CPU):
        return source if may_defer and not source.unsupported_dtype(after, CPU) else _host
    fewer = _narrows(conversion)
    sooner = (lazy and may_defer and (fewer or result_device == CPU)) or (fewer and start != CPU)
    # Both casts have to give NumPy's numbers, each on its device.
    backends = ((source, start), (target, CPU))
    alike = all(one.cast_matches_numpy(before, after, device) for one, device in backends)
    if sooner and alike and after != before and _has_both(conversion, source, start):
        return source
    faster = (before, after) in target.host_casts and (fewer or result_device == CPU)
    # A widening that must be exact, such as that of a subnormal number, which JAX flushes to zero.
    widens = conversion.options.check_loss and holds_every(before, after)
    exact = widens and not target.cast_matches_numpy(before, after, CPU)
    return _host if faster or exact or target.host_only or after == before else target


def order_cast_and_move(
    conversion: Conversion,
    backend: Backend,
    casts: list[Step],
    start: Device | None = None,
    result_device: Device | None = None,
) -> list[Step]:
    """Order a move and a cast: the cast first if fewer bytes move then, or if it is impossible later."""
    start, result_device = start or conversion.info.device, result_device or conversion.device
    if start == result_device:
        return casts
    why = reason("device", f"it moves from {start} to {result_device}")
    move = Step(backend, "to_device", (result_device,), why)
    sooner = _narrows(conversion) or not _has_both(conversion, backend, result_device)
    return [*casts, move] if sooner and _has_both(conversion, backend, start) else [move, *casts]


def fuse_transfer(conversion: Conversion, steps: list[Step]) -> list[Step]:
    """Fuse a cast or copy on the host with the move that follows, if the target streams such arrays."""
    if conversion.device == CPU:
        return steps
    at = [step.op for step in steps].index("from_numpy")
    change, move = steps[at - 1], steps[at + 1]
    if change.op not in ("astype", "copy") or move.op != "to_device":
        return steps
    casts = change.op == "astype" and conversion.dtype != conversion.info.dtype
    dtypes = (conversion.dtype,) if casts else ()
    nbytes = nbytes_of(conversion.info.shape, *(dtypes or (conversion.info.dtype,)))
    if not nbytes or not conversion.target.transfers.streams_to_device(nbytes, conversion.device):
        return steps
    advice = (word for step in (change, move) if step.copy_reason for word in step.copy_reason.advice)
    why = CopyReason("device", f"{change.reason}, and {move.reason}", tuple(advice))
    fused = Step(conversion.target, "stream_to_device", (*move.args, *dtypes), why)
    return [*steps[: at - 1], fused, *steps[at + 2 :]]


def check_step(conversion: Conversion, backend: Backend | ModuleType) -> list[Step]:
    """Return the step that checks the values, if the dtype may not hold them all and was not named.

    A caller who names a dtype accepts its precision, unless `check_loss` is set.
    """
    asked = conversion.options.dtype in UNNAMED or conversion.options.check_loss
    if not asked or holds_every(conversion.info.dtype, conversion.dtype):
        return []
    return [Step(backend, "check_cast", (conversion.dtype,))]


def cast_step(conversion: Conversion, backend: Backend | ModuleType) -> list[Step]:
    """Return the step that changes the dtype, or the byte order if a dtype was named."""
    info, dtype = conversion.info, conversion.dtype
    order = ("C",) if conversion.options.order else axis_order(conversion.target)
    args = (dtype, *order) if backend is _host else (dtype,)
    if dtype != info.dtype:
        return [Step(backend, "astype", args, reason("cast", f"{info.dtype} becomes {dtype}"))]
    if conversion.options.dtype is not None and not info.native_byteorder:
        why = reason("byte_order", f"its bytes are not in the order of {dtype}")
        return [Step(backend, "astype", args, why)]
    return []


def axis_order(target: Backend) -> tuple[str, ...]:
    """Return the arguments of a copy on the host: C order if the target would not keep another order."""
    return ("C",) if "axis_order" in target.gaps else ()


def _narrows(conversion: Conversion) -> bool:
    before, after = (DTYPES.get(word) for word in (conversion.info.dtype, conversion.dtype))
    return bool(before and after and after.bits < before.bits)


def _has_both(conversion: Conversion, backend: Backend, device: Device) -> bool:
    """Return True if a backend has both dtypes of a cast on a device.

    Dtypes without a canonical name belong to the library, and count as present on all of its devices.
    """
    if device == CPU and "host" in backend.gaps:
        return False
    words = conversion.info.dtype, conversion.dtype
    return not any(backend.unsupported_dtype(word, device) for word in words if word in DTYPES)
