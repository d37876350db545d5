"""The functions of the how-to pages keep what the kit asks of functions."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xbridge
from xbridge.testing import assert_contract, assert_matches_numpy

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-backend-agnostic-function.md"
STATEMENTS = ("from ", "import ", "def ", "@", "KERNEL", "wrap =", "blur =", "order =")
"""How the statements of the page begin that define names."""

VALUES = [0.5, 0.0, 4.0, 0.25, 1.0]


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    """The names that the page defines."""
    for name in ("torch", "jax", "dask.array", "scipy"):
        pytest.importorskip(name)
    names: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(PAGE.read_text(encoding="utf-8")):
        if example.source.startswith(STATEMENTS):
            exec(example.source, names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "array_api_strict"])
def test_page__functions_of_the_how_to(functions: dict[str, Any], library: str) -> None:
    """The functions of the page give NumPy's results in every library and layout, for integers too."""
    if not xbridge.is_available(library):
        pytest.skip("it is not installed")
    x = xbridge.asarray(np.array(VALUES, "float32"), backend=library)
    n = xbridge.asarray(np.array([0, 0, 4, 0, 8], "int32"), backend=library)
    for name in ("smooth", "frequencies", "standardize", "floating"):
        assert_matches_numpy(functions[name], x)
        assert_contract(functions[name], x, dtype="kept", ulp=16, empty=False)
    assert_contract(functions["distance"], x, x, dtype="kept")
    assert_matches_numpy(lambda x: functions["smooth"](functions["floating"](x)), n, dtype="kind")
    assert_contract(lambda x: functions["smooth"](functions["floating"](x)), n, empty=False)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "array_api_strict"])
def test_page__functions_that_compute_in_another_library(functions: dict[str, Any], library: str) -> None:
    """Functions of the page that compute in NumPy give its results in every library and layout."""
    if not xbridge.is_available(library):
        pytest.skip("it is not installed")
    x = xbridge.asarray(np.array(VALUES, "float32"), backend=library)
    n = xbridge.asarray(np.array([3, 1, 2], "int32"), backend=library)
    assert_matches_numpy(functions["blur"], x, 0.5)
    assert_contract(functions["blur"], x, 0.5, dtype="kept")
    assert_matches_numpy(functions["order"], n, dtype="kind")
    assert_contract(functions["order"], n)


def test_page__function_of_jax_for_tensors() -> None:
    """The function of JAX on the page for tensors keeps the contract, with its gradient."""
    names: dict[str, Any] = {}
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    page = PAGE.with_name("jax-and-torch.md").read_text(encoding="utf-8")
    for example in doctest.DocTestParser().get_examples(page):
        if example.source.startswith(("from xbridge", "import ", '@aligned(backend="jax")')):
            exec(example.source, names)
    x = xbridge.asarray(np.array(VALUES, "float32"), backend="torch")
    assert_contract(names["energy"], x, dtype="kept", differentiable=True)
