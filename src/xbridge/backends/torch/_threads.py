"""What another thread has to know of this one: torch keeps modes, devices and streams by thread.

What goes on aside has a stream of its own on each device, the same one each time: its memory is used again
there. It never waits on that stream for another one, but in its thread. So nobody who comes next waits for
the computation that somebody else's arrays come out of.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from xbridge.backends.torch._devices import accelerators
from xbridge.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge._core.devices import Device
    from xbridge._core.protocol import ArrayFn


_sides: dict[torch.device, Any] = {}


def threaded(fn: ArrayFn, device: Device, /) -> ArrayFn:
    """`fn` for another thread: after what this one has asked for, complete, and for this one to use."""
    place, recording, mine = torch.device(device), torch.is_grad_enabled(), _current_streams()
    api = streams_of(place)
    if api is None:
        side = asked = None
    elif is_captured(api):
        raise DeviceError.build(
            f"convert arrays to or from {device} in another thread",
            "a graph is being captured, and follows this one alone",
            "xbridge.tree.to_backend",
        )
    else:
        side, asked = _sides.setdefault(place, api.Stream(place)), api.current_stream(place).record_event()

    def apart(xs: list[object]) -> list[object]:
        with torch._C.DisableTorchFunctionSubclass():
            there = any(isinstance(x, torch.Tensor) and x.device == place for x in xs)
        if asked is not None and there:
            asked.synchronize()
        with torch.set_grad_enabled(recording), nullcontext() if api is None else api.stream(side):
            made = fn(xs)
            if side is not None:
                side.synchronize()
        with torch._C.DisableTorchFunctionSubclass():
            for y in made:
                if isinstance(y, torch.Tensor) and y.device in mine:
                    y.record_stream(mine[y.device])
        return made

    return apart


def thread_context() -> Callable[[], None]:
    """What gives another thread the modes, devices and streams that this one has now."""
    recording, mine = torch.is_grad_enabled(), _current_streams()
    default = torch.get_default_device()
    numbers = {api: api.current_device() for api in map(streams_of, mine)}

    def there() -> None:
        torch.set_grad_enabled(recording)
        if default != torch.get_default_device():
            torch.set_default_device(default)
        for place, stream in mine.items():
            if stream != streams_of(place).default_stream(place):  # or every device would be started
                streams_of(place).set_stream(stream)
        for api, number in numbers.items():
            api.set_device(number)

    return there


def streams_of(place: torch.device) -> Any:
    """The module of torch for a kind of device that works through queues; None for other kinds."""
    api = None if place.type == "cpu" else getattr(torch, place.type, None)
    return api if hasattr(api, "Stream") else None


def is_captured(api: Any) -> bool:
    """Whether what this thread asks of the device is recorded, to be done later."""
    captured: bool = getattr(api, "is_current_stream_capturing", bool)()
    return captured


def _current_streams() -> dict[torch.device, Any]:
    """The stream of this thread on each device of a kind that has been started."""
    found = {}
    for kind in accelerators():
        api = streams_of(torch.device(kind))
        if getattr(api, "is_initialized", bool)():
            for place in (torch.device(kind, i) for i in range(api.device_count())):
                found[place] = api.current_stream(place)
    return found
