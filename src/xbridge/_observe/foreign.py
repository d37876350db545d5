"""Notice conversions by a library's own calls, such as `Tensor.numpy`, for `record(foreign=True)`.

A backend notices such calls by a hook that its library offers (`watch` in the protocol). Nothing is patched.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from xbridge._core.devices import CPU
from xbridge._engine.execute import CallSite, is_ours
from xbridge._plan.reasons import IF_SAME, reason
from xbridge._plan.steps import nbytes_of
from xbridge._registry.registry import are_arrays, backend_for, imported, is_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array


def watch(add: Callable[..., object]) -> ExitStack:
    """Call `add` after each conversion by the imported libraries' own calls in this thread.

    Its arguments are the fields of a row of a record.
    """

    def notice(name: str, source: Array, result: object, seconds: float) -> None:
        by = _find_call_site()
        if by and result is not source and are_arrays(type(source)):
            place = by.f_code.co_filename, by.f_lineno, by.f_code.co_qualname
            labels, sizes, avoid = _compare(source, result)
            add(*place, *labels, 1, *sizes, seconds, avoid, name)

    with ExitStack() as stack:
        for backend in imported():
            if backend.watch:
                stack.enter_context(backend.watch(notice))
        return stack.pop_all()


def _compare(source: Array, result: object) -> tuple[tuple[str, str], tuple[int, int, int], str]:
    """Return what the array was and became, the bytes copied, cast and moved, and how to avoid them."""
    given, made = _describe(source), _describe(result)
    labels = given[0], made[0]
    (_, dtype, device, nbytes, address), (_, new_dtype, new_device, new_nbytes, new_address) = given, made
    if device != new_device:
        return labels, (0, 0, new_nbytes or nbytes), "".join(reason("device", "").advice) + IF_SAME
    if new_dtype and new_dtype != dtype:
        return labels, (0, new_nbytes, 0), "".join(reason("cast", "").advice) + IF_SAME
    is_view = address and address == new_address
    return labels, (0 if is_view else new_nbytes, 0, 0), ""


def _describe(x: object) -> tuple[str, str, Device, int, int]:
    """Return a label, the dtype, the device, the bytes and the address of an array.

    Python numbers are on the host and have no bytes, and an array without memory of its own has no address.
    """
    backend = backend_for(type(x))
    if backend is None:
        return "Python numbers", "", CPU, 0, 0
    info = backend.array_info(x)
    address = 0 if backend.unsupported(x, leaving=True) else backend.memory_layout(x).address
    label = f"{backend.name} {info.dtype} on {info.device}"
    return label, info.dtype, info.device, nbytes_of(info.shape, info.dtype) or 0, address


def _find_call_site() -> CallSite | None:
    """Return the line outside of array libraries that made the call; None if it belongs to xbridge."""
    frame = hook = sys._getframe(2)  # noqa: SLF001 -- the frame of the backend's function that calls `notice`
    while frame.f_back and (frame.f_code is hook.f_code or _is_library(frame)):
        frame = frame.f_back
    ours = is_ours(frame.f_code.co_filename)
    return None if ours else CallSite(frame.f_code, frame.f_lineno, frame.f_globals)


def _is_library(frame: FrameType) -> bool:
    """Return True for a frame of an array library, such as of torch's data loader, but not of xbridge."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return is_root(package) and not is_ours(frame.f_code.co_filename)
