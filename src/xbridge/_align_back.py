"""Align arrays, and return a function that converts results back.

The common library and device are those that the caller names, else those of `like`, else those of the first
array. Numbers, lists and the order of the other arrays have no influence.
"""

from __future__ import annotations

from xbridge._api import align
from xbridge._core.entry_points import entry_point
from xbridge._engine import verbs
from xbridge._engine.requests import refuse_alignment
from xbridge._engine.source import leading_index, resolve_source
from xbridge.errors import OptionError
from xbridge.tree.restore import Restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.protocol import Array, Grad


@entry_point
def align_back(
    *xs: Array,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> tuple[tuple[Array, ...], Restore]:
    """Bring arrays to one backend and one device, and return a function that converts back.

    Parameters
    ----------
    *xs, like, backend, device, dtype, copy, grad
        As for `align`.

    Returns
    -------
    arrays : tuple
        As from `align`.
    restore : callable
        ``restore(result, to=None, *, dtype=None)`` converts a result, an array or a tree of arrays, to
        the library and the device of the array that decided, or of argument number `to`. With
        ``dtype=True`` it gets the dtype of that argument too, or any `dtype` as for `to_backend`.

    Raises
    ------
    OptionError
        No argument is an array, so there is no library to go back to.
    XBridgeError
        As for `align`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> (a, b), restore = align_back(np.ones(2), torch.ones(2), backend="torch")
    >>> restore(torch.add(a, b))
    array([2., 2.])
    """
    sources = [resolve_source(x) for x in xs]
    if not all(source.is_array for source in sources):
        refuse_alignment(sources, "align_back")
    first = leading_index(sources)
    if first is None:
        raise OptionError.build("align arrays and back", "no argument is an array", "align(*xs)")
    aligned = align(*xs, like=like, backend=backend, device=device, dtype=dtype, copy=copy, grad=grad)
    return aligned, Restore(tuple(map(verbs.array_location, sources)), first)
