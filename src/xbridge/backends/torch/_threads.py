"""Streams of a device, and the modes and streams of a thread on behalf of which another one converts.

All worker threads share one stream for each device, so that torch's allocator reuses memory of that stream.
The wait for the caller's stream happens in the worker thread and not on the workers' stream. So a conversion
does not wait for the computation of the arrays of an earlier conversion.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from typing import Any

import torch

from xbridge._core.devices import Device
from xbridge._core.protocol import ArrayFn
from xbridge.backends.torch import _private
from xbridge.backends.torch._dtypes import default_dtype, defaults_of_calls
from xbridge.backends.torch._private import accelerators
from xbridge.errors import DeviceError

_worker_streams: dict[torch.device, Any] = {}

_thread_state = threading.local()
"""Holds the inference mode of a worker thread, which ends when the object of the mode is deleted."""


def streams_of(place: torch.device) -> Any:
    """Return the module of torch for a kind of device with streams; None for other kinds."""
    api = None if place.type == "cpu" else getattr(torch, place.type, None)
    return api if hasattr(api, "Stream") else None


def is_captured(api: Any) -> bool:
    """Return True if a CUDA graph is being captured: work is recorded, to run later."""
    captured: bool = getattr(api, "is_current_stream_capturing", bool)()
    return captured


def worker_stream(place: torch.device) -> Any:
    """Return the stream on which worker threads convert to and from a device, the same one in all threads."""
    if place not in _worker_streams:
        _worker_streams.setdefault(place, getattr(torch, place.type).Stream(place))
    return _worker_streams[place]


def threaded(fn: ArrayFn, device: Device) -> ArrayFn:
    """Return `fn` for another thread. It runs after the work that this thread has queued, and is complete."""
    place, recording, mine = torch.device(device), torch.is_grad_enabled(), _current_streams()
    api, side, asked, wide = _streams_for_threads(place), None, None, default_dtype()
    if api is not None:
        side, asked = worker_stream(place), api.current_stream(place).record_event()

    def in_thread(xs: list[object]) -> list[object]:
        with _private.without_subclass():
            there = place in [x.device for x in xs if isinstance(x, torch.Tensor)]
        if asked is not None and there:
            asked.synchronize()
        outer = defaults_of_calls.get(get_ident())
        defaults_of_calls[get_ident()] = wide
        try:
            with torch.set_grad_enabled(recording), nullcontext() if api is None else api.stream(side):
                made = fn(xs)
                if side is not None:
                    side.synchronize()
        finally:
            del defaults_of_calls[get_ident()]
            if outer is not None:  # of the call that this thread converts for
                defaults_of_calls[get_ident()] = outer
        with _private.without_subclass():
            for y in made:
                if isinstance(y, torch.Tensor) and y.device in mine:
                    if y.is_conj() or y.is_neg():  # torch would resolve it, and record the new memory only
                        bare = torch.empty(0, dtype=torch.uint8, device=y.device)
                        y = bare.set_(y.untyped_storage())  # noqa: PLW2901 -- of the same memory
                    y.record_stream(mine[y.device])
        return made

    return in_thread


def queue_mark(device: Device) -> Callable[[], object]:
    """Return a function that waits for the work that this thread has queued on a device so far."""
    place = torch.device(device)
    api = _streams_for_threads(place)
    return int if api is None else api.current_stream(place).record_event().synchronize


def thread_context() -> Callable[[], None]:
    """Return a function that gives another thread the modes, devices and streams of this one."""
    recording, mine = torch.is_grad_enabled(), _current_streams()
    default, inference = torch.get_default_device(), torch.is_inference_mode_enabled()
    kinds = [kind for kind in ("cpu", *accelerators()) if torch.amp.is_autocast_available(kind)]
    autocast = {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}
    numbers = {api: api.current_device() for api in map(streams_of, mine)}

    def apply() -> None:
        if inference:
            _thread_state.mode = torch.inference_mode()
            _thread_state.mode.__enter__()
        for kind, dtype in autocast.items():
            torch.set_autocast_enabled(kind, True)  # noqa: FBT003 -- as torch has it
            torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_cache_enabled(False)
        torch.set_grad_enabled(recording)
        if default != torch.get_default_device():
            torch.set_default_device(default)
        for place, stream in mine.items():
            if stream != streams_of(place).default_stream(place):  # otherwise every device would be started
                streams_of(place).set_stream(stream)
        for api, number in numbers.items():
            api.set_device(number)

    return apply


def _streams_for_threads(place: torch.device) -> Any:
    """Return `streams_of` a device; raise in a state of this thread in which no other one can take part."""
    api, reason = streams_of(place), ""
    if api is not None and is_captured(api):
        reason = "a graph is being captured, and follows this one alone"
    elif _private.get_dispatch_mode(_private.FAKE) is not None:
        reason = "FakeTensorMode is on in this one alone"
    if reason:
        action = f"convert arrays to or from {place} in another thread"
        raise DeviceError.build(action, reason)
    return api


def _current_streams() -> dict[torch.device, Any]:
    """Return the current stream of this thread on each device whose library is initialized."""
    found = {}
    for kind in accelerators():
        api = streams_of(torch.device(kind))
        if getattr(api, "is_initialized", bool)():
            for place in (torch.device(kind, i) for i in range(api.device_count())):
                found[place] = api.current_stream(place)
    return found
