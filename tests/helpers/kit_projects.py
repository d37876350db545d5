"""Projects to run pytest in: a pytest plugin for the tests of ours.

A project has libraries of its own: toys with three devices, bare ones without a namespace, and one that is
not installed.
"""

from __future__ import annotations

from importlib import import_module
from textwrap import dedent
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pytest
from hypothesis import settings

import xbridge
from xbridge.testing import _parametrize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = ["pytester"]

TOYS = """
import array_api_compat.numpy
import xbridge
from toylib import make_backend
from xbridge.protocol import Gap, Unsupported

def lacks(dtype, device):
    return Unsupported(xbridge.DTypeError, "toys are real", "x.real") if dtype == "complex64" else None

toylib = make_backend(
    devices=lambda: tuple(map(xbridge.Device, ("cpu", "chip:0", "chip:1"))),
    gaps={"autograd": Gap("never", "toys do not differentiate")},
    unsupported_dtype=lacks,
    namespace=lambda x: array_api_compat.numpy,
)
barelib = make_backend("barelib", gaps={"namespace": Gap("never", "it is too small")})
xbridge.register_backend("toylib", toylib, replace=True)
xbridge.register_backend("barelib", barelib, replace=True)
xbridge.register_backend("nolib", "nolib_xbridge")
"""

WITHOUT = ("-p", "no:cacheprovider", "-p", "no:jaxtyping", "-p", "no:zarr", "-p", "no:unraisableexception")
"""Plugins that take most of the time of a run: one imports all of zarr, one looks through all memory."""


Loading: TypeAlias = "tuple[str, ...]"
Ids: TypeAlias = "Callable[..., list[str]]"


class Run(Protocol):
    """Run pytest in a project that has only this one test file, which imports pytest first."""

    def __call__(self, test: str, /, *options: str) -> pytest.RunResult: ...


@pytest.fixture(scope="module")
def loading(request: pytest.FixtureRequest) -> Loading:
    """What loads the plugin: nothing where xbridge is installed, as its entry point does."""
    return () if request.config.pluginmanager.has_plugin("xbridge") else ("-p", "_xbridge_pytest")


@pytest.fixture(scope="module")
def _imported() -> None:
    """What a run imports must be here before it: pytester forgets it, and torch cannot be imported twice."""
    for name in filter(xbridge.is_available, xbridge.known_backends()):
        _parametrize.namespace(name)
    import_module("xbridge.testing._numpy_readonly")


@pytest.fixture
def run(pytester: pytest.Pytester, loading: Loading, _imported: None, own_registry: None) -> Iterator[Run]:
    profile = settings.get_current_profile_name()  # the tests of a project may load another
    xbridge.register_backend("numpy_readonly", "xbridge.testing._numpy_readonly", roots=("xbridge",))
    pytester.makeconftest(TOYS)

    def run(test: str, /, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=f"import pytest\n\n{dedent(test).strip()}")
        return pytester.runpytest(*loading, *WITHOUT, "-rsx", "-o", "xbridge_fixtures=true", *options)

    yield run
    settings.load_profile(profile)


@pytest.fixture
def ids(run: Run) -> Ids:
    """What would run, in order."""

    def ids(test: str, /, *options: str) -> list[str]:
        shown = run(test, "--collect-only", "-q", *options).outlines
        return [line.partition("::")[2] for line in shown if "::" in line]

    return ids
