"""Conversions that go on beside the program: one with a handle, or one batch after the other, ahead of use.

A transfer is a conversion in a thread of its own. What it needs to know of queues and modes the backend
tells it, with its verb `aside`; the result is handed out when it is complete, and never before. Threads end
with what they do: none waits in a pool for the next call, so nothing is left to a fork or to the exit.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from xbridge import _registry
from xbridge._devices import CPU
from xbridge._leaves import Plain, converted, crosses, together, walker
from xbridge._look import are_arrays
from xbridge._registry import backend_for, get
from xbridge._request import read_request
from xbridge._run import begun_by, caller
from xbridge.errors import DeviceError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from xbridge._convert import Grad
    from xbridge._devices import Device
    from xbridge._protocol import Backend
    from xbridge._run import Caller

    Work = Callable[[list[object]], list[object]]

_END = object()


class Transfer:
    """A conversion that is under way, or done. `transfer` makes it.

    Nobody has to wait for it: one that is dropped goes on to its end, and its result is dropped then.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> under_way = xbridge.transfer(np.ones(2), "numpy")
    >>> under_way.result()
    array([1., 1.])
    >>> under_way.done()
    True
    """

    __slots__ = ("_future",)

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once.

        Returns
        -------
        bool
            Once True, it stays so.
        """
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        """Wait until everything has arrived.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None waits as long as it takes.

        Returns
        -------
        tree
            What was given, with the target's arrays in place of arrays; the same object at every call.

        Raises
        ------
        XBridgeError
            What the conversion raised, as for `to_backend`, at every call.
        TimeoutError
            It is not done yet. It goes on.
        """
        return self._future.result(timeout)


