"""Faults in memory: shared or copied, held, written, remembered; by the test that must notice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
import numpy as np
from kit_toy import LIBRARY_DTYPES, Tile
from kit_toy_planting import layout, raise_, same

from xbridge import _host

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit_toy import Host
    from kit_toy_planting import Changes, Faults


def once(fn: Callable[[Any], Any], key: Callable[[Any], Any] = id) -> Callable[[Any], Any]:
    """A function that remembers what it gave."""
    known: dict[Any, Any] = {}
    return lambda x: known.setdefault(key(x), fn(x))


def _peek(change: Callable[[Tile], Host | None]) -> Changes:
    return {"peek": lambda x: None if good.peek(x) is None else change(x)}


def _adopt_readonly(host: Host) -> Tile | None:
    tile = good.adopt(host)
    if tile is None and host.flags.forc and host.flags.aligned and host.dtype.name in LIBRARY_DTYPES:
        opened = _host.thaw(host) if host.dtype.isnative else None
        return None if opened is None else Tile(opened)
    return tile


def _negate_in_place(x: Tile) -> Tile:
    """Do what is pending in the tile's own memory."""
    if x.memory.flags.writeable and (x.neg or x.conj):
        x.memory[...], x.neg, x.conj = x.values(), False, False
    return x


_HELD: list[Host] = []


def _kept(host: Host) -> Host:
    _HELD.append(host)
    return host


def _unheld(host: Host) -> Host:
    return np.asarray(_Loose(host)).view(host.dtype)


class _Loose:
    """Memory, and nobody who holds it."""

    def __init__(self, host: Host) -> None:
        self.__array_interface__ = {**host.__array_interface__, "typestr": f"|V{host.itemsize}"}
        del self.__array_interface__["descr"]


FAULTS: Faults = {
    "test_a_copy_shares_no_memory_and_no_fate": {
        "copy gives the tile itself": {"copy": lambda x: x},
        "copy gives a view": {"copy": same},
        "copy gives a view of what has no axes": {"copy": lambda x: good.copy(x) if x.shape else same(x)},
        "copy gives a view of what is read-only": {"copy": lambda x: good.copy(x) if x.writable else same(x)},
    },
    "test_a_view_on_the_host_is_a_view": {
        "a view for the host is a copy": {"to_host": lambda x: x.memory.copy(), "peek": lambda x: None},
    },
    "test_what_it_says_that_it_holds_it_holds": {
        "what comes from the host is a copy": {
            "from_host": lambda host: Tile(host.copy()),
            "adopt": lambda host: None,
        },
        "unaligned memory passes for aligned": {
            "holds": lambda facts, layout: good.holds(facts, layout._replace(aligned=True)),
            "layout": lambda x: good.layout(x)._replace(aligned=True),
        },
        "whatever lies anyhow can be held": {
            "holds": lambda facts, layout: True,
            "from_host": lambda host: Tile(host.copy() if min(host.strides, default=0) < 0 else host),
        },
    },
    "test_dense_memory_of_the_host_is_taken_as_it_is": {
        "nothing of the host can be held": {"holds": lambda facts, layout: False},
    },
    "test_its_bytes_lie_where_its_layout_says": {
        "the address is off by one element": layout(
            address=lambda x: good.layout(x).address + x.memory.itemsize
        ),
        "strides are in elements": layout(
            strides=lambda x: tuple(s // x.memory.itemsize for s in x.memory.strides)
        ),
        "strides are those of a dense tile": layout(
            strides=lambda x: np.empty(x.shape, x.memory.dtype).strides
        ),
        "strides are in the wrong order": layout(strides=lambda x: x.memory.strides[::-1]),
        "an item is too small": layout(itemsize=lambda x: 1),
    },
    "test_its_layout_says_whether_it_is_aligned": {
        "nothing is aligned": layout(aligned=lambda x: False),
    },
    "test_its_layout_says_whether_the_library_writes_it": {
        "read-only is lost in the layout": layout(writable=lambda x: True),
        "everything is read-only in the layout": layout(writable=lambda x: False),
    },
    "test_what_may_not_be_written_is_not_written_through_the_library": {
        "read-only memory is written through": {
            "from_host": lambda host: Tile(host if host.flags.writeable else _host.thaw(host))
        },
    },
    "test_an_array_of_the_host_gets_here_as_it_would_with_a_plan": {
        "the hot path takes read-only memory for writable": {"adopt": _adopt_readonly},
        "the hot path remembers memory of the host": {
            "adopt": once(good.adopt, lambda host: (host.shape, str(host.dtype)))
        },
    },
    "test_an_array_gets_to_the_host_as_it_would_with_a_plan": {
        "the hot path shows tracked memory, writable": {
            "peek": lambda x: x.memory if x.tracked and not (x.neg or x.conj) else good.peek(x)
        },
        "the hot path shows read-only memory, writable": {
            "peek": lambda x: x.memory if not x.tracked and not (x.neg or x.conj) else good.peek(x)
        },
        "the hot path ignores a negation": {
            "peek": lambda x: x.memory.view() if x.neg and x.writable else good.peek(x)
        },
        "the hot path copies": _peek(lambda x: x.memory.copy()),
        "the hot path raises in doubt": {
            "peek": lambda x: x.memory if good.peek(x) is not None else raise_(ValueError("in doubt"))
        },
    },
    "test_two_arrays_in_a_row_are_two": {
        "the hot path remembers a tile by its place in memory": {
            "peek": once(lambda x: None if good.peek(x) is None else x.memory.copy(), lambda x: x.shape)
        },
    },
    "test_an_array_that_was_written_is_converted_anew": {
        "the hot path remembers what a tile held": _peek(once(lambda x: x.memory.copy(), lambda x: x.id)),
    },
    "test_what_must_not_leave_is_left_to_the_plan": {
        "the hot path raises for what must not leave": {
            "peek": lambda x: good.peek(x) if x.dtype.name in LIBRARY_DTYPES else raise_(TypeError("words"))
        },
        "the hot path shows what must not leave": {
            "peek": lambda x: x.memory if x.memory.dtype.kind in "UO" else good.peek(x)
        },
    },
    "test_an_array_keeps_the_memory_of_the_host_that_it_looks_at": {
        "memory of the host is not held": {
            "from_host": lambda host: Tile(_unheld(host)),
            "adopt": lambda host: None if good.adopt(host) is None else Tile(_unheld(host)),
        },
        "memory of the host is held forever": {"adopt": lambda host: good.adopt(_kept(host))},
    },
    "test_a_copy_is_dense_and_keeps_the_order_of_the_axes": {
        "a copy is in C order": {"copy": lambda x: x.like(x.values())},
        "a copy has holes": {"copy": lambda x: x.like(np.repeat(x.values()[..., None], 2, -1)[..., 0])},
    },
    "test_no_conversion_changes_its_source": {
        "settle works in place": {"settle": _negate_in_place},
    },
}
