"""Nested lists that hold tensors: gradients kept, values exact, one device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rawmemory import overlaps

import xbridge
from xbridge._engine import stack

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
def test_numbers_become_torchs_default_dtypes(x: object, dtype: Any) -> None:
    made = xbridge.asarray(x, backend="torch")
    assert made.dtype == dtype
    assert repr(made.tolist()) == repr(torch.tensor(x, dtype=dtype).tolist())


@pytest.mark.parametrize("x", [1e300, [2**24 + 1, 0.5], [2**24 + 1, 1j], [-1, 2**63], 2**64], ids=repr)
def test_a_number_that_torchs_default_dtype_cannot_hold_is_refused(x: object) -> None:
    with pytest.raises(xbridge.ValueLossError, match="; try "):
        xbridge.asarray(x, backend="torch")


def test_the_first_array_says_whose_the_result_is() -> None:
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
def test_gradients_flow_through_a_list(x: Any, options: dict[str, Any]) -> None:
    ours, theirs = leaf(), leaf()
    xbridge.asarray(x(ours), backend="torch", **options).sum().backward()
    sum(element.sum() for element in flat(x(theirs)) if isinstance(element, torch.Tensor)).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.tolist() == theirs.grad.tolist()


def flat(x: Any) -> list[Any]:
    """What lies in a nested list."""
    return [leaf for item in x for leaf in flat(item)] if isinstance(x, list | tuple) else [x]


def test_a_list_of_empty_tensors_is_shared_whatever_axis_is_empty() -> None:
    for empty in (torch.empty(0), torch.empty(0, 3), torch.empty(3, 0)):
        for backend in ("torch", "numpy"):
            made = xbridge.asarray([empty, empty], backend=backend, copy=False)
            assert made.shape == (2, *empty.shape)


def test_tensors_beside_those_of_meta_are_stacked_there() -> None:
    for other in (X.to("meta"), X.double().to("meta")):
        made = xbridge.asarray([X, other], device="meta")
        assert (made.device.type, made.shape) == ("meta", (2, 3))


def test_history_ends_only_where_that_was_asked() -> None:
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
def test_tensors_are_promoted_as_numpy_promotes(x: list[Any], dtype: Any, expected: Any) -> None:
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
def test_a_promotion_that_would_lose_a_value_is_refused(x: list[Any]) -> None:
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
def test_tensors_among_themselves_are_promoted_as_torch_promotes(x: list[Any]) -> None:
    expected = torch.stack(x)
    made = xbridge.asarray(x)
    assert made.dtype == expected.dtype
    assert torch.equal(made, expected)


@pytest.mark.parametrize(
    ("tensor", "number"), [(1, 3.5), (True, 2), (True, 0.5), (1.5, 2), (1, 1j), (0.5, 1j), (1, True)]
)
@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_a_number_among_tensors_bends_as_it_does_in_torch(tensor: Any, number: Any, default: Any) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        x = torch.tensor(tensor)
        made = xbridge.asarray([x, number])
        assert made.dtype == torch.result_type(x, number)
    finally:
        torch.set_default_dtype(before)
    assert made.tolist() == [tensor, number]


def test_a_scalar_of_numpys_among_tensors_is_an_array_of_numpys() -> None:
    for scalar, dtype in ((np.float64(0.1), torch.float64), (np.float32(0.5), torch.float64)):
        made = xbridge.asarray([torch.tensor(1), scalar])
        assert (made.dtype, made.tolist()) == (dtype, [1, float(scalar)])


def test_an_integer_that_torch_would_round_in_a_list_is_refused_and_one_that_fits_is_not() -> None:
    for x in (
        [torch.tensor(2**24 + 1), 0.5],
        [torch.tensor(1), 2**24 + 1, 0.5],
        [X.long() + 257, X.bfloat16()],
    ):
        with pytest.raises(xbridge.ValueLossError, match="; try "):
            xbridge.asarray(x)
    assert xbridge.asarray([torch.tensor(2**24), 0.5]).tolist() == [2**24, 0.5]
    assert xbridge.asarray([torch.tensor(2**24 + 1), 0.5], dtype="float32").tolist() == [2**24, 0.5]


def test_a_graph_goes_through_a_promotion() -> None:
    w = torch.tensor(2.0, requires_grad=True)
    made = xbridge.asarray([w * 3, torch.tensor(4), torch.tensor(5.0).half(), 6])
    made.sum().backward()
    assert (made.dtype, made.tolist(), w.grad) == (torch.float32, [6, 4, 5, 6], torch.tensor(3.0))


def test_what_has_no_values_to_look_at_is_promoted_as_it_is() -> None:
    whole, half = torch.arange(2), torch.ones(2)
    assert xbridge.asarray([whole.to("meta"), half.to("meta")]).dtype == torch.float32
    mapped = torch.func.vmap(lambda a, b: xbridge.asarray([a, b]))(whole, half)
    assert torch.equal(mapped, torch.tensor([[0.0, 1.0], [1.0, 1.0]]))


def test_dtypes_without_a_common_one_are_refused_until_one_is_named() -> None:
    for other in (X.to(torch.float8_e5m2), X.to(torch.float8_e4m3fn)):
        with pytest.raises(xbridge.DTypeError, match="no common dtype; try dtype='float32'"):
            xbridge.asarray([X.bfloat16(), other])
        assert xbridge.asarray([X.bfloat16(), other], dtype="float32").tolist() == [[0, 1, 2]] * 2


def test_tensors_of_several_devices_are_refused() -> None:
    far = torch.ones(3, device="meta")
    for x in ([X, far], [A, far]):
        with pytest.raises(xbridge.DeviceError, match=r"cpu, meta; try align\(\*arrays\) first"):
            xbridge.asarray(x)
    assert xbridge.asarray([far, far]).shape == (2, 3)


def test_sparse_tensors_are_stacked_by_torch() -> None:
    sparse = torch.eye(2).to_sparse()
    assert xbridge.asarray([sparse, sparse]).to_dense().tolist() == [[[1, 0], [0, 1]]] * 2


def test_stack_many__tensors_that_a_mode_refuses_are_reported_as_by_a_plan() -> None:
    """The exception of torch is the cause of an error of ours."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(2)
    with FakeTensorMode(), pytest.raises(xbridge.XBridgeError, match=r"stack .* failed with"):
        xbridge.asarray([x, x])


