"""Nested lists that hold tensors: gradients kept, values exact, one device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rawmemory import overlaps
from torch_modes import default_dtype

import xbridge

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from torch import Tensor

X = torch.arange(3.0)
A = np.arange(3, dtype="f4")


def leaf() -> Tensor:
    """A tensor that requires grad."""
    tensor: Tensor = torch.arange(3.0, requires_grad=True)
    return tensor


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (0.1, torch.float32),
        (1, torch.int64),
        (True, torch.bool),
        (1j, torch.complex64),
        (2**63, torch.uint64),
        ([], torch.float32),
        ([[], []], torch.float32),
        (range(3), torch.int64),
        (torch.Size([1, 2]), torch.int64),
        ([math.inf, -0.0], torch.float32),
        ([2**24, 0.5], torch.float32),
    ],
    ids=repr,
)
def test_asarray__numbers_get_torch_default_dtypes(x: object, dtype: Any) -> None:
    """Numbers become tensors of torch's default dtypes."""
    made = xbridge.asarray(x, backend="torch")
    assert made.dtype == dtype
    assert repr(made.tolist()) == repr(torch.tensor(x, dtype=dtype).tolist())


@pytest.mark.parametrize("x", [1e300, [2**24 + 1, 0.5], [2**24 + 1, 1j], [-1, 2**63], 2**64], ids=repr)
def test_asarray__refuses_numbers_torch_would_round(x: object) -> None:
    """A number that torch's default dtype cannot hold raises."""
    with pytest.raises(xbridge.ValueLossError, match="; try "):
        xbridge.asarray(x, backend="torch")


def test_asarray__first_array_decides_for_a_list() -> None:
    """The first array in a list decides the library of the result."""
    for x, kind in (([X, A], torch.Tensor), ([A, X], np.ndarray), ([[1.0, 2.0, 3.0], X], torch.Tensor)):
        made = xbridge.asarray(x)
        assert isinstance(made, kind)
        assert made.tolist()[1] == [0.0, 1.0, 2.0]
    tracked = xbridge.asarray([[np.float32(0), 1.0], [leaf().sum(), np.float32(2)]])
    assert tracked.requires_grad  # a scalar of NumPy's does not decide where there is an array
    assert tracked.tolist() == [[0.0, 1.0], [leaf().sum().item(), 2.0]]
    assert isinstance(xbridge.asarray([X, X], backend="numpy"), np.ndarray)
    assert isinstance(xbridge.asarray([A, A], backend="torch"), torch.Tensor)


@pytest.mark.parametrize(
    "x",
    [
        lambda t: [t, t],
        lambda t: [t, X],
        lambda t: [t, A],
        lambda t: [A, t],
        lambda t: [[1.0, 2.0, 3.0], t],
        lambda t: [[t[0], t[1], 3.0], A],
        lambda t: [[1.0, np.float32(2.0), 3.0], t],
        lambda t: [t, torch.ones(3, dtype=torch.int64)],
        lambda t: [[t], [t.double()]],
        lambda t: ((t.sum(), 1.0), (2, t[1])),
    ],
    ids=range(10),
)
@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"grad": "keep"}], ids=repr)
def test_asarray__keeps_gradients_through_lists(x: Any, options: dict[str, Any]) -> None:
    """Gradients flow through a stacked list to each tensor."""
    ours, theirs = leaf(), leaf()
    xbridge.asarray(x(ours), backend="torch", **options).sum().backward()
    sum(element.sum() for element in flat(x(theirs)) if isinstance(element, torch.Tensor)).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.tolist() == theirs.grad.tolist()


def flat(x: Any) -> list[Any]:
    """What lies in a nested list."""
    return [leaf for item in x for leaf in flat(item)] if isinstance(x, list | tuple) else [x]


