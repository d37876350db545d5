"""What older compilers of torch do not follow, as docs/support.md says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.version import Version


def _torch_version() -> Version:
    try:
        return Version(version("torch"))
    except PackageNotFoundError:
        return Version("0")


needs_whole_graphs = pytest.mark.skipif(
    _torch_version() < Version("2.13"), reason="the compiler follows every call from PyTorch 2.13 on"
)
