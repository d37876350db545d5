"""`release_buffers`: give back the memory that backends keep for transfers."""

from xbridge._core.entry_points import entry_point
from xbridge._registry.registry import loaded


@entry_point
def release_buffers() -> None:
    """Free the pinned host memory that xbridge keeps for later transfers.

    Buffers in use stay: those of calls in other threads, and those of transfers whose result was not taken
    yet. For the buffer of a transfer that was deleted, the call waits until its copy is done. The next
    transfer pins new buffers. Libraries that were not used yet are not imported. The buffers of a backend
    that was replaced by another one stay.

    See Also
    --------
    transfer : Moves a batch through these buffers, as `to_backend` and `prefetch` do.

    Examples
    --------
    >>> import xbridge
    >>> xbridge.release_buffers()
    """
    for backend in loaded():
        if backend.release_buffers is not None:
            backend.release_buffers()
