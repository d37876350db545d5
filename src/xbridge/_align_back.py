"""Align arrays, and return a function that converts results back.

The common library and device are those that the caller names, else those of `like`, else those of the first
array. Numbers, lists and the order of the other arrays have no influence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge import tree
from xbridge._api import align, to_backend
from xbridge._core.devices import SHARDED
from xbridge._core.entry_points import entry_point
from xbridge._engine import verbs
from xbridge._engine.source import leading_index, refuse_alignment, resolve_source
from xbridge._plan.options import NO_OTHERS
from xbridge._registry.call_cache import lookup
from xbridge._registry.registry import are_arrays, known_backends
from xbridge.errors import DeviceError, OptionError, shown
from xbridge.tree.containers import find_container

if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.devices import Device
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
        ``restore(result, to=None, *, dtype=None)`` converts a result, an array or a tree of arrays as for
        `xbridge.tree.to_backend`, to the library and the device of the array that decided, or of argument
        number `to`. With ``dtype=True`` it gets the dtype of that argument too, or any `dtype` as for
        `to_backend`. Numbers and other leaves stay as they are.

    Raises
    ------
    OptionError
        No argument is an array, so there is no library to go back to; or `to` is not the index of an array.
    XBridgeError
        As for `align` and `to_backend`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> (a, b), restore = align_back(np.ones(2), torch.ones(2), backend="torch")
    >>> restore(torch.add(a, b))
    array([2., 2.])
    >>> restore(torch.add(a, b), to=1)
    tensor([2., 2.], dtype=torch.float64)
    >>> (a,), restore = align_back(np.ones(2), backend="torch")  # of one array too, a tuple comes first
    """
    sources = [resolve_source(x) for x in xs]
    if not all(source.is_array for source in sources):
        refuse_alignment(sources, "align_back")
    first = leading_index(sources)
    if first is None:
        raise OptionError.build("align arrays and back", "no argument is an array", "align(*xs)")
    aligned = align(*xs, like=like, backend=backend, device=device, dtype=dtype, copy=copy, grad=grad)
    return aligned, Restore(tuple(map(verbs.array_location, sources)), first)


class Restore:
    """A function that converts results back to the library and device of an argument. It keeps no arrays."""

    __slots__ = ("_first", "_homes")

    def __init__(self, homes: tuple[tuple[str, Device, str] | None, ...], first: int) -> None:
        self._homes = homes
        self._first = first

    @entry_point
    def __call__(self, result: Any, /, to: int | None = None, *, dtype: object = None) -> Any:
        """Convert an array, or a tree of arrays, back, as `xbridge.align_back` says."""
        name, device, kind = self.array_location(to)
        named = kind if dtype is True else None if dtype is False else dtype
        place = str(device)
        converted = lookup(("convert", name, type(result), place, named, *NO_OTHERS))(result)
        if converted is not None:
            return converted
        if are_arrays(type(result)):
            return to_backend(result, name, device=place, dtype=named)
        if find_container(result) is None:
            return result
        return tree.to_backend(result, name, device=place, dtype=named)

    def array_location(self, to: int | None = None) -> tuple[str, Device, str]:
        """Return the backend, device and dtype of an argument that results can go back to."""
        place = self._first if to is None else to
        home = None
        if isinstance(place, int) and not isinstance(place, bool) and -1 < place < len(self._homes):
            home = self._homes[place]
        if home and home[1].kind == SHARDED:
            raise DeviceError.build(
                f"restore a result to argument {place}",
                "it is on several devices",
            )
        if home is None:
            arrays = [i for i, found in enumerate(self._homes) if found]
            word = shown(to, str)
            raise OptionError.build(
                f"restore a result to argument {shown(to)}",
                f"the arguments that were arrays are {arrays}",
                f"to_backend(x, {word!r})" if word in known_backends() else f"to={arrays[0]}",
            )
        return home
