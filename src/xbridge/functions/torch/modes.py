"""Read the autocast of this thread, and enter that of another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


def autocast_dtypes() -> dict[str, torch.dtype]:
    """Return the dtype of autocast for each kind of device where it is on."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu"} if accelerator is None else {"cpu", accelerator.type}
    kinds = {kind for kind in kinds if torch.amp.is_autocast_available(kind)}
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}


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
