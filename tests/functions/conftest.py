"""JAX has 64 bits in these tests, except in those of a module with `NARROW`."""

from __future__ import annotations

import pytest
from crossed import wide

wide64 = pytest.fixture(wide)


@pytest.fixture(autouse=True)
def _wide_unless_narrow(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.module, "NARROW"):
        request.getfixturevalue("wide64")
