"""Arrays and lists of every kind, and all that the contract says of the results."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from inside import forget_calls, planned

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[Any], Any]


class SubArray(np.ndarray[Any, Any]):
    """A class of arrays."""


class SubScalar(np.float64):
    """A class of scalars."""


class Exports:
    """An object that exports what it holds."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self.held = held

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.held


SubTensor: Any = type("SubTensor", (torch.Tensor,), {})


def numpys() -> dict[str, Any]:
    plain = np.arange(1.0, 7.0)
    locked = plain.copy()
    locked.flags.writeable = False
    rows = np.arange(12.0).reshape(3, 4)
    return {
        "plain": plain,
        "fortran": rows.copy("F"),
        "transposed": rows.T,
        "strided": plain[::2],
        "strided backwards": plain[::-2],
        "rows strided backwards": rows[:, ::-2],
        "locked": locked,
        "locked and reversed": locked[::-1],
        "swapped": plain.astype(">f8"),
        "swapped and strided": plain.astype(">f8")[::2],
        "empty": np.zeros((0, 3)),
        "scalar": np.array(2.5),
        "one row backwards, locked": np.broadcast_to(rows, rows.shape)[1:2][::-1],
        "repeated": np.broadcast_to(1.5, (2, 2)),
        "overlapping": np.lib.stride_tricks.as_strided(plain, (3, 2), (8, 8)),
        "odd strides": np.zeros(3, [("a", "u1"), ("b", "f8")])["b"],
        "unaligned": np.zeros(49, "u1")[1:].view("f8"),
        "large": np.array([1.0, 1e300]),
        "infinite": np.array([np.inf, -np.inf, np.nan, 3.4e38]),
        "just too large": np.array([3.4028235677973366e38]),
        "integers": np.arange(3),
        "large integers": np.array([2**40, 2**53 + 1]),
        "unsigned": np.array([2**63], "u8"),
        "single": np.ones(3, "f4"),
        "bool": np.array([True, False]),
        "complex": np.array([1 + 2j, 1e300j]),
        "long": np.ones(2, np.longdouble),
        "text": np.array(["a"]),
        "objects": np.array([None]),
        "of another class": np.ones((2, 2)).view(SubArray),
        "matrix": rows[1:2].view(np.matrix),
        "mapped and locked": locked[1:3].view(np.memmap),
        "number": np.float64(3.5),
        "long number": np.longdouble(1),
        "number of another class": SubScalar(1),
        "word": np.str_("1"),
        "exporter": Exports(np.ones(3)),
        "exporter of what is reversed": Exports(np.ones((2, 2), "f4")[::-1]),
    }


def torchs() -> dict[str, Any]:
    base = torch.arange(12.0).double()
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    freed, shrunk = torch.ones(4).double(), torch.ones(4).double()
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(8)
    behind = torch.ones(8).double()[4:]
    behind.untyped_storage().resize_(40)
    pairs = torch.tensor([1 + 2j, complex(float("nan"), 0.0)], dtype=torch.complex128)
    gone, cut = pairs.clone(), pairs.clone()
    gone_later, cut_later = gone.conj(), cut.conj().imag
    gone.untyped_storage().resize_(0)
    cut.untyped_storage().resize_(24)
    return {
        "plain": base,
        "leaf": leaf,
        "history": 2 * leaf,
        "parameter": torch.nn.Parameter(torch.ones(2).double()),
        "transposed": base.reshape(3, 4).T,
        "strided": base[::2],
        "expanded": torch.ones(1).double().expand(3),
        "overlapping": base.as_strided((3, 2), (1, 1)),
        "conjugate": pairs.conj(),
        "conjugate leaf": pairs.conj().requires_grad_(),
        "conjugate and negative": torch._neg_view(pairs.conj()),
        "conjugate, freed": gone_later,
        "negative": torch.ones(2, dtype=torch.complex128).conj().imag,
        "negative, shrunk": cut_later,
        "negative history": pairs.clone().requires_grad_().conj().imag,
        "negative brain": torch._neg_view(torch.ones(4, dtype=torch.bfloat16)),
        "complex": torch.ones(2, dtype=torch.complex128),
        "zero": torch._efficientzerotensor((2,), dtype=torch.float64),
        "freed": freed,
        "shrunk": shrunk,
        "shrunk behind": behind,
        "empty": torch.ones(0, 2).double(),
        "single": torch.ones(2),
        "brain": torch.ones(4, dtype=torch.bfloat16),
        "integers": torch.arange(3),
        "large": torch.tensor([1e300]).double(),
        "bool": torch.tensor([True]),
        "meta": torch.ones(2, device="meta").double(),
        "sparse": torch.eye(2).double().to_sparse(),
        "sub": torch.ones(2).double().as_subclass(SubTensor),
    }


