"""What is collected if a library is missing, how many dtypes are swept, and how hard Hypothesis tries.

Examples that need a library are left out where it is missing. Hypothesis draws the same in every run, so that
each can be repeated; `make hunt` draws other examples.
"""

import gc
import os
import sys
import threading
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import Phase, settings

EXPORTERS = (Path(__file__).parent / "src/xbridge/_host/exporters").glob("*.py")

OWN_SETTINGS = (
    *("PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONDEVMODE", "FORCE_COLOR", "NO_COLOR", "COLUMNS"),
    *("JAX_ENABLE_X64", "JAX_NUMPY_DTYPE_PROMOTION"),
    *("XBRIDGE_POLICY", "XBRIDGE_PINNED_MIB", "XBRIDGE_TRACEBACK"),
)
"""Environment variables by which a person sets what tests set themselves, here or where they start Python."""

for _name in OWN_SETTINGS:  # before xbridge or JAX is imported
    os.environ.pop(_name, None)

NEEDING = {
    "torch": [
        "src/xbridge/backends/torch",
        "src/xbridge/functions/torch",
        "src/xbridge/testing/_matches.py",
        "src/xbridge/testing/_pure.py",
        "src/xbridge/files/formats/pt.py",
        "src/xbridge/testing/samples/torch.py",
        "src/xbridge/_align_back.py",
        "src/xbridge/_api.py",
        "src/xbridge/functions/wrapper.py",
        "src/xbridge/_observe/policy.py",
        "src/xbridge/tree/verbs.py",
        "src/xbridge/testing/_derived.py",
        "src/xbridge/testing/assertions.py",
    ],
    "jax": [
        "src/xbridge/_api.py",
        "src/xbridge/tree/verbs.py",
        "src/xbridge/backends/jax",
        "src/xbridge/functions/jax",
        "src/xbridge/testing/samples/jax.py",
    ],
    "dask": [
        "src/xbridge/_api.py",
        "src/xbridge/tree/verbs.py",
        "src/xbridge/backends/dask",
        "src/xbridge/functions/dask.py",
        "src/xbridge/testing/_derived.py",
        "src/xbridge/testing/samples/dask.py",
    ],
    **{path.stem: [str(path)] for path in EXPORTERS if path.stem not in ("__init__", "generic")},
    "libcst": ["src/xbridge/files/idioms.py"],
    "safetensors": ["src/xbridge/files/formats/safetensors.py"],
    "array_api_strict": [
        "src/xbridge/backends/array_api_strict.py",
        "src/xbridge/testing/samples/array_api_strict.py",
    ],
}

WITHOUT_EXAMPLES = [
    "src/xbridge/backends/cupy.py",
    "src/xbridge/testing/samples/cupy.py",
]
"""What cannot be imported without a GPU."""

WITH_TORCH = [
    "tests/kit/test_bites.py",
    "tests/project/test_add_a_backend.py",
    "tests/project/test_adopters.py",
    "tests/project/test_downstream.py",
    "tests/project/test_examples.py",
    "tests/project/test_site.py",
]
"""Programs and tools, which take long and are the same without torch: they run where torch is."""

missing = [library for library in NEEDING if not find_spec(library)]
collect_ignore = WITHOUT_EXAMPLES + [path for library in missing for path in NEEDING[library]]
if "torch" in missing:
    collect_ignore += WITH_TORCH

STATE = pytest.StashKey[dict[str, object]]()
"""The state of the process before a test."""

CURRENT = "PYTEST_CURRENT_TEST"
"""The environment variable that pytest changes in each phase of a test."""

FOUR_DTYPES = "bfloat16,bool,complex64,int64"
"""A dtype of each kind, and of those that NumPy has through ml_dtypes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the sweep over all dtypes, and the snapshot of messages anew."""
    parser.addoption("--exhaustive", action="store_true", help=f"sweep over more than {FOUR_DTYPES}")
    parser.addoption("--update-messages", action="store_true", help="write tests/api/messages.txt anew")


def pytest_configure(config: pytest.Config) -> None:
    """Limit the sweep over dtypes, which `swept_dtypes` reads, and collect garbage less often."""
    gc.set_threshold(20_000, 10, 20)  # with Python's own numbers, collections are a seventh of all time
    if not config.getoption("exhaustive", default=False):  # pytest 8.2 may load this file after the options
        os.environ.setdefault("XBRIDGE_TEST_DTYPES", FOUR_DTYPES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Leave unmeasured tests out of coverage, whose tracing takes longer than what is traced."""
    tracer, in_threads = sys.gettrace(), threading.gettrace()
    # the conformance suite runs no branch that other tests do not
    is_unmeasured = item.get_closest_marker("unmeasured") or "conformance" in item.path.parts
    if not (is_unmeasured and type(tracer).__module__ == "coverage"):
        return (yield)
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        threading.settrace(in_threads)
        sys.settrace(tracer)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Fail a test that leaves its thread untraced: coverage would measure no later test."""
    tracer = sys.gettrace()
    yield
    if tracer and not sys.gettrace():
        sys.settrace(tracer)
        pytest.fail("the test has ended the tracing of its thread")


def process_state() -> dict[str, object]:
    """Return what tests share in their process, and have to leave as they found it.

    None stands for a library that is not imported. Filters of warnings and new environment variables are not
    among it, because libraries add some when they are imported.
    """
    torch, registry = sys.modules.get("torch"), sys.modules.get("xbridge._registry.registry")
    numpy = sys.modules.get("numpy")
    return {
        **{f"the environment variable {name}": text for name, text in os.environ.items() if name != CURRENT},
        "the profile of Hypothesis": settings.get_current_profile_name(),
        "the error handling of NumPy": numpy.geterr() if numpy else None,
        "the default dtype of torch": torch.get_default_dtype() if torch else None,
        "the modes of torch": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) if torch else None,
        "the registered backends": registry.known_backends() if registry else None,
    }


@pytest.fixture(autouse=True)
def _registered_by_example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the backends that the example of a docstring registers."""
    registry = sys.modules.get("xbridge._registry.registry")
    if registry and isinstance(request.node, pytest.DoctestItem):
        monkeypatch.setattr(registry, "_entries", vars(registry)["_entries"])


_begun: set[Path] = set()
"""The files of which a test has run."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Note the state of the process before a test; a file of tests begins with nothing to collect."""
    if item.path not in _begun:
        _begun.add(item.path)
        gc.freeze()  # libraries that were imported meanwhile are most of all objects
    item.stash[STATE] = process_state()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that leaves something behind in the process, which would change the tests after it."""
    yield
    before, after = item.stash[STATE], process_state()
    changed = [what for what, known in before.items() if known is not None and after.get(what) != known]
    if changed:
        pytest.fail(f"the test has changed {' and '.join(changed)}")


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of every garbage collection, which is most of all objects."""
    gc.freeze()


# The first example of a run pays for imports, so an example has no time limit anywhere.
settings.register_profile("same", max_examples=20, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(  # no database, which replays earlier failures: what is drawn follows from the seed
    "hunt", max_examples=100, deadline=None, database=None, derandomize=False, print_blob=True
)
settings.register_profile(  # a mutant runs thousands of tests: few examples, and none of them made smaller
    "mutation", max_examples=25, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile(  # the oldest versions are held to every promise, by few examples
    "floors", max_examples=10, deadline=None, derandomize=True, print_blob=True
)
settings.load_profile("same")
