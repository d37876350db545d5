"""The names of torch that are not public, and that functions need, each with its purpose.

They are the same in the oldest and the newest version that are tested, 2.7 and 2.13, unless a comment says
otherwise.

Attributes of torch's own objects, such as `x._version`, `module._modules`, `module._parameters`,
`module._buffers`, `storage._cdata` and `func._schema`, are older than 2.0 and are read where they are needed.
A test reads each with the oldest and the newest version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch._subclasses import fake_tensor
from torch.autograd import forward_ad, graph
from torch.utils import _python_dispatch

from xbridge.extend import locks

# -- transforms ----------------------------------------------------------------------------------------------

# A call within a transform becomes an autograd function for transforms, which takes four times as long.
current_level = torch._C._functorch.maybe_current_level
dual_levels = forward_ad
"""Its `_current_level` is the level of forward mode, below 0 outside of it, and one for all threads."""

# A tensor of a transform knows neither its version nor its graph: https://github.com/pytorch/functorch/issues/69
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
get_unwrapped = torch._C._functorch.get_unwrapped
unwrap_if_dead = torch._C._functorch.unwrap_if_dead

# The batch of `is_grads_batched`, for which an autograd function has no rule, is none of `torch.func`.
is_gradient_batch = torch._C._functorch.is_legacy_batchedtensor

# `torch.autograd.grad` without its checks, which take a quarter of the time of a small graph.
run_backward = graph._engine_run_backward

# -- modes ---------------------------------------------------------------------------------------------------

# The base of modes that see each operation: torch describes it under "Extending PyTorch".
TorchDispatchMode = _python_dispatch.TorchDispatchMode
FakeTensorMode = fake_tensor.FakeTensorMode
get_dispatch_modes = _python_dispatch._get_current_dispatch_mode_stack
without_dispatch_modes = _python_dispatch._disable_current_modes
any_autocast_enabled = torch._C._is_any_autocast_enabled

# The flags `_is_in_...`, of the whole process. Torch 2.7 to 2.9 have fewer, and no function to note one.
dispatch_modes = _python_dispatch
note_flag = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", id)


def unwrap(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor that holds the numbers of one in transforms of `torch.func`."""
    while is_wrapped(x):
        x = get_unwrapped(x)
    return x


class _SharedFlags:
    """Guards the use of dispatch modes in several threads at the same time.

    A mode belongs to a thread, but torch has flags for the whole process that say if any mode is on, and each
    mode restores the flags that it found. So of overlapping threads, the last could leave a flag on for ever.
    This context sets the flags by a count of its users. While they are on, torch's compiler runs functions as
    they are written, so that their calls are seen.
    """

    def __init__(self) -> None:
        self._users = 0
        self._lock = locks.lock()

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._set(on=True)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users or not get_dispatch_modes():
                self._set(on=self._users > 0)

    def _set(self, *, on: bool) -> None:
        flags = vars(dispatch_modes)
        flags.update(dict.fromkeys([name for name in flags if name.startswith("_is_in_")], on))
        note_flag(on)


shared_flags = _SharedFlags()


def autocast_dtypes() -> dict[str, torch.dtype]:
    """Return the dtype of autocast for each kind of device where it is on."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu"} if accelerator is None else {"cpu", accelerator.type}
    kinds = {kind for kind in kinds if torch.amp.is_autocast_available(kind)}
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}


def modes() -> object:
    """Return the default dtype, and the dtypes of autocast if it is on."""
    autocast = tuple(autocast_dtypes().items()) if any_autocast_enabled() else ()
    return torch.get_default_dtype(), autocast


@contextmanager
def enter_autocast(dtypes: dict[str, torch.dtype]) -> Iterator[None]:
    """Turn autocast on for these kinds of devices, and off for all others.

    It casts weights anew, because the cache of the thread may have, or get, casts that belong to a transform
    or have no values.
    """
    with ExitStack() as stack:
        for kind in {*autocast_dtypes(), *dtypes}:
            stack.enter_context(
                torch.autocast(kind, dtypes.get(kind), enabled=kind in dtypes, cache_enabled=False)
            )
        yield