def test_asarray__cuts_graphs_of_lists_only_if_asked() -> None:
    """A list ends the graph of its tensors only if `grad` or the target says so."""
    assert not xbridge.asarray([leaf(), X], grad="detach").requires_grad
    assert not xbridge.asarray([leaf(), A], requires_grad=False).requires_grad
    assert xbridge.asarray([X, A], requires_grad=True).is_leaf
    assert xbridge.asarray([leaf(), A], requires_grad=True, grad="detach").is_leaf
    for x, options in (
        ([leaf(), X], {"requires_grad": True}),
        ([leaf(), X], {"grad": "keep", "dtype": "int64"}),
        ([leaf(), X.double()], {"grad": "keep", "dtype": "int64"}),
        ([leaf(), X], {"grad": "keep", "backend": "numpy"}),
        ([A, leaf()], {"grad": "keep"}),
    ):
        with pytest.raises(xbridge.GradientError, match="; try "):
            xbridge.asarray(x, **options)
    assert xbridge.asarray([leaf(), X], backend="numpy").flags.writeable


@pytest.mark.parametrize(
    ("x", "dtype", "expected"),
    [
        ([X, X.double()], torch.float64, [[0, 1, 2]] * 2),
        ([X, np.arange(3, dtype="i4")], torch.float64, [[0, 1, 2]] * 2),
        ([X.to(torch.uint16), X.to(torch.int32)], torch.int32, [[0, 1, 2]] * 2),
        ([X.bfloat16(), X.bfloat16()], torch.bfloat16, [[0, 1, 2]] * 2),
        ([X.bfloat16(), X], torch.float32, [[0, 1, 2]] * 2),
        ([X.bfloat16(), [0.5, 1, 2]], torch.bfloat16, [[0, 1, 2], [0.5, 1, 2]]),
        ([X.to(torch.float8_e5m2)] * 2, torch.float8_e5m2, [[0, 1, 2]] * 2),
        ([X, [0, 1, math.inf]], torch.float32, [[0, 1, 2], [0, 1, math.inf]]),
        ([torch.tensor([2j]).conj(), np.array([1j], "c8")], torch.complex64, [[-2j], [1j]]),
        ([torch.tensor([2j]).conj().imag, np.array([1], "f4")], torch.float32, [[-2], [1]]),
        ([X[:1].expand(3), np.arange(3, dtype="f4")[::-1]], torch.float32, [[0, 0, 0], [2, 1, 0]]),
        ([X, np.broadcast_to(np.float32(1), (3,))], torch.float32, [[0, 1, 2], [1, 1, 1]]),
    ],
    ids=range(12),
)
def test_asarray__promotes_tensors_with_arrays_like_numpy(x: list[Any], dtype: Any, expected: Any) -> None:
    """Tensors mixed with NumPy arrays and lists are promoted by NumPy's rules."""
    made = xbridge.asarray(x, backend="torch")
    assert (made.dtype, made.tolist()) == (dtype, expected)
    assert not any(overlaps(made, element) for element in x if not isinstance(element, list))
    assert xbridge.asarray(x, backend="numpy").tolist() == expected


@pytest.mark.parametrize(
    "x",
    [
        [torch.tensor([2**53 + 1]), torch.tensor([0.5])],
        [torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([1])],
        [X, [1e300, 0, 0]],
        [torch.tensor(1, dtype=torch.uint8), 300],
        [torch.tensor(1.0), 2**24 + 1],
    ],
    ids=repr,
)
def test_asarray__refuses_lossy_promotion_of_tensors(x: list[Any]) -> None:
    """A promotion that would change a value of a tensor raises."""
    with pytest.raises(xbridge.ValueLossError, match="; try "):
        xbridge.asarray(x)


@pytest.mark.parametrize(
    "x",
    [
        [X, X.int()],
        [X.half(), X.bfloat16()],
        [X.bfloat16(), X.long()],
        [X.bool(), X.to(torch.uint8), X.to(torch.int8)],
        [X.double(), X.to(torch.complex64)],
    ],
    ids=lambda x: "-".join(str(one.dtype) for one in x),
)
def test_asarray__promotes_tensors_like_torch(x: list[Any]) -> None:
    """Tensors alone are promoted by torch's rules."""
    expected = torch.stack(x)
    made = xbridge.asarray(x)
    assert made.dtype == expected.dtype
    assert torch.equal(made, expected)


