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


def same(x: Tile, **changes: Any) -> Tile:
    """The same tile, but for what changes."""
    kept = {"place": x.place, "neg": x.neg, "conj": x.conj, "writable": x.writable, "parents": x.parents}
    return Tile(changes.pop("memory", x.memory), **{**kept, **changes})


def through(verb: Callable[..., Tile], change: Callable[[Host], Host]) -> Callable[..., Tile]:
    """A verb that makes a tile of other values."""

    def changed(x: Tile, *args: Any) -> Tile:
        made = verb(x, *args)
        new = change(made.values())
        return same(made, memory=inverted(new) if away(made) else new, neg=False, conj=False)

    return changed


def answer(word: str, **wrong: Any) -> Changes:
    """A verb of whose answer some is wrong; what that is may depend on the tile."""
    right = getattr(good, word)

    def answered(x: Any, *args: Any, **more: Any) -> Any:
        made = right(x, *args, **more)
        return made and made._replace(**{field: of(x) for field, of in wrong.items()})

    return {word: answered}


def only(word: str, where: Callable[..., Any], wrong: Callable[..., Any]) -> Changes:
    """A verb that is wrong for some arguments."""
    right = getattr(good, word)
    return {word: lambda *args, **more: (wrong if where(*args, **more) else right)(*args, **more)}


def away(x: Tile, *_: Any) -> bool:
    """Whether a tile is on another device than the host."""
    return x.place != "host"


def raise_(error: Exception) -> Any:
    raise error


CPU = Device("cpu")
_NO = Unsupported(UnsupportedArrayError, "it may not stay", "leaving")


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


# -- the table ------------------------------------------------------------------------------------

