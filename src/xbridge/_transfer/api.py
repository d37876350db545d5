"""`transfer` and `prefetch`: conversions in the background.

A transfer runs in a thread of its own, with the streams and modes of the caller (`threads.py`). There is no
pool: each thread ends with its work, so that none is left at a fork or at the exit of the program.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from math import isnan
from numbers import Real
from operator import index
from os import getpid
from threading import TIMEOUT_MAX, get_ident
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._core.entry_points import entry_point, shorten
from xbridge._core.locks import reset_in_child
from xbridge._engine.execute import CallSite, find_call_site
from xbridge._engine.source import refuse_order
from xbridge._plan.options import CallOptions
from xbridge._transfer.threads import (
    attribute_calls,
    can_leave,
    capture_context,
    end_workers,
    in_thread,
    participating_backends,
    resolve_destination,
    start_thread,
    start_worker,
)
from xbridge.errors import OptionError, XBridgeError, shown, type_of
from xbridge.tree.arrays import flatten_batch
from xbridge.tree.leaf import Leaves, leaf_converter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import ModuleType

    from xbridge._core.protocol import ArrayFn, Backend, Grad
    from xbridge._transfer.threads import Worker
    from xbridge.tree.leaf import Libraries, Scalars, Unsupported

_END = object()


class Transfer:
    """A running or finished conversion, as `transfer` returns it.

    If the transfer is deleted, the conversion goes on to its end, and the result is deleted then.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> under_way = xbridge.transfer(np.ones(2), "numpy")
    >>> under_way.result()
    array([1., 1.])
    >>> under_way.done()
    True
    """

    __slots__ = ("_future", "_process")

    def __init__(self, future: Future[Any]) -> None:
        self._future, self._process = future, getpid()
        reset_in_child(future._condition)  # noqa: SLF001 -- its lock, which the thread may hold in a fork

    def __repr__(self) -> str:
        """Return the state in one line, without a wait."""
        if not self._future.done():
            return f"<Transfer: {'running' if self._process == getpid() else 'of another process'}>"
        error = self._future.exception()
        return f"<Transfer: {'done' if error is None else f'failed with {error!r}'}>"

    def done(self) -> bool:
        """Return True if `result` would return or raise at once.

        Returns
        -------
        bool
            True for all later calls, once it is True.
        """
        return self._future.done() or self._process != getpid()

    def result(self, timeout: float | None = None) -> Any:
        """Wait until everything has arrived.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None waits as long as it takes.

        Returns
        -------
        tree
            The given tree, with the target's arrays in place of arrays. Every call returns the same object.

        Raises
        ------
        OptionError
            `timeout` is not a number of seconds.
        XBridgeError
            The error of the conversion, as for `to_backend`, at every call. Or the conversion was running
            when `fork` made this process, which does not have its thread.
        TimeoutError
            The conversion is not done yet, and goes on.
        """
        if timeout is not None and (
            not isinstance(timeout, Real) or isnan(max(min(timeout, TIMEOUT_MAX), 0))
        ):
            action = f"wait timeout={shown(timeout)}"
            raise OptionError.build(action, "it is a number of seconds, or None", "timeout=1.0")
        if self._process != getpid() and not self._future.done():
            _refuse_in_forked_child(self._process, "wait for a transfer", "transfer")
        try:
            return self._future.result(timeout and float(max(min(timeout, TIMEOUT_MAX), 0)))
        except TimeoutError:
            if self._future.done():
                raise  # the conversion's own
        except XBridgeError as error:
            shorten(error)
            raise
        raise TimeoutError(f"the transfer is not done after {timeout} s, and goes on; try result()")


@entry_point
def transfer(  # noqa: PLR0913 -- options, by keyword
    tree: Any,
    /,
    backend: str | ModuleType,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: Scalars = False,
    exporters: bool | None = None,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
) -> Transfer:
    """Start converting the arrays of a batch in the background, and return at once.

    Parameters
    ----------
    tree : tree
        As for `xbridge.tree.to_backend`. Do not write into the arrays before the transfer is done.
    backend, device, dtype, copy, grad
        As for `to_backend`.
    scalars, only, unsupported
        As for `xbridge.tree.to_backend`.
    exporters : bool, optional
        True to convert exporters of memory in the tree too, such as Series; False to leave them as they are.
        Without it and `only`, one in a container is an error.

    Returns
    -------
    Transfer
        ``.result()`` waits and returns the batch. ``.done()`` is True if the batch is complete.

    Raises
    ------
    XBridgeError
        An option with which no array could be converted. ``result`` raises the errors about single arrays.
        While a CUDA graph is captured, and in torch's `FakeTensorMode`, ``result`` raises a `DeviceError`.

    Notes
    -----
    Arrays on a device are read after the work that the current stream had before the call. The result can be
    used on any stream. Its memory may be reused when the stream that was current at the call is done with
    it. Small arrays that go from the host to one device, or back, are moved in one piece. They share their
    new memory, which any one of them keeps alive.

    Arrays that cannot leave the thread, such as a tracer or a tensor in a compiled program, are converted at
    once. So are all arrays if no thread can be started.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> under_way = xbridge.transfer({"x": np.ones(2), "name": "a"}, "numpy", dtype="float32")
    >>> under_way.result()
    {'x': array([1., 1.], dtype=float32), 'name': 'a'}
    """
    options = CallOptions(device=device, dtype=dtype, copy=copy, grad=grad)
    leaves = Leaves(scalars, exporters, only, unsupported).check(may_ask=True)
    refuse_order(tree, backend, "transfer")
    target, place = resolve_destination(backend, options)
    future: Future[Any] = Future()
    try:
        batch = flatten_batch(tree, leaves)
        convert = leaf_converter(target, options, leaves)
        arrays = batch.leaves
        if can_leave(arrays):
            convert_there = in_thread(convert, [(target, place), *participating_backends(arrays, target)])
            begun = start_thread(attribute_calls(find_call_site(), batch.map), convert_there)
            if begun:
                return Transfer(begun)
        future.set_result(batch.map(convert))
    except XBridgeError as error:
        future.set_exception(error)
    return Transfer(future)


@entry_point
def prefetch(  # noqa: PLR0913 -- options, by keyword
    iterable: Iterable[Any],
    /,
    backend: str | ModuleType,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    depth: int = 2,
    scalars: Scalars = False,
    exporters: bool | None = None,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
) -> Prefetch:
    """Convert the batches of an iterable ahead of their use.

    One thread asks the iterable for the next batch. Another thread converts the batch before. The caller
    computes with batches that are ready.

    Parameters
    ----------
    iterable : iterable of trees
        Such as a data loader. Each batch as for `transfer`.
    backend, device, dtype, copy, grad
        As for `to_backend`.
    depth : int
        The number of batches that are being converted or ready while the caller has one.
    scalars, exporters, only, unsupported
        As for `transfer`.

    Returns
    -------
    iterable
        Of the batches in order, complete, for the stream that was current at the first request. A loop over
        it iterates over `iterable` anew. It has a length if `iterable` has one.

    Raises
    ------
    XBridgeError
        An option with which no array could be converted, at once. The error of a batch, in its turn. No
        thread can be started, or the process was forked meanwhile. While a CUDA graph is captured, and in
        torch's `FakeTensorMode`, a `DeviceError`. An error of the iterable is raised in its turn too, with
        its traceback.
    OptionError
        A second loop over an iterator, such as a generator, which gives its batches once.

    Notes
    -----
    **An iterable that writes into the same arrays again needs** ``copy=True``: one thread loads and converts
    in turn then. Without a copy, batches that were yielded change, in part or as a whole.

    No work begins before the first batch is requested. The iterable runs with the modes, devices and streams
    that the caller has then. When the loop is left, by ``break`` or an exception, the threads end. The loop
    waits for their current work, but at most for two seconds, and so does the exit of the program.

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
    try:
        ahead = 0 if isinstance(depth, bool) else index(depth)
    except TypeError:
        ahead = 0
    if ahead < 1:
        raise OptionError.build(f"take depth={shown(depth)}", "it is a whole number from 1 on", "depth=2")
    options = CallOptions(device=device, dtype=dtype, copy=copy, grad=grad)
    refuse_order(iterable, backend, "prefetch")
    target, _ = resolve_destination(backend, options)
    if not any(hasattr(iterable, word) for word in ("__iter__", "__getitem__")):
        raise OptionError.build(f"take batches from {type_of(iterable)}", "it is not iterable", "[batch]")
    is_table = all(hasattr(type(iterable), word) for word in ("columns", "__array__"))
    if is_table or isinstance(iterable, (dict, str, bytes)):  # of tables, a loop gives columns or their names
        reason = f"a loop over {type_of(iterable)} gives no batches"
        hint = "[batch]" if isinstance(iterable, (str, bytes)) else "[x]"
        raise OptionError.build(f"take batches from {type_of(iterable)}", reason, hint)
    leaves = Leaves(scalars, exporters, only, unsupported).check(may_ask=True)
    run = partial(_prefetch_batches, iterable, backend, options, leaves, ahead, find_call_site())
    return Prefetch(iterable, run, f"to {target.name}, {ahead} ahead")


