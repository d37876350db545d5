"""Align arrays, and return a function that converts results back.

The common library and device are those that the caller names, else those of `like`, else those of the first
array. Numbers, lists and the order of the other arrays have no influence.
"""

from __future__ import annotations

from xbridge._api import aligned_by
from xbridge._core.entry_points import after_lookup
from xbridge._core.tracing import none_in_traces
from xbridge._engine import verbs
from xbridge._engine.requests import refuse_alignment
from xbridge._engine.source import TargetChoice, leading_index, resolve_source
from xbridge._plan.options import CallOptions
from xbridge._registry.call_cache import cache_version, decline, store
from xbridge.errors import OptionError
from xbridge.tree.restore import Restore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from xbridge._core.protocol import Array, Grad
    from xbridge._engine.source import Source


@after_lookup(aligned_by("align_back"))
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
    options = CallOptions(device=device, dtype=dtype, copy=copy, grad=grad)
    choice, types = TargetChoice(backend, like), tuple([type(x) for x in xs])
    version, sources = cache_version(), [resolve_source(x) for x in xs]
    refuse_alignment(sources, "align_back")
    first = leading_index(sources)
    if first is None:
        raise OptionError.build(
            "align arrays and back", "no argument is an array", "align, or align_back with an array"
        )
    known = options.lookup("align", choice.name, types, type(choice.like))
    aligned = known(xs, choice.like)
    if aligned is None:
        aligned = verbs.align_sources(sources, "xs[{}]".format, choice, options, version=version)
        known = options.lookup("align", choice.name, types, type(choice.like))
    _record(options.key("align_back", choice.name, types, type(choice.like)), version, sources, known)
    return aligned, Restore(tuple(map(verbs.array_location, sources)), first)


@none_in_traces
def _record(key: tuple[object, ...], version: int, sources: list[Source], align: Callable[..., Any]) -> None:
    """Cache a call for arguments of these types, if `align` is cached and all are arrays or numbers.

    An array behind the first decides if autograd or a transform follows it, so the cached call declines it.
    """
    owners = [None if source.adapts() else source.backend for source in sources]
    arrays = [i for i, owner in enumerate(owners) if owner]
    if align is decline or not all(sources[i].is_array for i in arrays):
        return
    first, *others = arrays
    mixed = len({source.backend.name for source in sources if source.is_array}) > 1
    could_decide = [
        (i, follows, sources[i].backend.is_tracing)
        for i in others
        if mixed and (follows := sources[i].backend.follows)
    ]
    homes = [(owner.name, owner.device_of, owner.dtype_of) if owner else None for owner in owners]

    def align_and_locate(
        xs: tuple[Array, ...], like: Array | None
    ) -> tuple[tuple[Array, ...], Restore] | None:
        for i, follows, is_tracing in could_decide:
            if follows(xs[i]) or is_tracing():
                return None
        aligned = align(xs, like)
        if aligned is None:
            return None
        places = [
            home and (home[0], home[1](x), home[2](x))
            for home, x in zip(homes, xs)  # noqa: B905 -- the key of the call has the number of arguments
        ]
        return aligned, Restore(tuple(places), first)

    store(key, version, align_and_locate)
