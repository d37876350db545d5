"""A process of its own: the emulated accelerator stays in it, and torch then says that it has one.

Run as `pytest tests/emulated`. Where torch has a CUDA device, the transfers run on that instead, and what is
about the pretend one is left out.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch"):
    from emulated.there import KIND

    only_pretend = ["test_device.py", "test_streams.py", "test_operators.py"]
    collect_ignore = only_pretend if KIND == "cuda" else []
else:
    collect_ignore_glob = ["test_*.py"]
