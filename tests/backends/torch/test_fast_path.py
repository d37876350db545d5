"""The short way from torch to NumPy takes tensors whose elements are all inside the storage."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import xbridge
from xbridge.backends._registry import get

torch = pytest.importorskip("torch")

LAYOUTS = {
    "the whole memory": ((2, 3), (3, 1), 0),
    "columns": ((2, 3), (1, 2), 0),
    "the last row": ((3,), (1,), 3),
    "a part of each row": ((2, 2), (3, 1), 1),
    "every second element of each row": ((2, 2), (3, 2), 0),
    "every second element": ((3,), (2,), 1),
    "one element for all": ((3,), (0,), 2),
    "rows that overlap": ((2, 3), (2, 1), 0),
    "windows": ((4, 3), (1, 1), 0),
}


def places(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> list[int]:
    """The place of every element in the storage, counted in elements."""
    indices = product(*map(range, shape))
    return [offset + sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_tensor_goes_the_short_way_and_is_read_only_if_two_elements_share_memory(
    layout: tuple[tuple[int, ...], tuple[int, ...], int], tracked: bool
) -> None:
    taken = places(*layout)
    base = torch.arange(max(taken) + 1.0)
    host = get("torch").fast_to_numpy(base.as_strided(*layout).requires_grad_(tracked))

    assert host is not None
    assert np.shares_memory(host, base.numpy())
    assert host.ravel().tolist() == taken
    assert host.flags.writeable is not (tracked or len(set(taken)) < len(taken))
    if not host.flags.writeable:
        with pytest.raises(ValueError, match="WRITEABLE"):
            host.flags.writeable = True


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_tensor_beyond_its_storage_does_not_go_the_short_way(
    layout: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    last = max(places(*layout))
    base = torch.arange(last + 1.0)
    x = base.as_strided(*layout)
    base.untyped_storage().resize_((last + 1) * base.itemsize - 1)

    assert get("torch").fast_to_numpy(x) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_a_leaf_of_a_dtype_of_another_package_becomes_read_only_for_good(dtype: Any) -> None:
    pytest.importorskip("ml_dtypes")
    x = torch.ones(4).to(dtype).requires_grad_()
    for _ in range(2):
        host = get("torch").fast_to_numpy(x)
        assert host is not None
        with pytest.raises(ValueError, match="WRITEABLE"):
            host.flags.writeable = True


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # by the compiler
def test_a_compiled_function_gets_a_copy_of_what_is_to_be_read_only() -> None:
    leaf = torch.ones(4).bfloat16().requires_grad_()
    for x in (torch.ones(1).expand(3), leaf):
        host = xbridge.to_numpy(x)
        torch.compiler.reset()
        made = torch.compile(xbridge.to_numpy, backend="eager")(x)
        assert not np.shares_memory(made, host)
        assert made.tolist() == host.tolist()


def test_under_a_compiler_what_is_to_be_read_only_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated, brain = torch.ones(1).expand(3), torch.ones(3).bfloat16().requires_grad_()
    module = get("torch")
    assert module.fast_to_numpy(repeated) is not None
    assert module.fast_to_numpy(brain) is not None
    monkeypatch.setattr("xbridge.backends.torch._compiler", lambda: print)
    assert module.fast_to_numpy(repeated) is None
    assert module.fast_to_numpy(brain) is None
    assert module.fast_to_numpy(torch.ones(3)[::2]) is not None


@pytest.mark.parametrize("dtype", [">U1", ">M8[s]", "S1", ">g"])
def test_a_dtype_that_torch_lacks_in_any_byte_order_does_not_go_the_short_way(dtype: str) -> None:
    assert get("torch").fast_from_numpy(np.zeros(2, dtype)) is None
