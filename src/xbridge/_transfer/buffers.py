"""`release_buffers`: give back the memory that backends keep for transfers."""

from contextlib import ExitStack

from xbridge._core.entry_points import entry_point
from xbridge._registry import registry


@entry_point
def release_buffers() -> None:
    """Free the pinned host memory that xbridge keeps for later transfers.

    It is kept by the library that moves the arrays, whose other unused pinned memory is freed too. Buffers
    that calls in other threads use stay, and those of a backend that was replaced. The next transfer pins new
    buffers. Libraries that were not used yet are not imported.

    Raises
    ------
    DeviceError
        A device failed.

    See Also
    --------
    transfer : Moves a batch through these buffers, as `to_backend` and `prefetch` do.

    Examples
    --------
    >>> import xbridge
    >>> xbridge.release_buffers()
    """
    with ExitStack() as stack:  # those of each backend, even if another one fails
        for backend in registry.loaded():
            stack.callback(backend.transfers.release_buffers)
