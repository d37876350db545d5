"""Faults of the backend in `kit_toy_backend.py`, each planted alone, by the test that must notice it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
import numpy as np
from kit_toy import LIBRARY_DTYPES, Stone, Tile, inverted

from xbridge import Device
from xbridge._host import memory as _host
from xbridge.errors import DeviceError, UnsupportedArrayError
from xbridge.protocol import Unsupported

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


def raise_(error: Exception) -> Any:
    raise error


CPU = Device("cpu")


# -- values and casts ----------------------------------------------------------------------------


def quiet(values: Host) -> Host:
    """Every NaN becomes the usual one."""
    if values.dtype.kind == "f" or values.dtype.name == "bfloat16":
        with np.errstate(invalid="ignore"):
            return np.where(np.isnan(values), values.dtype.type("nan"), values).astype(values.dtype)
    return values


def unsigned(values: Host) -> Host:
    """Every zero becomes the positive one."""
    with np.errstate(all="ignore"):
        return values + values.dtype.type(0) if values.dtype.kind == "f" else values


def _cast(x: Tile, dtype: str) -> Tile:
    """Cut the last bits off where they should be rounded."""
    if (x.dtype.name, dtype) != ("float64", "float32"):
        return good.astype(x, dtype)
    bits = x.values().view("u8") & np.uint64(0xFFFFFFFFE0000000)
    return x.like(bits.view("f8").astype("f4"))


def _checked(x: Tile, other: Tile, dtype: str) -> Tile:
    """The tile, if another one passes the check."""
    good.check_cast(other, dtype)
    return x


def _overwritten(x: Tile, made: Tile) -> Tile:
    if x.memory.flags.writeable and x.memory.dtype.kind == "f":
        x.memory[...] = 0
    return made


# -- memory --------------------------------------------------------------------------------------


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


def _unheld(host: Host) -> Host:
    return np.asarray(_Loose(host)).view(host.dtype)


class _Loose:
    """Memory, and nobody who holds it."""

    def __init__(self, host: Host) -> None:
        self.__array_interface__ = {**host.__array_interface__, "typestr": f"|V{host.itemsize}"}
        del self.__array_interface__["descr"]


# -- history and devices -------------------------------------------------------------------------


def _track_in_place(x: Tile) -> Tile:
    x.parents = ()
    return x


def _move_within(x: Tile, device: Device) -> Tile:
    """Say that it moved."""
    return same(x, place="host" if device == CPU else "attic")


def _looked_at(x: Tile, device: Device) -> Tile:
    moved = same(x)
    vars(moved)["claimed"] = device
    return moved


def _or_the_host(device: Device, near: Device) -> Device:
    try:
        return good.resolve_device(device, near)
    except DeviceError:
        return CPU


def _away(good_one: Any, bad: Any) -> Any:
    """A verb that is wrong on other devices."""
    return lambda x, *args: (bad if x.place != "host" else good_one)(x, *args)


def _unsigned(verb: Any) -> Any:
    return lambda x, *args: verb(same(x, neg=False), *args)


# -- what a backend says of itself ---------------------------------------------------------------


_NO = Unsupported(UnsupportedArrayError, "it may not stay", "leaving")


# -- the table ------------------------------------------------------------------------------------

FAULTS: Faults = {
    "test_to_numpy_keeps_every_bit": {
        "the sign of a negation is lost": {
            "materialize": lambda x: same(good.materialize(same(x, neg=False)))
        },
        "a conjugate negates the real part": {
            "materialize": lambda x: good.materialize(same(x, neg=x.neg or x.conj, conj=x.neg))
        },
        "a negation passes for done": layout(materialized=lambda x: not x.conj),
        "a negation is forgotten on a device": {
            "materialize": _away(good.materialize, _unsigned(good.materialize))
        },
    },
    "test_memory_layout_points_at_the_bytes": {
        "everything passes for pending": layout(materialized=lambda x: False),
        "the address is off by one element": layout(
            address=lambda x: good.memory_layout(x).address + x.memory.itemsize
        ),
    },
    "test_new_memory_is_exact_and_writable": {
        "a conjugate is forgotten on the way home": {
            "to_device": _away(good.to_device, lambda x, device: good.to_device(same(x, conj=False), device))
        },
        "a copy keeps the pending sign and negates": {"copy": lambda x: same(good.copy(x), neg=x.neg)},
        "the payload of NaN is lost in a copy": {"copy": through(good.copy, quiet)},
        "copy gives the tile itself": {"copy": lambda x: x},
        "a copy of what is read-only is read-only": {
            "copy": lambda x: same(good.copy(x), writable=x.writable),
        },
        "a cast ignores what is pending": {
            "astype": lambda x, dtype: good.astype(same(x, neg=False, conj=False), dtype)
        },
        "a copy comes home": {
            "copy": lambda x: good.copy(good.to_device(x, CPU)) if x.place != "host" else good.copy(x)
        },
    },
    "test_from_numpy_keeps_every_bit": {
        "the payload of NaN is lost from the host": {
            "from_numpy": through(good.from_numpy, quiet),
            "fast_from_numpy": lambda host: None,
        },
        "what comes from the host has a history": {
            "from_numpy": lambda host: Tile(host, parents=()),
            "fast_from_numpy": lambda host: None,
        },
    },
    "test_a_cast_within_the_library_rounds_like_numpy": {
        "the sign of zero is lost in a cast": {"astype": through(good.astype, unsigned)},
        "a cast cuts off where it should round": {"astype": _cast},
    },
    "test_arrays_are_stacked_in_order": {
        "a stack is in the wrong order": {"stack": lambda arrays, shape: good.stack(arrays[::-1], shape)},
        "a stack of many ends with its first": {
            "stack": lambda arrays, shape: good.stack(
                arrays if len(arrays) <= 8 else [*arrays[:-1], arrays[0]], shape
            )
        },
        "a stack ignores its shape": {"stack": lambda arrays, shape: good.stack(arrays, (len(arrays),))},
    },
    "test_gradients_flow_from_a_stack_to_each_of_its_arrays": {
        "the history of all but the first ends in a stack": {
            "stack": lambda arrays, shape: good.stack([arrays[0], *map(good.detach, arrays[1:])], shape)
        },
    },
    "test_accepted_layouts_keep_every_bit": {
        "byte order is ignored": {
            "accepts_layout": lambda info, layout: good.accepts_layout(
                info._replace(native_byteorder=True), layout
            ),
            "from_numpy": lambda host: Tile(host.view(host.dtype.newbyteorder("="))),
        },
        "what comes from the host is a copy": {
            "from_numpy": lambda host: Tile(host.copy()),
            "fast_from_numpy": lambda host: None,
        },
    },
    "test_the_fast_path_from_numpy_agrees_with_the_plan": {
        "byte order is ignored on the hot path": {
            "fast_from_numpy": lambda host: good.fast_from_numpy(host.view(host.dtype.newbyteorder("=")))
        },
    },
    "test_a_conversion_does_not_change_its_source": {
        "a cast works in place": {"astype": lambda x, dtype: _overwritten(x, good.astype(x, dtype))},
        "settle works in place": {"materialize": _negate_in_place},
    },
    "test_declared_host_casts_match_numpy_bit_for_bit": {
        "the host rounds once, the library twice": {
            "astype": lambda x, dtype: good.astype(
                good.astype(x, "float32") if dtype == "float16" else x, dtype
            ),
            "host_casts": frozenset({("float64", "float16")}),
        },
    },
    "test_check_cast_raises_if_a_value_would_be_lost": {
        "no loss is noticed": {"check_cast": lambda x, dtype: x},
        "every cast is a loss": {
            "check_cast": lambda x, dtype: _checked(x, Tile(np.full(1, 3e300)), "float32")
        },
    },
    "test_check_cast_detects_loss_in_every_layout_and_on_every_device": {
        "no loss is noticed between strides": {
            "check_cast": lambda x, dtype: good.check_cast(x, dtype) if x.memory.flags.c_contiguous else x
        },
        "no loss is noticed in what is pending": {
            "check_cast": lambda x, dtype: x if x.neg or x.conj else good.check_cast(x, dtype)
        },
    },
    "test_the_namespace_makes_arrays_of_the_library": {
        "the default is another float": {
            "default_dtype": lambda kind, device: (
                "float64" if kind == "float" else good.default_dtype(kind, device)
            )
        },
        "the namespace is NumPy's": {"namespace": lambda x: np},
    },
    "test_default_dtypes_are_supported_and_of_their_category": {
        "the default is of another category": {
            "default_dtype": lambda kind, device: (
                "float32" if kind == "int" else good.default_dtype(kind, device)
            )
        },
    },
    "test_to_numpy_of_the_backend_returns_a_view": {
        "a view for the host is a copy": {
            "to_numpy": lambda x: x.memory.copy(),
            "fast_to_numpy": lambda x: None,
        },
    },
    "test_dense_host_memory_is_shared": {
        "nothing of the host can be held": {"accepts_layout": lambda info, layout: False},
    },
    "test_memory_layout_reports_alignment": {
        "nothing is aligned": layout(aligned=lambda x: False),
    },
    "test_memory_layout_reports_read_only_arrays": {
        "read-only is lost in the layout": layout(writable=lambda x: True),
    },
    "test_read_only_memory_is_never_written_through_the_library": {
        "read-only memory is written through": {
            "from_numpy": lambda host: Tile(host if host.flags.writeable else _host.as_writable(host))
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
    },
    "test_new_memory_does_not_keep_its_source_alive": {
        "a copy keeps its source": {"copy": lambda x: good.copy(_kept(x))},
    },
    "test_a_deleted_view_releases_its_source": {
        "a view of a tile is never let go": {
            "to_numpy": lambda x: good.to_numpy(_kept(x)),
            "fast_to_numpy": lambda x: None,
        },
    },
    "test_arrays_of_any_size_are_complete": {
        "a copy ends with a whole block": {"copy": through(good.copy, _whole_blocks)},
        "a cast ends with a whole block": {"astype": through(good.astype, _whole_blocks)},
    },
    "test_gradients_flow_through_every_step_within_the_library": {
        "history is cut by a cast": {"astype": lambda x, dtype: same(good.astype(x, dtype), parents=None)},
        "history is cut by a copy": {"copy": lambda x: same(good.copy(x), parents=None)},
    },
    "test_detach_returns_the_same_memory_without_a_graph": {
        "history is kept by a detach": {"detach": lambda x: x},
    },
    "test_grad_detach_ends_the_graph_and_keeps_its_source": {
        "a detached tile may be written": {"detach": lambda x: same(x, parents=None)},
    },
    "test_array_info_matches_the_array": {
        "history is not told": array_info(requires_grad=lambda x: False),
    },
    "test_requires_grad_makes_a_new_leaf_over_the_memory": {
        "a leaf is the tile itself": {"require_grad": _track_in_place},
    },
    "test_only_what_a_graph_holds_is_followed": {
        "everything is followed": {"follows": lambda x: True},
        "nothing is followed": {"follows": lambda x: False},
    },
    "test_arrays_move_to_other_devices": {
        "the device is dropped from the facts": array_info(device=lambda x: CPU),
    },
    "test_a_move_waits_for_pending_work": {
        "a move home keeps the memory": {
            "to_device": lambda x, device: (
                _move_within(x, device) if device == CPU else good.to_device(x, device)
            )
        },
        "a move forgets a conjugate": {
            "to_device": lambda x, device: good.to_device(same(x, conj=False), device)
        },
    },
    "test_an_array_stays_on_its_device": {
        "a move is in name only, and shares": {
            "to_device": _looked_at,
            "array_info": lambda x: good.array_info(x)._replace(
                device=getattr(x, "claimed", good.array_info(x).device)
            ),
        },
    },
    "test_an_unknown_device_raises": {
        "an unknown device is the host": {"resolve_device": _or_the_host},
    },
    "test_gpu_resolves_to_an_accelerator_or_raises": {
        "gpu means the host": {
            "resolve_device": lambda device, near: (
                CPU if device.kind == "gpu" else good.resolve_device(device, near)
            )
        },
    },
    "test_every_device_resolves_to_itself": {
        "a kind leads away from where one is": {
            "resolve_device": lambda device, near: good.resolve_device(device, CPU)
        },
        "a device is missing from the list": {"devices": lambda: good.devices()[1:]},
    },
    "test_the_host_is_a_device": {
        "the host is missing": {"devices": lambda: good.devices()[1:]},
    },
    "test_device_name_reads_devices_of_the_library": {
        "device objects are unknown": {"device_name": lambda device: None},
    },
    "test_a_verb_accepts_the_arguments_of_the_protocol": {
        "a verb takes less": {"accepts_layout": lambda info: True},
    },
    "test_array_types_and_host_casts_are_declared": {
        "no type is named": {"array_types": ()},
    },
    "test_other_types_are_not_owned": {
        "everything is owned": {"owns": lambda cls: True},
    },
    "test_unsupported_arrays_are_owned": {
        "what inherits is not owned": {"owns": lambda cls: cls is Tile},
    },
    "test_the_declared_types_are_owned": {
        "arrays are scalars": {"scalar_types": (Tile,)},
    },
    "test_dtype_name_reads_dtypes_of_the_library": {
        "a dtype object has another name": {
            "dtype_name": lambda dtype: f"tile.{dtype.name}" if isinstance(dtype, Stone) else None
        },
    },
    "test_dtype_name_reads_dtypes_of_numpy_or_returns_none": {
        "a dtype object of NumPy is an error": {
            "dtype_name": lambda dtype: (
                raise_(TypeError("no stone")) if isinstance(dtype, np.dtype) else good.dtype_name(dtype)
            )
        },
    },
    "test_the_library_cannot_make_its_unsupported_dtypes": {
        "a dtype is lacked that is there": {
            "unsupported_dtype": lambda dtype, device: good.unsupported_dtype(
                "uint64" if dtype == "int8" else dtype, device
            )
        },
    },
    "test_unsupported_dtype_gives_a_reason": {
        "the wrong error for a dtype that is lacked": {
            "unsupported_dtype": lambda dtype, device: (
                (r := good.unsupported_dtype(dtype, device)) and r._replace(error=DeviceError)
            )
        },
    },
    "test_unsupported_arrays_raise_with_a_reason": {
        "what must not leave is let go": {
            "unsupported": lambda x, *, leaving: (
                None if type(x) is not Tile else good.unsupported(x, leaving=leaving)
            )
        },
    },
    "test_ordinary_arrays_are_supported": {
        "what must not leave is refused at home": {
            "unsupported": lambda x, *, leaving: (
                good.unsupported(x, leaving=True) or (None if leaving else _NO)
            )
        },
    },
    "test_unsupported_arrays_have_array_info_and_a_reason": {
        "a refusal is raised": {
            "unsupported": lambda x, *, leaving: (
                raise_(TypeError("no")) if good.unsupported(x, leaving=leaving) else None
            )
        },
        "a refusal has no reason": {
            "unsupported": lambda x, *, leaving: (
                (r := good.unsupported(x, leaving=leaving)) and r._replace(reason="")
            )
        },
    },
    "test_read_only_host_memory_gives_a_read_only_array": {
        "an undeclared gap: nothing is read-only": {
            "from_numpy": lambda host: Tile(host if host.flags.writeable else host.copy())
        },
    },
}
