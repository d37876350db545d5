"""The names of torch that are not public, each with its purpose and the issue upstream, where there is one.

Torch has no public name for what they tell, or one that takes as long as a conversion. They are the same in
the oldest and the newest version that are tested, 2.7 and 2.13, unless a comment says otherwise.
"""

from __future__ import annotations

from ctypes import PYFUNCTYPE, py_object, pythonapi
from functools import partial
from typing import Any

import torch
from torch import overrides
from torch._C._dynamo import eval_frame
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

DECLINED = (AssertionError, RuntimeError, TypeError, ValueError)
"""What torch and its modes raise for a dtype, a device or a tensor that they refuse. Others are bugs."""

# -- transforms and modes ----------------------------------------------------------------------------

# A tensor of a transform, such as `vmap`, has no memory, or that of another tensor:
# https://github.com/pytorch/pytorch/issues/91810 and https://github.com/pytorch/functorch/issues/69
is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
get_unwrapped = torch._C._functorch.get_unwrapped
current_transform = torch._C._functorch.maybe_current_level
is_functional = torch._is_functional_tensor

# Modes that give tensors without values. `is_in_torch_dispatch_mode`, of the same private module, is a call
# where this is an attribute: https://github.com/pytorch/pytorch/pull/122339
get_dispatch_mode = torch._C._get_dispatch_mode
FAKE = torch._C._TorchDispatchModeKey.FAKE
PROXY = torch._C._TorchDispatchModeKey.PROXY
dispatch_modes = _python_dispatch
"""Its `_is_in_torch_dispatch_mode` is True while any such mode is on."""

# The level of forward mode, below 0 outside of it. Without it, each tensor would be asked for its tangent.
dual_levels = forward_ad
"""Its `_current_level` is the level."""

# The stack of function modes of this thread. A mode that ends while others are above it is removed later.
function_modes = overrides
"""Its `_get_current_function_mode` returns the top, or None, and its `_pop_mode` removes it."""

# `torch.jit.is_tracing` asks for scripting too: https://github.com/pytorch/pytorch/issues/27265
is_recording = torch._C._is_tracing
get_tracing_state = torch._C._get_tracing_state

# Attributes of a tensor subclass without its `__torch_function__`, which may run any code. Public is only the
# mode that disables all of them.
without_subclass = torch._C.DisableTorchFunctionSubclass

# `torch.inference_mode` is a class in Python, and takes twice as long as a conversion.
outside_inference_mode = partial(torch._C._InferenceMode, False)  # noqa: FBT003 -- it has no keywords

# -- memory ------------------------------------------------------------------------------------------

# A lazy zero has no memory, and `Tensor.numpy` of it was garbage: https://github.com/pytorch/pytorch/issues/89034
is_zerotensor = torch.Tensor._is_zerotensor

# Frees pinned memory. `torch.accelerator.empty_host_cache`, of 2.13, replaces it once that is the oldest:
# https://github.com/pytorch/pytorch/issues/134332 and https://github.com/pytorch/pytorch/pull/171270
# A build without an accelerator has neither.
empty_host_cache = getattr(torch._C, "_host_emptyCache", int)

# -- dispatch ----------------------------------------------------------------------------------------

# The dispatch keys of a tensor as one integer, which tells in one call whether it is an ordinary one.
dispatch_keys = torch._C._dispatch_keys
raw_keys = torch._C.DispatchKeySet.raw_repr

# Without this key, results of view operations are no views for autograd.
exclude_keys = torch._C._ExcludeDispatchKeyGuard
VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)

# The name of a device type that a plugin renamed: https://github.com/pytorch/pytorch/pull/125018
get_plugin_device = torch._C._get_privateuse1_backend_name


def accelerators() -> tuple[str, ...]:
    """Return the kinds of devices that torch may have. The last is that of a plugin."""
    return ("cuda", "xpu", "mps", get_plugin_device())


# -- the compiler ------------------------------------------------------------------------------------

_find_compiler: Any = getattr(eval_frame, "get_eval_frame_callback", torch.compiler.is_dynamo_compiling)
_keep: Any = PYFUNCTYPE(None, py_object)(("Py_IncRef", pythonapi))


def find_compiler() -> object:
    """Return the callback of torch's compiler if it looks at the functions that run now, else None.

    Torch 2.7 counts no reference for the caller, who drops one.
    """
    found = _find_compiler()
    _keep(found)
    return found


if not torch.__version__.startswith("2.7."):
    find_compiler = _find_compiler
