"""Long lists of arrays: what is alike is stacked at once, and gives what a look at each would have given."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

import xbridge

pytest.importorskip("torch")

import torch


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "int32"}, {"backend": "torch", "dtype": "float32"}], ids=str
)
def test_asarray__long_range_is_refused_at_once(options: dict[str, Any]) -> None:
    """A range that memory cannot hold raises, whether or not another range was converted before."""
    vast, endless, row = range(10**13), range(-(2**63), 2**63), [np.float32(1)]
    for lists in (
        [vast, [vast, vast], [row, vast], [np.ones(2), vast]],
        [endless, [endless], [row, endless]],
    ):
        for x in lists:
            expected = MemoryError if lists[0] is vast else xbridge.UnsupportedArrayError
            for _ in range(2):
                with pytest.raises(expected):
                    xbridge.asarray(x, **options)
                assert xbridge.asarray(range(5, 1, -2), **options).tolist() == [5, 3]
    assert xbridge.asarray(range(0), **options).shape == (0,)


def outcome(obj: Any, **options: Any) -> tuple[str, str]:
    """The library and the dtype of an array, or the error."""
    try:
        made = xbridge.asarray(obj, **options)
    except xbridge.XBridgeError as error:
        return type(error).__name__, str(error)
    return xbridge.backend_of(made), xbridge.dtype_of(made)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_from_arrays__numbers_do_not_widen_a_float_dtype(dtype: str) -> None:
    """A Python number takes the float dtype of the arrays beside it, and a scalar is not rounded to it."""
    x = np.ones((), getattr(pytest.importorskip("ml_dtypes"), dtype))
    assert outcome([x, 0.5]) == outcome([x, 3]) == ("numpy", dtype)
    assert outcome([x[()], np.float32(1.1)]) == ("numpy", "float32")


def test_from_arrays__promotion_ignores_earlier_lists() -> None:
    """NumPy's rules hold for arrays of several libraries even after torch promoted the same dtypes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    mixed = [torch.ones(2).half(), np.ones(2, ml_dtypes.bfloat16)]
    expected = outcome(mixed)
    assert expected[0] == "DTypeError"
    for _ in range(2):
        assert outcome([torch.ones(2).half(), torch.ones(2).bfloat16()]) == ("torch", "float32")
        assert outcome(mixed) == expected
    with xbridge.record():
        assert outcome(mixed) == expected
    assert outcome([torch.ones(2), np.ones(2)]) == ("torch", "float64")


WHOLE, REAL = ["b", "i1", "u1", "i4", "i8", "u8"], ["f2", "f4", "f8"]
PAIRS = [(one, other) for one in WHOLE + REAL for other in [*WHOLE, *REAL, "c8"] if one != other]


def described(obj: list[Any], **options: Any) -> object:
    """The values, the dtype and the library of an array, or the kind of the error."""
    try:
        made = xbridge.asarray(obj, **options)
    except xbridge.XBridgeError as error:
        return type(error)
    return repr(xbridge.to_list(made)), xbridge.dtype_of(made), xbridge.backend_of(made)


@pytest.mark.parametrize("dtype", [None, "float32", "uint8", "default", "nearest"])
@pytest.mark.parametrize("backend", [None, "numpy", "torch"])
@pytest.mark.parametrize("kinds", ["numpy", "torch", "both"])
def test_stack_many__promotes_as_a_plan_does(kinds: str, backend: str | None, dtype: str | None) -> None:
    """A list of two dtypes gives the same with an observer, which has each array planned, and without one."""
    values = [-1, 300, 2**24 + 1, 2**53 + 1]
    for one, other in PAIRS[:: 3 if dtype else 1]:
        with np.errstate(over="ignore"):
            first, second = np.ones(4, one), np.array(values).astype(other)
        arrays: list[Any] = [first, second]
        if kinds == "torch":
            arrays = [torch.from_numpy(x) for x in arrays]
        elif kinds == "both":
            arrays = [torch.from_numpy(first), second]
        for x in (first, second, np.ones(4)):  # whose conversions are cached then
            described([x, x], backend=backend, dtype=dtype)
        for _ in range(2):
            found = described(arrays, backend=backend, dtype=dtype)
        with xbridge.record():
            assert found == described(arrays, backend=backend, dtype=dtype), (one, other)


def test_asarray__casts_a_list_in_inference_mode_as_before() -> None:
    """A list of arrays of two libraries gives an ordinary tensor in inference mode, in each call."""
    for _ in range(3):
        with torch.inference_mode():
            x = xbridge.asarray([torch.ones(2), np.ones(2, "f4")], backend="torch", dtype="float64")
        assert not x.is_inference()


BESIDE: dict[str, Any] = {
    "tensor": torch.ones(()).double(),
    "array": np.ones(()),
    "number": 0.5,
    "scalar": np.float32(0.5),
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
def test_stack_many__promotes_in_the_mode_of_each_call(beside: Any, mode: Callable[[], Any]) -> None:
    """A list that was stacked before gives in another mode what a plan gives there, and again after it."""
    leaf = torch.tensor(2.0, requires_grad=True)

    def stacked() -> tuple[object, ...]:
        made.append(x := xbridge.asarray([leaf, beside], backend="torch"))
        return x.dtype, x.requires_grad, x.is_inference() or type(beside) is float, x.tolist()

    made: list[Any] = []
    before = [stacked() for _ in range(3)]
    with mode():
        found = stacked()
        with xbridge.record():
            assert found == stacked()
    assert [stacked()] == before[-1:]
    for x in made:
        if x.requires_grad:
            assert torch.autograd.grad(x.sum(), leaf)[0] == 1


def _value(kind: str, dtype: str, random: Random) -> Any:
    """A number of Python, a scalar, or an array without axes."""
    if kind == "number":
        return random.choice(
            [0.5, 0.1, -0.0, 1e39, 65519.99, float("inf"), 0, 7, 300, 2**24 + 1, 2**64, True, 1j]
        )
    value = np.asarray(random.choice([0, 1, 2, 100]), dtype)
    return value[()] if kind == "scalar" else value if kind == "array" else torch.from_numpy(value)


@pytest.mark.parametrize("backend", [None, "numpy", "torch"])
@pytest.mark.parametrize("dtype", [None, "float32", "int64", "nearest"])
def test_asarray__numbers_beside_arrays_are_as_planned(backend: str | None, dtype: str | None) -> None:
    """Values, dtypes and errors are those of the plan, also if the list before had other dtypes."""
    random = Random(0)
    for _ in range(60):
        kinds = random.choice([["tensor", "number"], ["tensor", "scalar", "number"], ["array", "number"]])
        given = random.choices(["f4", "f8", "f2", "i8", "u1", "?", "c8"], k=random.choice([1, 1, 2]))
        made = [_value(random.choice(kinds), random.choice(given), random) for _ in range(4)]
        x = random.choice([made, [made[:2], made[2:]]])
        with xbridge.record():
            expected = described(x, backend=backend, dtype=dtype)
        for _ in range(2):
            assert described(x, backend=backend, dtype=dtype) == expected, x
