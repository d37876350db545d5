"""What functions across libraries need of torch that torch keeps private, or does not document.

A test reads each of these names with the oldest and the newest version of torch.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import _engine_run_backward as run_backward
from torch.utils import _python_dispatch

from xbridge._core.locks import lock

__all__ = ["FakeTensorMode", "run_backward"]

_functorch = torch._C._functorch

current_level = _functorch.maybe_current_level
"""Returns the number of transforms of `torch.func` around the code that runs; None if there is none."""


any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Returns True if autocast is on for any kind of device."""

count_dispatch_modes = torch._C._len_torch_dispatch_stack
"""Returns the number of dispatch modes of this thread."""

without_dispatch_modes = _python_dispatch._disable_current_modes
"""A context without dispatch modes, such as one in which tensors have no values."""

without_function_modes = torch._C.DisableTorchFunction
"""A context without modes of `torch.overrides`, which also see what a dispatch mode calls."""


def unwrap(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor that holds the numbers of one in transforms of `torch.func`."""
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    return x


_lock = lock()


class _SharedFlags:
    """Guards the use of dispatch modes in several threads at the same time.

    A mode belongs to a thread, but torch has flags for the whole process that say if any mode is on, and each
    mode restores the flags that it found. So of overlapping threads, the last could leave a flag on for ever.
    This context sets the flags by a count of its users. While they are on, torch's compiler runs functions as
    they are written, so that their calls are seen.
    """

    def __init__(self) -> None:
        self._users = 0

    def __enter__(self) -> None:
        with _lock:
            self._users += 1
            if self._users == 1:
                _set_flags(on=True)

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._users -= 1
            if self._users or not count_dispatch_modes():
                _set_flags(on=self._users > 0)


shared_flags = _SharedFlags()

_names = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]
_flags = [dict.fromkeys(_names, on) for on in (False, True)]
_note_flag = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", id)


def _set_flags(*, on: bool) -> None:
    vars(_python_dispatch).update(_flags[on])
    _note_flag(on)
