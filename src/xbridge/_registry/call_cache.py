"""Cached calls: what a call did, for arguments of the same types.

A cached call is a function that returns a result, or None to decline. If it declines, the call is planned,
and the plan says why. An error that a cached call raises reaches the caller.

All tables are read without the lock, and changed under it. Foreign code, such as an attribute of a backend,
never runs under the lock: it may import, and the thread that imports may be waiting for the lock. So a table
is filled afterwards, if nothing was invalidated meanwhile.
"""

from __future__ import annotations

from xbridge._core.dynamo import no_result, traced_as
from xbridge._core.literals import LITERALS
from xbridge._core.locks import lock
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from xbridge._core.protocol import Array, Backend

    Convert = Callable[[Any], Any]


class CallKey(tuple[object, ...]):
    """What a call is found by: the names and options that its caller gives, and the types of its arguments.

    It equals, and hashes like, the plain tuple that a hot function writes inline, because a call of this
    class takes as long as a conversion. A named tuple would import `typing`.

    Parameters
    ----------
    verb : str
        ``"convert"`` for one array, ``"asarray"``, ``"align"``, ``"tree"``, or ``"aligned"`` for a function.
        ``"literal"`` for `asarray` of a number or a list without options.
    target : str, module or None
        The backend that is asked for.
    types : type or tuple
        The type of the argument, or those of all arguments.
    like : type or None
        The type of `like`, for a verb that takes it.
    options : CallOptions
        The options. The key has one item for each, and none for a function, which has its own.
    """

    __slots__ = ()

    def __new__(
        cls,
        verb: str,
        target: object,
        types: object,
        like: type | None = None,
        options: tuple[object, ...] = (),
    ) -> Self:
        """Make a key."""
        return super().__new__(cls, (verb, target, types, like, *options))


direct: dict[Any, dict[type, Convert]] = {HOST: {}}
"""Calls without options, by the name of the target and the type of the array.

There are two levels, because a tuple as key costs 110 ns more.
"""

made: dict[Any, dict[type, Convert]] = {None: {}, HOST: {}}
"""Calls of `asarray` without options, as in `direct`. Without a target, an array stays as it is."""

cached: dict[tuple[object, ...], Callable[..., Any]] = {}
"""All other calls. The oldest makes room for a new one."""

kinds: dict[tuple[object, ...], dict[object, Convert]] = {}
"""For cached calls of one array, what to do with an array of a kind, which `_engine/repeat.py` defines."""

MOST = 512
"""Calls that are cached, and kinds of arrays for each."""

_version = 0
_is_open = False
_lock = lock()


def decline(*_: object) -> None:
    """Return None, as a cached call does whose arguments it was not made for."""


@traced_as(lambda *_: decline)
def lookup(
    key: tuple[object, ...],
    copy: object,
    requires_grad: object = None,
    writable: object = None,
) -> Callable[..., Any]:
    """Return the function that repeats a call, or one that declines.

    1 and `numpy.True_` equal True, and are found by the same key, but are refused. So flags are compared by
    identity.
    """
    if (
        (copy is None or copy is True or copy is False)
        and (requires_grad is None or requires_grad is True or requires_grad is False)
        and (writable is None or writable is True or writable is False)
    ):
        try:
            return cached.get(key, decline)
        except FOREIGN_ERRORS:  # an option without a hash, or of a foreign class whose hash raises
            pass
    return decline


def lookup_direct(name: str, cls: type) -> Convert:
    """Return the function that repeats a call without options, or one that declines."""
    return direct[name].get(cls, decline)


@traced_as(lambda: -1)  # what a compiler traces is not cached
def cache_version() -> int:
    """Return a number that changes whenever cached calls are invalidated."""
    return _version


def record(
    key: CallKey,
    version: int,
    run: Callable[..., Any],
    kind: object = None,
    choose: Callable[[dict[object, Convert]], Convert] | None = None,
) -> None:
    """Cache a call, unless calls were invalidated since the version, or are observed.

    With `choose`, `run` is for arrays of a kind. `choose` makes the function that finds the kind of an array
    in a table of kinds.
    """
    with _lock:
        if version != _version or not _is_open:
            return
        if choose is not None:
            known = kinds.setdefault(key, {})
            _put(known, kind, run)
            if key in cached:
                return
            run = choose(known)
        _put(cached, key, run)


