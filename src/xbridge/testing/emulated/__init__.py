"""An emulated accelerator: a torch device `emu:0` on machines that have none.

`install()` makes it a real device type of torch in this process. Tensors on it are plain `torch.Tensor`, with
views, arithmetic, autograd and `torch.emu.Stream` and `Event` under the names that `torch.cuda` has. The host
cannot reach their memory. Asynchronous work runs as late as possible, when the program waits for it, and new
memory is filled with NaN or -1. So code that reads too early, overwrites a pinned buffer too soon or does not
wait for another stream is wrong every time, and not only under load.

The page "Test your library" says how copies behave, and what the device does not have. It stays for the rest
of the process and changes it, needs torch's experimental API for backends in Python, and is written for torch
2.13.

Examples
--------
>>> import torch
>>> from xbridge.testing import emulated
>>> emulated.install()
>>> host = torch.ones(3, device="emu").to("cpu", non_blocking=True)
>>> host.tolist()  # not waited for yet
[nan, nan, nan]
>>> torch.emu.synchronize()
>>> host.tolist()
[1.0, 1.0, 1.0]
"""

from __future__ import annotations

from functools import cache

from xbridge.errors import MissingLibraryError

try:
    import torch
    from torch.utils import backend_registration
except ImportError as _error:
    raise MissingLibraryError.build(
        "emulate an accelerator", "torch is not installed", "pip install 'xbridge-array[torch]'"
    ) from _error

from xbridge.testing.emulated import _kernels, _streams

__all__ = ["install"]


@cache
def install() -> None:
    """Make `emu` a device type of torch, for the rest of this process. A second call does nothing.

    Raises
    ------
    MissingLibraryError
        The torch that is installed has no backends in Python.
    RuntimeError
        If another backend has already taken the place that torch keeps for one more device type.

    Examples
    --------
    >>> import torch
    >>> from xbridge.testing import emulated
    >>> emulated.install()
    >>> torch.arange(3, device="emu").sum()
    tensor(3, device='emu:0')
    """
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        raise MissingLibraryError.build(
            "install the emulated accelerator",
            f"torch {torch.__version__} has no backends in Python",
            "pip install --upgrade torch",
        )
    backend_registration._setup_privateuseone_for_python_backend("emu", backend_module=_streams)
    _streams.Stream()  # the default stream
    _kernels.register()
    # The first operator makes torch import its meta kernels, which takes seconds. That happens here, and not
    # in the first example of a test, whose deadline is 0.2 seconds.
    torch.ones(1, device="emu").add(1).item()
