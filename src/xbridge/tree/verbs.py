"""The public functions of `xbridge.tree`, which convert all arrays in nested containers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from xbridge._core.entry_points import entry_point
from xbridge._core.tracing import is_traced
from xbridge._engine import verbs
from xbridge._engine.source import refuse_options, refuse_order, resolve_source
from xbridge._plan.options import CallOptions
from xbridge._registry.call_cache import cache_version, lookup, store
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.errors import OptionError, type_of
from xbridge.tree.arrays import Kinds, flatten, refuse_leaf, tree_converter
from xbridge.tree.leaf import Leaves, is_text, leaf_converter

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from xbridge._core.protocol import Array, Grad
    from xbridge.tree.arrays import Tree
    from xbridge.tree.leaf import Libraries, Scalars, Unsupported


@entry_point
def to_backend(  # noqa: PLR0913 -- options, by keyword
    tree: Tree,
    /,
    backend: str | ModuleType,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: Scalars = False,
    exporters: bool = False,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
    movables: bool = False,
) -> Tree:
    """Convert every array in a tree.

    Parameters
    ----------
    tree : tree
        Lists, tuples, dicts and deques, named tuples, dataclasses, attrs classes and classes that are
        registered with optree, torch or JAX, nested to any depth; or an array, or None.
        Arrays are those of registered libraries, and NumPy scalars.
    backend, device, dtype, copy, grad
        As for `xbridge.to_backend`, for each array.
    scalars : bool or "python"
        True to convert Python numbers too, as `xbridge.asarray` does. "python" for the other way: an array
        without axes becomes a Python number, after it was converted as the other options say.
    exporters : bool
        True to convert exporters of memory too, as `xbridge.to_backend` does: Series and data frames, arrays
        of pyarrow, images, typed buffers.
    only : str, module or iterable of these, optional
        The libraries whose arrays are converted. Arrays of others stay as they are.
    unsupported : {"raise", "keep"}
        "keep" to leave an array or an exporter as it is if the target cannot have it: for its dtype, or
        because it holds no numbers. By default it is an error.
    movables : bool
        True to call ``x.to(device)``, with the `device` of the call, for each `x` that no library owns and
        that has this method, such as a batch of torch-geometric.

    Returns
    -------
    tree
        New containers of the same types, with their keys in the same order, and all other leaves as they
        are, including arrays of text. An array that occurs several times is converted once. Views that
        share memory still share it if they are not copied. Each copy has its own memory, but small arrays
        that are moved to or from a device are stored side by side in one piece.

    Raises
    ------
    OptionError
        The tree contains itself, or is too deep for Python's stack.
    UnsupportedArrayError
        The tree is neither a container nor an array nor None.
    XBridgeError
        As for `xbridge.to_backend`. An error about one array begins with its path, such as
        ``tree['image'][3]``. Nothing is returned then, and the tree is unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> batch = {"image": np.zeros((2, 3)), "label": (np.ones(2, "int64"), ["cat", "dog"])}
    >>> to_backend(batch, "torch", dtype="default")
    {'image': tensor([[0., 0., 0.],
            [0., 0., 0.]]), 'label': (tensor([1, 1]), ['cat', 'dog'])}
    >>> import torch
    >>> to_backend({"loss": torch.tensor(0.5), "x": np.ones(2)}, "numpy", only="torch", scalars="python")
    {'loss': 0.5, 'x': array([1., 1.])}
    """
    return _convert(
        tree, backend, device, dtype, copy, grad, None, scalars, exporters, only, unsupported, movables
    )


@entry_point
def to_numpy(  # noqa: PLR0913 -- options, by keyword
    tree: Tree,
    /,
    *,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    writable: bool | None = None,
    scalars: Scalars = False,
    exporters: bool = False,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
) -> Tree:
    """Convert every array in a tree to NumPy.

    The parameters, the result and the errors are those of ``xbridge.tree.to_backend(tree, "numpy")``;
    `writable` is that of `xbridge.to_numpy`, for each array.

    Examples
    --------
    >>> import torch
    >>> to_numpy({"loss": torch.tensor(0.5), "step": 3})
    {'loss': array(0.5, dtype=float32), 'step': 3}
    """
    return _convert(tree, HOST, None, dtype, copy, grad, writable, scalars, exporters, only, unsupported)


@entry_point
def to_torch(  # noqa: PLR0913 -- options, by keyword
    tree: Tree,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: Scalars = False,
    exporters: bool = False,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
    movables: bool = False,
) -> Tree:
    """Convert every array in a tree to PyTorch.

    The parameters, the result and the errors are those of ``xbridge.tree.to_backend(tree, "torch")``.

    Examples
    --------
    >>> import numpy as np
    >>> to_torch({"x": np.ones(2), "name": "a"})
    {'x': tensor([1., 1.], dtype=torch.float64), 'name': 'a'}
    """
    return _convert(
        tree, "torch", device, dtype, copy, grad, None, scalars, exporters, only, unsupported, movables
    )


@entry_point
def to_jax(  # noqa: PLR0913 -- options, by keyword
    tree: Tree,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: Scalars = False,
    exporters: bool = False,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
) -> Tree:
    """Convert every array in a tree to JAX.

    The parameters, the result and the errors are those of ``xbridge.tree.to_backend(tree, "jax")``.

    Examples
    --------
    >>> import numpy as np
    >>> to_jax([np.ones(2, "float32"), "a"])
    [Array([1., 1.], dtype=float32), 'a']
    """
    return _convert(tree, "jax", device, dtype, copy, grad, None, scalars, exporters, only, unsupported)


@entry_point
def to_cupy(  # noqa: PLR0913 -- options, by keyword
    tree: Tree,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: Scalars = False,
    exporters: bool = False,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
) -> Tree:
    """Convert every array in a tree to CuPy.

    The parameters, the result and the errors are those of ``xbridge.tree.to_backend(tree, "cupy")``.
    """
    return _convert(tree, "cupy", device, dtype, copy, grad, None, scalars, exporters, only, unsupported)


@entry_point
def to_dask(  # noqa: PLR0913 -- options, by keyword
    tree: Tree,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    scalars: Scalars = False,
    exporters: bool = False,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
) -> Tree:
    """Convert every array in a tree to Dask.

    The parameters, the result and the errors are those of ``xbridge.tree.to_backend(tree, "dask")``.

    Examples
    --------
    >>> import numpy as np
    >>> to_dask([np.ones(2), "a"])[0].sum().compute().item()
    2.0
    """
    return _convert(tree, "dask", device, dtype, copy, grad, None, scalars, exporters, only, unsupported)


@entry_point
def align(  # noqa: PLR0913 -- options, by keyword
    *trees: Tree,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    exporters: bool = False,
    only: Libraries = None,
    unsupported: Unsupported = "raise",
) -> tuple[Tree, ...]:
    """Bring all arrays of several trees to one backend and one device.

    Parameters
    ----------
    *trees : tree
        As for `xbridge.tree.to_backend`.
    like, backend, device, dtype, copy, grad
        As for `xbridge.align`. With neither `like` nor `backend`, the first array of the first tree that
        has one decides.
    exporters, only, unsupported
        As for `xbridge.tree.to_backend`.

    Returns
    -------
    tuple
        One tree for each argument, in order. Python numbers are unchanged.

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
    refuse_options(trees)
    leaves = Leaves(exporters=exporters, only=only, unsupported=unsupported).check()
    batch = flatten(trees, Kinds(leaves))
    options = CallOptions(device=device, dtype=dtype, copy=copy, grad=grad)
    sources = [resolve_source(x) for x in batch.leaves if not is_text(x)]
    target, checked, _ = verbs.choose_target(sources, backend, like, options)
    aligned: tuple[Tree, ...] = batch.map(
        leaf_converter(target, options._replace(device=checked.device), leaves)
    )
    return aligned


