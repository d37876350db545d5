"""Convert the leaves of a tree, and name the leaf in an error."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._engine import verbs
from xbridge._engine.source import resolve_source
from xbridge._plan.options import read_options
from xbridge._plan.steps import Options
from xbridge.backends._registry import are_arrays, backend_for, fast_converters, get
from xbridge.errors import (
    Chained,
    DTypeError,
    XBridgeError,
    index_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType, TracebackType
    from typing import Protocol, Self

    from xbridge._core.protocol import Array, Backend

    Direct = Callable[[Array], Array | None]
    """From a plain array to what becomes of it; None in doubt."""
    ArrayFn = Callable[[list[Any]], list[Any]]
    """From arrays to what becomes of them."""

    class TreeLike(Protocol):
        """A tree taken apart, as it was at that moment. `xbridge.tree` does it."""

        leaves: list[Any]
        """In order."""

        def __init__(self, tree: Any) -> None: ...

        def unflatten(self, leaves: list[Any]) -> Any:
            """A tree of the same form with other leaves."""
            ...

        def name_of(self, leaf: Any) -> str:
            """The way to the first place where a leaf stands, as Python would write it."""
            ...


PLAIN_TYPES = (str, bytes, bool, int, float, complex, type(None))
_TEXT = frozenset("SUT")
"""NumPy's words for the kinds of its dtypes whose items are strings."""


class Fixture:
    """An array that belongs to the form of its container: its dtype is not for the caller to choose."""

    __slots__ = ("array", "instead", "on_host")

    def __init__(self, array: Array, *, on_host: bool, instead: str) -> None:
        self.array = array
        self.on_host = on_host
        self.instead = instead
        """What to convert where the library has no such dtype."""


def crosses(cls: type) -> bool:
    """Whether leaves of a class are converted."""
    return are_arrays(cls) or cls is Fixture


def is_text(x: Any) -> bool:
    """Whether a leaf stays as it is, for it is no array of numbers and is not meant as one."""
    if type(x) in PLAIN_TYPES:
        return True
    backend = backend_for(type(x))
    if backend is not None and backend.is_text is not None:
        return backend.is_text(x)
    if backend is not None and type(x) in backend.fast_types:
        return _kind_of(x) in _TEXT
    with suppress(XBridgeError), Chained(lambda _: XBridgeError()):
        return _kind_of(x) in _TEXT
    return False  # it cannot tell


def _kind_of(x: Any) -> Any:
    """NumPy's word for the kind of a dtype, if `x` has one."""
    return getattr(getattr(x, "dtype", None), "kind", "")


def converted(xs: list[Any], name: str | ModuleType, **keywords: Any) -> list[Array]:
    """What becomes of arrays and fixtures. These are in the library then, but never of another dtype."""
    target = get(name)
    options = read_options((target,), **keywords)
    ways = {kind: direct(kind, target, options) for kind in set(map(type, xs))}
    made = [None if (way := ways[type(x)]) is None else way(x) for x in xs]
    planned = [i for i, x in enumerate(xs) if made[i] is None and type(x) is not Fixture]
    try:
        found = verbs.to_backend_all([xs[i] for i in planned], target.name, **keywords) if planned else []
    except XBridgeError as error:
        error.remap_index(planned)
        raise
    for i, y in zip(planned, found, strict=True):
        made[i] = y
    return list(
        index_errors(
            _fixed(x, target.name, keywords) if y is None else y for x, y in zip(xs, made, strict=True)
        )
    )


def direct(kind: type, target: Backend, options: Options) -> Direct | None:
    """What converts plain arrays of a type without a plan, if nothing was asked but where they are to lie."""
    way, backend = fast_converters.get(target.name, {}).get(kind), backend_for(kind)
    if way is None or backend is None or options != Options(options.device):
        return None
    if options.device is None or (backend.host_only and options.device == CPU):
        return way
    if backend is not target:
        return None
    return lambda x: x if target.array_info(x).device == options.device else None


def _fixed(fixture: Fixture, name: str, keywords: dict[str, Any]) -> Array:
    place = "cpu" if fixture.on_host else keywords["device"]
    try:
        return verbs.to_backend(fixture.array, name, **{**keywords, "dtype": None, "device": place})
    except DTypeError as error:
        raise DTypeError.build(
            f"take what a container is built of to {name}",
            f"its dtype must stay, and {name} has no {resolve_source(fixture.array).info().dtype} here",
            fixture.instead,
        ) from error


def together(walk: TreeLike, many: ArrayFn, xs: list[Any]) -> list[Any]:
    """What `many` makes of all at once. An error says at which one it was raised."""
    try:
        return many(xs)
    except XBridgeError as error:
        if error.index is None:
            raise
        raise error.at(walk.name_of(xs[error.index])) from error


def each(walk: TreeLike, fn: Callable[[Any], Any], xs: Iterable[Any]) -> list[Any]:
    """What `fn` makes of each leaf. An error says at which one it was raised."""
    done = []
    with _Place(walk) as place:
        for x in xs:
            place.leaf = x
            done.append(fn(x))
    return done


class _Place:
    """Says of an error at which leaf it was raised: in the message of ours, in a note to others."""

    leaf: Any = None

    def __init__(self, walk: TreeLike) -> None:
        self._walk = walk

    def __enter__(self) -> Self:
        """Where the leaf is told."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the error."""
        if error is None:
            return
        name = self._walk.name_of(self.leaf)
        if isinstance(error, XBridgeError):
            raise error.at(name) from error
        error.add_note(f"at {name}")