class Prefetch:
    """The batches of an iterable, converted ahead of their use, as `prefetch` returns them."""

    def __init__(
        self, iterable: Iterable[Any], run: Callable[[], Generator[Any, None, None]], how: str
    ) -> None:
        self._iterable, self._run, self._how, self._is_used = iterable, run, how, False

    def __repr__(self) -> str:
        """Return where the batches come from and where they go, in one line."""
        return f"<prefetch: batches of {type_of(self._iterable)} {self._how}>"

    def __len__(self) -> int:
        """Return the number of batches, or raise a `TypeError` if the iterable has no length."""
        return len(self._iterable)  # type: ignore[arg-type] # else it raises

    def __bool__(self) -> bool:
        """Return False if the iterable says that it has no batches."""
        try:
            return len(self) > 0
        except TypeError:  # it has no length, so only a loop can tell
            return True

    def __iter__(self) -> Generator[Any, None, None]:
        """Return an iterator over all batches, with threads of its own."""
        again, self._is_used = self._is_used, True
        if again and isinstance(self._iterable, Iterator):
            reason = "it is an iterator, and gives its batches once"
            hint = "xbridge.prefetch(...) for each loop, over a new iterator"
            raise OptionError.build(f"iterate over {type_of(self._iterable)} again", reason, hint)
        return self._run()


