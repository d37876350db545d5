"""A cast between NumPy and torch gives the bits of the target library's own cast.

Expected results come from the libraries alone, from dense arrays of the same bits.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rawmemory import bits, same_bits, tensor_of
from strategies import SWEPT, host_dtype
from strategies_casts import castable, pairs_of
from strategies_torch import TORCH_DTYPES, torch_dtype
from torch_modes import default_dtype

import xbridge

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from rawmemory import Host
    from torch import Tensor

SWEPT_PAIRS = pairs_of([word for word in SWEPT if word in TORCH_DTYPES])

FLOATS = ("float64", "float32", "float16", "bfloat16")


def as_tensor(array: Host) -> Tensor:
    """A dense tensor of the same bits, in memory of its own."""
    tensor: Tensor = tensor_of(bits(array), torch_dtype(array.dtype.name))
    return tensor


def cast_by_numpy(array: Host, word: str) -> Host | None:
    """NumPy's own cast; None where NumPy has none."""
    if not np.can_cast(array.dtype, host_dtype(word), "unsafe"):
        return None
    with np.errstate(all="ignore"):
        return array.astype(host_dtype(word))


@pytest.mark.parametrize(("source", "target"), SWEPT_PAIRS)
def test_to_backend__casts_as_torch_does(source: str, target: str) -> None:
    """A cast to torch gives the bits of torch's own cast, from any source."""
    array = castable(source, target, np.random.default_rng(1))
    expected = as_tensor(array).to(torch_dtype(target))
    for given_array in (array, as_tensor(array)):
        result = xbridge.to_backend(given_array, "torch", dtype=target)
        assert result.dtype == expected.dtype
        assert same_bits(result, expected)


@pytest.mark.parametrize(("source", "target"), SWEPT_PAIRS)
def test_to_numpy__casts_as_numpy_does(source: str, target: str) -> None:
    """A cast to NumPy gives the bits of NumPy's own cast, from any source."""
    array = castable(source, target, np.random.default_rng(2))
    expected = cast_by_numpy(array, target)
    for given_array in (array, as_tensor(array)):
        if expected is None:
            with pytest.raises(xbridge.DTypeError):
                xbridge.to_numpy(given_array, dtype=target)
        else:
            result = xbridge.to_numpy(given_array, dtype=target)
            assert result.dtype == expected.dtype
            assert same_bits(result, expected)


def test_to_backend__float16_rounds_as_the_target_does() -> None:
    """Between two float16 values, NumPy rounds once, and torch rounds through float32."""
    array = np.array([1 + 2**-11 + 2**-40])
    assert xbridge.to_backend(array, "torch", dtype="float16").item() == as_tensor(array).half().item()
    assert xbridge.to_numpy(as_tensor(array), dtype="float16").item() == 1 + 2**-10


# -- dtype="default" -----------------------------------------------------------------------------


def test_to_backend__finds_a_lost_value_after_a_signalling_nan() -> None:
    """A signalling NaN, which hides the largest number from a reduction, hides no loss."""
    array = np.array([0x7FF0000000000001, 0, 0], np.uint64).view(np.float64)
    array[1] = 1e300
    for source in (array, as_tensor(array)):
        with pytest.raises(xbridge.ValueLossError):
            xbridge.to_backend(source, "torch", dtype="default")


def test_to_backend__finds_a_value_rounded_to_infinity() -> None:
    """A value that torch rounds to infinity, by way of float32, counts as lost."""
    array = np.array([65519.99999999])
    lost = torch.isinf(as_tensor(array).half()).any()
    for source in (array, as_tensor(array)):
        with default_dtype("float16"), pytest.raises(xbridge.ValueLossError) if lost else nullcontext():
            xbridge.to_backend(source, "torch", dtype="default")


@pytest.mark.parametrize("default", FLOATS)
def test_default_dtype__follows_torch(default: str) -> None:
    """Floats have torch's default dtype, and complex numbers the one with parts of 32 bits at least."""
    with default_dtype(default):
        made = [xbridge.asarray([number], backend="torch").dtype for number in (0.5, 0.5j, 1, True)]
        assert xbridge.to_backend(np.ones(1), "torch").dtype == torch.float64
        with pytest.raises(xbridge.ValueLossError) if default == "float16" else nullcontext():
            xbridge.asarray([1e5], backend="torch")
    both = torch.complex128 if default == "float64" else torch.complex64
    assert made == [torch_dtype(default), both, torch.int64, torch.bool]
