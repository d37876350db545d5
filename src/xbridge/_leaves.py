"""What is inside a batch: a walk through its containers, and conversions that name the leaf that failed.

`xbridge.tree` knows every container. Where optree, which it needs, is not installed, plain lists, tuples and
dicts are walked here.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from xbridge import _planned
from xbridge._look import are_arrays
from xbridge.errors import MissingLibraryError, OptionError, UnsupportedArrayError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Protocol, Self

    from xbridge._protocol import Array

    class Walked(Protocol):
        """A tree taken apart, as `xbridge.tree` does it."""

        leaves: list[Any]
        """In order."""

        def __init__(self, tree: Any) -> None: ...

        def rebuilt(self, leaves: list[Any]) -> Any:
            """A tree of the same form with other leaves."""

        def name_of(self, leaf: Any) -> str:
            """The way to the first place where a leaf stands, as Python would write it."""


class Fixture:
    """An array that belongs to the form of its container: its dtype is not for the caller to choose."""

    __slots__ = ("array", "on_host")

    def __init__(self, array: Array, *, on_host: bool) -> None:
        self.array = array
        self.on_host = on_host


def crosses(cls: type) -> bool:
    """Whether leaves of a class are converted."""
    return are_arrays(cls) or cls is Fixture


def converted(xs: list[Any], name: str, **options: Any) -> list[Array]:
    """What becomes of arrays and fixtures. These are in the library then, but never of another dtype."""
    made = iter(_planned.to_backend_all([x for x in xs if type(x) is not Fixture], name, **options))
    return [_fixed(x, name, options) if type(x) is Fixture else next(made) for x in xs]


def _fixed(fixture: Fixture, name: str, options: dict[str, Any]) -> Array:
    place = "cpu" if fixture.on_host else options["device"]
    return _planned.to_backend(fixture.array, name, **{**options, "dtype": None, "device": place})


@cache
def walker() -> type[Walked]:
    """What takes a tree apart here."""
    try:
        from xbridge.tree._walk import Walk  # noqa: PLC0415 -- optree may be missing
    except MissingLibraryError:
        return Plain
    return Walk


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
        self._tree = tree
        try:
            self.leaves, self._build = _taken(tree)
        except RecursionError:
            raise OptionError.because(
                f"find the leaves of a {type(tree).__name__}",
                "it has no end, or it is nested too deep",
                "a batch that does not hold itself",
            ) from None

    def rebuilt(self, leaves: list[Any]) -> Any:
        """A tree of the same form with other leaves."""
        return self._build(iter(leaves))

    def name_of(self, leaf: Any) -> str:
        """The way to the first place where a leaf stands, as Python would write it."""
        todo = [("tree", self._tree)]
        while todo:
            name, x = todo.pop()
            if x is leaf:
                return name
            if _is_container(x):
                entries = x.items() if type(x) is dict else enumerate(x)
                todo += reversed([(f"{name}[{key!r}]", child) for key, child in entries])
        return "tree"  # it was taken out of it since


def together(walk: Walked, many: Callable[[list[Any]], list[Any]], xs: list[Any]) -> list[Any]:
    """What `many` makes of all at once. If that fails, each is tried alone, to say which one it was."""
    try:
        return many(xs)
    except XBridgeError as error:
        failed = error.with_traceback(None)  # which holds on to what was made
    each(walk, lambda x: many([x])[0], xs)
    raise failed


def each(walk: Walked, fn: Callable[[Any], Any], xs: Iterable[Any]) -> list[Any]:
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

    def __init__(self, walk: Walked) -> None:
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
            raise type(error)(f"at {name}: {error}") from error
        error.add_note(f"at {name}")


def _taken(tree: Any) -> tuple[list[Any], Callable[[Iterator[Any]], Any]]:
    if not _is_container(tree):
        return [tree], next
    kind = type(tree)
    branches = [_taken(branch) for branch in (tree.values() if kind is dict else tree)]

    def build(leaves: Iterator[Any]) -> Any:
        built = [make(leaves) for _, make in branches]
        if kind is dict:
            return dict(zip(tree, built, strict=True))
        return kind(built) if kind in (list, tuple) else kind(*built)

    return list(chain.from_iterable(leaves for leaves, _ in branches)), build


def _is_container(x: Any) -> bool:
    """Whether it is of a kind that can be built anew; another kind that holds an array is refused."""
    if type(x) in (list, tuple, dict) or (isinstance(x, tuple) and hasattr(x, "_fields")):
        return True
    if isinstance(x, (list, tuple, dict)):
        within = x.values() if isinstance(x, dict) else x
        if any(are_arrays(type(child)) for child in within):
            raise UnsupportedArrayError.because(
                f"look for arrays in a {type(x).__name__}",
                "optree is not installed, and it is neither a plain list, tuple or dict nor a named tuple",
                "pip install 'xbridge-array[tree]'",
            )
    return False
