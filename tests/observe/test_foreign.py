"""A record of foreign calls: which of a library's own conversions it has, and what their rows say."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import is_observed

import xbridge
from xbridge import record

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from collections.abc import Callable

Sizes = tuple[int, int, int]


def row_of(call: Callable[[], object]) -> Any:
    """The one row of a call."""
    with record(foreign=True) as seen:
        call()
    (row,) = seen.rows
    return row


T, A = torch.ones(3), np.ones(3)
T64 = T.double()
CALLS: dict[str, tuple[Callable[[], object], str, Sizes]] = {
    "Tensor.numpy": (T.numpy, "numpy float32 on cpu", (0, 0, 0)),
    "Tensor.__array__": (lambda: np.asarray(T), "numpy float32 on cpu", (0, 0, 0)),
    "Tensor.tolist": (T.tolist, "Python numbers", (0, 0, 0)),
    "Tensor.item": (T[0].item, "Python numbers", (0, 0, 0)),
    "Tensor.__float__": (lambda: float(T[0]), "Python numbers", (0, 0, 0)),
    "Tensor.to": (lambda: T.to(torch.float64), "torch float64 on cpu", (0, 24, 0)),
    "Tensor.double": (T.double, "torch float64 on cpu", (0, 24, 0)),
    "Tensor.short": (T.short, "torch int16 on cpu", (0, 6, 0)),
    "Tensor.type_as": (lambda: T.type_as(T64), "torch float64 on cpu", (0, 24, 0)),
    "torch.asarray": (lambda: torch.asarray(obj=A, dtype=torch.int8), "torch int8 on cpu", (0, 3, 0)),
    "torch.as_tensor": (lambda: torch.as_tensor(A), "torch float64 on cpu", (0, 0, 0)),
    "torch.tensor": (lambda: torch.tensor(data=A), "torch float64 on cpu", (24, 0, 0)),
}


@pytest.mark.parametrize("name", CALLS)
def test_record_foreign__has_the_calls_of_torch(name: str) -> None:
    """A row has the call, both ends, the bytes of new memory, and the line of the program."""
    call, target, sizes = CALLS[name]
    row = row_of(call)
    assert (row.call, row.target, row.calls) == (name, target, 1)
    assert (row.copied, row.cast, row.moved) == sizes
    assert row.file == __file__
    assert row.source == ("numpy float64 on cpu" if name.startswith("torch.") else "torch float32 on cpu")


def test_record_foreign__a_move_has_its_bytes_and_advice() -> None:
    with record(foreign=True) as seen:
        T.to("meta")
    (row,) = seen.rows
    assert (row.copied, row.cast, row.moved) == (0, 0, 12)
    assert row.avoid == "keep it where it is, or move it once (if it stays the same)"
    assert "torch float32 on meta by Tensor.to" in str(seen)


def test_record_foreign__has_no_call_that_converts_nothing() -> None:
    """`cpu` of a tensor on the host is the tensor; a list of numbers is no array; `sin` is no conversion."""
    with record(foreign=True) as seen:
        T.cpu()
        torch.tensor([1.0, 2.0])
        T.sin()
        assert T.type() == "torch.FloatTensor"
    assert seen.rows == ()


def test_record_foreign__has_the_conversions_of_xbridge_once() -> None:
    """The calls of torch with which xbridge converts are not those of the program."""
    with record(foreign=True) as seen:
        xbridge.to_numpy(T)
        xbridge.to_torch(A, dtype="float32")
        xbridge.to_list(T)
    assert not [row for row in seen.rows if row.call]
    assert sum(row.calls for row in seen.rows) == 3


def test_record_foreign__names_the_line_of_the_program_for_calls_within_torch() -> None:
    loader = torch.utils.data.DataLoader([A, A], batch_size=2)
    with record(foreign=True) as seen:
        list(loader)
    calls = {row.call: row.file for row in seen.rows}
    assert calls["torch.as_tensor"] == __file__


def test_record_foreign__ends_with_its_block_and_nests() -> None:
    with record(foreign=True) as outer:
        with record(foreign=True) as inner:
            T.numpy()
        T.numpy()
    T.numpy()
    assert [row.calls for row in inner.rows] == [1]
    assert sum(row.calls for row in outer.rows) == 2
    assert not is_observed()


@pytest.mark.slow  # the compiler takes seconds
def test_record_foreign__leaves_compiled_code_to_the_compiler() -> None:
    compiled: Any = torch.compile(lambda x: x.to(torch.float64) * 2, backend="aot_eager")
    with record(foreign=True) as seen:
        assert compiled(T).tolist() == [2.0, 2.0, 2.0]
    assert [row.call for row in seen.rows] == ["Tensor.tolist"]


def test_record_foreign__leaves_a_trace_and_a_fake_mode_as_they_are() -> None:
    """A row of them would count bytes that do not exist, and a trace would have the questions of the row."""
    fake_tensor: Any = pytest.importorskip("torch._subclasses.fake_tensor")
    with fake_tensor.FakeTensorMode():
        torch.ones(3).double()  # torch 2.7 imports more of itself here, which asks tensors
    with record(foreign=True) as seen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # some versions of torch warn of `trace`
            traced = torch.jit.trace(lambda x: x.double(), (T,), check_trace=False)
        with fake_tensor.FakeTensorMode():
            assert torch.ones(3).double().dtype == torch.float64
    assert seen.rows == ()
    assert [node.kind() for node in traced.graph.nodes() if node.kind() != "prim::Constant"] == ["aten::to"]


def test_record_foreign__ends_for_itself_alone_in_any_order() -> None:
    """The record that ends first is not the innermost: the other goes on, and nothing stays on the stack."""
    one, other = record(foreign=True), record(foreign=True)
    one.__enter__()
    other.__enter__()
    one.__exit__()
    T.numpy()
    other.__exit__()
    T.numpy()
    assert (one.rows, [row.calls for row in other.rows]) == ((), [1])
    assert torch.overrides._get_current_function_mode() is None
