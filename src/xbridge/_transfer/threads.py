"""What another thread has to know to convert for this one, and whether it may.

Libraries keep streams, modes and options by thread. Each backend captures its own with the functions
`threaded`, for one conversion, and `thread_context`, for the life of a thread.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from xbridge._core.devices import CPU
from xbridge._engine import caller as _caller
from xbridge._plan.options import read_options
from xbridge._plan.rules import destination
from xbridge.backends import INDEX, _registry
from xbridge.backends._registry import backend_for, get, is_available, known_backends
from xbridge.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import ArrayFn, Backend
    from xbridge._engine.caller import Caller

P = ParamSpec("P")
T = TypeVar("T")


def goal(name: str | ModuleType, keywords: dict[str, Any]) -> tuple[Backend, Device]:
    """Who converts, and where to; the host, where that is for each array to say."""
    target = get(name)
    device = read_options((target,), **keywords).device
    place = CPU if device is None else destination(target, device, CPU)
    if place != CPU and place not in (here := target.devices()):
        raise DeviceError.build(
            f"transfer arrays to {target.name} on {place}",
            f"its devices are {', '.join(here)}",
            "device='cpu'",
        )
    return target, place


def ends(arrays: list[object], target: Backend) -> Iterator[tuple[Backend, Device]]:
    """Where arrays lie, and who may have to do with them there: their library, and the target."""
    for x in arrays:
        backend = backend_for(type(x))
        if backend and not backend.host_only:
            place = backend.array_info(x).device
            yield backend, place
            if place != CPU and place in target.devices():
                yield target, place


def apart(fn: ArrayFn, ends: Iterable[tuple[Backend, Device]]) -> ArrayFn:
    """`fn` for another thread, as who has to do with it there wants it."""
    for backend, place in dict.fromkeys(ends):
        fn = fn if backend.threaded is None else backend.threaded(fn, place)
    return fn


def may_leave(x: object) -> bool:
    """Whether another thread can convert it: it is memory, and not part of what this one is doing."""
    backend = backend_for(type(x))
    return backend is None or not (backend.is_tracing() or backend.unsupported(x, leaving=True))


def as_here() -> Callable[[], None]:
    """What makes another thread, for its life, as this one is now to all libraries that are imported."""
    imported = {name for name, entry in INDEX.items() if not sys.modules.keys().isdisjoint(entry.roots)}
    names = [name for name in known_backends() if name in imported or name in _registry.fast_converters]
    contexts = (get(name).thread_context for name in names if is_available(name))
    known = [capture() for capture in contexts if capture is not None]

    def there() -> None:
        for take_over in known:
            take_over()

    return there


def beside(fn: Callable[[ArrayFn], Any], carry: ArrayFn) -> Future[Any] | None:
    """What a thread of its own makes of it; None where none can be started, as at the interpreter's exit."""
    pool = ThreadPoolExecutor(1, "xbridge-transfer")
    try:
        return pool.submit(fn, carry)
    except RuntimeError:
        return None
    finally:
        pool.shutdown(wait=False)


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
