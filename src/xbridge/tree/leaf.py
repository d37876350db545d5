"""Convert arrays that are leaves of a tree."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.literals import NUMBERS
from xbridge._engine import verbs
from xbridge._engine.batch import move_in_packs
from xbridge._engine.learned import converter
from xbridge._engine.source import resolve_source
from xbridge._plan.options import read_options
from xbridge._registry.registry import are_arrays, backend_for
from xbridge.errors import Chained, DTypeError, XBridgeError, index_errors

if TYPE_CHECKING:
    from collections.abc import Collection

    from xbridge._core.protocol import Array, ArrayFn, Backend

PLAIN_TYPES = (str, bytes, *NUMBERS, type(None))
"""Leaves of these types are not arrays in any library."""

_TEXT = frozenset("SUT")
"""NumPy's codes for the kinds of dtypes whose items are strings."""


class Fixture:
    """An array that belongs to the form of its container, which needs its dtype."""

    __slots__ = ("array", "instead", "on_host")

    def __init__(self, array: Array, *, on_host: bool, instead: str) -> None:
        self.array: Array = array
        self.on_host: bool = on_host
        self.instead: str = instead
        """The call to make instead if the target does not have its dtype."""


def is_converted(cls: type) -> bool:
    """Return True if leaves of a class are converted."""
    return are_arrays(cls) or cls is Fixture


def is_plain(cls: type) -> bool:
    """Return True if leaves of a class are numbers, text or None, also if NumPy has derived it."""
    return issubclass(cls, PLAIN_TYPES)


def is_text(x: Any) -> bool:
    """Return True if an array holds text, so that it stays as it is."""
    backend = backend_for(type(x))
    if backend is not None and backend.is_text is not None:
        return backend.is_text(x)
    if backend is not None and type(x) in backend.fast_types:
        return _kind_of(x) in _TEXT
    with suppress(XBridgeError), Chained(lambda _: XBridgeError()):
        return _kind_of(x) in _TEXT
    return False  # the object cannot report its dtype


def _kind_of(x: Any) -> Any:
    """Return NumPy's code for the kind of a dtype, if `x` has one."""
    return getattr(getattr(x, "dtype", None), "kind", "")


def leaf_converter(
    target: Backend,
    keywords: dict[str, Any],
    kinds: Collection[type] | None = None,
    *,
    writable: object = False,
) -> ArrayFn:
    """Return a function that converts arrays and fixtures of certain types, or of any types.

    A fixture keeps its dtype, and text stays as it is.
    """
    options = read_options((target,), **keywords, writable=writable)  # to raise before the first array
    return partial(_convert, target, keywords, kinds, writable=options.writable)


def _convert(
    target: Backend,
    keywords: dict[str, Any],
    kinds: Collection[type] | None,
    xs: list[Any],
    *,
    writable: bool,
) -> list[Array]:
    options = (keywords["device"], keywords["dtype"], keywords["copy"], keywords["grad"])
    given = (*options, None, True) if writable else options
    direct = {kind: converter(target.name, kind, given) for kind in kinds or set(map(type, xs))}
    many = target.fast_from_numpy_many
    done = many(xs) if many and set(direct.values()) == {target.fast_from_numpy} else None
    if done is not None:
        return done
    moved = None if writable else move_in_packs(target, xs, direct, keywords)
    made: list[Any] = moved or [direct[type(x)](x) for x in xs]
    if moved is not None:
        made = [direct[type(x)](x) if y is None else y for x, y in zip(xs, moved, strict=True)]
    planned = []
    for i, x in enumerate(xs):
        if made[i] is None and is_text(x):
            made[i] = x
        elif made[i] is None and type(x) is not Fixture:
            planned.append(i)
    try:
        left = [xs[i] for i in planned]
        found = verbs.to_backend_all(left, target.name, **keywords, writable=writable) if left else []
    except XBridgeError as error:
        error.remap_index(planned)
        raise
    for i, y in zip(planned, found, strict=True):
        made[i] = y
    if Fixture not in direct:
        return made
    return list(
        index_errors(
            _convert_fixture(x, target.name, keywords) if y is None else y
            for x, y in zip(xs, made, strict=True)
        )
    )


def _convert_fixture(fixture: Fixture, name: str, keywords: dict[str, Any]) -> Array:
    device = "cpu" if fixture.on_host else keywords["device"]
    try:
        return verbs.to_backend(fixture.array, name, **{**keywords, "dtype": None, "device": device})
    except DTypeError as error:
        raise DTypeError.build(
            f"convert the form of a container to {name}",
            f"its dtype must stay, and {name} has no {resolve_source(fixture.array).info().dtype} here",
            fixture.instead,
        ) from error
