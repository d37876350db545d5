"""Transfers need an accelerator: `make test-emulated` names their file, and pretends one."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = ["test_transfers.py"]
if find_spec("torch"):
    import torch

    if torch.cuda.is_available():
        collect_ignore.clear()