@entry_point
def map(  # noqa: A001 -- other libraries have this name too
    fn: Callable[[Array], object],
    tree: Tree,
    /,
    *,
    scalars: bool = False,
    exporters: bool = False,
    only: Libraries = None,
) -> Tree:
    """Call a function on every array in a tree.

    Parameters
    ----------
    fn : callable
        From an array to anything.
    tree : tree
        As for `xbridge.tree.to_backend`.
    scalars : bool
        True to call `fn` on Python numbers too.
    exporters : bool
        True to call `fn` on exporters of memory too, such as Series.
    only : str, module or iterable of these, optional
        The libraries on whose arrays `fn` is called.

    Returns
    -------
    tree
        As from `xbridge.tree.to_backend`, with the results of `fn`.

    Raises
    ------
    OptionError
        `fn` is not a function.
    UnsupportedArrayError
        The tree is neither a container nor an array nor None.
    Exception
        Any exception of `fn`, with a note of the path to the array.

    Examples
    --------
    >>> import numpy as np
    >>> map(np.shape, [np.ones((2, 3)), {"y": np.ones(4)}, None])
    [(2, 3), {'y': (4,)}, None]
    """
    if not callable(fn):
        raise OptionError.build(f"map {type_of(fn)}", "it is not a function", "xbridge.tree.map(fn, x)")
    batch = flatten(tree, Kinds(Leaves(scalars, exporters, only).check()))
    if not batch.places:
        refuse_leaf(tree, scalars=scalars)
    return batch.map(partial(batch.each, fn))


def _convert(  # noqa: PLR0913, PLR0917 -- the options one by one, because a bundle takes longer than the look-up
    tree: Tree,
    name: str | ModuleType,
    device: object,
    dtype: object,
    copy: object,
    grad: object,
    writable: object,
    scalars: Scalars,
    exporters: bool,  # noqa: FBT001 -- all by position, because keywords take longer
    only: Libraries,
    unsupported: Unsupported,
    movables: bool = False,  # noqa: FBT001, FBT002 -- as above
) -> Tree:
    """Convert a tree by a cached call, or else convert it and cache the call."""
    is_plain = only is None and unsupported == "raise" and movables is False
    is_cached = is_plain and type(scalars) is type(exporters) is bool
    if is_cached:
        key = ("tree", name, scalars, exporters, device, dtype, copy, grad)
        result = lookup(key if writable is None else (*key, None, writable), copy, None, writable)(tree)
        if result is not None:
            return result
    refuse_order(tree, name, "tree.to_backend")
    leaves = Leaves(scalars, exporters, only, unsupported, movables).check()
    if leaves.movables and device is None:
        raise OptionError.build("move objects by `to`", "the call names no device", "device='cpu'")
    target, options = get(name), CallOptions(device, dtype, copy, grad, writable=writable)
    version = cache_version()
    result = tree_converter(target, options, leaves)(tree)
    # None, an empty tree, would look like a call that declines.
    if is_cached and tree is not None and not is_traced() and options.are_constant(name):
        call = options.key("tree", name, leaves.scalars, leaves.exporters)
        store(call, version, tree_converter(target, options, leaves))  # which finds the plans of this call
    return result
