"""The functions of the how-to pages keep what the kit asks of functions."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xbridge
from xbridge.testing import assert_contract, assert_matches_numpy

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
VALUES = [0.5, 0.0, 4.0, 0.25, 1.0]

each_library = pytest.mark.parametrize("library", ["numpy", "torch", "jax", "array_api_strict"])


def names_of(page: str, *statements: str) -> dict[str, Any]:
    """What the program of a page defines, and those of its examples that begin like one of the statements."""
    for name in ("torch", "jax", "scipy"):
        pytest.importorskip(name)
    text = (PAGES / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0], names)
    for example in doctest.DocTestParser().get_examples(text):
        if example.source.startswith(statements):
            exec(example.source, names)
    return names


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    """The names that the page about functions defines."""
    return names_of("write-a-backend-agnostic-function.md", "from functools", "wrap =", "blur =")


def of(library: str, values: list[float], dtype: str) -> Any:
    if not xbridge.is_available(library):
        pytest.skip("it is not installed")
    return xbridge.asarray(np.array(values, dtype), backend=library)


@pytest.mark.slow
@each_library
def test_page__functions_of_the_how_to(functions: dict[str, Any], library: str) -> None:
    """The functions of the page give NumPy's results in every library and layout, for integers too."""
    x, n = of(library, VALUES, "float32"), of(library, [0, 0, 4, 0, 8], "int32")
    for name in ("smooth", "phases"):
        assert_matches_numpy(functions[name], x)
        assert_contract(functions[name], x, dtype="kept", ulp=16, empty=False)
    assert_matches_numpy(functions["smooth"], n, dtype="kind")
    assert_contract(functions["smooth"], n, overflow=False, empty=False)


@each_library
def test_page__functions_that_compute_in_another_library(functions: dict[str, Any], library: str) -> None:
    """Functions of the page that compute in SciPy give its results in every library and layout."""
    x = of(library, VALUES, "float32")
    assert_matches_numpy(functions["blur"], x, 0.5)
    assert_contract(functions["blur"], x, 0.5, dtype="kept", shape="kept")
    assert_matches_numpy(functions["peaks"], x, dtype="kind")
    assert_contract(functions["peaks"], x, empty=False)


def test_page__function_of_jax_for_tensors() -> None:
    """The function of JAX on the page for tensors keeps the contract, with its gradient."""
    names = names_of("jax-and-torch.md", '@aligned(backend="jax")')
    x = xbridge.asarray(np.array(VALUES, "float32"), backend="torch")
    assert_contract(names["energy"], x, dtype="kept", differentiable=True)
