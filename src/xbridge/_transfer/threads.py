"""Worker threads that convert with the streams, modes and devices of the thread that started them.

Libraries keep these settings by thread. The `transfers` of each backend capture its own: with `threaded` for
one conversion, and with `thread_context` for the life of a thread.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from xbridge._core.devices import CPU, Device, absent_device_error
from xbridge._core.futures import settle
from xbridge._core.protocol import ArrayFn, Backend
from xbridge._engine import execute as _execute
from xbridge._engine.execute import CallSite
from xbridge._plan.options import CallOptions, read_options
from xbridge._plan.rules import destination, has_device
from xbridge._registry import registry
from xbridge._registry.registry import backend_for, get, imported, loaded
from xbridge.errors import XBridgeError

P = ParamSpec("P")
T = TypeVar("T")

GRACE = 2.0
"""Seconds that the end of a loop or of the program waits for threads: an iterable may block for ever."""

_workers: set[Worker] = set()
"""The threads to wait for at the exit of the program."""

_is_exiting = False
"""True after the program has begun to exit, when no thread is started any more."""


def resolve_destination(name: str | ModuleType, options: CallOptions) -> tuple[Backend, Device]:
    """Return the target and the device to move to; the host if the caller named none."""
    target = get(name)
    device = read_options((target,), options).device
    place = CPU if device is None else destination(target, device, CPU)
    if not has_device(target, place):
        raise absent_device_error(target.name, place, target.devices())
    return target, place


def participating_backends(arrays: list[object], target: Backend) -> Iterator[tuple[Backend, Device]]:
    """Yield each backend that takes part in a conversion of arrays, with the device."""
    for kind in dict.fromkeys(map(type, arrays)):
        backend = backend_for(kind)
        if backend and backend.host_only:
            yield backend, CPU
        elif backend:
            own: list[Any] = [x for x in arrays if type(x) is kind]
            if kind in backend.fast.types and backend.transfers.may_use_threads():
                own = list({x.device: x for x in own}.values())
            for place in dict.fromkeys(map(backend.device_of, own)):
                yield backend, place
                if place != CPU and place in target.devices():
                    yield target, place


def in_thread(fn: ArrayFn, ends: Iterable[tuple[Backend, Device]]) -> ArrayFn:
    """Return `fn` for another thread, wrapped by each backend that takes part."""
    for backend, place in dict.fromkeys(ends):
        fn = backend.transfers.threaded(fn, place)
    return fn


def can_leave(xs: list[object]) -> bool:
    """Return True if another thread can convert arrays: none is traced, and all are in memory."""
    for kind in set(map(type, xs)):
        backend = backend_for(kind)
        if backend is None:
            continue
        if backend.is_tracing():
            return False
        is_plain = backend.host_only or (kind in backend.fast.types and backend.transfers.may_use_threads())
        if not is_plain and any(backend.unsupported(x, leaving=True) for x in xs if type(x) is kind):
            return False
    return True


def capture_context() -> Callable[[], None]:
    """Return a function that gives another thread the context of this one, for all imported libraries."""
    known = [backend.transfers.thread_context() for backend in dict.fromkeys([*imported(), *loaded()])]

    def there() -> None:
        for take_over in known:
            take_over()

    return there


def start_thread(fn: Callable[[ArrayFn], Any], convert: ArrayFn) -> Future[Any] | None:
    """Run `fn` in a new thread. Return None if no thread can be started, as at the interpreter's exit."""
    try:
        worker = Worker("xbridge-transfer")
    except RuntimeError:
        return None
    begun = worker.submit(fn, convert)
    worker.finish()
    return begun


class Worker:
    """A daemon thread that calls functions one after the other, and keeps their results in futures.

    At its exit, the interpreter waits for the threads of `concurrent.futures` however long they take. But an
    iterable may never yield another batch, so the exit waits for these threads only a short time.
    """

    def __init__(self, name: str) -> None:
        if _is_exiting:
            raise RuntimeError("the interpreter is at its exit")
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        _workers.add(self)
        try:
            self._thread.start()
        except RuntimeError:
            _workers.discard(self)
            raise

    def submit(self, fn: Callable[P, T], *args: P.args, **keywords: P.kwargs) -> Future[T]:
        """Call a function after those that were submitted before."""
        future: Future[T] = Future()
        self._tasks.put((future, partial(fn, *args, **keywords)))
        return future

    def finish(self) -> None:
        """End the thread after all submitted tasks. Do not wait."""
        self._tasks.put(None)

    def stop(self) -> None:
        """Cancel all tasks that have not begun, and end the thread after the current one. Do not wait."""
        with suppress(Empty):
            while task := self._tasks.get_nowait():
                task[0].cancel()
        self.finish()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, at most this long. The exit of the program does not wait again."""
        _workers.discard(self)
        self._thread.join(seconds)

    def _run(self) -> None:
        while task := self._tasks.get():
            settle(*task)
            del task  # the next task may come late, and the result belongs to the caller
        _workers.discard(self)


def start_worker(name: str) -> Worker:
    """Start a worker, or raise an error if no thread can be started."""
    try:
        return Worker(name)
    except RuntimeError as error:
        reason = f"there is no thread for it ({error})"
        raise XBridgeError.build("convert batches ahead", reason) from error


def end_workers(workers: Collection[Worker], *, wait: bool = True) -> None:
    """Stop threads, and wait at most `GRACE` seconds for the work that they have begun."""
    for worker in workers:
        worker.stop()
    end = monotonic() + GRACE
    for worker in workers if wait else ():
        worker.join(max(end - monotonic(), 0))


@atexit.register
def _end_all_workers() -> None:
    """End all threads at the exit, because one that still runs code of a library could crash the process."""
    global _is_exiting  # noqa: PLW0603 -- one for the process
    _is_exiting = True
    end_workers(list(_workers))


def attribute_calls(by: CallSite, fn: Callable[P, T]) -> Callable[P, T]:
    """Return `fn` for another thread, which counts its calls as made by `by`, under the current policy.

    The policy stays in force there, even if this thread leaves its block before the other one is done.
    """
    context, rules = copy_context(), None
    context.run(_execute.inherited_call_site.set, by)
    if registry.observers:
        from xbridge._observe.policy import policy  # noqa: PLC0415 -- only if a policy may be in force

        rules = policy(**policy.now()._asdict())

    def begun(*args: P.args, **options: P.kwargs) -> T:
        with rules or nullcontext():
            return fn(*args, **options)

    return partial(context.run, begun)
