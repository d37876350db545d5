"""The cache of calls: functions that repeat an earlier call for arguments of the same types.

A cached call is a function that returns a result, or None to decline. If it declines, the call is planned,
and an error comes from the plan. An exception in a cached call is a bug, and reaches the user.

The tables are read without the lock, which is safe because each read is one operation on a dict, and changed
under it. Foreign code, such as an attribute of a backend, never runs under the lock: it may import, and the
thread that imports may be waiting for the lock. So the entries are computed without the lock, and stored if
nothing was invalidated meanwhile.
"""

from __future__ import annotations

from xbridge._core.literals import LITERALS
from xbridge._core.locks import lock
from xbridge._core.tracing import none_in_traces, traced_as
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from xbridge._core.protocol import Array, Backend
    from xbridge.errors import XBridgeError

    Convert = Callable[[Any], Any]
    F = TypeVar("F", bound=Callable[..., Any])


direct: dict[Any, dict[type, Convert]] = {HOST: {}}
"""Calls without options, by the name of the target and the type of the array.

The table has two levels because making and hashing a tuple as key takes 110 ns more than a second lookup.
"""

direct_asarray: dict[Any, dict[type, Convert]] = {None: {}}
"""Calls of `asarray` with a target alone, or without one, as in `direct`; and those of numbers and lists."""

cached: dict[tuple[object, ...], Callable[..., Any]] = {}
"""All other calls, by the verb, the target, the types of the arguments, and the options.

The verb is the name of a function, or "convert", "tree" or "aligned". `CallOptions.key` makes the keys; hot
functions write the same tuple inline. The oldest call makes room for a new one.
"""

refusals: dict[tuple[object, ...], Callable[..., Any]] = {}
"""The errors for objects that are no arrays, by the target or the function that was asked, and their type."""

MOST = 512
"""The most calls that are cached, the most keys of arrays for each, and the most refusals."""

_version = 0
_is_open = False
_lock = lock()


def decline(*_: object) -> None:
    """Return None, as a cached call does for arguments that it cannot convert."""


@traced_as(lambda *_: decline)
def lookup(
    key: tuple[object, ...], copy: object = None, requires_grad: object = None, writable: object = None
) -> Callable[..., Any]:
    """Return the function that repeats a call, or one that declines.

    The three flags are checked by identity, because 1 and `numpy.True_` equal True and have its hash. Such a
    key would find the call of True, although these values are errors. A string or device in the key that
    equals another one means the same, so nothing else has to be checked.
    """
    if (
        (copy is None or copy is True or copy is False)
        and (requires_grad is None or requires_grad is True or requires_grad is False)
        and (writable is None or writable is True or writable is False)
    ):
        try:
            return cached.get(key, decline)
        except FOREIGN_ERRORS:  # an option without a hash, or of a foreign class whose `__hash__` raises
            pass
    return decline


def lookup_direct(name: str, cls: type) -> Convert:
    """Return the function that repeats a call without options, or one that declines."""
    return direct[name].get(cls, decline)


@none_in_traces
def lookup_refusal(asked: object, x: object) -> XBridgeError | None:
    """Return the error for an object whose type was refused before, or None."""
    try:
        refuse = refusals.get((asked, type(x)), decline)
    except FOREIGN_ERRORS:  # a target without a hash
        return None
    error: XBridgeError | None = refuse(x)
    return error


@traced_as(lambda: -1)  # what a compiler traces is not cached
def cache_version() -> int:
    """Return a number that changes whenever cached calls are invalidated."""
    return _version


def store(
    key: tuple[object, ...],
    version: int,
    run: Callable[..., Any],
    table: dict[tuple[object, ...], Callable[..., Any]] = cached,
) -> None:
    """Cache a call, unless calls were invalidated since `version` was read, or are observed."""
    with _lock:
        if version == _version and _is_open:
            _put(table, key, run)
            if table is cached:
                _put_direct(key, run)


