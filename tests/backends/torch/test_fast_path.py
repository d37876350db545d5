"""The short ways between torch and NumPy share memory whose elements are each at one place, and no other."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import xbridge
from xbridge._registry.registry import get

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


def shorter(host: np.ndarray[Any, Any]) -> Any:
    """The tensor of an array, or None if it does not go the short way."""
    return get("torch").fast.from_numpy(host)


def places(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> list[int]:
    """The place of every element in the storage, counted in elements."""
    indices = product(*map(range, shape))
    return [offset + sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_fast_to_numpy__overlapping_elements_are_read_only(
    layout: tuple[tuple[int, ...], tuple[int, ...], int], tracked: bool
) -> None:
    """A result is read-only if two of its elements share memory or it requires grad."""
    taken = places(*layout)
    base = torch.arange(max(taken) + 1.0)
    host = get("torch").fast.to_numpy(base.as_strided(*layout).requires_grad_(tracked))

    assert host is not None
    assert np.shares_memory(host, base.numpy())
    assert host.ravel().tolist() == taken
    assert host.flags.writeable is not (tracked or len(set(taken)) < len(taken))
    if not host.flags.writeable:
        with pytest.raises(ValueError, match="WRITEABLE"):
            host.flags.writeable = True


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_fast_to_numpy__declines_tensors_beyond_their_storage(
    layout: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    """A tensor that reaches beyond its storage is declined."""
    last = max(places(*layout))
    base = torch.arange(last + 1.0)
    x = base.as_strided(*layout)
    base.untyped_storage().resize_((last + 1) * base.itemsize - 1)

    assert get("torch").fast.to_numpy(x) is None


@pytest.mark.parametrize("tracked", [False, True])
def test_fast_to_numpy__shares_bfloat16(tracked: bool) -> None:
    """A dtype of ml_dtypes is shared, and writable unless the tensor requires grad."""
    pytest.importorskip("ml_dtypes")
    x = torch.arange(4.0).to(torch.bfloat16).requires_grad_(tracked)
    host = get("torch").fast.to_numpy(x)

    assert host is not None
    assert (host.dtype.name, host.tolist()) == ("bfloat16", [0.0, 1.0, 2.0, 3.0])
    assert host.flags.writeable is not tracked
    x.detach()[0] = 7
    assert host[0] == 7


def test_fast_from_numpy__shares_bfloat16() -> None:
    """A bfloat16 array is shared if torch can express its strides, and copied otherwise."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    host = np.arange(4).astype(bfloat16)
    x = shorter(host)
    assert (x.dtype, x.tolist()) == (torch.bfloat16, [0.0, 1.0, 2.0, 3.0])
    host[0] = 7
    assert x[0] == 7
    unaligned = np.zeros(9, np.uint8)[1:].view(bfloat16)
    assert np.shares_memory(shorter(host[::2]).view(torch.int16).numpy(), host)
    assert not np.shares_memory(shorter(host[::-1]).view(torch.int16).numpy(), host)
    assert shorter(host[::-1]).tolist() == [3.0, 2.0, 1.0, 7.0]
    assert shorter(host.astype(host.dtype.newbyteorder())) is None
    unaligned[0] = 1
    assert shorter(unaligned).tolist() == unaligned.tolist()
    assert shorter(np.array(["a"])) is None
    assert shorter(np.ones(2, np.longdouble)) is None


SHARED = {
    "every second element of each row": ((2, 2), (24, 16), 0),
    "one row, whose stride is less than a row": ((3, 1), (16, 24), 0),
    "one row, whose stride is zero": ((1, 2), (0, 16), 0),
    "one row backwards": ((1, 2), (-8, 16), 0),
}
COPIED = {
    "backwards": ((3,), (-8,), 16),
    "one element for all": ((3,), (0,), 0),
    "rows that overlap": ((2, 3), (16, 8), 0),
    "windows": ((3, 2), (8, 8), 0),
}


@pytest.mark.parametrize("layout", [*SHARED.values(), *COPIED.values()], ids=[*SHARED, *COPIED])
def test_fast_from_numpy__shares_strides_that_torch_has(
    layout: tuple[tuple[int, ...], tuple[int, ...], int],
) -> None:
    """Every layout is converted, and shared if torch can express its strides."""
    shape, strides, start = layout
    base = np.arange(6.0)
    host = np.ndarray(shape, base.dtype, base, start, strides)
    x = shorter(host)

    assert x.tolist() == host.tolist()
    assert np.shares_memory(x.numpy(), base) is (layout in SHARED.values())