@pytest.mark.parametrize(
    ("tensor", "number"), [(1, 3.5), (True, 2), (True, 0.5), (1.5, 2), (1, 1j), (0.5, 1j), (1, True)]
)
@pytest.mark.parametrize("default", ["float32", "float64"])
def test_asarray__numbers_adapt_to_tensors_like_torch(tensor: Any, number: Any, default: str) -> None:
    """Numbers next to tensors promote as in torch."""
    with default_dtype(default):
        x = torch.tensor(tensor)
        made = xbridge.asarray([x, number])
        assert made.dtype == torch.result_type(x, number)
    assert made.tolist() == [tensor, number]


@pytest.mark.parametrize("whole", [2**24 + 1, 2**24], ids=["rounded", "exact"])
@pytest.mark.parametrize(
    "floating", [np.array(0.5), np.array(0.5j), np.float64(0.5), torch.tensor(0.5).double()], ids=repr
)
@pytest.mark.parametrize(
    "integer", [int, np.int64, np.uint32, np.array, torch.tensor], ids=lambda made: made.__name__
)
def test_asarray__default_dtype_never_rounds_an_integer_in_a_list(
    integer: Any, floating: Any, whole: int
) -> None:
    """An integer beside a float64 is not rounded by way of float64, also in a repeated call."""
    x = [floating, integer(whole)]
    for _ in range(2):
        if whole == 2**24:
            made = xbridge.asarray(x, backend="torch", dtype="default")
            assert (made.dtype.to_real(), made[1].item()) == (torch.float32, whole)
            continue
        with pytest.raises(xbridge.ValueLossError, match="; try "):
            xbridge.asarray(x, backend="torch", dtype="default")
        assert xbridge.asarray(x, backend="torch", dtype="nearest")[1].item() == whole
        named = xbridge.asarray(x, backend="torch", dtype="complex64")  # a dtype that is named may round
        assert named[1].item() == 2**24


def test_asarray__promotes_tensors_without_values() -> None:
    """Meta tensors and tensors inside `vmap` are promoted by dtype alone."""
    whole, half = torch.arange(2), torch.ones(2)
    assert xbridge.asarray([whole.to("meta"), half.to("meta")]).dtype == torch.float32
    mapped = torch.func.vmap(lambda a, b: xbridge.asarray([a, b]))(whole, half)
    assert torch.equal(mapped, torch.tensor([[0.0, 1.0], [1.0, 1.0]]))


def test_asarray__refuses_tensors_without_a_common_dtype() -> None:
    """Tensors without a common dtype are stacked only if one is explicit."""
    for other in (X.to(torch.float8_e5m2), X.to(torch.float8_e4m3fn)):
        with pytest.raises(xbridge.DTypeError, match="no common dtype; try dtype='float32'"):
            xbridge.asarray([X.bfloat16(), other])
        assert xbridge.asarray([X.bfloat16(), other], dtype="float32").tolist() == [[0, 1, 2]] * 2


def test_stack_many__chains_errors_of_a_fake_mode() -> None:
    """An exception that torch raises in a fake mode becomes the cause of an `XBridgeError`."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(2)
    with FakeTensorMode(), pytest.raises(xbridge.XBridgeError, match=r"stack .* failed with"):
        xbridge.asarray([x, x])


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: [[x, x]],
        lambda x: [[x], [x.conj()]],
        lambda x: [[x], [torch.nn.Parameter(x)]],
        lambda x: [[x.T.conj()]],
    ],
)
def test_asarray__list_of_a_dtype_that_the_host_lacks_is_stacked_by_its_own_library(
    make: Any, backend: str
) -> None:
    """A list that cannot be stacked at once, or is observed, is converted like any other."""
    x = torch.tensor([[1 + 2j, -0.5]], dtype=torch.complex32)
    xs = make(x)
    expected = [[each.to(torch.complex64).tolist() for each in row] for row in xs]
    assert xbridge.to_list(xbridge.asarray(xs, backend=backend, dtype="complex64")) == expected
    with xbridge.record():
        assert xbridge.to_list(xbridge.asarray(xs, backend=backend, dtype="complex64")) == expected
    with pytest.raises(xbridge.DTypeError, match="has no complex32"):
        xbridge.asarray(xs, backend="numpy")