def _put(table: dict[Any, Any], key: object, value: object) -> None:
    """Store a value, in place of the oldest one of too many; the caller holds the lock."""
    if key not in table and len(table) >= MOST:
        oldest = next(iter(table))
        del table[oldest]
        if table is cached:
            kinds.pop(oldest, None)
    table[key] = value


def invalidate(connected: Callable[[], list[Backend]]) -> None:
    """Forget all calls, and fill `direct` for the backends that are connected now.

    None are connected while calls are observed.

    The registry calls this after each change, and does not hold its lock then.
    """
    global _version, _is_open  # noqa: PLW0603 -- changed under the lock
    with _lock:
        _version = version = _version + 1
        _is_open = False
        cached.clear()
        kinds.clear()
        for known in (*made.values(), *direct.values()):
            known.clear()
    backends = connected()  # asked after the new version: whoever changes them later makes a newer one
    filled: dict[str, dict[type, Convert]] = {}
    stay: dict[type, Convert] = {}
    for target in backends:
        stay.update(dict.fromkeys(target.fast_types, unchanged))
        converters: dict[type, Convert] = dict.fromkeys(LITERALS, decline)  # a miss of these takes 250 ns
        for source in backends:
            convert = _between(source, target)
            converters.update(dict.fromkeys(source.fast_types, convert))
            converters.update(dict.fromkeys(source.fast_scalar_types, _from_scalar(convert)))
        filled[target.name] = converters
    to_make: dict[str | None, dict[type, Convert]] = {
        name: {**known, **_of_literals(name)} for name, known in filled.items()
    }
    if backends:
        to_make[None] = {**filled[HOST], **stay, **_of_literals(None)}
    with _lock:
        if version == _version:
            _is_open = bool(backends)
            for tables, new in ((direct, filled), (made, to_make)):
                for name, known in new.items():
                    tables.setdefault(name, {}).update(known)


def as_found(find: Callable[[type], Convert]) -> Convert:
    """Return a function that converts as the one that is found for the type of an array.

    That is looked up again if it declines: what it can convert may have become known elsewhere. All arrays
    are of one type.
    """
    found: Convert = decline

    def convert(x: Any) -> Any:
        nonlocal found
        y = found(x)
        if y is None:
            found = find(type(x))
            y = found(x)
        return y

    return convert


def _of_literals(name: str | None) -> dict[type, Convert]:
    """Return, for each type of a number or a list, what repeats its cached call of `asarray`.

    The function stays the same while calls are cached, because a compiler compiles a program again as soon
    as what the program has read from a table is replaced.
    """

    def of(cls: type) -> Convert:
        key = CallKey("literal", name, cls)
        return traced_as(no_result)(as_found(lambda _: cached.get(key, decline)))

    return {cls: of(cls) for cls in LITERALS}


def _from_scalar(convert: Convert) -> Convert:
    """Return the function that converts a scalar as its array on the host."""
    from xbridge._host.memory import array_of_scalar  # noqa: PLC0415 -- it imports NumPy, as a backend has

    return traced_as(no_result)(lambda x: convert(array_of_scalar(x)))


def unchanged(x: Array) -> Array:
    """Return an array itself."""
    return x


def is_by_address(source: Backend, target: Backend) -> bool:
    """Return True if the address of an array decides whether its memory is shared.

    Both libraries assume that memory is immutable, so neither needs a copy. A host array between them does
    not tell who else can write it, and `fast_from_numpy` of such a library copies.
    """
    return source.assumes_immutable and target.assumes_immutable


def _between(source: Backend, target: Backend) -> Convert:
    """Return the function that converts an ordinary array from one backend to another, or declines."""
    if source is target:
        return unchanged
    if target.name == HOST:
        return source.fast_to_numpy
    if source.name == HOST:
        return target.fast_from_numpy
    if is_by_address(source, target):
        return decline

    def convert(x: Array) -> Array | None:
        host = source.fast_to_numpy(x)
        return None if host is None else target.fast_from_numpy(host)

    return convert