def _prefetch_batches(
    iterable: Iterable[Any],
    name: str | ModuleType,
    options: CallOptions,
    leaves: Leaves,
    depth: int,
    by: CallSite,
) -> Generator[Any, None, None]:
    """Load batches in one thread, convert them in another, and yield them in order.

    With `copy=True`, one thread does both in turn, so that the iterable may write to the same memory again. A
    batch is converted only after the device is done with the batch `depth + 1` before it. Otherwise a program
    that only queues work would fill the memory of the device.
    """
    batches, home, process, waits = iter(iterable), get_ident(), getpid(), True
    target, place = resolve_destination(name, options)
    convert_there = in_thread(leaf_converter(target, options, leaves), [(target, place)])
    loading, load = copy_context(), partial(_load_next, batches, leaves, convert_there, target)
    convert_loaded = attribute_calls(by, _convert_loaded)
    queue: deque[Future[list[Any]]] = deque()
    workers: list[Worker] = []
    is_finalizing = sys.is_finalizing  # a local name, which the interpreter does not clear

    def ask(wait: Callable[[], object] | None = None) -> None:
        queue.append(workers[-1].submit(convert_loaded, workers[0].submit(loading.run, load), wait))

    try:
        workers.append(start_worker("xbridge-load"))
        workers[0].submit(capture_context()).result()
        if options.copy is not True:
            workers.append(start_worker("xbridge-convert"))
        for _ in range(depth):
            ask()
        wait: Callable[[], object] | None = None
        while given := queue.popleft().result():
            ask(wait)
            yield given.pop()
            _refuse_in_forked_child(process, "convert batches ahead", "prefetch")
            if place != CPU:
                wait = target.transfers.queue_mark(place)  # the program has queued its work with this batch
    except GeneratorExit:  # first, because at the exit the names of this module may have been cleared
        raise
    except XBridgeError as error:
        shorten(error)
        raise
    except (KeyboardInterrupt, SystemExit):
        waits = False  # the program is to end
        raise
    finally:
        # The threads of a parent are not here, and at the exit all threads have been ended.
        if not is_finalizing() and process == getpid():
            # A garbage collection in another thread may close the loop, also in one of the workers.
            end_workers(workers, wait=waits and get_ident() == home)


def _refuse_in_forked_child(process: int, what: str, hint: str) -> None:
    """Raise an error in a forked child, which lacks the threads of its parent."""
    if process != getpid():
        raise XBridgeError.build(what, "its threads are those of another process", f"{hint} in this process")


def _load_next(
    batches: Iterator[Any], leaves: Leaves, convert_there: ArrayFn, target: Backend
) -> Callable[[], Any] | None:
    """Load the next batch; return a function that converts it, or None at the end."""
    item = next(batches, _END)
    if item is _END:
        return None
    batch = flatten_batch(item, leaves)
    return partial(batch.map, in_thread(convert_there, participating_backends(batch.leaves, target)))


def _convert_loaded(loaded: Future[Callable[[], Any] | None], wait: Callable[[], object] | None) -> list[Any]:
    """Wait for the device, and convert a batch. Return it in a list, which is empty at the end."""
    convert_there = loaded.result()
    if convert_there and wait:
        wait()
    return [convert_there()] if convert_there else []
