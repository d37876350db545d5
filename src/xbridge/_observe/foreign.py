"""Notice conversions by a library's own calls, such as `Tensor.numpy`, for `record(foreign=True)`.

A backend notices such calls by a hook that its library offers (`watch` in the protocol). Nothing is patched.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from xbridge._core.devices import CPU
from xbridge._engine.execute import CallSite, is_ours
from xbridge._plan.reasons import IF_SAME, reason
from xbridge._plan.steps import nbytes_of
from xbridge._registry.registry import are_arrays, backend_for, imported, is_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend

_PYTHON = "Python numbers"


def watch(add: Callable[..., object]) -> ExitStack:
    """Call `add` after each conversion by the imported libraries' own calls in this thread.

    Its arguments are the fields of a row of a record.
    """

    def notice(name: str, source: Array, result: object, seconds: float) -> None:
        by = _find_call_site()
        if by and result is not source and are_arrays(type(source)):
            add(*_describe_call(name, by, source, result, seconds))

    with ExitStack() as stack:
        for backend in imported():
            if backend.watch:
                stack.enter_context(backend.watch(notice))
        return stack.pop_all()


def _describe_call(
    name: str, by: CallSite, source: Array, result: object, seconds: float
) -> tuple[str | int | float, ...]:
    """Describe a call, with the bytes that it moved between devices, cast or copied."""
    given, made = _ArrayFacts.of(source), _ArrayFacts.of(result)
    copied = cast = moved = 0
    avoid = ""
    if given.device != made.device:
        moved, avoid = made.nbytes or given.nbytes, "".join(reason("device", "").advice)
    elif made.dtype and made.dtype != given.dtype:
        cast, avoid = made.nbytes, "".join(reason("cast", "").advice)
    elif not given.address or given.address != made.address:
        copied = made.nbytes
    place = by.f_code.co_filename, by.f_lineno, by.f_code.co_qualname, given.name, made.name
    return (*place, 1, copied, cast, moved, seconds, avoid and avoid + IF_SAME, name)


class _ArrayFacts(NamedTuple):
    """Facts about the array before or after a call. Python numbers are on the host and have no bytes."""

    name: str
    dtype: str
    device: Device
    nbytes: int
    address: int

    @classmethod
    def of(cls, x: object) -> _ArrayFacts:
        backend = backend_for(type(x))
        if backend is None:
            return cls(_PYTHON, "", CPU, 0, 0)
        info = backend.array_info(x)
        name = f"{backend.name} {info.dtype} on {info.device}"
        return cls(
            name, info.dtype, info.device, nbytes_of(info.shape, info.dtype) or 0, _address(backend, x)
        )


def _address(backend: Backend, x: Array) -> int:
    """Return the address of an array; 0 if it has no memory of its own."""
    return 0 if backend.unsupported(x, leaving=True) else backend.memory_layout(x).address


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