def test_fast_from_numpy__copies_strides_that_torch_lacks() -> None:
    """Strides and byte orders that torch cannot express are copied."""
    record = np.zeros(3, [("a", "c16"), ("b", "f8")])
    record["a"] = [1, 2j, 3]
    for host in (record["a"], np.arange(3.0).astype(">f8"), np.zeros(17, np.uint8)[1:].view("f8")):
        x = shorter(host)
        assert x.tolist() == host.tolist()
        assert not np.shares_memory(x.numpy(), host)


def test_stack_many__accepts_pending_conjugates() -> None:
    """Tensors with a pending conjugation are stacked in one call."""
    x = torch.tensor([1 + 2j])
    stack: Any = get("torch").fast.stack_many
    assert stack([x.conj(), x]).tolist() == [[1 - 2j], [1 + 2j]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_fast_to_numpy__leaf_of_a_foreign_dtype_is_read_only(dtype: Any) -> None:
    """A leaf of an ml_dtypes dtype can never be made writable, on any call."""
    pytest.importorskip("ml_dtypes")
    x = torch.ones(4).to(dtype).requires_grad_()
    for _ in range(2):
        host = get("torch").fast.to_numpy(x)
        assert host is not None
        with pytest.raises(ValueError, match="WRITEABLE"):
            host.flags.writeable = True


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # by the compiler
def test_to_numpy__compiled_function_gets_a_copy() -> None:
    """A compiled function gets a copy of what eager shows read-only."""
    leaf = torch.ones(4).bfloat16().requires_grad_()
    for x in (torch.ones(1).expand(3), leaf):
        host = xbridge.to_numpy(x)
        torch.compiler.reset()
        made = torch.compile(xbridge.to_numpy, backend="eager")(x)
        assert not np.shares_memory(made, host)
        assert made.tolist() == host.tolist()


def test_fast_to_numpy__declines_read_only_results_when_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a compiler, only a tensor whose result is writable takes the fast path."""
    repeated, brain = torch.ones(1).expand(3), torch.ones(3).bfloat16().requires_grad_()
    module = get("torch")
    assert module.fast.to_numpy(repeated) is not None
    assert module.fast.to_numpy(brain) is not None
    monkeypatch.setattr("xbridge.backends.torch._compiler", lambda: print)
    assert module.fast.to_numpy(repeated) is None
    assert module.fast.to_numpy(brain) is None
    assert module.fast.to_numpy(torch.ones(3)[::2]) is not None


@pytest.mark.parametrize("dtype", [">U1", ">M8[s]", "S1", ">g"])
def test_fast_from_numpy__declines_unsupported_dtypes(dtype: str) -> None:
    """A dtype that torch lacks is declined in either byte order."""
    assert get("torch").fast.from_numpy(np.zeros(2, dtype)) is None


def test_fast_to_numpy__declines_other_devices() -> None:
    """Tensors on other devices are declined each time, and the others keep the fast path."""
    module, there = get("torch"), torch.ones(3, device="meta")
    for _ in range(3):
        assert module.fast.to_numpy(there) is None
        assert module.fast.to_numpy(torch.ones(3, device="meta", dtype=torch.bfloat16)) is None
        for x in (torch.ones(3), torch.ones(3).bfloat16(), torch.ones(3)[1:]):
            host = module.fast.to_numpy(x)
            assert host is not None
            assert host.astype("f4").tolist() == x.tolist()


@pytest.mark.parametrize("start", [1, 2])
@pytest.mark.parametrize("left", [0, 4, 8, 11])
def test_fast_to_numpy__declines_views_beyond_a_shrunk_storage(start: int, left: int) -> None:
    """A view is declined if its storage ends before it."""
    x = torch.arange(3.0)[start:]
    x.untyped_storage().resize_(left)
    assert get("torch").fast.to_numpy(x) is None


def test_stack_many__bug_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt name in the fast path of lists reaches the caller, and no slower way hides it."""

    def misspelt(_: object) -> Any:
        raise NameError("name 'storge' is not defined")

    monkeypatch.setattr(torch, "stack", misspelt)
    with pytest.raises(NameError, match="storge"):
        xbridge.asarray([torch.ones(2), torch.ones(2)], backend="torch")
