"""Faults in history and devices, by the test that must notice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
from kit_toy import Tile
from kit_toy_planting import array_info, as_if_dense, same

from xbridge._core.devices import CPU, Device
from xbridge.errors import DeviceError, OptionError
from xbridge.protocol import Gap

if TYPE_CHECKING:
    from kit_toy_planting import Faults


def _track_in_place(x: Tile) -> Tile:
    x.parents = ()
    return x


def _detach_in_place(x: Tile) -> Tile:
    x.parents = None
    return x


def _move_within(x: Tile, device: Device) -> Tile:
    """Say that it moved."""
    return same(x, place="host" if device == CPU else "attic")


def _looked_at(x: Tile, device: Device) -> Tile:
    moved = same(x)
    vars(moved)["claimed"] = device
    return moved


def _or_else(device: Device, near: Device, other: Any) -> Any:
    try:
        return good.resolve_device(device, near)
    except DeviceError:
        if isinstance(other, Exception):
            raise other from None
        return other


ATTIC = Device("tile:0")


def _away(good_one: Any, bad: Any, when: Any = lambda x: True) -> Any:
    """A verb that is wrong on other devices."""
    return lambda x, *args: (bad if x.place != "host" and when(x) else good_one)(x, *args)


def _cut(verb: Any) -> Any:
    return lambda x, *args: same(verb(x, *args), parents=None)


def _unsigned(verb: Any) -> Any:
    return lambda x, *args: verb(same(x, neg=False), *args)


def _conjugated(x: Tile, dtype: str) -> Tile:
    return x.like(good.astype(x, dtype).values().conj())


def _as_if_cast(x: Tile, dtype: str) -> Tile:
    return good.astype(same(x, memory=as_if_dense(x.memory)), dtype)


GRAPH: Faults = {
    "test_gradients_flow_through_every_step_within_the_library": {
        "history is cut by a cast": {"astype": lambda x, dtype: same(good.astype(x, dtype), parents=None)},
        "history is cut by a copy": {"copy": lambda x: same(good.copy(x), parents=None)},
        "history is cut by a move": {
            "to_device": lambda x, device: same(good.to_device(x, device), parents=None)
        },
        "history is cut by a stack": {
            "stack": lambda arrays, shape: same(good.stack(arrays, shape), parents=None)
        },
        "history is cut by a cast on a device": {"astype": _away(good.astype, _cut(good.astype))},
        "history is cut by a copy on a device": {"copy": _away(good.copy, _cut(good.copy))},
        "history is cut by the way home": {
            "to_device": lambda x, device: (_cut(good.to_device) if device == CPU else good.to_device)(
                x, device
            )
        },
        "history is cut between devices": {
            "to_device": lambda x, device: (
                _cut(good.to_device) if CPU not in (device, good.array_info(x).device) else good.to_device
            )(x, device)
        },
        "history begins anew with a copy": {
            "copy": lambda x: same(good.copy(x), parents=() if x.tracked else None)
        },
        "nothing is ever recorded": {"is_grad_enabled": lambda: False},
        "gradients that there are are denied": {"gaps": {"autograd": Gap("notyet", "tiles forget")}},
    },
    "test_detach_returns_the_same_memory_without_a_graph": {
        "history is kept by a detach": {"detach": lambda x: x},
        "history is kept by a detach on a device": {"detach": _away(good.detach, lambda x: x)},
        "a detach copies on a device": {"detach": _away(good.detach, _cut(good.copy))},
        "a detach copies": {"detach": lambda x: same(good.copy(x), parents=None)},
        "a detach changes the tile": {"detach": _detach_in_place},
        "a detach forgets a negation": {"detach": lambda x: same(good.detach(x), neg=False)},
    },
    "test_grad_detach_ends_the_graph_and_keeps_its_source": {
        "a detached tile may be written": {"detach": lambda x: same(x, parents=None)},
    },
    "test_array_info_matches_the_array": {
        "history is not told": array_info(requires_grad=lambda x: False),
        "history is told of everything": array_info(requires_grad=lambda x: True),
    },
    "test_requires_grad_makes_a_new_leaf_over_the_memory": {
        "a leaf is the tile itself": {"require_grad": _track_in_place},
        "a leaf is no leaf": {"require_grad": lambda x: same(x, parents=(same(x, parents=()), x))},
        "nothing is tracked on a device": {"require_grad": _away(good.require_grad, lambda x: x)},
        "a leaf on a device comes home": {
            "require_grad": lambda x: good.require_grad(good.to_device(x, CPU))
        },
        "a leaf has no history": {"require_grad": same},
        "a leaf lies elsewhere": {"require_grad": lambda x: same(good.copy(x), parents=())},
    },
    "test_only_what_a_graph_holds_is_followed": {
        "everything is followed": {"follows": lambda x: True},
        "nothing is followed": {"follows": lambda x: False},
        "what is followed is a number": {"follows": lambda x: int(x.tracked)},
    },
    "test_an_array_from_the_host_does_not_require_grad": {
        "what comes from the host has a history": {
            "from_numpy": lambda host: Tile(host, parents=()),
            "fast_from_numpy": lambda host: None,
        },
    },
}


DEVICES: Faults = {
    "test_arrays_move_to_other_devices": {
        "the device is dropped from the facts": array_info(device=lambda x: CPU),
        "the device is renamed": array_info(device=lambda x: CPU if x.place == "host" else Device("tile:7")),
        "two devices are one": {
            "to_device": lambda x, device: good.to_device(x, CPU if device == CPU else ATTIC)
        },
        "a move keeps the memory": {"to_device": _move_within},
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
        "a move between devices forgets a negation": {
            "to_device": _away(good.to_device, _unsigned(good.to_device))
        },
        "a move forgets strides": {
            "to_device": lambda x, device: good.to_device(same(x, memory=as_if_dense(x.memory)), device)
        },
    },
    "test_every_layout_moves_to_the_host": {
        "a conjugate is forgotten on the way home": {
            "to_device": _away(good.to_device, lambda x, device: good.to_device(same(x, conj=False), device))
        },
    },
    "test_every_layout_is_copied_on_its_device": {
        "a copy on a device forgets a negation": {"copy": _away(good.copy, _unsigned(good.copy))},
        "a copy on a device shares": {"copy": _away(good.copy, same)},
        "a stack on a device forgets a negation": {
            "stack": lambda arrays, shape: good.stack(
                [same(x, neg=x.neg and x.place == "host") for x in arrays], shape
            )
        },
    },
    "test_every_layout_materializes_on_its_device": {
        "a negation is forgotten on a device": {
            "materialize": _away(good.materialize, _unsigned(good.materialize))
        },
    },
    "test_every_layout_is_cast_on_its_device": {
        "a cast on a device forgets strides": {"astype": _away(good.astype, _as_if_cast)},
        "a cast on a device conjugates": {
            "astype": _away(good.astype, _conjugated, lambda x: x.memory.dtype.name == "complex128")
        },
    },
    "test_an_array_stays_on_its_device": {
        "a move is in name only, and shares": {
            "to_device": _looked_at,
            "array_info": lambda x: good.array_info(x)._replace(
                device=getattr(x, "claimed", good.array_info(x).device)
            ),
        },
        "a copy comes home": {
            "copy": lambda x: good.copy(good.to_device(x, CPU)) if x.place != "host" else good.copy(x)
        },
        "a cast comes home": {"astype": lambda x, dtype: good.astype(good.to_device(x, CPU), dtype)},
        "a stack comes home": {
            "stack": lambda arrays, shape: good.stack([good.to_device(x, CPU) for x in arrays], shape)
        },
    },
    "test_an_unknown_device_raises": {
        "an unknown device is the host": {"resolve_device": lambda device, near: _or_else(device, near, CPU)},
        "an unknown device is a KeyError": {
            "resolve_device": lambda device, near: _or_else(device, near, KeyError(device))
        },
        "an unknown device is an error of another class": {
            "resolve_device": lambda device, near: _or_else(device, near, OptionError.build("go", "no", "no"))
        },
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
        "devices are strings": {"devices": lambda: tuple(map(str, good.devices()))},
    },
    "test_the_host_is_a_device": {"the host is missing": {"devices": lambda: good.devices()[1:]}},
    "test_device_name_reads_devices_of_the_library": {
        "device objects are unknown": {"device_name": lambda device: None},
        "every object is a device": {"device_name": lambda device: good.device_name(device) or CPU},
    },
}


FAULTS = {**GRAPH, **DEVICES}
