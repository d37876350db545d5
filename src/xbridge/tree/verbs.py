"""The verbs that convert trees."""

from __future__ import annotations

from builtins import map as _map
from functools import partial
from typing import TYPE_CHECKING, Any

from xbridge._core.entry_points import entry_point
from xbridge._engine import verbs
from xbridge._engine.source import resolve_source
from xbridge._leaves import converted, crosses, direct, each, is_text, together
from xbridge._plan.options import read_options
from xbridge.backends import HOST
from xbridge.backends._registry import are_arrays, get
from xbridge.errors import OptionError
from xbridge.tree.containers import NUMBERS
from xbridge.tree.flatten import TreeSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import TypeAlias

    from xbridge._api import Grad
    from xbridge._core.protocol import Array, Backend
    from xbridge.tree.flatten import Tree

    LeafFn: TypeAlias = Callable[[list[Any]], list[Any]]
    """From all leaves of one type to what becomes of them."""
    Bulk: TypeAlias = Callable[[list[Any]], list[Any] | None]
    """The same, or None in doubt."""


@entry_point
def to_backend(
    tree: Tree,
    /,
    backend: str | ModuleType,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: bool = False,
) -> Tree:
    """Convert every array in a tree.

    Parameters
    ----------
    tree : tree
        Lists, tuples, dicts and deques, named tuples, dataclasses, attrs classes, packed sequences and
        whatever is registered with optree, torch or JAX, in each other to any depth; or an array. Arrays
        are those of registered libraries, and NumPy scalars.
    backend, device, dtype, copy, grad
        As for `xbridge.to_backend`, for each array.
    scalars : bool
        Whether Python numbers become arrays too, as `xbridge.asarray` makes them.

    Returns
    -------
    tree
        New containers of the same types, with their keys in the same order, and all other leaves as they
        are, arrays of text among them. An array that stands in several places is converted once. Views
        that share memory share it still where nothing is copied; each copy is its own memory, but for
        small ones that cross to or from a device: they lie side by side in one piece.

    Raises
    ------
    OptionError
        The tree contains itself, or is too deep for Python's stack.
    XBridgeError
        As for `xbridge.to_backend`; the message begins with the way to the array, such as
        ``tree['image'][3]``, if it is of one. Nothing is returned then, and the tree is as it was.

    Examples
    --------
    >>> import numpy as np
    >>> batch = {"image": np.zeros((2, 3)), "label": (np.ones(2, "int64"), ["cat", "dog"])}
    >>> to_backend(batch, "torch", dtype="default")
    {'image': tensor([[0., 0., 0.],
            [0., 0., 0.]]), 'label': (tensor([1, 1]), ['cat', 'dog'])}
    """
    keywords = {"device": device, "dtype": dtype, "copy": copy, "grad": grad}
    return _converted(TreeSpec(tree), get(backend), keywords, scalars=scalars)


@entry_point
def to_numpy(
    tree: Tree,
    /,
    *,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: bool = False,
) -> Tree:
    """Convert every array in a tree to NumPy.

    Parameters
    ----------
    tree, dtype, copy, grad, scalars
        As for `xbridge.tree.to_backend`.

    Returns
    -------
    tree
        As from `xbridge.tree.to_backend`; the arrays as from `xbridge.to_numpy`.

    Raises
    ------
    XBridgeError
        As for `xbridge.tree.to_backend`.

    Examples
    --------
    >>> import torch
    >>> to_numpy({"loss": torch.tensor(0.5), "step": 3})
    {'loss': array(0.5, dtype=float32), 'step': 3}
    """
    return to_backend(tree, HOST, dtype=dtype, copy=copy, grad=grad, scalars=scalars)


