"""How faults are planted in the backend of the pretend library in `kit_toy.py`.

Some of its words are replaced, and the rest stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
import numpy as np
from kit_toy import Tile, inverted

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit_toy import Host


Changes = dict[str, Any]
"""Words of a backend, and what they are replaced by."""

Faults = dict[str, dict[str, Changes]]
"""Tests, and the faults that each of them must notice."""


def same(x: Tile, **changes: Any) -> Tile:
    """The same tile, but for what changes."""
    kept = {"place": x.place, "neg": x.neg, "conj": x.conj, "writable": x.writable, "parents": x.parents}
    return Tile(changes.pop("memory", x.memory), **{**kept, **changes})


def through(verb: Callable[..., Tile], change: Callable[[Host], Host]) -> Callable[..., Tile]:
    """A verb that makes a tile of other values."""

    def changed(x: Tile, *args: Any) -> Tile:
        made = verb(x, *args)
        return same(made, memory=placed(made, change(made.values())), neg=False, conj=False)

    return changed


def placed(x: Tile, values: Host) -> Host:
    return values if x.place == "host" else inverted(values)


def array_info(**wrong: Any) -> Changes:
    """Facts of which some are wrong; what they are may depend on the tile."""
    return {"array_info": lambda x: good.array_info(x)._replace(**{k: v(x) for k, v in wrong.items()})}


def layout(**wrong: Any) -> Changes:
    """A layout of which some is wrong."""
    return {"memory_layout": lambda x: good.memory_layout(x)._replace(**{k: v(x) for k, v in wrong.items()})}


def as_if_dense(host: Host) -> Host:
    if not host.size or host.flags.c_contiguous or min(host.strides) < 0:
        return host
    return np.lib.stride_tricks.as_strided(host, host.shape, np.empty(host.shape, host.dtype).strides)


def raise_(error: Exception) -> Any:
    raise error
