"""What is no number: None, items of no known dtype, text in a tree, and gradients without values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xbridge

X = np.arange(3.0)


@pytest.mark.parametrize("xs", [(X, None), (None, X, 2), (None,), (None, [1.0, 2.0])])
def test_align__none_stays(xs: tuple[Any, ...]) -> None:
    """None stays None, as an optional argument that was not given, and decides nothing."""
    for _ in range(2):  # planned, and repeated
        made = xbridge.align(*xs, backend="numpy")
        assert [y is None for y in made] == [x is None for x in xs]
        assert [type(y) for y in xbridge.align(*xs)] == [type(y) for y in made]
    one, nothing = xbridge.align(X, None)
    assert (one is X, nothing) == (True, None)


def test_align_back__none_stays() -> None:
    """None stays None, and results go back to the first array; there is no way back to None."""
    for _ in range(2):  # planned, and repeated
        (nothing, x, other), restore = xbridge.align_back(None, X, [1.0], backend="numpy")
        assert (nothing, x is X, type(other)) == (None, True, np.ndarray)
        assert restore(x) is X
        assert restore(x, to=1) is X
        with pytest.raises(xbridge.OptionError):
            restore(x, to=0)
    with pytest.raises(xbridge.OptionError):
        xbridge.align_back(None, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_to_backend__raw_items_are_read_as_the_dtype_that_is_named(dtype: str) -> None:
    """NumPy's files keep a dtype of ml_dtypes as raw items, which a named dtype of that width reads."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wanted = np.array([1.0, -2.0], getattr(ml_dtypes, dtype))
    raw = wanted.view(f"V{wanted.itemsize}")
    for backend in ("numpy", "torch"):
        pytest.importorskip(backend)
        made = xbridge.to_backend(raw, backend, dtype=dtype)
        assert xbridge.dtype_of(made) == dtype
        assert xbridge.to_list(made) == [1.0, -2.0]
    for other in (None, "float32", "float64"):
        with pytest.raises(xbridge.XBridgeError):
            xbridge.to_backend(raw, "torch", dtype=other)


def test_tree__text_and_nothing_stay() -> None:
    """Arrays of text, also of Python's, and gradients without values stay, and stop no tree."""
    nothing = np.zeros(2, [("float0", np.void, 0)])
    batch = {"x": X, "text": np.array(["a", "bc"], object), "nothing": nothing}
    made = xbridge.tree.to_numpy(batch, dtype="float32")
    assert made["x"].dtype == np.float32
    assert made["text"] is batch["text"]
    assert made["nothing"] is nothing
    with pytest.raises(xbridge.DTypeError, match="at tree"):
        xbridge.tree.to_backend([np.array(["a", 1], object)], "numpy", dtype="float32")
