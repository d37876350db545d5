"""Learned calls give what a plan gives, also after the state of a library has changed."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pytest
from fresh import run
from hypothesis import example, given
from hypothesis import strategies as st
from inside import cached, direct, direct_own, forget_calls, get_backend, planned_arrays
from toylib import Toy, make_backend

import xbridge
from xbridge import _host, tree
from xbridge._engine import batch, convert
from xbridge._host import memory
from xbridge._plan.options import PLAIN, CallOptions
from xbridge._registry import call_cache
from xbridge.testing.conformance._probes import planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Call = Callable[[Any], Any]

torch = pytest.importorskip("torch")


class SubArray(np.ndarray[Any, Any]):
    """A class of arrays."""


SubTensor: Any = type("SubTensor", (torch.Tensor,), {})


def _second(_: Any, y: Any) -> Any:
    return y


by_torch, by_numpy = xbridge.aligned(backend="torch")(_second), xbridge.aligned(backend="numpy")(_second)
cast_to_single = xbridge.aligned(backend="torch", dtype="float32", grad="detach")(lambda y: y)


CALLS: dict[str, Call] = {
    "device": lambda x: xbridge.to_backend(x, "torch", device="cpu"),
    "device object": lambda x: xbridge.to_backend(x, "torch", device=torch.device("cpu")),
    "copy": lambda x: xbridge.to_backend(x, "torch", copy=True),
    "no copy": lambda x: xbridge.to_backend(x, "torch", copy=False),
    "dtype": lambda x: xbridge.to_backend(x, "torch", dtype="float32"),
    "dtype object": lambda x: xbridge.to_backend(x, "torch", dtype=np.float32, copy=True),
    "torch casts": lambda x: xbridge.to_backend(x, "torch", dtype=torch.float16),
    "torch casts a copy": lambda x: xbridge.to_backend(x, "torch", dtype="float16", copy=True),
    "integers": lambda x: xbridge.to_backend(x, "torch", dtype="int32"),
    "default": lambda x: xbridge.to_backend(x, "torch", dtype="default"),
    "nearest": lambda x: xbridge.to_backend(x, "torch", dtype="nearest"),
    "cast without a copy": lambda x: xbridge.to_backend(x, "torch", dtype="float64", copy=False),
    "detach": lambda x: xbridge.to_backend(x, "torch", grad="detach"),
    "detach without a copy": lambda x: xbridge.to_backend(x, "torch", grad="detach", copy=False),
    "keep": lambda x: xbridge.to_backend(x, "torch", grad="keep"),
    "keep a copy": lambda x: xbridge.to_backend(x, "torch", grad="keep", copy=True),
    "all": lambda x: xbridge.to_backend(x, "torch", device="cpu", dtype="float32", copy=True, grad="detach"),
    "asarray": lambda x: xbridge.asarray(x, backend="torch"),
    "asarray dtype": lambda x: xbridge.asarray(x, backend="torch", dtype="float32"),
    "in its library": lambda x: xbridge.asarray(x, dtype="float32"),
    "copy in its library": lambda x: xbridge.asarray(x, copy=True),
    "like": lambda x: xbridge.asarray(x, like=torch.ones(1)),
    "align": lambda x: xbridge.align(torch.ones(1), x)[1],
    "align dtype": lambda x: xbridge.align(torch.ones(1), x, dtype="float32")[1],
    "to numpy": xbridge.to_numpy,
    "to numpy copy": lambda x: xbridge.to_numpy(x, copy=True),
    "to numpy no copy": lambda x: xbridge.to_numpy(x, copy=False),
    "to numpy dtype": lambda x: xbridge.to_numpy(x, dtype="float32"),
    "to numpy default": lambda x: xbridge.to_numpy(x, dtype="default"),
    "to numpy detach": lambda x: xbridge.to_numpy(x, grad="detach"),
    "to numpy keep": lambda x: xbridge.to_numpy(x, grad="keep"),
    "to numpy writable": lambda x: xbridge.to_numpy(x, writable=True),
    "to numpy read-only": lambda x: xbridge.to_numpy(x, writable=False),
    "to numpy read-only dtype": lambda x: xbridge.to_numpy(x, dtype="float32", writable=False),
    "to numpy read-only copy": lambda x: xbridge.to_numpy(x, copy=True, writable=False),
    "tree read-only": lambda x: tree.to_numpy([x], writable=False)[0],
    "to numpy writable dtype": lambda x: xbridge.to_numpy(x, dtype="float32", writable=True),
    "to numpy writable copy": lambda x: xbridge.to_numpy(x, copy=True, writable=True),
    "to numpy writable no copy": lambda x: xbridge.to_numpy(x, copy=False, writable=True),
    "tree writable": lambda x: tree.to_numpy([x], writable=True)[0],
    "tree dtype": lambda x: tree.to_backend([x, x], "torch", dtype="float32")[1],
    "tree copy": lambda x: tree.to_numpy([x], copy=True)[0],
    "tree device": lambda x: tree.to_backend([x], "torch", device="cpu")[0],
    "tree align": lambda x: tree.align([torch.ones(1)], [x])[1][0],
    "module": lambda x: xbridge.to_backend(x, torch),
    "module dtype": lambda x: xbridge.to_backend(x, torch, dtype="float32"),
    "leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=True),
    "leaf of a copy": lambda x: xbridge.asarray(x, backend="torch", copy=True, requires_grad=True),
    "leaf of a cast": lambda x: xbridge.asarray(x, like=torch.ones(1), dtype="float32", requires_grad=True),
    "leaf in its library": lambda x: xbridge.asarray(x, requires_grad=True),
    "leaf of what is detached": lambda x: xbridge.asarray(x, grad="detach", requires_grad=True),
    "no leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=False),
    "like numpy": lambda x: xbridge.asarray(x, like=np.ones(1), copy=True),
    "like on a device": lambda x: xbridge.asarray(x, like=torch.ones(1), device="cpu"),
    "dtype that equals None": lambda x: xbridge.asarray(x, backend="torch", dtype=np.dtype("float64")),
    "tree dtype that equals None": lambda x: tree.to_backend([x], "torch", dtype=np.dtype("float64"))[0],
    "align first": lambda x: xbridge.align(x, torch.ones(1), 2.5)[0],
    "align like": lambda x: xbridge.align(x, like=np.ones(1))[0],
    "align to": lambda x: xbridge.align(np.ones(1), x, backend="torch", copy=True)[1],
    "align back": lambda x: xbridge.align_back(torch.ones(1), x)[0][1],
    "align back, where it was": lambda x: xbridge.align_back(np.ones(1), x)[1](np.ones(1), to=1, dtype=True),
    "align back, who decides": lambda x: xbridge.align_back(np.ones(1), x, 2.5, backend="torch")[1](
        np.ones(1)
    ),
    "restore": lambda x: xbridge.align_back(np.ones(1), torch.ones(1))[1](x, to=1),
    "values": lambda x: np.array(repr(xbridge.to_list(x))),
    "aligned": xbridge.aligned(backend="torch")(lambda y: y),
    "aligned dtype": cast_to_single,
    "aligned with a number": lambda x: by_torch(2.5, y=x),
    "aligned with a tensor": lambda x: by_torch(torch.ones(1), x),
    "aligned with an array": lambda x: by_numpy(np.ones(1), y=x),
    "list": lambda x: xbridge.asarray([x, x]),
    "list to torch": lambda x: xbridge.asarray([x, x], backend="torch", dtype="float32"),
    "list of both": lambda x: xbridge.asarray([x, torch.ones(3).double(), np.ones(3)]),
}


def numpys() -> dict[str, Any]:
    plain = np.arange(1.0, 7.0)
    locked = plain.copy()
    locked.flags.writeable = False
    unaligned = np.zeros(49, "u1")[1:].view("f8")
    rows = np.arange(12.0).reshape(3, 4)
    return {
        "plain": plain,
        "other": np.full((2, 3), 0.1),
        "view": plain[1:4],
        "view of rows": rows[1:],
        "view that is locked": locked[1:3],
        "fortran": rows.copy("F"),
        "transposed": rows.T,
        "reversed": rows[::-1],
        "strided": rows[:, ::2],
        "strided backwards": rows[:, ::-2],
        "locked": locked,
        "locked and reversed": locked[::-1],
        "swapped": plain.astype(">f8"),
        "swapped and strided": plain.astype(">f8")[::2],
        "empty": np.zeros((0, 3)),
        "empty and locked": np.broadcast_to(0.0, (0, 3)),
        "scalar": np.array(2.5),
        "one row backwards": rows[1:2][::-1],
        "one row backwards, locked": np.broadcast_to(rows, rows.shape)[1:2][::-1],
        "one column of two, backwards": rows[::2, :1][:, ::-1],
        "one row": rows[1:2],
        "repeated": np.broadcast_to(1.5, (2, 2)),
        "overlapping": np.lib.stride_tricks.as_strided(plain, (3, 2), (8, 8)),
        "odd strides": np.zeros(3, [("a", "u1"), ("b", "f8")])["b"],
        "unaligned": unaligned,
        "large": np.array([1.0, 1e300]),
        "infinite": np.array([np.inf, -np.inf, np.nan, 3.4e38]),
        "just too large": np.array([3.4028235677973366e38]),
        "integers": np.arange(3),
        "large integers": np.array([2**40, 2**53 + 1]),
        "unsigned": np.array([2**63], "u8"),
        "single": np.ones(3, "f4"),
        "half": np.ones(3, "f2"),
        "bool": np.array([True, False]),
        "complex": np.array([1 + 2j, 1e300j]),
        "long": np.ones(2, np.longdouble),
        "text": np.array(["a"]),
        "objects": np.array([None]),
        "records": np.zeros(2, [("x", "f8")]),
        "of another class": np.ones((2, 2)).view(SubArray),
        "matrix": rows[1:2].view(np.matrix),
        "mapped": plain.view(np.memmap),
        "mapped and locked": locked[1:3].view(np.memmap),
        "mapped and reversed": plain[::-1].view(np.memmap),
        "number": np.float64(3.5),
    }


def torchs() -> dict[str, Any]:
    base = torch.arange(12.0).double()
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    freed, shrunk = torch.ones(4).double(), torch.ones(4).double()
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(8)
    behind = torch.ones(8).double()[4:]
    behind.untyped_storage().resize_(40)
    emptied = torch.ones(8).double()[4:]
    emptied.untyped_storage().resize_(0)
    zero = torch._efficientzerotensor((2,), dtype=torch.float64)
    pairs = torch.tensor([1 + 2j, complex(float("nan"), 0.0)], dtype=torch.complex128)
    gone, cut = pairs.clone(), pairs.clone()
    gone_later, cut_later = gone.conj(), cut.conj().imag
    gone.untyped_storage().resize_(0)
    cut.untyped_storage().resize_(24)
    return {
        "plain": base,
        "other": torch.ones(2, 3).double(),
        "leaf": leaf,
        "history": 2 * leaf,
        "parameter": torch.nn.Parameter(torch.ones(2).double()),
        "fixed parameter": torch.nn.Parameter(torch.ones(2).double(), requires_grad=False),
        "view": base[4:],
        "transposed": base.reshape(3, 4).T,
        "strided": base[::2],
        "strided leaf": leaf[::2],
        "expanded": torch.ones(1).double().expand(3),
        "overlapping": base.as_strided((3, 2), (1, 1)),
        "conjugate": torch.ones(2, dtype=torch.complex128).conj(),
        "negative": torch.ones(2, dtype=torch.complex128).conj().imag,
        "conjugate leaf": pairs.conj().requires_grad_(),
        "conjugate history": pairs.clone().requires_grad_().conj(),
        "conjugate strided": pairs.conj()[::2],
        "conjugate expanded": pairs[:1].conj().expand(3),
        "conjugate and negative": torch._neg_view(pairs.conj()),
        "conjugate, freed": gone_later,
        "negative, shrunk": cut_later,
        "negative history": pairs.clone().requires_grad_().conj().imag,
        "negative brain": torch._neg_view(torch.ones(4, dtype=torch.bfloat16)),
        "complex": torch.ones(2, dtype=torch.complex128),
        "zero": zero,
        "freed": freed,
        "shrunk": shrunk,
        "shrunk behind": behind,
        "freed behind": emptied,
        "empty": torch.ones(0, 2).double(),
        "empty leaf": torch.ones(0, 2, dtype=torch.float64, requires_grad=True),
        "scalar": torch.tensor(2.0).double(),
        "single": torch.ones(2),
        "brain": torch.ones(4, dtype=torch.bfloat16),
        "brain leaf": torch.ones(4, dtype=torch.bfloat16, requires_grad=True),
        "brain strided": torch.ones(4, dtype=torch.bfloat16)[::2],
        "integers": torch.arange(3),
        "large": torch.tensor([1e300]).double(),
        "bool": torch.tensor([True]),
        "meta": torch.ones(2, device="meta").double(),
        "sparse": torch.eye(2).double().to_sparse(),
        "sub": torch.ones(2).double().as_subclass(SubTensor),
    }


def outcome(call: Call, x: Any) -> tuple[object, ...]:
    """All that the contract says about a result, or the error."""
    try:
        y = call(x)
    except xbridge.XBridgeError as error:
        return type(error), str(error)
    if isinstance(y, str) or y is None:
        return (y,)
    if type(y) is np.ndarray and y.dtype.kind not in "biufcV":
        return type(y), y.dtype, y.tolist()
    place = xbridge.device_of(y), str(tuple(y.shape))  # a size may be unknown, which equals nothing
    facts: tuple[object, ...] = (type(y), y is x, xbridge.dtype_of(y), *place)
    try:
        host = xbridge.to_numpy(y)
        strides = [s for s, n in zip(host.strides, host.shape, strict=True) if n > 1]
        shares = xbridge.shares_memory(x, y)
        has_gaps = host.dtype.char in "gG"  # unused bytes of a longdouble, which no copy has to keep
        values = repr(host.tolist()) if has_gaps else np.ascontiguousarray(host).tobytes()
        facts = (*facts, values, shares, strides if host.size else [])
    except xbridge.XBridgeError as error:
        facts = (*facts, type(error))
    grads = (
        getattr(y, "requires_grad", None),
        getattr(y, "is_leaf", None),
        getattr(y, "grad_fn", None) is None,
    )
    return (*facts, *grads, y.flags.writeable if isinstance(y, np.ndarray) else None)


def tables() -> list[dict[Any, Any]]:
    return [cached, direct_own, *direct.values()]


def restore(taught: list[dict[Any, Any]]) -> None:
    for table, before in zip(tables(), taught, strict=True):
        table.clear()
        table.update(before)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    for name in ("numpy", "torch"):
        get_backend(name)  # a backend that is loaded during a call empties the tables
    forget_calls()
    yield
    forget_calls()


@pytest.fixture
def teachers(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config
) -> Callable[[dict[str, Any]], list[str]]:
    """Choose which inputs are converted first: a fifth of them, in CI a third, and others for each call."""
    step = 3 if pytestconfig.getoption("exhaustive") else 5
    turn = crc32(request.node.name.encode()) % step
    return lambda xs: list(xs)[turn::step]


def taught_by(call: Call, xs: Callable[[], dict[str, Any]], names: list[str]) -> Iterator[tuple[str, Any]]:
    """What each input leaves in the tables, if a call converts it first; once if it leaves nothing."""
    left_nothing = False
    for name in names:
        forget_calls()
        before = list(map(dict, tables()))
        outcome(call, xs()[name])
        taught = list(map(dict, tables()))
        if taught != before or not left_nothing:
            left_nothing |= taught == before
            yield name, taught


@pytest.mark.parametrize("make", [numpys, torchs])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_call_cache__any_array_after_any_other(
    call: Call, make: Callable[[], dict[str, Any]], teachers: Callable[[dict[str, Any]], list[str]]
) -> None:
    """Every call gives the planned result, whichever array the same call converted before."""
    with planned():
        expected = {name: outcome(call, x) for name, x in make().items()}
    for teacher, taught in taught_by(call, make, teachers(expected)):
        for pupil, x in make().items():
            assert outcome(call, x) == expected[pupil], (teacher, pupil)
            restore(taught)


def lists() -> dict[str, Any]:
    rows, leaf = torch.arange(12.0).double().reshape(4, 3), torch.ones(3).double().requires_grad_()
    shrunk, outside = torch.ones(3).double(), torch.ones(8).double()[::2]
    shrunk.untyped_storage().resize_(16)
    outside.untyped_storage().resize_(40)
    numbers, whole, half = list(np.arange(3.0)), list(np.arange(3)), list(np.ones(2, "f2"))
    locked = np.broadcast_to(1.0, 3)
    return {
        "floats": [1.5, 2.5],
        "integers": [1, 2],
        "bools": [True, False],
        "both": [1, 2.5],
        "large": [2**40],
        "larger": [-1, 2**63],
        "unsigned": [2**63],
        "too large": [2**70],
        "complex": [1j],
        "nested": [[1.0, 2.0], [3.0, 4.0]],
        "deep": [[[[1.0]]]],
        "ragged": [[1.0], [2.0, 3.0]],
        "uneven": [[1.0], 2.0],
        "one": [2],
        "one bool": [True],
        "bool and integer": [True, 2],
        "both, rounded in single": [2**24 + 1, 2.5],
        "both, rounded in double": [2**53 + 1, 2.5],
        "both, huge": [10**400, 2.5],
        "unknown before large": [float("nan"), 2**60],
        "large before unknown": [2**60, float("nan")],
        "signed zeros": [-0.0, 0, False],
        "a byte too large": [255, 256],
        "unsigned and small": [1, 2**63 + 1],
        "complex and integer": [1, 2j],
        "complex and large": [2**25 + 1, 2j],
        "complex number": 2j,
        "empty": [],
        "empty rows": [[], []],
        "no rows": [()],
        "tuple of one": (2,),
        "tuples": [(1.0, 2.0), (3.0, 4.0)],
        "lists in a tuple": ([1, 2.5], [3, 4]),
        "deeper": [[[[[(1,)]]]]],
        "no range": range(0),
        "ranges": [range(2), range(2)],
        "tuple of arrays": (np.arange(3.0), np.ones(3)),
        "nested tensors": ((torch.ones(2), torch.zeros(2)), [torch.ones(2), torch.zeros(2)]),
        "nested scalars": [(np.float64(1), 2), (np.float64(3), 4)],
        "numbers beside arrays of another depth": [[1.0], np.ones(1)],
        "tuple": (1.0, 2.0),
        "range": range(3),
        "float": 1.5,
        "integer": 2**40,
        "bool": True,
        "none": [None],
        "text": ["a"],
        "scalars": numbers,
        "whole scalars": whole,
        "scalars of two dtypes": numbers + whole,
        "scalars and numbers": [*numbers, 1.5, 2],
        "numbers and scalars": [1.5, *numbers],
        "scalars and large numbers": [*half, 1e300],
        "narrow scalars and integers": [*half, 2**12 + 1],
        "large scalars": [np.int64(2**53 + 1), np.float64(1)],
        "unlike scalars": [np.uint64(1), np.int64(-1)],
        "small scalars and a number": [np.int8(1), 300],
        "long scalars": [np.longdouble(1), np.longdouble(2)],
        "dates": [np.datetime64("2020"), np.datetime64("2021-01")],
        "words": [np.str_("a")],
        "scalar and a huge integer": [np.float64(1), 2**64],
        "scalars and a wide integer": [np.float64(1), 2**64 - 1, -1],
        "arrays": [np.arange(3.0), np.arange(3.0)[::-1], locked],
        "arrays of two dtypes": [np.arange(3.0), np.arange(3)],
        "arrays of two shapes": [np.arange(3.0), np.arange(4.0)],
        "arrays of text": [np.array(["a"]), np.array(["b"])],
        "tensors": [torch.ones(3).double(), torch.zeros(3).double()],
        "leaves": [leaf, leaf * 2],
        "rows": list(rows),
        "columns": list(rows.T),
        "expanded": list(torch.ones(1).double().expand(3, 3)),
        "layouts": [rows.T[0], rows[0][:2].repeat(2)],
        "empty columns": list(torch.ones(2, 0, 3).transpose(1, 2)),
        "shrunk": [torch.ones(3).double(), shrunk],
        "outside": [outside, outside],
        "tensors of two dtypes": [torch.ones(3), torch.ones(3).double()],
        "tensors of both kinds": [torch.arange(3), torch.ones(3)],
        "tensors of more": [leaf, torch.ones(3).half(), torch.arange(3).int(), torch.ones(3).double()],
        "large tensors": [torch.tensor(2**24 + 1), torch.tensor(1.0)],
        "narrow and shrunk": [torch.ones(3), shrunk],
        "narrow and meta": [torch.ones(3), torch.ones(3, device="meta").double()],
        "uneven tensors": [torch.ones(3), torch.ones(4).double()],
        "parameters of two dtypes": [torch.nn.Parameter(torch.ones(3)), torch.ones(3).double()],
        "codes": [torch.ones(3).to(torch.float8_e5m2), torch.ones(3).double()],
        "brains": [torch.ones(3).bfloat16(), torch.ones(3).bfloat16()],
        "conjugates": [torch.ones(2, dtype=torch.complex128).conj()] * 2,
        "parameters": [torch.nn.Parameter(torch.ones(3).double()), torch.ones(3).double()],
        "tensor and array": [torch.ones(3).double(), np.ones(3)],
        "array and tensor": [np.ones(3), torch.ones(3).double()],
        "array and leaf": [np.ones(3), leaf],
        "locked array and tensor": [locked, torch.ones(3).double()],
        "tensor and other dtype": [torch.ones(3).double(), np.ones(3, "f4")],
        "tensor and scalar": [torch.tensor(1.0).double(), np.float64(2)],
        "scalar and tensor": [np.float64(2), torch.tensor(1.0).double()],
        "tensor and number": [torch.tensor(1.0), 2.0],
        "meta": [torch.ones(3, device="meta")] * 2,
        "subclass": [np.ones(3).view(SubArray)] * 2,
    }


LIST_CALLS: dict[str, Call] = {
    "plain": xbridge.asarray,
    "torch": lambda x: xbridge.asarray(x, backend="torch"),
    "numpy": lambda x: xbridge.asarray(x, backend="numpy"),
    "like": lambda x: xbridge.asarray(x, like=torch.ones(1)),
    "single": lambda x: xbridge.asarray(x, backend="torch", dtype="float32"),
    "narrow": lambda x: xbridge.asarray(x, dtype="int32"),
    "bytes": lambda x: xbridge.asarray(x, backend="torch", dtype="uint8"),
    "unsigned": lambda x: xbridge.asarray(x, dtype="uint64"),
    "bool": lambda x: xbridge.asarray(x, dtype="bool"),
    "complex": lambda x: xbridge.asarray(x, backend="torch", dtype="complex64"),
    "nearest": lambda x: xbridge.asarray(x, backend="torch", dtype="nearest"),
    "default": lambda x: xbridge.asarray(x, backend="torch", dtype="default"),
    "leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=True),
    "leaf of any library": lambda x: xbridge.asarray(x, requires_grad=True),
    "detached": lambda x: xbridge.asarray(x, requires_grad=False),
    "keep": lambda x: xbridge.asarray(x, grad="keep"),
    "no copy": lambda x: xbridge.asarray(x, copy=False),
    "copy": lambda x: xbridge.asarray(x, device="cpu", copy=True),
}


@pytest.mark.parametrize("call", LIST_CALLS.values(), ids=LIST_CALLS)
def test_call_cache__any_list_after_any_other(
    call: Call, teachers: Callable[[dict[str, Any]], list[str]]
) -> None:
    """Every list gives the planned result, whichever list the same call converted before."""
    with planned():
        expected = {name: outcome(call, x) for name, x in lists().items()}
    xs = lists()
    for teacher, taught in taught_by(call, lists, teachers(xs)):
        for pupil, x in xs.items():
            assert outcome(call, x) == expected[pupil], (teacher, pupil)
            restore(taught)


@pytest.mark.parametrize("make", [numpys, torchs])
def test_dtype_of__agrees_with_array_info(make: Callable[[], dict[str, Any]]) -> None:
    """`dtype_of` and `device_of` report what `array_info` of the backend reports."""
    for name, x in make().items():
        backend = get_backend(xbridge.backend_of(x))
        info = backend.array_info(x)
        assert (xbridge.dtype_of(x), xbridge.device_of(x)) == (info.dtype, info.device), name


def test_shares_memory__agrees_with_the_planned_comparison() -> None:
    """The fast comparison by views gives the same answers and errors as the one by layouts."""

    def compared(a: Any, b: Any) -> object:
        try:
            return xbridge.shares_memory(a, b)
        except xbridge.XBridgeError as error:
            return type(error), str(error)

    xs = [*numpys().values(), *torchs().values()]
    base = torch.arange(6.0)
    xs += [base, base.numpy()[::-1], base[::2], base[1::2].requires_grad_(), base[:0], base.expand(2, 6)]
    with planned():
        expected = [compared(a, b) for a in xs for b in xs]
    assert [compared(a, b) for a in xs for b in xs] == expected
    assert expected.count(True) > len(xs) / 2


TAUGHT = [name for name in CALLS if name not in ("cast without a copy", "to numpy keep")]


@pytest.mark.parametrize("name", TAUGHT)
def test_call_cache__repeated_call_is_not_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call with the same options and kind of array makes no plan."""
    call, used = CALLS[name], 0
    for x in (numpys()["plain"], torchs()["plain"]):
        expected = outcome(call, x)
        if expected[0] is xbridge.GradientError:
            continue
        used += 1
        with monkeypatch.context() as patch:
            for module in ("convert", "batch"):
                patch.setattr(f"xbridge._engine.{module}.plan", None)
            assert outcome(call, x) == expected
    assert used


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "default"},
        {"dtype": "float32"},
        {"dtype": "int32"},
        {"dtype": "float32", "copy": True, "device": "cpu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["plain", "other", "fortran", "reversed", "strided", "integers"])
def test_call_cache__repeated_cast_to_jax_is_not_planned(
    kind: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cast to JAX makes no plan, whatever the layout."""
    pytest.importorskip("jax")
    get_backend("jax")

    def call(x: Any) -> Any:
        return xbridge.to_backend(x, "jax", **options)

    x = numpys()[kind]
    expected = outcome(call, x)
    with monkeypatch.context() as patch:
        patch.setattr(convert, "plan", None)
        assert outcome(call, x) == expected


def test_call_cache__check_and_cast_run_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated cast with a check calls `astype_checked` once."""
    seen: list[int] = []

    def astype_checked(host: Any, dtype: str) -> Any:
        seen.append(host.size)
        return memory.astype_checked(host, dtype)

    monkeypatch.setattr(_host, "astype_checked", astype_checked)
    for size in (5, 6, 7):
        y = xbridge.to_backend(np.arange(float(size)), "torch", dtype="default")
        assert y.tolist() == [*range(size)]
    assert seen[-2:] == [6, 7]


@pytest.mark.parametrize("kind", ["conjugate", "conjugate history", "negative", "negative brain"])
def test_call_cache__pending_operation_is_not_planned_twice(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second conversion of a conjugated or negated tensor makes no plan and still copies."""
    calls: tuple[Call, ...] = (xbridge.to_numpy, lambda x: xbridge.to_numpy(x, dtype="complex64"))
    for call in calls:
        x = torchs()[kind]
        expected = outcome(call, x)
        with monkeypatch.context() as patch:
            patch.setattr(convert, "plan", None)
            assert outcome(call, x) == expected
        host = call(torchs()[kind])
        host[...] = 0
        assert outcome(call, x) == expected


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by torch
def test_call_cache__pending_operation_inside_a_transform() -> None:
    """Inside a transform or a fake mode a cached call raises the error of the plan."""
    x = torch.ones(2, dtype=torch.complex64).conj()
    for _ in range(2):
        xbridge.to_numpy(x)
    errors = []

    def used(y: Any) -> Any:
        with pytest.raises(xbridge.XBridgeError) as caught:
            xbridge.to_numpy(y)
        errors.append(str(caught.value))
        return y

    torch.func.vmap(used)(torch.ones(2, 2, dtype=torch.complex64).conj())
    torch.func.vmap(lambda y: used(y.conj()))(torch.ones(2, 2, dtype=torch.complex64))
    with torch.autograd.forward_ad.dual_level():
        used(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    with fake_mode():
        used(x)
    assert [error.partition(": ")[2].partition(";")[0] for error in errors] == [
        "a function transform is running over it",
        "a function transform is running over it",
        "its forward-mode tangent would be lost",
        "a fake mode is running, which computes no values",
    ]


def test_to_numpy__checks_dtype_first_after_bfloat16() -> None:
    """After a dtype that NumPy lacks, the next few tensors are asked for their dtype first."""
    from xbridge.backends import torch as backend

    brain, plain = torch.ones(2, dtype=torch.bfloat16), torch.arange(2)
    for _ in range(2):
        assert xbridge.to_numpy(brain).tolist() == [1.0, 1.0]
        assert backend._prechecks == backend._PRECHECKS
        for left in range(backend._PRECHECKS - 1, -1, -1):
            assert xbridge.to_numpy(plain).tolist() == [0, 1]
            assert backend._prechecks == left
        assert xbridge.to_numpy(plain).tolist() == [0, 1]
        assert not backend._prechecks


def test_asarray__repeated_numbers_and_lists_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call with the same kind of numbers or lists makes no plan."""
    tensors = [torch.ones(2).double(), torch.zeros(2).double()]
    mixed = [*tensors, np.ones(2)]
    for obj in (
        1.5,
        [1.0, 2.0],
        [[1, 2], [3, 4]],
        True,
        np.float64(2),
        list(np.ones(2)),
        tensors,
        mixed,
    ):
        expected = outcome(lambda x: xbridge.asarray(x, backend="torch"), obj)
        with monkeypatch.context() as patch:
            patch.setattr(convert, "plan", None)
            assert outcome(lambda x: xbridge.asarray(x, backend="torch"), obj) == expected


# -- state that changes after the first call ------------------------------------------------------


def default_dtype() -> Any:
    @contextmanager
    def double() -> Iterator[None]:
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)

    return double()


def dispatch_mode() -> Any:
    from torch_modes import Passes

    return Passes()  # type: ignore[no-untyped-call] # torch's


def fake_mode() -> Any:
    return torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)


STATES = {
    "default dtype": default_dtype,
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "forward mode": torch.autograd.forward_ad.dual_level,
    "dispatch mode": dispatch_mode,
    "fake mode": fake_mode,
    "policy": lambda: xbridge.policy(copies="raise", casts="raise"),
    "record": xbridge.record,
    "observer": planned,
    "device": lambda: torch.device("meta"),
}


@pytest.mark.slow
@pytest.mark.unmeasured
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by the fake mode
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("name", CALLS)
def test_call_cache__follows_the_state_of_torch(name: str, state: Callable[[], Any]) -> None:
    """A cached call gives the planned result after modes and defaults of torch change."""

    def outcomes(kinds: tuple[str, ...]) -> list[tuple[object, ...]]:
        return [bare(CALLS[name], make[kind]) for make in (first, second) for kind in kinds if kind in make]

    def bare(call: Call, x: Any) -> tuple[object, ...]:
        try:
            y = call(x)
        except (xbridge.XBridgeError, RuntimeError, AssertionError) as error:
            return type(error), str(error)
        inference = isinstance(y, torch.Tensor) and y.is_inference()
        return type(y), str(y.dtype), tuple(y.shape), y is x, inference, getattr(y, "requires_grad", None)

    kinds = (
        *("plain", "leaf", "history", "strided", "integers", "large", "locked", "single", "mapped"),
        *("conjugate", "negative history"),
    )
    first, second = numpys(), torchs()
    with state(), planned():
        expected = outcomes(kinds)
    outcomes(kinds)
    with state():
        assert outcomes(kinds) == expected
        assert outcomes(kinds) == expected


@pytest.mark.slow
def test_call_cache__follows_enable_x64_of_jax() -> None:
    """A cached call gives the planned result after JAX turns 64-bit types on or off."""
    jax = pytest.importorskip("jax")
    calls: list[Call] = [
        lambda x: xbridge.to_backend(x, "jax", dtype="default"),
        lambda x: xbridge.to_backend(x, "jax", dtype="nearest"),
        lambda x: xbridge.to_backend(x, "jax", dtype="float32"),
        lambda x: xbridge.to_backend(x, "jax", copy=True),
        lambda x: xbridge.to_backend(x, "jax", device="cpu"),
        lambda x: xbridge.align(jax.numpy.ones(1), x)[1],
        lambda x: tree.to_backend([x], "jax", dtype="nearest")[0],
        lambda x: xbridge.asarray([1.0, 2.0], backend="jax"),
    ]
    kinds = (
        "plain",
        "strided",
        "reversed",
        "integers",
        "single",
        "large",
        "locked",
        "empty",
        "leaf",
        "one row",
    )

    def outcomes(call: Call) -> list[tuple[object, ...]]:
        return [outcome(call, make()[k]) for make in (numpys, torchs) for k in kinds if k in make()]

    for call in calls:
        expected = {}
        for wide in (True, False):
            with jax.enable_x64(wide), planned():
                expected[wide] = outcomes(call)
        assert expected[True] != expected[False] or call is calls[2]
        for wide in (True, False, True, False):
            with jax.enable_x64(wide):
                assert outcomes(call) == expected[wide]


def test_call_cache__jax_arrays_convert_as_planned() -> None:
    """The first and second conversion of a JAX array give the planned result."""
    jax = pytest.importorskip("jax")
    xs = [jax.numpy.ones(3), jax.numpy.ones((1, 3)), jax.numpy.zeros((0,)), jax.numpy.arange(3)]
    xs += [jax.numpy.ones(2, "bfloat16"), jax.numpy.ones((2, 3)).T, jax.numpy.float32(1e38) * np.ones(2)]
    gone = jax.numpy.ones(2)
    gone.delete()
    xs.append(gone)
    calls = [CALLS[name] for name in CALLS if "its library" not in name]
    for call in calls:
        with planned():
            expected = [outcome(call, x) for x in xs]
        for _ in range(2):
            assert [outcome(call, x) for x in xs] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda x: xbridge.to_backend(x, "torch", dtype="float32", copy=True) * 2,
        lambda x: xbridge.asarray(x, dtype="float32", copy=True) * 2,
        lambda x: xbridge.align(x, x + 1, dtype="float32")[1] * 2,
        lambda x: xbridge.asarray(x, like=x, dtype=torch.float32) * 2,
    ],
    ids=["to_backend", "asarray", "align", "like"],
)
def test_call_cache__compiled_code_adds_no_entries(call: Call) -> None:
    """`torch.compile` adds nothing to the cache, and its results agree with it."""
    x = torch.arange(3.0).double()

    def compiled() -> Any:
        torch.compiler.reset()
        return torch.compile(call, backend="eager", fullgraph=True)(x)

    first = compiled()
    assert not cached
    second = call(x)
    assert cached
    for y in (second, call(x), compiled()):
        assert torch.equal(y, first)
        assert y.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # by the compiler