@entry_point
def align(
    *trees: Tree,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> tuple[Tree, ...]:
    """Bring all arrays of some trees to one backend and one device.

    Parameters
    ----------
    *trees : tree
        As for `xbridge.tree.to_backend`.
    like, backend, device, dtype, copy, grad
        As for `xbridge.align`. With neither `like` nor `backend`, the first array of the first tree that
        has one decides.

    Returns
    -------
    tuple
        One tree for each argument, in order. Python numbers are as they were.

    Raises
    ------
    XBridgeError
        As for `xbridge.tree.to_backend`; ``tree[1]`` is the second argument.

    Examples
    --------
    >>> import numpy as np, torch
    >>> align({"x": torch.ones(2)}, [np.zeros(2), 3])
    ({'x': tensor([1., 1.])}, [tensor([0., 0.], dtype=torch.float64), 3])
    """
    walk = TreeSpec(trees)
    kinds = set(filter(are_arrays, walk.kinds))
    arrays = [x for x in walk.leaves if type(x) in kinds and not is_text(x)]
    keywords = {"device": device, "dtype": dtype, "copy": copy, "grad": grad}
    target, options = verbs.choose_target([resolve_source(x) for x in arrays], like, backend, **keywords)
    aligned: tuple[Tree, ...] = _converted(walk, target, {**keywords, "device": options.device})
    return aligned


@entry_point
def map(  # noqa: A001 -- what others call it too
    fn: Callable[[Array], object], tree: Tree, /, *, scalars: bool = False
) -> Tree:
    """Call a function on every array in a tree.

    Parameters
    ----------
    fn : callable
        From an array to anything.
    tree : tree
        As for `xbridge.tree.to_backend`. The lengths and indices of a packed sequence are its form, and no
        arrays of the caller's.
    scalars : bool
        Whether it is called on Python numbers too.

    Returns
    -------
    tree
        As from `xbridge.tree.to_backend`, with what `fn` returned.

    Raises
    ------
    OptionError
        `fn` is no function, or it changed a container of the tree while it ran.
    Exception
        Whatever `fn` raises, with a note of the way to the array.

    Examples
    --------
    >>> import numpy as np
    >>> map(np.shape, [np.ones((2, 3)), {"y": np.ones(4)}, None])
    [(2, 3), {'y': (4,)}, None]
    """
    if not callable(fn):
        raise OptionError.build(f"map a {type(fn).__name__}", "it is no function", "map(fn, tree)")
    walk = TreeSpec(tree)
    ways: dict[type, LeafFn] = {
        kind: partial(_once, partial(each, walk, fn)) for kind in walk.kinds if are_arrays(kind)
    }
    if scalars:
        ways |= {kind: partial(each, walk, fn) for kind in walk.kinds.intersection(NUMBERS)}
    done = _all(walk, ways)
    walk.refuse_changes()
    return walk.unflatten(done)


def _converted(walk: TreeSpec, target: Backend, keywords: dict[str, Any], *, scalars: bool = False) -> Tree:
    options = read_options((target,), **keywords)
    ways: dict[type, LeafFn] = {}
    for kind in walk.kinds:
        if crosses(kind):
            plain = direct(kind, target, options) is target.fast_from_numpy
            many = target.fast_from_numpy_many if plain else None
            planned = partial(converted, name=target.name, **keywords)
            ways[kind] = partial(_once, partial(_arrays, walk, many, planned))
        elif scalars and kind in NUMBERS:
            number = partial(verbs.asarray, like=None, name=target.name, requires_grad=None, **keywords)
            ways[kind] = partial(each, walk, number)
    return walk.unflatten(_all(walk, ways))


def _all(walk: TreeSpec, ways: dict[type, LeafFn]) -> list[Any]:
    """What becomes of all leaves."""
    leaves = done = walk.leaves
    if len(walk.kinds) == 1 == len(ways):
        return next(iter(ways.values()))(leaves)
    for kind, way in ways.items():
        found = iter(way([x for x in leaves if type(x) is kind]))
        done = [next(found) if type(x) is kind else y for x, y in zip(leaves, done, strict=True)]
    return done


def _once(way: LeafFn, xs: list[Array]) -> list[Any]:
    """The same object for the same array, wherever it stands."""
    if len(set(_map(id, xs))) == len(xs):
        return way(xs)
    distinct = dict(zip(_map(id, xs), xs, strict=True))
    done = dict(zip(distinct, way(list(distinct.values())), strict=True))
    return [done[id(x)] for x in xs]


def _arrays(walk: TreeSpec, many: Bulk | None, planned: LeafFn, xs: list[Array]) -> list[Array]:
    """Arrays of one type, converted at once if all are plain; text stays."""
    done = many(xs) if many else None
    if done is not None:
        return done
    numbers = [x for x in xs if not is_text(x)]
    found = iter(together(walk, planned, numbers) if numbers else ())
    return [x if is_text(x) else next(found) for x in xs]