def test_a_long_list_of_tensors_leaves_its_library_too() -> None:
    losses = [torch.tensor(1.0)] * 1500
    assert xbridge.asarray(losses, backend="numpy").shape == (1500,)
    assert xbridge.asarray([*losses, 0.0]).shape == (1501,)


def test_rows_of_one_tensor_are_stacked_without_a_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(torch.arange(12.0).reshape(3, 4))
    monkeypatch.setattr(stack, "_stack_described", None)
    assert torch.equal(xbridge.asarray(rows), torch.arange(12.0).reshape(3, 4))
    assert xbridge.asarray(rows[1:], backend="numpy").tolist() == [[4.0, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("nbytes", [0, 16, 40])
def test_rows_behind_the_end_of_their_storage_are_refused(nbytes: int) -> None:
    whole, short = torch.ones(3, 4), torch.ones(12).clone()
    parts = [short[4 * i : 4 * i + 4] for i in range(3)]
    short.untyped_storage().resize_(nbytes)
    for rows in ([whole[0], parts[2]], [parts[2], whole[2]], parts):
        for backend in ("torch", "numpy"):
            with pytest.raises(xbridge.UnsupportedArrayError, match="freed or shrunk"):
                xbridge.asarray(rows, backend=backend)


def scalar(value: Any, dtype: str = "float32", *, grad: bool = False) -> Tensor:
    made: Tensor = torch.tensor(value, dtype=getattr(torch, dtype), requires_grad=grad)
    return made


AT_ONCE: dict[str, list[Any]] = {
    "floats": [scalar(1.5), 2.5, 0.1, scalar(0.1)],
    "several kinds": [scalar(1.5), 2, True, 2.5],
    "integers": [scalar(1, "uint8"), 255, False],
    "wide": [scalar(0.1, "float64"), 0.1, 1e300],
    "complex": [scalar(1j, "complex64"), 2j, 1.5, 3],
    "graph": [scalar(2.0, grad=True), 0.5],
    "two libraries": [scalar(1.5), np.array(2.5, "f4"), np.array(3.5, "f4"), 4.5],
    "the host's": [np.array(1.5, "f4"), 2.5, np.array(0.1, "f4")],
}
"""Lists of numbers and arrays of one dtype, which are stacked without a plan of each."""


@pytest.mark.parametrize("backend", [None, "torch", "numpy"])
@pytest.mark.parametrize("xs", AT_ONCE.values(), ids=AT_ONCE)
def test_numbers_beside_arrays_of_one_dtype_are_stacked_at_once_as_a_plan_of_each_does(
    xs: list[Any], backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with xbridge.record():  # every array is planned
        expected = xbridge.asarray(xs, backend=backend)
    monkeypatch.setattr(stack, "_stack_described", lambda *_: pytest.fail("each was planned"))
    for _ in range(2):
        made = xbridge.asarray(xs, backend=backend)
        assert (type(made), made.dtype) == (type(expected), expected.dtype)
        assert getattr(made, "requires_grad", None) == getattr(expected, "requires_grad", None)
        assert made.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("xs", "dtype"),
    [
        ([scalar(1, "int64"), 2.5], torch.float32),
        ([scalar(True, "bool"), 2], torch.int64),
        ([scalar(0.5), scalar(0.5, "float64"), 0.1], torch.float64),
        ([scalar(1.0, "bfloat16"), 1.00390625], torch.bfloat16),
        ([scalar(1.0, "float16"), 1 + 2**-11 + 2**-26], torch.float16),  # NumPy rounds once, torch twice
    ],
    ids=str,
)
def test_numbers_that_change_the_dtype_or_that_torch_casts_are_planned(xs: list[Any], dtype: Any) -> None:
    for _ in range(2):
        made = xbridge.asarray(xs)
        assert made.dtype == dtype
        expected = [x.to(dtype) if isinstance(x, torch.Tensor) else torch.tensor(x).to(dtype) for x in xs]
        if dtype == torch.float64:
            expected[-1] = torch.tensor(xs[-1], dtype=dtype)
        assert torch.equal(made, torch.stack(expected))


def test_numbers_beside_arrays_that_do_not_fit_are_refused_however_often_the_list_was_stacked() -> None:
    fits = [scalar(1.5), 2.5]
    assert [xbridge.asarray(fits).tolist() for _ in range(2)] == [[1.5, 2.5]] * 2
    for xs in (
        [scalar(1.5), 1e300],
        [scalar(1.5), 2**24 + 1],
        [scalar(1.5), 2**70],
        [scalar(1, "int8"), 300],
    ):
        for _ in range(2):
            with pytest.raises(xbridge.ValueLossError):
                xbridge.asarray(xs)
    with pytest.raises(xbridge.OptionError, match="shapes"):
        xbridge.asarray([X, 1.0])
    with pytest.raises(xbridge.CopyError):
        xbridge.asarray(fits, copy=False)
    assert xbridge.asarray([scalar(1, "int64"), 300], dtype="int16").tolist() == [1, 300]
    with pytest.raises(xbridge.ValueLossError, match="does not fit"):
        xbridge.asarray([scalar(1, "int64"), 300], dtype="int8")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_number_beside_an_array_whose_dtype_has_no_name_is_refused_as_before() -> None:
    with pytest.raises(xbridge.DTypeError):
        xbridge.asarray([torch.tensor(1j, dtype=torch.complex32), 1.0])
