"""The fixtures of the pytest plugin, which it registers for a project that asks for them."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from xbridge.testing import _parametrize

if TYPE_CHECKING:
    from xbridge.testing._parametrize import BackendDevice


@pytest.fixture(scope="session")
def _xbridge_place(request: pytest.FixtureRequest) -> BackendDevice:
    """Return one backend and device of the run."""
    if not hasattr(request, "param"):
        pytest.fail(
            "cannot choose a backend: pytest parametrizes functions alone, by the names of their arguments; "
            "try naming backend among the arguments of a test function",
            pytrace=False,
        )
    place: BackendDevice = request.param
    return place


@pytest.fixture(scope="session")
def backend(_xbridge_place: BackendDevice) -> str:
    """Return the name of a backend. The test runs once for each that `--xbridge` names."""
    return _xbridge_place.backend


@pytest.fixture(scope="session")
def device(backend: str, request: pytest.FixtureRequest) -> Any:
    """Return the device for the arrays of `backend`: the named one, else one that is not its default."""
    if "_xbridge_place" in request.fixturenames:
        return _parametrize.device_of_namespace(request.getfixturevalue("_xbridge_place"))
    return _parametrize.device_of_namespace(_parametrize.place(backend))


@pytest.fixture(scope="session")
def xp(backend: str) -> ModuleType:
    """Return the array API namespace of `backend`."""
    return _parametrize.namespace(backend)