def others() -> dict[str, Any]:
    """Arrays of the libraries that are lazy or immutable, as far as they are installed."""
    made: dict[str, Any] = {}
    if xbridge.is_available("jax"):
        import jax

        deleted = jax.numpy.ones(3)
        deleted.delete()
        made |= {
            "jax": jax.numpy.arange(6.0),
            "jax, transposed": jax.numpy.ones((2, 3)).T,
            "jax, empty": jax.numpy.ones((0, 2)),
            "jax, brain": jax.numpy.ones(2, "bfloat16"),
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


def arrays() -> list[tuple[str, Any]]:
    return [(name, x) for make in (numpys, torchs, others) for name, x in make().items()]


def outcome(call: Call, x: Any) -> tuple[object, ...]:
    """All that the contract says about a result, or the error."""
    try:
        y = call(x)
    except xbridge.XBridgeError as error:
        return type(error), str(error)
    if isinstance(y, str) or y is None or y is x:
        return (y is x or y,)
    if type(y) is np.ndarray and y.dtype.kind not in "biufcV":
        return type(y), y.dtype, y.tolist()
    place = xbridge.device_of(y), str(tuple(y.shape))  # a size may be unknown, which equals nothing
    facts: tuple[object, ...] = (type(y), xbridge.dtype_of(y), *place)
    try:
        host = xbridge.to_numpy(y)
        strides = [s for s, n in zip(host.strides, host.shape, strict=True) if n > 1]
        shares = xbridge.shares_memory(x, y)
        has_gaps = host.dtype.char in "gG"  # unused bytes of a longdouble, which no copy has to keep
        values = repr(host.tolist()) if has_gaps else np.ascontiguousarray(host).tobytes()
        facts = (*facts, values, shares, strides if host.size else [])
    except xbridge.XBridgeError as error:
        facts = (*facts, type(error))
    return (
        *facts,
        getattr(y, "requires_grad", None),
        getattr(y, "is_leaf", None),
        getattr(y, "grad_fn", None) is None,
        y.flags.writeable if isinstance(y, np.ndarray) else None,
    )


def lists() -> list[tuple[str, Any]]:
    rows, leaf = torch.arange(12.0).double().reshape(4, 3), torch.ones(3).double().requires_grad_()
    shrunk = torch.ones(3).double()
    shrunk.untyped_storage().resize_(16)
    numbers, whole, half = list(np.arange(3.0)), list(np.arange(3)), list(np.ones(2, "f2"))
    locked = np.broadcast_to(1.0, 3)
    made: list[Any] = [
        *([1.5, 2.5], [1, 2], [True, False], [1, 2.5], [2**40], [-1, 2**63], [2**63], [2**70], [1j]),
        *([[1.0, 2.0], [3.0, 4.0]], [[[[1.0]]]], [[1.0], [2.0, 3.0]], [[1.0], 2.0], [2], [True], [True, 2]),
        *([2**24 + 1, 2.5], [2**53 + 1, 2.5], [10**400, 2.5], [float("nan"), 2**60], [2**60, float("nan")]),
        *([-0.0, 0, False], [255, 256], [1, 2**63 + 1], [1, 2j], [2**25 + 1, 2j], 2j, 1.5, 2**40, True),
        *([], [[], []], [()], (2,), [(1.0, 2.0), (3.0, 4.0)], ([1, 2.5], [3, 4]), [[[[[(1,)]]]]], (1.0, 2.0)),
        *(range(0), [range(2), range(2)], range(3), [None], ["a"]),
        *(numbers, whole, numbers + whole, [*numbers, 1.5, 2], [1.5, *numbers], [*half, 1e300]),
        *([*half, 2**12 + 1], [np.int64(2**53 + 1), np.float64(1)], [np.uint64(1), np.int64(-1)]),
        *([np.int8(1), 300], [np.longdouble(1)], [np.datetime64("2020")], [np.str_("a")]),
        *([np.float64(1), 2**64], [(np.float64(1), 2), (np.float64(3), 4)], [[1.0], np.ones(1)]),
        *([np.arange(3.0), np.arange(3.0)[::-1], locked], [np.arange(3.0), np.arange(3)]),
        *([np.arange(3.0), np.arange(4.0)], [np.array(["a"]), np.array(["b"])]),
        *([torch.ones(3).double(), torch.zeros(3).double()], [leaf, leaf * 2], list(rows), list(rows.T)),
        *(list(torch.ones(1).double().expand(3, 3)), [rows.T[0], rows[0][:2].repeat(2)]),
        *([torch.ones(3).double(), shrunk], [torch.ones(3), shrunk], [torch.ones(3), torch.ones(3).double()]),
        *([torch.arange(3), torch.ones(3)], [leaf, torch.ones(3).half(), torch.arange(3).int()]),
        *([torch.tensor(2**24 + 1), torch.tensor(1.0)], [torch.ones(3), torch.ones(4).double()]),
        *([torch.ones(3).to(torch.float8_e5m2), torch.ones(3)], [torch.ones(3).bfloat16()] * 2),
        *([torch.ones(2, dtype=torch.complex128).conj()] * 2, [torch.eye(2).to_sparse()] * 2),
        *([torch.ones(3).double(), np.ones(3)], [np.ones(3), leaf], [locked, torch.ones(3).double()]),
        *([torch.ones(3).double(), np.ones(3, "f4")], [np.float64(2), torch.tensor(1.0).double()]),
        *([torch.tensor(1.0), 2.0], [leaf[0], 0.5], [[0.5, torch.tensor(1)], [torch.tensor(2), 1]]),
        *([torch.tensor(1.0), 1e39], [torch.tensor(1), 2.5], [torch.tensor(1, dtype=torch.uint8), 300]),
        *(
            [torch.tensor(1.0), 2, np.float32(3)],
            [torch.tensor(1.0), np.float64(2)],
            [np.array(1.0), 2, True],
        ),
        *([np.array(1, object), 2.0], [torch.ones(1), 2.0], [torch.tensor(1j).conj(), 2.0]),
        *([torch.tensor(1.0).half(), 65519.99], [torch.tensor(1.0).bfloat16(), 0.5], [leaf[0].detach(), 1j]),
        *([torch.ones(3, device="meta")] * 2, [np.ones(3).view(SubArray)] * 2),
        ((torch.ones(2), torch.zeros(2)), [torch.ones(2), torch.zeros(2)]),
    ]
    return [(str(x), x) for x in made]


def check_in_any_order(call: Call, make: Callable[[], list[tuple[str, Any]]]) -> None:
    """Compare outcomes with those of plans, in three orders, each from empty tables."""
    with planned():
        expected = [outcome(call, x) for _, x in make()]
    order = list(range(len(expected)))
    for numbers in (order, order[::-1], Random(0).sample(order, len(order))):
        forget_calls()
        xs = make()
        for i in numbers:
            assert outcome(call, xs[i][1]) == expected[i], xs[i][0]