@pytest.mark.parametrize("name", ["dtype", "copy", "device", "default", "tree dtype", "to numpy copy"])
def test_call_cache__compiled_code_uses_entries(name: str) -> None:
    """Compiled code that leaves torch gives the result of the cached call."""
    call = CALLS[name]

    def used(x: Any) -> Any:
        return call(x * 2)

    for x in (np.arange(3.0), torch.arange(3.0).double()):
        expected = [outcome(used, x) for _ in range(2)]
        torch.compiler.reset()
        compiled = torch.compile(used, backend="eager")
        for _ in range(2):
            y = compiled(x)
            assert type(y) is expected[0][0]
            assert xbridge.dtype_of(y) == expected[0][2]
            assert np.asarray(y).tolist() == [0.0, 2.0, 4.0]


def test_call_cache__copy_false_sees_read_only_flag() -> None:
    """An array shared by one call is refused with `copy=False` once it is read-only."""
    x = np.arange(3.0)
    for _ in range(2):
        assert xbridge.shares_memory(xbridge.to_backend(x, "torch", copy=False), x)
    x.flags.writeable = False
    with pytest.raises(xbridge.CopyError, match="read-only"):
        xbridge.to_backend(x, "torch", copy=False)


def test_call_cache__checks_the_current_storage() -> None:
    """A cached call never reads a storage that was freed in the meantime."""
    for x in (torch.ones(4), torch.ones(4)):
        xbridge.to_backend(x, "torch", copy=True)
        xbridge.to_backend(x, "torch", dtype="float64")
        xbridge.to_numpy(torch.ones(4), copy=True)
        xbridge.to_numpy(torch.ones(4), dtype="float64")
    x.untyped_storage().resize_(0)
    for options in ({"copy": True}, {"dtype": "float64"}):
        for target in ("torch", "numpy"):
            with pytest.raises(xbridge.UnsupportedArrayError, match="freed"):
                xbridge.to_backend(x, target, **options)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that the host has copied."""
    shapes: list[tuple[int, ...]] = []
    copy = _host.copy

    def counted(host: Any, *order: Any) -> Any:
        shapes.append(host.shape)
        return copy(host, *order)

    def copier(_: Any) -> Call:
        return counted

    monkeypatch.setattr(_host, "copy", counted)
    monkeypatch.setattr(_host, "dense_copier", copier)
    return shapes


def test_call_cache__copies_once_if_target_declines(copied: list[tuple[int, ...]]) -> None:
    """An array is copied only once if the target declines the cached conversion."""
    for x in (np.ones(5), np.ones(5, "Q")):  # C has two names for this integer, and torch knows one
        copied.clear()
        for mode in (False, True, True, False):
            with torch.inference_mode(mode):
                converted(x)
        assert copied.count((5,)) == 4


def test_call_cache__shares_mapped_files_by_their_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a file in memory are shared without a plan, and copied if the file is read-only."""
    np.arange(6.0).tofile(tmp_path / "numbers")
    files = {mode: np.memmap(tmp_path / "numbers", "f8", mode, shape=(3, 2)) for mode in ("r", "c", "r+")}
    arrays = planned_arrays(monkeypatch)
    for mode in ("r", "r+", "c", "r", "c", "r+"):
        row = files[mode][1]
        x, y = xbridge.to_torch(row), tree.to_torch([row])[0]
        assert x.tolist() == y.tolist() == [2.0, 3.0]
        assert xbridge.shares_memory(x, files[mode]) is xbridge.shares_memory(y, row) is (mode != "r")
        assert xbridge.to_numpy(row) is row
    assert not arrays
    files["c"][1] = 7
    assert xbridge.to_torch(files["c"][1]).tolist() == [7.0, 7.0]
    assert xbridge.to_torch(files["r+"][1]).tolist() == [2.0, 3.0]


