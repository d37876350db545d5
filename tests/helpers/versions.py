"""What older versions of torch and JAX cannot do, as docs/support.md says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

import pytest
from packaging.version import Version


def is_older(package: str, than: str) -> bool:
    """Return True if a package is installed in an older version."""
    try:
        return Version(version(package)) < Version(than)
    except PackageNotFoundError:
        return False


def skip_compiled(*_: object, **__: object) -> NoReturn:
    """Skip the test that compiles or exports a program."""
    pytest.skip("torch compiles and exports programs with calls of xbridge from 2.13 on")


needs_newer_jax = pytest.mark.skipif(
    is_older("jax", "0.10"), reason="JAX 0.8 runs a function again for its gradient"
)