FAULTS: dict[str, list[Changes]] = {
    "test_to_numpy_keeps_every_bit": [
        {"materialize": lambda x: same(good.materialize(same(x, neg=False)))},
        {"materialize": lambda x: good.materialize(same(x, neg=x.neg or x.conj, conj=x.neg))},
        answer("memory_layout", materialized=lambda x: not x.conj),
        only("materialize", away, lambda x: good.materialize(same(x, neg=False))),
    ],
    "test_memory_layout_points_at_the_bytes": [
        answer("memory_layout", materialized=lambda x: False),
        answer("memory_layout", address=lambda x: good.memory_layout(x).address + x.memory.itemsize),
    ],
    "test_new_memory_is_exact_and_writable": [
        only("to_device", away, lambda x, device: good.to_device(same(x, conj=False), device)),
        {"copy": lambda x: same(good.copy(x), neg=x.neg)},
        {"copy": through(good.copy, quiet)},
        {"copy": lambda x: x},
        {"copy": lambda x: same(good.copy(x), writable=x.writable)},
        {"astype": lambda x, dtype: good.astype(same(x, neg=False, conj=False), dtype)},
        only("copy", away, lambda x: good.copy(good.to_device(x, CPU))),
    ],
    "test_from_numpy_keeps_every_bit": [
        {"from_numpy": through(good.from_numpy, quiet), "fast_from_numpy": lambda host: None},
        {"from_numpy": lambda host: Tile(host, parents=()), "fast_from_numpy": lambda host: None},
    ],
    "test_a_cast_within_the_library_rounds_like_numpy": [
        {"astype": through(good.astype, unsigned)},
        {"astype": _cast},
    ],
    "test_arrays_are_stacked_in_order": [
        {"stack": lambda arrays, shape: good.stack(arrays[::-1], shape)},
        only("stack", lambda xs, _: len(xs) > 8, lambda xs, to: good.stack([*xs[:-1], xs[0]], to)),
        {"stack": lambda arrays, shape: good.stack(arrays, (len(arrays),))},
    ],
    "test_gradients_flow_from_a_stack_to_each_of_its_arrays": [
        {"stack": lambda arrays, shape: good.stack([arrays[0], *map(good.detach, arrays[1:])], shape)}
    ],
    "test_accepted_layouts_keep_every_bit": [
        {
            "accepts_layout": lambda info, layout: good.accepts_layout(
                info._replace(native_byteorder=True), layout
            ),
            "from_numpy": lambda host: Tile(host.view(host.dtype.newbyteorder("="))),
        },
        {"from_numpy": lambda host: Tile(host.copy()), "fast_from_numpy": lambda host: None},
    ],
    "test_the_fast_path_from_numpy_agrees_with_the_plan": [
        {"fast_from_numpy": lambda host: good.fast_from_numpy(host.view(host.dtype.newbyteorder("=")))}
    ],
    "test_a_conversion_does_not_change_its_source": [{"materialize": _negate_in_place}],
    "test_declared_host_casts_match_numpy_bit_for_bit": [
        {
            "astype": lambda x, to: good.astype(good.astype(x, "float32") if to == "float16" else x, to),
            "host_casts": frozenset({("float64", "float16")}),
        }
    ],
    "test_check_cast_raises_if_a_value_would_be_lost": [
        {"check_cast": lambda x, dtype: x},
        {"check_cast": lambda x, dtype: good.check_cast(Tile(np.full(1, 3e300)), "float32")},
    ],
    "test_check_cast_detects_loss_in_every_layout_and_on_every_device": [
        only("check_cast", lambda x, _: not x.memory.flags.c_contiguous, lambda x, _: x),
        only("check_cast", lambda x, _: x.neg or x.conj, lambda x, _: x),
    ],
    "test_the_namespace_makes_arrays_of_the_library": [
        only("default_dtype", lambda kind, _: kind == "float", lambda *_: "float64"),
        {"namespace": lambda x: np},
    ],
    "test_default_dtypes_are_supported_and_of_their_category": [
        only("default_dtype", lambda kind, _: kind == "int", lambda *_: "float32")
    ],
    "test_to_numpy_of_the_backend_returns_a_view": [
        {"to_numpy": lambda x: x.memory.copy(), "fast_to_numpy": lambda x: None}
    ],
    "test_dense_host_memory_is_shared": [{"accepts_layout": lambda info, layout: False}],
    "test_memory_layout_reports_alignment": [answer("memory_layout", aligned=lambda x: False)],
    "test_memory_layout_reports_read_only_arrays": [answer("memory_layout", writable=lambda x: True)],
    "test_read_only_memory_is_never_written_through_the_library": [
        {"from_numpy": lambda host: Tile(host if host.flags.writeable else _host.as_writable(host))}
    ],
    "test_fresh_host_memory_is_shared": [
        {"fast_from_fresh": lambda host: Tile(host.copy()), "plan_state": lambda: None}
    ],
    "test_the_fast_path_to_numpy_agrees_with_the_plan": [
        only("fast_to_numpy", lambda x: x.tracked and not (x.neg or x.conj), lambda x: x.memory),
        only("fast_to_numpy", lambda x: not (x.tracked or x.neg or x.conj), lambda x: x.memory),
        {"fast_copy_to_numpy": good.fast_to_numpy},
        {"fast_copy_to_numpy": lambda x: None if (host := good.fast_to_numpy(x)) is None else host.copy("F")},
    ],
    "test_the_fast_path_declines_unsupported_arrays": [
        only(
            "fast_to_numpy",
            lambda x: x.dtype.name not in LIBRARY_DTYPES,
            lambda _: raise_(TypeError("words")),
        ),
        only("fast_to_numpy", lambda x: x.memory.dtype.kind in "UO", lambda x: x.memory),
    ],
    "test_an_array_keeps_shared_host_memory_alive": [
        {
            "from_numpy": lambda host: Tile(_unheld(host)),
            "fast_from_numpy": lambda host: (
                None if good.fast_from_numpy(host) is None else Tile(_unheld(host))
            ),
        },
        {"fast_from_numpy": lambda host: good.fast_from_numpy(_kept(host))},
    ],
    "test_a_copy_is_dense_and_keeps_the_order_of_the_axes": [{"copy": lambda x: x.like(x.values())}],
    "test_new_memory_does_not_keep_its_source_alive": [{"copy": lambda x: good.copy(_kept(x))}],
    "test_a_deleted_view_releases_its_source": [
        {"to_numpy": lambda x: good.to_numpy(_kept(x)), "fast_to_numpy": lambda x: None}
    ],
    "test_arrays_of_any_size_are_complete": [
        {"copy": through(good.copy, _whole_blocks)},
        {"astype": through(good.astype, _whole_blocks)},
    ],
    "test_gradients_flow_through_every_step_within_the_library": [
        {"astype": lambda x, dtype: same(good.astype(x, dtype), parents=None)},
        {"copy": lambda x: same(good.copy(x), parents=None)},
    ],
    "test_detach_returns_the_same_memory_without_a_graph": [{"detach": lambda x: x}],
    "test_grad_detach_ends_the_graph_and_keeps_its_source": [{"detach": lambda x: same(x, parents=None)}],
    "test_array_info_matches_the_array": [answer("array_info", requires_grad=lambda x: False)],
    "test_requires_grad_makes_a_new_leaf_over_the_memory": [{"require_grad": _track_in_place}],
    "test_only_what_a_graph_holds_is_followed": [
        {"follows": lambda x: True},
        {"follows": lambda x: False},
    ],
    "test_arrays_move_to_other_devices_and_stay_there": [
        answer("array_info", device=lambda x: CPU),
        {
            "to_device": _looked_at,
            **answer("array_info", device=lambda x: getattr(x, "claimed", good.array_info(x).device)),
        },
    ],
    "test_a_move_waits_for_pending_work": [
        only("to_device", lambda _, device: device == CPU, _move_within),
        {"to_device": lambda x, device: good.to_device(same(x, conj=False), device)},
    ],
    "test_an_unknown_device_raises": [{"resolve_device": _or_the_host}],
    "test_gpu_resolves_to_an_accelerator_or_raises": [
        only("resolve_device", lambda device, _: device.kind == "gpu", lambda *_: CPU)
    ],
    "test_every_device_resolves_to_itself": [
        {"resolve_device": lambda device, near: good.resolve_device(device, CPU)},
        {"devices": lambda: good.devices()[1:]},
    ],
    "test_device_name_reads_devices_of_the_library": [{"device_name": lambda device: None}],
    "test_a_verb_accepts_the_arguments_of_the_protocol": [{"accepts_layout": lambda info: True}],
    "test_array_types_and_host_casts_are_declared": [{"array_types": ()}],
    "test_other_types_are_not_owned": [{"owns": lambda cls: True}],
    "test_the_declared_types_are_owned": [{"scalar_types": (Tile,)}],
    "test_dtype_name_reads_dtypes_of_the_library": [
        {"dtype_name": lambda dtype: f"tile.{dtype.name}" if isinstance(dtype, Stone) else None}
    ],
    "test_dtype_name_reads_dtypes_of_numpy_or_returns_none": [
        only("dtype_name", lambda dtype: isinstance(dtype, np.dtype), lambda _: raise_(TypeError("no stone")))
    ],
    "test_the_library_cannot_make_its_unsupported_dtypes": [
        only(
            "unsupported_dtype",
            lambda dtype, _: dtype == "int8",
            lambda _, to: good.unsupported_dtype("uint64", to),
        )
    ],
    "test_unsupported_dtype_gives_a_reason": [answer("unsupported_dtype", error=lambda _: DeviceError)],
    "test_unsupported_arrays_raise_with_a_reason": [
        only("unsupported", lambda x, leaving: type(x) is not Tile, lambda x, leaving: None)
    ],
    "test_ordinary_arrays_are_supported": [
        {"unsupported": lambda x, *, leaving: good.unsupported(x, leaving=True) or (None if leaving else _NO)}
    ],
    "test_unsupported_arrays_have_an_owner_array_info_and_a_reason": [
        {"owns": lambda cls: cls is Tile},
        only("unsupported", good.unsupported, lambda x, leaving: raise_(TypeError("no"))),
        answer("unsupported", reason=lambda _: ""),
    ],
    "test_read_only_host_memory_gives_a_read_only_array": [
        {"from_numpy": lambda host: Tile(host if host.flags.writeable else host.copy())}
    ],
}
"""The tests, and the faults that each of them must notice."""