class Exports:
    """An object that exports what it holds."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self.held = held

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.held


def test_call_cache__reads_each_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters of one class are imported each time, and what they hold is converted or refused by itself."""
    calls: list[Call] = [
        lambda x: xbridge.to_backend(x, "torch"),
        lambda x: xbridge.to_backend(x, "torch", dtype="float32"),
        xbridge.to_numpy,
    ]
    held = [
        np.ones(3),
        np.arange(2),
        np.ones((2, 2), "f4")[::-1],
        np.array(["a"]),
        np.array([None]),
        np.ones(0),
    ]
    for call in calls:
        with planned():
            expected = [outcome(call, Exports(x)) for x in held]
        for _ in range(2):
            assert [outcome(call, Exports(x)) for x in held] == expected
        with monkeypatch.context() as patch:
            arrays = planned_arrays(patch)
            call(Exports(held[0]))
            assert not arrays


def test_to_list__repeats_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that NumPy has no numbers for, or that are still to be computed, are listed without a plan."""
    brain, pairs = torch.arange(3).bfloat16(), torch.tensor([1 + 2j]).conj()
    for _ in range(2):
        assert xbridge.to_list(brain) == [0.0, 1.0, 2.0]
        assert xbridge.to_list(pairs) == [1 - 2j]
    arrays = planned_arrays(monkeypatch)
    assert xbridge.to_list(brain + 1) == [1.0, 2.0, 3.0]
    assert xbridge.to_list(pairs) == [1 - 2j]
    assert not arrays


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float32"}, {"dtype": "default"}, {"backend": "torch"}], ids=str
)
def test_asarray__promotes_arrays_as_planned(options: dict[str, Any]) -> None:
    """A list of arrays of two dtypes is what a plan makes of it, or the same error."""
    ends = {"b": [0, 1], "i": [-1, 1], "u": [0, 1], "f": [0.1, np.inf], "c": [0.1, 1j]}
    xs = [np.array(ends["b"], "?")]
    for dtype in map(np.dtype, ("i1", "i8", "u2", "u8", "f2", "f4", "f8", "c8", "c16")):
        xs.append(np.array(ends[dtype.kind], dtype))
        if dtype.kind in "iu":
            xs.append(np.array([np.iinfo(dtype).max, 0], dtype))
    pairs = [[x, y] for x in xs for y in xs]

    def stack(pair: list[Any]) -> Any:
        return xbridge.asarray([*pair], **options)

    with planned():
        expected = [outcome(stack, pair) for pair in pairs]
    assert [outcome(stack, pair) for pair in pairs] == expected


def test_call_cache__copies_for_strides_only_if_needed(copied: list[tuple[int, ...]]) -> None:
    """A copy made for the strides of one array is not made for later arrays."""
    rows = np.arange(12.0).reshape(3, 4)
    for x in (rows[::-1], rows[::-1], rows[:, ::2]):
        xbridge.to_backend(x, "torch", dtype="float16", copy=True)  # the cast is torch's
    assert copied == [(3, 4), (3, 4)]


def test_call_cache__refuses_views_past_the_storage() -> None:
    """A view that ends beyond its shrunk storage is never read by a cached call."""
    whole = torch.ones(8)
    view = whole[4:]
    whole.untyped_storage().resize_(24)
    for _ in range(2):
        xbridge.to_backend(torch.ones(8)[4:], "torch", copy=True)
        for options in ({"copy": True}, {"dtype": "float64"}):
            for target in ("torch", "numpy"):
                with pytest.raises(xbridge.UnsupportedArrayError, match="freed or shrunk"):
                    xbridge.to_backend(view, target, **options)


# -- any sequence of calls ----------------------------------------------------------------------------


def others() -> dict[str, Any]:
    """Arrays of the libraries that are lazy, immutable or unknown, as far as they are installed."""
    made: dict[str, Any] = {"scalar of numpy": np.float32(1.5)}
    if xbridge.is_available("jax"):
        import jax

        deleted = jax.numpy.ones(3)
        deleted.delete()
        made |= {
            "jax": jax.numpy.arange(6.0),
            "jax, transposed": jax.numpy.ones((2, 3)).T,
            "jax, empty": jax.numpy.ones((0, 2)),
            "jax, brain": jax.numpy.ones(2, "bfloat16"),
            "jax, integers": jax.numpy.arange(3),
            "jax, deleted": deleted,
        }
        with jax.enable_x64(True):
            made["jax, wide"] = jax.numpy.array([1.0, 1e300])
    if xbridge.is_available("dask"):
        import dask.array

        made |= {
            "dask": dask.array.from_array(np.arange(6.0), chunks=2),
            "dask, reversed": dask.array.from_array(np.arange(6.0), chunks=6)[::-1],
            "dask, integers": dask.array.arange(3, chunks=2),
            "dask, unknown": dask.array.arange(3.0, chunks=2)[dask.array.arange(3, chunks=2) > 0],
        }
    return made


def libraries() -> list[str]:
    return [name for name in ("numpy", "torch", "jax", "dask") if xbridge.is_available(name)]


def calls_to(name: str, options: dict[str, Any], more: dict[str, Any]) -> dict[str, Call]:
    """Every call that takes the options and the name of a library."""
    return {
        f"to_backend {name}": lambda x: xbridge.to_backend(x, name, **options),
        f"asarray {name}": lambda x: xbridge.asarray(x, backend=name, **options, **more),
        f"tree.to_backend {name}": lambda x: tree.to_backend((x,), name, **options)[0],
    }


def calls_with(options: dict[str, Any], more: dict[str, Any]) -> dict[str, Call]:
    """Every call that takes the options, to every library. Only `asarray` makes leaves."""
    host = {name: value for name, value in options.items() if name != "device"}
    made: dict[str, Call] = {
        "to_numpy": lambda x: xbridge.to_numpy(x, **host),
        "to_numpy, writable": lambda x: xbridge.to_numpy(x, **host, writable=True),
        "tree.to_numpy": lambda x: tree.to_numpy({"x": x, "n": 1}, **host)["x"],
        "tree.to_numpy, writable": lambda x: tree.to_numpy([x], **host, writable=True)[0],
        "asarray": lambda x: xbridge.asarray(x, **options, **more),
        "asarray, like": lambda x: xbridge.asarray(x, like=torch.ones(1), **options, **more),
        "align": lambda x: xbridge.align(np.ones(1), x, 1.5, **options)[1],
        "align to": lambda x: xbridge.align(x, torch.ones(1), backend="numpy", **options)[0],
        "align_back": lambda x: xbridge.align_back(torch.ones(1), x, **options)[0][1],
        "tree.align": lambda x: tree.align([x], like=torch.ones(1), **options)[0][0],
        "aligned": xbridge.aligned(backend="torch", **options)(lambda y: y),
    }
    for name in libraries():
        made |= calls_to(name, options, more)
    return made


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "device": st.sampled_from(["cpu", torch.device("cpu"), xbridge.Device("cpu")]),
        "dtype": st.sampled_from(
            [*("float32", "float64", "float16", "bfloat16", "int32", "complex64", "default", "nearest")]
        ),
        "copy": st.booleans(),
        "grad": st.sampled_from(["keep", "detach"]),
    },
)
LEAVES = st.fixed_dictionaries({}, optional={"requires_grad": st.booleans()})
NAMES = st.sampled_from(sorted(calls_with({}, {})))
CHANGES: dict[str, Callable[[], Any]] = {
    "none": nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "default dtype": default_dtype,
    "x64": lambda: jax_with_wide_dtypes() if xbridge.is_available("jax") else nullcontext(),
}
STATES_IN_TURN = st.lists(st.sampled_from(list(CHANGES)), min_size=1, max_size=3)


def jax_with_wide_dtypes() -> Any:
    import jax

    return jax.enable_x64(True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # a cast was named
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@example("to_numpy", {"copy": True, "grad": "keep"}, {}, ["none"], 0)
@example("to_numpy", {"dtype": "float32", "grad": "keep"}, {}, ["none"], 0)
@given(
    NAMES, OPTIONS, LEAVES, st.lists(st.sampled_from(list(CHANGES)), min_size=1, max_size=3), st.integers()
)
def test_call_cache__any_sequence_gives_planned_results(
    name: str, options: dict[str, Any], more: dict[str, Any], states: list[str], order: int
) -> None:
    """Any sequence of arrays, options and library states gives what a plan gives."""
    call = calls_with(options, more)[name]
    xs = [(kind, x) for make in (numpys, torchs, others) for kind, x in make().items()]
    Random(order).shuffle(xs)
    expected: dict[str, list[object]] = {}
    for state in states:
        with CHANGES[state](), planned():
            expected[state] = [outcome(call, x) for _, x in xs]
    forget_calls()
    for state in (*states, *states):
        with CHANGES[state]():
            for (kind, x), planned_outcome in zip(xs, expected[state], strict=True):
                assert outcome(call, x) == planned_outcome, (kind, state)


FAILING: dict[str, tuple[Call, Callable[[int], Any]]] = {
    "copy": (lambda x: xbridge.to_backend(x, "torch", copy=True), lambda n: torch.zeros(1).expand(n)),
    "cast": (lambda x: xbridge.to_backend(x, "torch", dtype="float64"), lambda n: torch.zeros(1).expand(n)),
    "pending": (xbridge.to_numpy, lambda n: torch.zeros(1, dtype=torch.complex64).expand(n).conj()),
}
"""Calls, and arrays of any length whose copies need memory for all of it."""


@pytest.mark.parametrize("name", FAILING)
def test_repeat__reports_library_errors_like_a_plan(name: str) -> None:
    """An exception of a library in a cached call is replaced by the error of the plan."""
    call, make = FAILING[name]
    with planned(), pytest.raises(xbridge.XBridgeError, match="failed with") as expected:
        call(make(2**46))
    for _ in range(2):
        call(make(3))
    with pytest.raises(type(expected.value)) as caught:
        call(make(2**46))
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.vmap])
def test_repeat__refuses_leaves_inside_transforms(transform: Any) -> None:
    """A leaf created outside a transform does not let a cached call create one inside."""
    for plain in (np.ones(2), torch.ones(2)):
        for _ in range(2):
            xbridge.asarray(plain, backend="torch", requires_grad=True)

        def inside(y: Any, x: Any = plain) -> Any:
            with pytest.raises(xbridge.GradientError, match="require_grad failed"):
                xbridge.asarray(x, backend="torch", requires_grad=True)
            return y.sum()

        transform(inside)(torch.ones(1, 2) if transform is torch.vmap else torch.ones(2))


# -- observers, registrations and threads -----------------------------------------------------------


def test_record__counts_each_cached_call_once() -> None:
    """`record` counts every cached call exactly once."""
    x = np.arange(3.0)
    for _ in range(2):
        xbridge.to_backend(x, "torch", dtype="float32")
    with xbridge.record() as seen:
        for _ in range(3):
            xbridge.to_backend(x, "torch", dtype="float32")
            tree.to_backend([x], "torch", dtype="float32")
    assert sorted(row.calls for row in seen.rows) == [3, 3]
    assert not cached


def converted(x: Any) -> Any:
    return xbridge.to_backend(x, "torch", copy=True)


def during_the_plan(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Make a change while the next conversion is planned."""
    plan = convert.plan

    def changed(*args: Any, **options: Any) -> Any:
        for module in (convert, batch):
            monkeypatch.setattr(module, "plan", plan)
        found = plan(*args, **options)
        change()
        return found

    for module in (convert, batch):
        monkeypatch.setattr(module, "plan", changed)


