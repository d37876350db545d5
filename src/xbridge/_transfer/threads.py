"""Capture the caller's streams, modes and device so that a worker thread can convert.

Libraries keep streams, modes and options by thread. Each backend captures its own with the functions
`threaded`, for one conversion, and `thread_context`, for the life of a thread.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from threading import current_thread, main_thread
from types import FrameType, ModuleType
from typing import Any, ParamSpec, TypeVar

from xbridge._core.devices import CPU, Device
from xbridge._core.protocol import ArrayFn, Backend
from xbridge._engine import caller as _caller
from xbridge._engine.caller import Caller
from xbridge._plan.options import read_options
from xbridge._plan.rules import destination
from xbridge.backends import INDEX, _registry
from xbridge.backends._registry import backend_for, get, is_available, known_backends
from xbridge.errors import DeviceError

P = ParamSpec("P")
T = TypeVar("T")

_loops: set[object] = set()
"""The loops of the main thread that no Ctrl-C has interrupted."""


def resolve_destination(name: str | ModuleType, keywords: dict[str, Any]) -> tuple[Backend, Device]:
    """Return the target and its device, which is the host if each array keeps its own device."""
    target = get(name)
    device = read_options((target,), **keywords).device
    place = CPU if device is None else destination(target, device, CPU)
    if place != CPU and place not in (here := target.devices()):
        action, reason = f"transfer arrays to {target.name} on {place}", f"its devices are {', '.join(here)}"
        raise DeviceError.build(action, reason, "device='cpu'")
    return target, place


def ends(arrays: list[object], target: Backend) -> Iterator[tuple[Backend, Device]]:
    """Yield the backends that take part in a conversion of arrays on devices, with these devices."""
    for x in arrays:
        backend = backend_for(type(x))
        if backend and not backend.host_only:
            place = backend.array_info(x).device
            yield backend, place
            if place != CPU and place in target.devices():
                yield target, place


def in_thread(fn: ArrayFn, ends: Iterable[tuple[Backend, Device]]) -> ArrayFn:
    """Return `fn` for another thread, wrapped by each backend that takes part."""
    for backend, place in dict.fromkeys(ends):
        fn = fn if backend.threaded is None else backend.threaded(fn, place)
    return fn


def can_leave(x: object) -> bool:
    """Return True if another thread can convert `x`: an array in memory that this thread does not trace."""
    backend = backend_for(type(x))
    return backend is None or not (backend.is_tracing() or backend.unsupported(x, leaving=True))


def capture_context() -> Callable[[], None]:
    """Return a function that sets the context of this thread in another one, for all imported libraries."""
    imported = {name for name, entry in INDEX.items() if not sys.modules.keys().isdisjoint(entry.roots)}
    names = [name for name in known_backends() if name in imported or name in _registry.fast_converters]
    contexts = (get(name).thread_context for name in names if is_available(name))
    known = [capture() for capture in contexts if capture is not None]

    def there() -> None:
        for take_over in known:
            take_over()

    return there


def start_thread(fn: Callable[[ArrayFn], Any], convert: ArrayFn) -> Future[Any] | None:
    """Run `fn` in a new thread. Return None if no thread can be started, as at the interpreter's exit."""
    pool = ThreadPoolExecutor(1, "xbridge-transfer")
    try:
        return pool.submit(fn, convert)
    except RuntimeError:
        return None
    finally:
        pool.shutdown(wait=False)


def begin_loop() -> object:
    """Notice a Ctrl-C in the body of a loop until `end_loop`. Return a key for the loop.

    A generator does not see the exception that ends the loop over it, so the signal is noticed. That needs
    the main thread, and Python's own handler of the signal.
    """
    if current_thread() is not main_thread():
        return None
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    loop = object()
    _loops.add(loop)
    return loop


def end_loop(loop: object) -> bool:
    """Return True if a Ctrl-C has interrupted a loop. After the last one, the signal has Python's handler."""
    interrupted = loop is not None and loop not in _loops
    _loops.discard(loop)
    ours = signal.getsignal(signal.SIGINT) is _interrupted
    if ours and not _loops and current_thread() is main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return interrupted


def _interrupted(number: int, frame: FrameType | None) -> None:
    _loops.clear()
    signal.default_int_handler(number, frame)


def begun_by(by: Caller, fn: Callable[P, T]) -> Callable[P, T]:
    """Return `fn` for another thread, as called by `by` and under the policy of this thread now.

    The block of that policy may be left before the thread is done, or has begun.
    """
    context, rules = copy_context(), None
    context.run(_caller.begun_by.set, by)
    if _registry.observers:
        from xbridge._observe.policy import policy  # noqa: PLC0415 -- only if a policy may be in force

        rules = policy(**policy.now()._asdict())

    def begun(*args: P.args, **options: P.kwargs) -> T:
        with rules or nullcontext():
            return fn(*args, **options)

    return partial(context.run, begun)
