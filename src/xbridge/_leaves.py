"""What is inside a batch: a walk through its containers, and conversions that name the leaf that failed.

`xbridge.tree` knows every container. Where optree, which it needs, is not installed, plain lists, tuples and
dicts are walked here.
"""

from __future__ import annotations

from collections import UserDict, UserList, deque
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from xbridge._core.devices import CPU
from xbridge._engine import verbs
from xbridge._inspect import are_arrays, dtype_of
from xbridge._plan.options import read_options
from xbridge._plan.steps import Options
from xbridge.backends._registry import backend_for, fast_converters, get
from xbridge.errors import (
    Chained,
    DTypeError,
    MissingLibraryError,
    OptionError,
    UnsupportedArrayError,
    XBridgeError,
    index_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType, TracebackType
    from typing import Protocol, Self

    from xbridge._core.protocol import Array, Backend

    Direct = Callable[[Array], Array | None]
    """From a plain array to what becomes of it; None in doubt."""
    ArrayFn = Callable[[list[Any]], list[Any]]
    """From arrays to what becomes of them."""

    _Way = tuple[Any, Any] | None
    """To a container, and the key of a child of it; None to the tree itself."""

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


_CONTAINERS = (list, dict, deque, UserDict, UserList)
_FIELDS = ("_fields", "__dataclass_fields__", "__attrs_attrs__")
"""What a named tuple, a dataclass and an attrs class have."""

_NO_ARRAYS = (str, bytes, bool, int, float, complex, type(None))
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
    if type(x) in _NO_ARRAYS:
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
            f"its dtype must stay, and {name} has no {dtype_of(fixture.array)} here",
            fixture.instead,
        ) from error


@cache
def walker() -> type[TreeLike]:
    """What takes a tree apart here."""
    try:
        from xbridge.tree.flatten import TreeSpec  # noqa: PLC0415 -- optree may be missing
    except MissingLibraryError:
        return Plain
    return TreeSpec


class Plain:
    """A tree of plain lists, tuples, named tuples and dicts, taken apart without optree.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf.
    """

    leaves: list[Any]
    """In order."""

    def __init__(self, tree: Any) -> None:
        try:
            found, self._build = _taken(tree, None)
        except RecursionError:
            raise OptionError.build(
                f"find the leaves of a {type(tree).__name__}",
                "it has no end, or it is nested too deep",
                "a batch that does not hold itself",
            ) from None
        self.leaves = [x for x, _ in found]
        self._ways = [way for _, way in found]

    def unflatten(self, leaves: list[Any]) -> Any:
        """A tree of the same form with other leaves."""
        return self._build(iter(leaves))

    def name_of(self, leaf: Any) -> str:
        """The way to the first place where a leaf stands, as Python would write it."""
        way = next(way for way, x in zip(self._ways, self.leaves, strict=True) if x is leaf)
        names: list[str] = []
        while way is not None:
            way, key = way
            names.insert(0, f"[{key!r}]")
        return "".join(["tree", *names])


class TreeArrays:
    """A tree, and the arrays in it, each once.

    Parameters
    ----------
    tree : tree
        Any container, or a leaf. A leaf that is neither text nor a number stands for an array.
    """

    def __init__(self, tree: object) -> None:
        walk = (Plain if are_arrays(type(tree)) else walker())(tree)
        self.alone = len(walk.leaves) == 1 and walk.leaves[0] is tree and not is_text(tree)
        self.walk, leaves = walk, walk.leaves
        arrays = leaves if self.alone else (x for x in leaves if crosses(type(x)) and not is_text(x))
        self.arrays = list({id(x): x for x in arrays}.values())

    def map(self, carry: ArrayFn) -> Any:
        """The tree with arrays in place of arrays."""
        done = carry(self.arrays) if self.alone else together(self.walk, carry, self.arrays)
        made = dict(zip(map(id, self.arrays), done, strict=True))
        return self.walk.unflatten([made.get(id(x), x) for x in self.walk.leaves])


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


def _taken(tree: Any, way: _Way) -> tuple[list[tuple[Any, _Way]], Callable[[Iterator[Any]], Any]]:
    """The leaves of a tree as it is now with the ways to them, and what makes one like it of others."""
    if not _is_container(tree):
        return [(tree, way)], next
    kind, children = type(tree), list(tree.values() if type(tree) is dict else _items(tree))
    keys = list(tree) if kind is dict else range(len(children))
    branches = [_taken(child, (way, key)) for key, child in zip(keys, children, strict=True)]

    def build(leaves: Iterator[Any]) -> Any:
        return _container(kind, keys, [make(leaves) for _, make in branches])

    return list(chain.from_iterable(found for found, _ in branches)), build


def _items(x: Any) -> Iterator[Any]:
    """What a list or a tuple holds, past its class."""
    base: Any = list if isinstance(x, list) else tuple
    found: Iterator[Any] = base.__iter__(x)
    return found


def _container(kind: type[Any], keys: Iterable[Any], children: list[Any]) -> Any:
    if kind is dict:
        return dict(zip(keys, children, strict=True))
    return children if kind is list else tuple.__new__(kind, children)


def _is_container(x: Any) -> bool:
    """Whether it is of a kind that can be built anew here; what only optree can is refused."""
    kind = type(x)
    if kind in (list, tuple, dict):
        return True
    if kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not kind.__dictoffset__:
        return True
    opened = issubclass(kind, _CONTAINERS) or any(hasattr(kind, word) for word in _FIELDS)
    opened = opened or (issubclass(kind, tuple) and not all(type(child) in _NO_ARRAYS for child in _items(x)))
    if opened and not are_arrays(kind):
        raise UnsupportedArrayError.build(
            f"look for arrays in a {kind.__name__}",
            "optree is not installed, and it is neither a plain list, tuple or dict nor a named tuple",
            "pip install 'xbridge-array[tree]'",
        )
    return False
