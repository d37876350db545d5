"""Read the autocast of this thread."""

from __future__ import annotations

import torch

from xbridge.backends.torch._devices import accelerators


def autocast_dtypes() -> dict[str, torch.dtype]:
    """Return the dtype of autocast for each kind of device where it is on."""
    kinds = [kind for kind in ("cpu", *accelerators()) if torch.amp.is_autocast_available(kind)]
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}