def enter_and_leave() -> None:
    with xbridge.policy(casts="warn"):
        pass


class SubScalar(np.float64):
    """A class of scalars."""


SCALARS = [dtype.type(1) for dtype in sorted(memory.NATIVE, key=str)]
ODD_SCALARS = [np.longlong(1), np.longdouble(1), SubScalar(1), np.str_("1"), np.datetime64("2026-01-01")]
SCALAR_CALLS: dict[str, Call] = {
    "to_numpy": xbridge.to_numpy,
    "to_backend": lambda x: xbridge.to_backend(x, "torch"),
    "asarray": xbridge.asarray,
    "asarray to torch": lambda x: xbridge.asarray(x, backend="torch"),
    "align": lambda x: xbridge.align(torch.ones(1), x)[1],
    "tree": lambda x: tree.to_backend([x], "torch")[0],
    "function": lambda x: by_numpy(1, y=x),
}


@pytest.mark.parametrize("call", SCALAR_CALLS.values(), ids=SCALAR_CALLS)
@pytest.mark.parametrize("x", [*SCALARS, *ODD_SCALARS], ids=lambda x: type(x).__name__)
def test_scalar_is_converted_as_planned(call: Call, x: Any) -> None:
    """Most of NumPy's scalars are converted without a plan, as their arrays."""
    with planned():
        expected = outcome(call, x)
    assert outcome(call, x) == expected
    assert outcome(call, x) == expected