def store_by_key(
    call: tuple[object, ...],
    version: int,
    run: F,
    key: object,
    dispatch: Callable[[dict[object, F]], Callable[..., Any]],
) -> None:
    """Cache a call for arrays with a key alone, as `store` does.

    `dispatch` turns the table of all keys for this call into the function that finds the key of an array and
    converts it. The function has the table as an attribute, so that both are forgotten together.
    """
    with _lock:
        if version != _version or not _is_open:
            return
        table: dict[object, F] | None = getattr(cached.get(call), "table", None)
        if table is not None:
            _put(table, key, run)
        elif call not in cached:
            table = {key: run}
            convert = dispatch(table)
            vars(convert)["table"] = table
            _put(cached, call, convert)
            _put_direct(call, convert)


def _put_direct(call: tuple[object, ...], convert: Convert) -> None:
    """Store a call of `asarray` with a number or a list that has no options. The caller holds the lock."""
    verb, target, cls, *options = call
    is_own = verb == "asarray" and cls in LITERALS and target in direct_asarray
    if is_own and options[0] is type(None) and all(option is None for option in options[1:]):
        direct_asarray[target][cls] = convert  # type: ignore[index] # it is a type


def _put(table: dict[Any, Any], key: object, value: object) -> None:
    """Store a value, and drop the oldest one if there are too many. The caller holds the lock."""
    if key not in table and len(table) >= MOST:
        del table[next(iter(table))]
    table[key] = value


def invalidate(connected: Callable[[], list[Backend]]) -> None:
    """Forget all cached calls, and fill `direct` for the backends that `connected` returns.

    The registry calls this after each change, without holding its lock. `connected` returns no backends while
    calls are observed, so that none is cached.
    """
    global _version, _is_open  # noqa: PLW0603 -- changed under the lock
    with _lock:
        _version = version = _version + 1
        _is_open = False
        cached.clear()
        refusals.clear()
        for known in (*direct.values(), *direct_asarray.values()):
            known.clear()
    # The backends are asked after the version has changed. If they change again meanwhile, that makes a newer
    # version, and its call of this function fills the tables.
    backends = connected()
    filled: dict[str, dict[type, Convert]] = {}
    stay: dict[type, Convert] = {}
    for target in backends:
        stay.update(dict.fromkeys(target.fast.types, unchanged))
        converters: dict[type, Convert] = dict.fromkeys(LITERALS, decline)  # a KeyError costs 250 ns
        for source in backends:
            converters.update({cls: _between(source, target, cls) for cls in source.fast.types})
            convert = _between(source, target, next(iter(source.array_types), object))
            converters.update(dict.fromkeys(source.fast.scalar_types, _from_scalar(convert)))
        filled[target.name] = converters
    with _lock:
        if version == _version:
            _is_open = bool(backends)
            for name, known in filled.items():
                direct.setdefault(name, {}).update(known)
                direct_asarray.setdefault(name, {}).update(known)
            direct_asarray[None].update({**filled.get(HOST, {}), **stay})


def try_in_order(first: Convert, other: Convert) -> Convert:
    """Return the function that calls `other` if `first` declines."""

    def convert(x: Any) -> Any:
        y = first(x)
        return other(x) if y is None else y

    return convert


def _from_scalar(convert: Convert) -> Convert:
    """Return the function that converts a scalar as its array on the host."""
    from xbridge._host.memory import array_of_scalar  # noqa: PLC0415 -- it imports NumPy, as a backend has

    return none_in_traces(lambda x: convert(array_of_scalar(x)))


def unchanged(x: Array) -> Array:
    """Return an array itself."""
    return x


def are_both_immutable(source: Backend, target: Backend) -> bool:
    """Return True if both libraries assume that memory is immutable, as JAX and Dask do.

    Such libraries share memory where the address allows it. The fast path could not: the host array between
    them does not tell who else may write to it, so `fast_from_numpy` of such a library always copies.
    """
    return source.assumes_immutable and target.assumes_immutable


def _between(source: Backend, target: Backend, cls: type) -> Convert:
    """Return the function that converts ordinary arrays of a class to another backend without options."""
    if source is target:
        return unchanged
    if target.name == HOST:
        return source.fast.to_numpy
    if cls in source.array_types and source.name == HOST:  # and no subclass, such as a memmap
        return target.fast.from_numpy
    if are_both_immutable(source, target):
        return decline

    def convert(x: Array) -> Array | None:
        host = source.fast.to_numpy(x)
        return None if host is None else target.fast.from_numpy(host)

    return convert