def transfer(
    tree: Any,
    backend: str,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> Transfer:
    """Begin to convert the arrays of a batch, and return at once.

    Parameters
    ----------
    tree : tree
        As for `xbridge.tree.to_backend`; without optree, nested plain lists, tuples, named tuples and dicts.
        Do not write the arrays before the transfer is done.
    backend, device, dtype, copy, grad
        As for `to_backend`.

    Returns
    -------
    Transfer
        ``.result()`` waits and gives the batch; ``.done()`` says whether it would wait.

    Raises
    ------
    XBridgeError
        An option that no array could be converted with. What is wrong with an array, ``result`` raises.

    Notes
    -----
    Arrays on a device are read after what the current stream was asked for before the call. The result is
    there for any stream; its memory may be reused when the stream that was current at the call is done with
    it. Small arrays that go from the host to one device, or back, cross in one piece and share their new
    memory: one of them keeps it all.

    What cannot leave the thread, such as a tracer or a tensor in a program that is compiled, is converted at
    once.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> under_way = xbridge.transfer({"x": np.ones(2), "name": "a"}, "numpy", dtype="float32")
    >>> under_way.result()
    {'x': array([1., 1.], dtype=float32), 'name': 'a'}
    """
    carry = _carrier(backend, device=device, dtype=dtype, copy=copy, grad=grad)
    batch = _Batch(tree)
    carry = batch.after(carry)
    if not all(_may_leave(x) for x in batch.arrays):
        future: Future[Any] = Future()
        future.set_result(batch.carried(carry))
        return Transfer(future)
    pool = ThreadPoolExecutor(1, "xbridge-transfer")
    future = pool.submit(begun_by(caller(), batch.carried), carry)
    pool.shutdown(wait=False)
    return Transfer(future)


def prefetch(
    iterable: Iterable[Any],
    backend: str,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    depth: int = 2,
) -> Generator[Any, None, None]:
    """Convert the batches of an iterable ahead of their use.

    One thread asks the iterable for the next batch, another one converts the batch before, and the caller
    computes with those that are ready.

    Parameters
    ----------
    iterable : iterable of trees
        Such as a data loader. Each batch as for `transfer`.
    backend, device, dtype, copy, grad
        As for `to_backend`.
    depth : int
        How many batches are on their way or ready while the caller has one.

    Yields
    ------
    tree
        The batches in order, complete, for the stream that was current when the first one was asked for.

    Raises
    ------
    XBridgeError
        An option that no array could be converted with, at once; what is wrong with an array, in its turn.
        What the iterable raises comes in its turn too, with its traceback.

    Notes
    -----
    Nothing begins before the first batch is asked for. When the loop is left, by ``break`` or an exception,
    the threads end: at most what each is doing is waited for.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> batches = ({"x": np.full(2, i), "i": i} for i in range(3))
    >>> for batch in xbridge.prefetch(batches, "numpy", dtype="float32"):
    ...     print(batch["i"], batch["x"])
    0 [0. 0.]
    1 [1. 1.]
    2 [2. 2.]
    """
    if not isinstance(depth, int) or depth < 1:
        raise OptionError.because(f"take depth={depth!r}", "it is a whole number from 1 on", "depth=2")
    begin = partial(_carrier, backend, device=device, dtype=dtype, copy=copy, grad=grad)
    begin()
    return _ahead(iter(iterable), begin, depth, caller())


def _ahead(
    batches: Iterator[Any], begin: Callable[[], Work], depth: int, by: Caller
) -> Generator[Any, None, None]:
    """Load in one thread, carry in another, and hand out in order."""
    carry, home = begin(), get_ident()
    loading, carried = copy_context(), begun_by(by, _carried)
    loader, carrier = (ThreadPoolExecutor(1, f"xbridge-{does}") for does in ("load", "carry"))
    under_way: deque[Future[Any]] = deque()

    def ask() -> None:
        loaded = loader.submit(loading.run, partial(next, batches, _END))
        under_way.append(carrier.submit(carried, carry, loaded))

    try:
        for _ in range(depth):
            ask()
        while (batch := _first(under_way, by, depth)) is not _END:
            ask()
            yield batch
    finally:
        for pool in (loader, carrier):  # a garbage collection in one of its threads cannot wait for it
            pool.shutdown(wait=get_ident() == home, cancel_futures=True)


def _first(under_way: deque[Future[Any]], by: Caller, depth: int) -> Any:
    """The next batch. The records are told how many were there, and how long it took to come."""
    ready, begin = sum(batch.done() for batch in under_way), perf_counter()
    batch = under_way.popleft().result()
    if _registry.watchers and batch is not _END:
        from xbridge import _record  # noqa: PLC0415 -- only while somebody watches

        _record.tell_wait(by, depth, ready, perf_counter() - begin)
    return batch


def _carried(carry: Work, loaded: Future[Any]) -> Any:
    item = loaded.result()
    if item is _END:
        return _END
    batch = _Batch(item)
    return batch.carried(batch.after(carry))


class _Batch:
    """A tree, and the arrays in it, each once; what is no container has to be an array."""

    def __init__(self, tree: object) -> None:
        self.walk = (Plain if are_arrays(type(tree)) else walker())(tree)
        leaves = self.walk.leaves
        self.alone = len(leaves) == 1 and leaves[0] is tree
        self.arrays = list({id(x): x for x in leaves if self.alone or crosses(type(x))}.values())

    def after(self, carry: Work) -> Work:
        """What converts them, after what this thread has asked to be done to them."""
        rooms = [(backend_for(type(x)), x) for x in self.arrays]
        for room, place in dict.fromkeys((room, room.describe(x).device) for room, x in rooms if room):
            carry = _aside(carry, room, place)
        return carry

    def carried(self, carry: Work) -> Any:
        """The tree with arrays in place of arrays."""
        done = carry(self.arrays) if self.alone else together(self.walk, carry, self.arrays)
        made = dict(zip(map(id, self.arrays), done, strict=True))
        return self.walk.rebuilt([made.get(id(x), x) for x in self.walk.leaves])


def _carrier(name: str, **options: Any) -> Work:
    """What another thread calls with arrays, to convert them for this one."""
    target = get(name)
    device = read_request((target,), **options).device
    place = CPU if device is None else target.resolve_device(device, CPU)
    if place != CPU and place not in (here := target.devices()):
        raise DeviceError.because(
            f"transfer arrays to {name} on {place}", f"its devices are {', '.join(here)}", "device='cpu'"
        )
    return _aside(partial(converted, name=name, **options), target, place)


def _aside(fn: Work, room: Backend, place: Device) -> Work:
    aside: Callable[[Work, Device], Work] | None = getattr(room, "aside", None)
    return fn if aside is None else aside(fn, place)


def _may_leave(x: object) -> bool:
    """Whether another thread can convert it: it is memory, and not part of what this one is doing."""
    room = backend_for(type(x))
    return room is None or not (room.tracing() or room.refusal(x, leaving=True))