WHOLE: dict[str, Call] = {
    "to_backend": converted,
    "scalar": lambda x: xbridge.to_backend(x[0], "torch", dtype="float32"),
    "leaf": lambda x: xbridge.asarray(x, backend="torch", requires_grad=True),
    "like": lambda x: xbridge.asarray(x, like=torch.ones(1), copy=True),
    "align": lambda x: xbridge.align(torch.ones(1), x, copy=True)[1],
    "number": lambda x: xbridge.asarray(float(x[0]), backend="torch"),
    "list": lambda x: xbridge.asarray(x.tolist(), backend="torch"),
    "arrays": lambda x: xbridge.asarray([x, np.ones(2, "i4")], backend="torch"),
    "scalars": lambda x: xbridge.asarray(list(x), backend="torch", dtype="float32"),
}


@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("change", [enter_and_leave, forget_calls])
def test_call_cache__ignores_plans_made_before_a_change(
    change: Callable[[], None], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is not cached if a policy or a backend changed while it was made."""
    xbridge.to_backend(np.ones(2), "torch")
    before = list(map(set, tables()))
    during_the_plan(monkeypatch, change)
    call(np.ones(2))
    assert list(map(set, tables())) == before
    call(np.ones(2))
    assert list(map(set, tables())) != before


@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
def test_record__sees_every_cached_call(call: Call) -> None:
    """Entering `record` also shows calls that were cached before."""
    x = np.ones(2)
    for _ in range(2):
        call(x)
    with xbridge.record() as seen:
        call(x)
        one = sum(row.calls for row in seen.rows)
        call(x)
    assert one
    assert sum(row.calls for row in seen.rows) == 2 * one
    assert not cached


def test_call_cache__reads_the_device_of_like_each_time() -> None:
    """A cached call follows the device of the array that decides."""
    near, far = torch.ones(1), torch.ones(1, device="meta")
    ask: list[Call] = [
        lambda like: xbridge.asarray(torch.ones(2), like=like),
        lambda like: xbridge.align(torch.ones(2), like=like)[0],
        lambda like: xbridge.align(like, torch.ones(2), 3)[1],
        lambda like: xbridge.align_back(like, torch.ones(2))[0][1],
    ]
    for call in ask:
        places = [str(call(like).device) for like in (near, near, far, near, far)]
        assert places == ["cpu", "cpu", "meta", "cpu", "meta"]


@pytest.mark.parametrize("flag", [1, 0, np.True_])
def test_call_cache__refuses_values_equal_to_a_cached_flag(flag: Any) -> None:
    """1 and 0 are refused for `requires_grad` even after True and False were cached."""
    x = torch.ones(2)
    for known in (True, False):
        for _ in range(2):
            xbridge.asarray(x, requires_grad=known)
    with pytest.raises(xbridge.OptionError, match="requires_grad"):
        xbridge.asarray(x, requires_grad=flag)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_plan_state__is_hashable_and_stable(name: str) -> None:
    """The state of a backend can be a dictionary key and is equal as long as nothing changes."""
    pytest.importorskip(name)
    state = get_backend(name).fast.plan_state
    assert state is not None
    assert {state(): "found"}.get(state()) == "found"


@pytest.mark.usefixtures("own_registry")
def test_register_backend__replacing_during_a_plan_takes_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend replaced while a plan is being made is used by the next call."""

    def toys(word: str) -> Any:
        made: Any = {"from_numpy": Toy, "fast_from_numpy": Toy, "plan_state": lambda: None}
        return make_backend(samples=word, assumes_immutable=False, **made)

    xbridge.register_backend("toylib", toys("old"))
    x = np.ones(2)
    xbridge.to_backend(x, "toylib")
    during_the_plan(monkeypatch, lambda: xbridge.register_backend("toylib", toys("new"), replace=True))
    xbridge.to_backend(x, "toylib", copy=True)
    assert not cached
    for _ in range(2):
        xbridge.to_backend(x, "toylib", copy=True)
    assert len(cached) == 1
    xbridge.register_backend("toylib", toys("newer"), replace=True)
    assert not cached


def test_call_cache__ignores_state_changed_during_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is not cached if the state of its library changes while it is made."""
    try:
        during_the_plan(monkeypatch, lambda: torch.set_default_dtype(torch.float64))
        assert xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float32
        assert xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_call_cache__ignores_state_changed_before_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is not cached if the state changes between the lookup and the plan."""
    plan = convert.plan

    def later(*args: Any, **options: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        return plan(*args, **options)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(convert, "plan", later)
            assert xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert xbridge.to_backend(np.ones(2), "torch", dtype="default").dtype == torch.float32


def test_policy__holds_while_another_thread_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy entered while another thread makes a plan applies to the next call."""
    xbridge.to_backend(np.ones(2), "torch")
    planning, entered = threading.Event(), threading.Event()

    def wait() -> None:
        planning.set()
        assert entered.wait(60)

    during_the_plan(monkeypatch, wait)
    thread = threading.Thread(target=converted, args=(np.ones(2),))
    thread.start()
    assert planning.wait(60)
    with xbridge.policy(copies="raise"):
        entered.set()
        thread.join(60)
        assert not cached
        for _ in range(2):
            with pytest.raises(xbridge.PolicyError):
                converted(np.ones(2))
    converted(np.ones(2))
    assert cached


def test_call_cache__threads_and_policies() -> None:
    """Threads get planned results while policies are entered and left."""
    x, wrong = np.arange(4.0), []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            for name in ("copy", "dtype", "default", "to numpy dtype", "tree dtype", "align"):
                y = CALLS[name](x)
                if not np.array_equal(np.asarray(y), x) or (name != "align" and xbridge.shares_memory(x, y)):
                    wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            with xbridge.policy(copies="raise"), pytest.raises(xbridge.PolicyError):
                converted(x)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []


# -- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [1, 0, 1.0, np.True_, np.False_, "yes"])
def test_call_cache__refuses_values_equal_to_a_cached_option(copy: Any) -> None:
    """1 and "yes" are refused for `copy` even after True and False were cached."""
    x, t = np.ones(2), torch.ones(2)
    for known in (True, False):
        for _ in range(2):
            xbridge.to_backend(x, "torch", copy=known)
            xbridge.to_backend(t, "torch", copy=known)
            xbridge.to_numpy(t, copy=known)
            xbridge.asarray(x, copy=known)
            tree.to_backend([x], "torch", copy=known)
    for call in (
        lambda: xbridge.to_backend(x, "torch", copy=copy),
        lambda: xbridge.to_numpy(t, copy=copy),
        lambda: xbridge.asarray(x, backend="torch", copy=copy),
        lambda: xbridge.asarray(x, copy=copy),
        lambda: xbridge.align(t, x, copy=copy),
        lambda: tree.to_backend([x], "torch", copy=copy),
    ):
        with pytest.raises(xbridge.OptionError, match="it is None, True or False"):
            call()


def test_call_cache__unhashable_options_are_planned() -> None:
    """An option that cannot be hashed gets the error of the plan."""

    class Odd:
        __hash__ = None  # type: ignore[assignment]

    for _ in range(2):
        with pytest.raises(xbridge.DeviceError):
            xbridge.to_backend(np.ones(2), "torch", device=Odd())
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_numpy(np.ones(2), dtype=[])


def test_call_cache__ignores_str_subclasses() -> None:
    """An option of a str subclass is read each time and never in a key."""

    class Word(StrEnum):
        SINGLE = "float32"

    for _ in range(2):
        assert xbridge.to_backend(np.ones(2), "torch", dtype=Word.SINGLE).dtype == torch.float32
    assert not any(type(part) is Word for key in cached for part in key)
    xbridge.to_backend(np.ones(2), "torch", dtype="float32")
    assert xbridge.to_backend(np.ones(2), "torch", dtype=Word.SINGLE).dtype == torch.float32


def test_call_cache__ignores_backends_without_plan_state(own_registry: None) -> None:
    """Calls of a backend without `plan_state` are planned each time."""
    xbridge.register_backend("toylib", make_backend())
    for _ in range(2):
        assert isinstance(xbridge.to_backend(np.ones(2), "toylib", copy=True), Toy)
    assert not cached


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: xbridge.to_backend(x, "toylib", dtype="float64").data,
        lambda x: tree.to_backend([x], "toylib", dtype="float64")[0].data,
        lambda x: xbridge.to_numpy(Toy(x), dtype="float64"),
        lambda x: tree.to_numpy([Toy(x)], dtype="float64")[0],
    ],
    ids=["to it", "tree to it", "from it", "tree from it"],
)
def test_call_cache__ignores_plans_made_while_tracing(convert: Call, own_registry: None) -> None:
    """A plan made while a compiler traces is not cached."""
    tracing = [True]
    verbs: Any = {"is_tracing": lambda: tracing[0], "untraced": lambda fn: fn, "plan_state": lambda: None}
    own: Any = {"gaps": {}, "assumes_immutable": False, "fast_from_numpy": Toy}
    xbridge.register_backend("toylib", make_backend(fast_to_numpy=lambda x: x.data, **verbs, **own))
    locked = np.arange(4.0)
    locked.flags.writeable = False
    assert not np.shares_memory(convert(locked), locked)
    tracing[0] = False
    for _ in range(3):
        assert np.shares_memory(convert(locked), locked)
    assert cached


def test_call_cache__plans_arrays_that_might_have_a_graph_to_keep(own_registry: None) -> None:
    """A call with `grad="keep"` that leaves its library is planned, so it can refuse any later array."""
    graph: Any = {"require_grad": lambda x: x, "detach": lambda x: x}
    own: Any = {"fast_to_numpy": lambda x: x.data, "plan_state": lambda: None, "gaps": {}, **graph}
    xbridge.register_backend("toylib", make_backend(**own))
    for _ in range(2):
        xbridge.to_numpy(Toy(np.ones(2)), copy=True, grad="keep")
    assert not cached
    for _ in range(2):
        xbridge.to_numpy(Toy(np.ones(2)), copy=True)
    assert cached


def test_call_cache__ignores_transfers(own_registry: None) -> None:
    """A conversion that moves to another device calls `to_device` each time."""
    moved: list[str] = []
    places = (xbridge.Device("cpu"), xbridge.Device("toy:0"))

    def move(x: Toy, device: xbridge.Device, /) -> Toy:
        moved.append(device)
        return x

    verbs: Any = {"devices": lambda: places, "to_device": move, "plan_state": lambda: None}
    xbridge.register_backend("toylib", make_backend(fast_from_numpy=Toy, **verbs))
    for options in ({}, {"copy": True}, {"dtype": "float32"}):
        for _ in range(3):
            xbridge.to_backend(np.ones(2), "toylib", device="toy:0", **options)
    assert moved == ["toy:0"] * 9


def test_tree__text_array_stays_itself_after_a_copy() -> None:
    """A text array in a tree is not copied even if the same call outside of a tree did."""
    text = np.array(["a", "b"])
    for _ in range(2):
        assert xbridge.to_backend(text, "numpy", copy=True) is not text
        assert tree.to_backend([text], "numpy", copy=True)[0] is text


def test_to_numpy__skips_torch_function_of_subclasses() -> None:
    """Converting a tensor subclass never runs its `__torch_function__`."""

    class Counting(torch.Tensor):  # type: ignore[misc,name-defined] # torch is Any here
        calls = 0

        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            cls.calls += 1
            return super().__torch_function__(*args, **kwargs)

    x = torch.ones(3).as_subclass(Counting)
    Counting.calls = 0
    for _ in range(3):
        assert xbridge.to_numpy(x, dtype="float64").tolist() == [1.0] * 3
        assert xbridge.to_numpy(x, copy=True).tolist() == [1.0] * 3
    assert Counting.calls == 0


def test_call_cache__ignores_plans_that_depend_on_alignment(own_registry: None) -> None:
    """Sharing that depends on the address of an array is decided in each call."""
    jax = pytest.importorskip("jax")
    own: Any = {"fast_to_numpy": lambda x: x.data, "plan_state": lambda: None, "gaps": {}}
    xbridge.register_backend("toylib", make_backend(**own))
    raw = np.zeros(64, "f4")
    start = -raw.ctypes.data % 64 // 4
    aligned, odd = raw[start : start + 16], raw[start + 1 : start + 17]
    for x in (aligned, aligned):
        assert isinstance(xbridge.to_backend(Toy(x), "jax", copy=False), jax.Array)
    with pytest.raises(xbridge.CopyError):
        xbridge.to_backend(Toy(odd), "jax", copy=False)


def test_call_cache__equal_strings_share_an_entry() -> None:
    """A backend name that is a different str object finds the same entry."""
    name, key = "torch ".strip(), PLAIN.key("convert", "torch", np.ndarray)
    text = np.array(["a"])
    for _ in range(3):
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_backend(text, name)
    assert key not in cached


def test_call_cache__number_of_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache drops its oldest call when it is full."""
    monkeypatch.setattr(call_cache, "MOST", 2)
    for dtype in ("float32", "int64", "int32", "float32"):
        for x in (np.ones(2), np.ones(2, "f4"), np.ones(2, "i2")):
            assert xbridge.dtype_of(xbridge.to_backend(x, "torch", dtype=dtype)) == dtype
    assert list(cached) == [
        CallOptions(dtype=dtype).key("convert", "torch", np.ndarray) for dtype in ("int32", "float32")
    ]
    for like in (np.ones(1), torch.ones(1), None):
        assert xbridge.align(np.ones(1), like=like)[0].shape == (1,)
    assert len(cached) == 2
    for _ in range(2):
        assert xbridge.to_backend(SubScalar(2), "torch").item() == 2.0
    assert SubScalar not in direct["torch"]


def test_call_cache__replaces_the_oldest_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new kind of list is cached even when the cache is full."""
    monkeypatch.setattr(call_cache, "MOST", 2)
    lists: list[list[Any]] = [[1.5], [1], [True]]
    for dtype in ("float16", "float32", "float64"):
        for x in lists:
            xbridge.asarray(x, backend="torch", dtype=dtype)
    with monkeypatch.context() as patch:
        patch.setattr(convert, "plan", None)
        for x in lists[1:]:
            assert xbridge.asarray(x, backend="torch", dtype="float64").tolist() == x


@pytest.mark.parametrize("default", ["float16", "bfloat16", "float32", "float64"])
def test_asarray__cached_list_follows_the_default_dtype(default: str) -> None:
    """A cached list of integers and floats is exact in the current default dtype, or is refused."""
    known: list[Any] = [[1, 2.5], [2**9 + 1, 0.5], [2**12 + 1, 0.5], [2**25 + 1, 0.5], [2**60, 0.5], [3, 1j]]

    def call(x: Any) -> Any:
        return xbridge.asarray(x, backend="torch")

    for x in known:
        outcome(call, x)
    try:
        torch.set_default_dtype(getattr(torch, default))
        found = [outcome(call, x) for x in known * 2]
        with planned():
            expected = [outcome(call, x) for x in known]
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == expected * 2


def test_asarray__cached_list_follows_enable_x64() -> None:
    """A cached list is exact with and without the 64-bit types of JAX."""
    jax = pytest.importorskip("jax")
    known: list[Any] = [[1, 2.5], [2**25 + 1, 0.5], [2**40], [1e300], 2**40, (1.5,), [[]]]

    def call(x: Any) -> Any:
        return xbridge.asarray(x, backend="jax")

    for wide in (False, True) * 2:
        with jax.enable_x64(wide):
            found = [outcome(call, x) for x in known]
            again = [outcome(call, x) for x in known]
            with planned():
                expected = [outcome(call, x) for x in known]
        assert found == again == expected


def test_call_cache__number_of_kinds_per_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached call drops the oldest kind of array when it has too many."""
    monkeypatch.setattr(call_cache, "MOST", 2)
    for _ in range(2):
        for kind in ("f8", "f4", "i2", "i4"):
            assert xbridge.to_backend(np.ones(2, kind), "torch", dtype="float16").tolist() == [1.0, 1.0]
    monkeypatch.setattr(convert, "plan", None)
    for kind in ("i2", "i4"):
        assert xbridge.to_backend(np.ones(2, kind), "torch", dtype="float16").tolist() == [1.0, 1.0]
    with pytest.raises(TypeError):
        xbridge.to_backend(np.ones(2, "f8"), "torch", dtype="float16")


def test_call_cache__checks_values_each_time() -> None:
    """A cached call still raises for a value that does not fit."""
    fits, lost = np.array([1.0, 3.4028234e38]), np.array([1.0, 3.5e38])
    for _ in range(2):
        assert xbridge.to_backend(fits, "torch", dtype="default").dtype == torch.float32
        with pytest.raises(xbridge.ValueLossError):
            xbridge.to_backend(lost, "torch", dtype="default")


def test_call_cache__unhashable_strings_are_planned() -> None:
    """An option that equals a valid string but cannot be hashed still works."""

    class Word(str):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

    for _ in range(2):
        assert tree.to_backend([np.ones(2)], "torch", device=Word("cpu"))[0].dtype == torch.float64
        assert xbridge.to_backend(np.ones(2), "torch", device=Word("cpu")).dtype == torch.float64
    assert not any(type(part) is Word for key in cached for part in key)


def test_to_numpy__does_not_import_masked_arrays() -> None:
    """The first conversion does not import `numpy.ma`, and masked arrays are still refused."""
    code = """
    import sys
    import numpy as np
    import xbridge
    before = "numpy.ma" in sys.modules
    xbridge.to_numpy(np.ones(2), dtype="float32")
    print(before, "numpy.ma" in sys.modules)
    try:
        xbridge.to_numpy(np.ma.masked_array([1.0]), dtype="float32")
    except xbridge.UnsupportedArrayError:
        print("refused")
    """
    assert run(code) == (0, ["False False", "refused"])
