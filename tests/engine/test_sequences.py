"""Long lists of arrays: what is alike is stacked at once, and gives what a look at each would have given."""

from __future__ import annotations

import sys
import warnings
from contextlib import nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import direct

import xbridge

pytest.importorskip("torch")

import torch
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from collections.abc import Callable

N = 5
SHARED = torch.arange(float(2 * N)).reshape(N, 2)
LISTS: dict[str, Callable[[], list[Any]]] = {
    "tensors": lambda: [torch.full((2,), float(i)) for i in range(N)],
    "0-d tensors": lambda: [torch.tensor(i) for i in range(N)],
    "views of one": lambda: list(SHARED),
    "expanded": lambda: [torch.ones(1).expand(2) for _ in range(N)],
    "transposed": lambda: [torch.arange(6.0).reshape(2, 3).T for _ in range(N)],
    "conjugates": lambda: [torch.tensor([1 + 2j]).conj() for _ in range(N)],
    "negatives": lambda: [torch.tensor([1 + 2j]).conj().imag for _ in range(N)],
    "half": lambda: [torch.ones(2, dtype=torch.bfloat16) for _ in range(N)],
    "leaves": lambda: [torch.ones(2, requires_grad=True) for _ in range(N)],
    "parameters": lambda: [torch.nn.Parameter(torch.ones(2)) for _ in range(N)],
    "unlike dtypes": lambda: [torch.ones(2), torch.ones(2, dtype=torch.float64)],
    "whole and real": lambda: [torch.ones(2), torch.ones(2, dtype=torch.int16)],
    "wide and real": lambda: [torch.ones(2), torch.ones(2, dtype=torch.int32)],
    "empty": lambda: [torch.ones(0, 3) for _ in range(N)],
    "arrays": lambda: [np.full(2, i) for i in range(N)],
    "arrays backwards": lambda: [np.arange(3)[::-1] for _ in range(N)],
    "foreign bytes": lambda: [np.arange(3, dtype=">f4") for _ in range(N)],
    "unlike arrays": lambda: [np.ones(2, "f4"), np.ones(2, "f8")],
    "scalars": lambda: [np.float32(i) for i in range(N)],
    "both": lambda: [np.ones(2, "f4"), torch.ones(2)],
}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize(
    "options", [{}, {"dtype": "float32"}, {"grad": "detach"}, {"device": "cpu"}], ids=str
)
@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
def test_asarray__list_at_once_equals_one_by_one(
    make: Callable[[], list[Any]], options: dict[str, Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacking a list at once gives the result of converting each array."""
    xbridge.asarray([1], backend=backend)

    def outcome() -> Any:
        try:
            made = xbridge.asarray(make(), backend=backend, **options)
        except xbridge.XBridgeError as error:
            return type(error)
        writable = made.flags.writeable if backend == "numpy" else made.requires_grad
        return xbridge.dtype_of(made), made.shape, xbridge.to_list(made), writable

    at_once = outcome()
    for name in list(direct):
        monkeypatch.setitem(direct, name, {})
    assert outcome() == at_once
    nested = [make(), make()]
    monkeypatch.undo()
    if at_once is not xbridge.DTypeError:
        made = xbridge.asarray(nested, backend=backend, **options)
        assert xbridge.to_list(made) == [at_once[2]] * 2


def test_asarray__refuses_ragged_lists() -> None:
    """Arrays of different shapes raise `OptionError`."""
    for ragged in ([torch.ones(2), torch.ones(3)], [np.ones(2), np.ones(3)]):
        with pytest.raises(xbridge.OptionError, match="it holds shapes"):
            xbridge.asarray(ragged, backend="numpy")


def test_asarray__list_shares_no_memory() -> None:
    """A stacked list is new memory, so `copy=False` raises."""
    for arrays in ([torch.ones(2)] * 2, [np.ones(2)] * 2):
        for backend in ("numpy", "torch"):
            with pytest.raises(xbridge.CopyError, match="are in separate memory"):
                xbridge.asarray(arrays, backend=backend, copy=False)
            made = xbridge.asarray(arrays, backend=backend)
            assert not any(xbridge.shares_memory(made, x) for x in arrays)


def test_asarray__long_list_keeps_gradients() -> None:
    """Gradients flow through a long list to every tensor."""
    leaves = [torch.ones(2, requires_grad=True) for _ in range(N)]
    (xbridge.asarray(leaves) * torch.arange(float(N))[:, None]).sum().backward()
    assert [x.grad.tolist() for x in leaves] == [[i, i] for i in range(N)]  # type: ignore[union-attr]
    assert xbridge.asarray(leaves, backend="numpy").flags.writeable


def test_asarray__refuses_freed_tensors_in_lists() -> None:
    """A tensor whose storage was freed or shrunk cannot be stacked."""
    gone, there = torch.ones(3), torch.ones(3)
    gone.untyped_storage().resize_(0)
    view = torch.ones(6)[3:]
    view.untyped_storage().resize_(12)
    for lost in (gone, view):
        for backend in ("numpy", "torch"):
            with pytest.raises(xbridge.UnsupportedArrayError):
                xbridge.asarray([there, lost], backend=backend)


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


def test_asarray__refuses_sparse_and_meta_tensors_in_lists() -> None:
    """Tensors without dense memory cannot be stacked for NumPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, of what is in beta
        rows = torch.eye(2).to_sparse_csr()
    for lost in (torch.ones(2).to_sparse(), rows, torch.ones(2, device="meta")):
        with pytest.raises((xbridge.UnsupportedArrayError, xbridge.DeviceError)):
            xbridge.asarray([lost, lost], backend="numpy")


def test_asarray__compiles_to_a_stack() -> None:
    """`torch.compile` follows the stacking of a list in one graph."""
    whole = torch.compile(lambda x: xbridge.asarray([x, 2 * x]), backend="eager", fullgraph=True)
    assert whole(torch.ones(2)).tolist() == [[1, 1], [2, 2]]


def test_asarray__dispatch_mode_sees_the_stack() -> None:
    """A dispatch mode of torch sees the stacking of a list."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call] # theirs
        def __torch_dispatch__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(fn))
            return fn(*args, **(kwargs or {}))

    tensors = [torch.ones(2), torch.ones(2)]
    with Seen():  # type: ignore[no-untyped-call] # theirs
        made = xbridge.asarray(tensors)
    assert made.tolist() == [[1, 1], [1, 1]]
    assert "aten.stack.default" in seen


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_asarray__keeps_tangents_of_lists(backend: str) -> None:
    """Stacked dual tensors keep their tangents, and leaving torch raises."""
    with forward_ad.dual_level():
        dual: Any = forward_ad.make_dual
        duals = [dual(torch.ones(2), torch.full((2,), float(i))) for i in range(N)]
        if backend == "torch":
            made: Any = forward_ad.unpack_dual(xbridge.asarray(duals))  # type: ignore[no-untyped-call] # theirs
            assert made.tangent.tolist() == [[i, i] for i in range(N)]
        else:
            with pytest.raises(xbridge.UnsupportedArrayError, match="tangent would be lost"):
                xbridge.asarray(duals, backend=backend)


@pytest.mark.filterwarnings("ignore:.*quantize:DeprecationWarning", "ignore:.*quantize:UserWarning")
def test_asarray__refuses_quantized_tensors() -> None:
    """Quantized tensors are not stacked by their raw integers."""
    unlike = [torch.quantize_per_tensor(torch.ones(2), scale, 0, torch.quint8) for scale in (1.0, 0.1)]
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"stack quantized.*x\.dequantize\(\)"):
        xbridge.asarray(unlike)
    assert xbridge.asarray([x.dequantize() for x in unlike]).tolist() == [[1, 1], [1, 1]]


def outcome(obj: Any, **options: Any) -> tuple[str, str]:
    """The library and the dtype of an array, or the error."""
    try:
        made = xbridge.asarray(obj, **options)
    except xbridge.XBridgeError as error:
        return type(error).__name__, str(error)
    return xbridge.backend_of(made), xbridge.dtype_of(made)


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


@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"dtype": "nearest"}], ids=str)
@pytest.mark.parametrize("backend", [None, "numpy", "torch"])
@pytest.mark.parametrize("dtypes", [(">f8", ">f8"), (">f8", "<f8"), ("<f8", "<f8")], ids=str)
def test_from_arrays__empty_arrays_of_any_byte_order_satisfy_copy_false(
    dtypes: tuple[str, ...], backend: str | None, options: dict[str, Any]
) -> None:
    """Nothing is copied, with an observer and without one."""
    empty = [np.zeros(0, dtype) for dtype in dtypes]
    for _ in range(2):
        assert outcome(empty, backend=backend, copy=False, **options) == (backend or "numpy", "float64")
    with xbridge.record():
        assert outcome(empty, backend=backend, copy=False, **options) == (backend or "numpy", "float64")


@pytest.mark.parametrize(
    "empty",
    [
        [np.zeros(0, ">f4"), np.zeros(0)],
        [torch.zeros(0), torch.zeros(0).double()],
        [torch.zeros(0), np.zeros(0, ">f8")],
    ],
    ids=["numpy", "torch", "both"],
)
def test_from_arrays__cast_of_empty_arrays_does_not_satisfy_copy_false(empty: list[Any]) -> None:
    """A cast is refused whatever the length, with an observer and without one."""
    for _ in range(2):
        assert xbridge.asarray(empty).shape == (2, 0)
        with pytest.raises(xbridge.CopyError, match="float32 becomes float64"):
            xbridge.asarray(empty, copy=False)
    with xbridge.record(), pytest.raises(xbridge.CopyError, match="float32 becomes float64"):
        xbridge.asarray(empty, copy=False)


def change_at(k: int, change: Callable[[], object], call: Callable[[], Any]) -> tuple[bool, Any]:
    """Make a change at the k-th bytecode of a call, as another thread could.

    Return whether the call had as many, and its result; None if it raised an error of ours.
    """
    count, before = 0, sys.gettrace()

    def step(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count == k:
                change()
        return step

    def enter(frame: FrameType, _: str, __: object) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("xbridge."):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    made = None
    sys.settrace(enter)
    try:
        with suppress(xbridge.XBridgeError):
            made = call()
    finally:
        sys.settrace(before)
    return count >= k, made


def test_asarray__repeats_a_list_of_empty_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of empty rows is repeated without a plan, with the memory layout of the first such list."""
    rows: list[list[int]] = [[], [], []]
    made = [xbridge.asarray(rows, backend="numpy")]
    monkeypatch.setattr("xbridge._engine.verbs.choose_converter", None)
    made += [xbridge.asarray(rows, backend="numpy") for _ in range(2)]
    assert {(x.shape, x.strides) for x in made} == {((3, 0), np.array(rows).strides)}


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "clear": list.clear,
    "append": lambda x: x.append("a"),
    "replace": lambda x: x.__setitem__(0, 2.5),
}


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2], [3, 4]],
        [[1.0, 2.0], [3.0, 4.0]],
        [[np.float32(1), np.float32(2)], [np.float32(3), np.float32(4)]],
        [[torch.ones(()), torch.ones(())], [torch.ones(()), torch.ones(())]],
    ],
    ids=["integers", "floats", "scalars", "tensors"],
)
@pytest.mark.parametrize("nested", [False, True])
def test_asarray__list_that_another_thread_changes(
    rows: list[list[Any]], change: Callable[[list[Any]], object], *, nested: bool, observed: bool
) -> None:
    """The array has the items of one moment, none of which is rounded; or the error is one of ours."""

    def given() -> tuple[list[Any], list[Any]]:
        x = [list(row) for row in rows] if nested else list(rows[0])
        return x, x[-1] if nested else x

    def outcome(x: list[Any]) -> Any:
        try:
            return xbridge.to_list(xbridge.asarray(x))
        except xbridge.XBridgeError:
            return None

    x, row = given()
    moments = [outcome(x), None]
    change(row)
    moments.append(outcome(x))
    k, more = 1, True
    while more:
        x, row = given()
        with xbridge.record() if observed else nullcontext():
            xbridge.asarray(rows if nested else rows[0])
            more, made = change_at(k, partial(change, row), partial(xbridge.asarray, x))
        assert (None if made is None else xbridge.to_list(made)) in moments
        k += 211 if observed else 11
