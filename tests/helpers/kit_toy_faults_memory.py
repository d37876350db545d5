"""Faults in memory: shared or copied, held, written, remembered; by the test that must notice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
import numpy as np
from kit_toy import LIBRARY_DTYPES, Tile
from kit_toy_planting import layout, raise_, same, through

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
    return {"fast_to_numpy": lambda x: None if good.fast_to_numpy(x) is None else change(x)}


def _adopt_readonly(host: Host) -> Tile | None:
    tile = good.fast_from_numpy(host)
    if tile is None and host.flags.forc and host.flags.aligned and host.dtype.name in LIBRARY_DTYPES:
        opened = _host.as_writable(host) if host.dtype.isnative else None
        return None if opened is None else Tile(opened)
    return tile


def _negate_in_place(x: Tile) -> Tile:
    """Do what is pending in the tile's own memory."""
    if x.memory.flags.writeable and (x.neg or x.conj):
        x.memory[...], x.neg, x.conj = x.values(), False, False
    return x


_HELD: list[Any] = []


def _kept(thing: Any) -> Any:
    _HELD.append(thing)
    return thing


_BLOCK = 1 << 12


def _whole_blocks(values: Host) -> Host:
    """What does not fill a block, behind those that are full, is zero."""
    line = values.reshape(-1).copy()
    if line.size > _BLOCK:
        line[line.size // _BLOCK * _BLOCK :] = 0
    return line.reshape(values.shape)


def _four_axes(values: Host) -> Host:
    return values if values.ndim <= 4 else np.array(values.T, order="C").reshape(values.shape)


def _unheld(host: Host) -> Host:
    return np.asarray(_Loose(host)).view(host.dtype)


def _of_base(x: Tile) -> Host:
    """The first elements of the array that another array is a view of."""
    base = x.memory.base
    if type(base) is np.ndarray and base.dtype == x.memory.dtype:
        return base.reshape(-1)[: x.memory.size].reshape(x.shape)
    return x.memory.view()


class _Loose:
    """Memory, and nobody who holds it."""

    def __init__(self, host: Host) -> None:
        self.__array_interface__ = {**host.__array_interface__, "typestr": f"|V{host.itemsize}"}
        del self.__array_interface__["descr"]


FAULTS: Faults = {
    "test_a_copy_shares_no_memory": {
        "copy gives the tile itself": {"copy": lambda x: x},
        "copy gives a view": {"copy": same},
        "copy gives a view of what has no axes": {"copy": lambda x: good.copy(x) if x.shape else same(x)},
        "copy gives a view of what is read-only": {"copy": lambda x: good.copy(x) if x.writable else same(x)},
    },
    "test_to_numpy_of_the_backend_returns_a_view": {
        "a view for the host is a copy": {
            "to_numpy": lambda x: x.memory.copy(),
            "fast_to_numpy": lambda x: None,
        },
        "a view for the host is of the base": {
            "to_numpy": _of_base,
            "fast_to_numpy": lambda x: None,
            "samples": None,  # the layouts of NumPy, whose views have such a base
        },
    },
    "test_accepted_layouts_keep_every_bit": {
        "what comes from the host is a copy": {
            "from_numpy": lambda host: Tile(host.copy()),
            "fast_from_numpy": lambda host: None,
        },
        "unaligned memory passes for aligned": {
            "accepts_layout": lambda info, layout: good.accepts_layout(info, layout._replace(aligned=True)),
            "memory_layout": lambda x: good.memory_layout(x)._replace(aligned=True),
        },
        "whatever lies anyhow can be held": {
            "accepts_layout": lambda info, layout: True,
            "from_numpy": lambda host: Tile(host.copy() if min(host.strides, default=0) < 0 else host),
        },
    },
    "test_dense_host_memory_is_shared": {
        "nothing of the host can be held": {"accepts_layout": lambda info, layout: False},
    },
    "test_memory_layout_points_at_the_bytes": {
        "the address is off by one element": layout(
            address=lambda x: good.memory_layout(x).address + x.memory.itemsize
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
    "test_memory_layout_reports_alignment": {
        "nothing is aligned": layout(aligned=lambda x: False),
    },
    "test_memory_layout_reports_read_only_arrays": {
        "read-only is lost in the layout": layout(writable=lambda x: True),
        "everything is read-only in the layout": layout(writable=lambda x: False),
    },
    "test_read_only_memory_is_never_written_through_the_library": {
        "read-only memory is written through": {
            "from_numpy": lambda host: Tile(host if host.flags.writeable else _host.as_writable(host))
        },
    },
    "test_the_fast_path_from_numpy_agrees_with_the_plan": {
        "the hot path takes read-only memory for writable": {"fast_from_numpy": _adopt_readonly},
        "the hot path remembers memory of the host": {
            "fast_from_numpy": once(good.fast_from_numpy, lambda host: (host.shape, str(host.dtype)))
        },
    },
    "test_a_fast_copy_is_that_of_the_plan": {
        "a fast copy is none": {"fast_copy_to_numpy": good.fast_to_numpy},
        "a fast copy is in another order": {
            "fast_copy_to_numpy": lambda x: (
                None if (host := good.fast_to_numpy(x)) is None else host.copy("F")
            )
        },
    },
    "test_fresh_host_memory_is_shared": {
        "fresh memory of the host is copied": {
            "fast_from_fresh": lambda host: Tile(host.copy()),
            "plan_state": lambda: None,
        },
        "fresh memory of the host is taken for read-only": {
            "fast_from_fresh": lambda host: Tile(_host.as_readonly(host)),
            "plan_state": lambda: None,
        },
    },
    "test_the_fast_path_to_numpy_agrees_with_the_plan": {
        "the hot path shows tracked memory, writable": {
            "fast_to_numpy": lambda x: (
                x.memory if x.tracked and not (x.neg or x.conj) else good.fast_to_numpy(x)
            )
        },
        "the hot path shows read-only memory, writable": {
            "fast_to_numpy": lambda x: (
                x.memory if not x.tracked and not (x.neg or x.conj) else good.fast_to_numpy(x)
            )
        },
        "the hot path ignores a negation": {
            "fast_to_numpy": lambda x: x.memory.view() if x.neg and x.writable else good.fast_to_numpy(x)
        },
        "the hot path copies": _peek(lambda x: x.memory.copy()),
        "the hot path raises in doubt": {
            "fast_to_numpy": lambda x: (
                x.memory if good.fast_to_numpy(x) is not None else raise_(ValueError("in doubt"))
            )
        },
    },
    "test_consecutive_arrays_are_not_confused": {
        "the hot path remembers a tile by its place in memory": {
            "fast_to_numpy": once(
                lambda x: None if good.fast_to_numpy(x) is None else x.memory.copy(), lambda x: x.shape
            )
        },
    },
    "test_a_written_array_is_converted_again": {
        "the hot path remembers what a tile held": _peek(once(lambda x: x.memory.copy(), lambda x: x.id)),
    },
    "test_the_fast_path_declines_unsupported_arrays": {
        "the hot path raises for what must not leave": {
            "fast_to_numpy": lambda x: (
                good.fast_to_numpy(x) if x.dtype.name in LIBRARY_DTYPES else raise_(TypeError("words"))
            )
        },
        "the hot path shows what must not leave": {
            "fast_to_numpy": lambda x: x.memory if x.memory.dtype.kind in "UO" else good.fast_to_numpy(x)
        },
    },
    "test_an_array_keeps_shared_host_memory_alive": {
        "memory of the host is not held": {
            "from_numpy": lambda host: Tile(_unheld(host)),
            "fast_from_numpy": lambda host: (
                None if good.fast_from_numpy(host) is None else Tile(_unheld(host))
            ),
        },
        "memory of the host is held forever": {
            "fast_from_numpy": lambda host: good.fast_from_numpy(_kept(host))
        },
    },
    "test_a_copy_is_dense_and_keeps_the_order_of_the_axes": {
        "a copy is in C order": {"copy": lambda x: x.like(x.values())},
        "a copy has holes": {"copy": lambda x: x.like(np.repeat(x.values()[..., None], 2, -1)[..., 0])},
    },
    "test_new_memory_is_writable": {
        "a copy of what is read-only is read-only": {
            "copy": lambda x: same(good.copy(x), writable=x.writable),
        },
        "a cast of what is read-only is read-only": {
            "astype": lambda x, dtype: same(good.astype(x, dtype), writable=x.writable),
        },
        "a move of what is read-only is read-only": {
            "to_device": lambda x, device: same(good.to_device(x, device), writable=x.writable),
        },
        "a stack is read-only": {
            "stack": lambda arrays, shape: same(good.stack(arrays, shape), writable=False),
        },
        "what was pending is done, and read-only": {
            "materialize": lambda x: same(good.materialize(x), writable=False),
        },
    },
    "test_new_memory_does_not_keep_its_source_alive": {
        "a copy keeps its source": {"copy": lambda x: good.copy(_kept(x))},
        "a move keeps its source": {"to_device": lambda x, device: good.to_device(_kept(x), device)},
    },
    "test_a_deleted_view_releases_its_source": {
        "a view of a tile is never let go": {
            "to_numpy": lambda x: good.to_numpy(_kept(x)),
            "fast_to_numpy": lambda x: None,
        },
    },
    "test_a_copy_of_any_size_is_complete": {
        "a copy ends with a whole block": {"copy": through(good.copy, _whole_blocks)},
        "a copy knows no more than four axes": {"copy": through(good.copy, _four_axes)},
        "a copy of much is a view": {"copy": lambda x: same(x) if x.memory.size > _BLOCK else good.copy(x)},
        "a move ends with a whole block": {"to_device": through(good.to_device, _whole_blocks)},
    },
    "test_a_cast_of_any_size_is_complete": {
        "a cast ends with a whole block": {"astype": through(good.astype, _whole_blocks)},
    },
    "test_from_numpy_converts_memory_of_any_size": {
        "much memory of the host is copied on the hot path": {
            "fast_from_numpy": lambda host: good.fast_from_numpy(host.copy() if host.size > _BLOCK else host)
        },
        "five axes of the host are reversed": {
            "from_numpy": lambda host: Tile(host.T.reshape(host.shape) if host.ndim > 4 else host),
            "fast_from_numpy": lambda host: None,
        },
    },
    "test_a_conversion_does_not_change_its_source": {
        "settle works in place": {"materialize": _negate_in_place},
    },
}
