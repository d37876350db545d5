"""`order="C"`, between all libraries: the result is contiguous, and is copied only if it was not.

That it is contiguous is read from what the libraries themselves say.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from contract.pair_contract import place
from contract.test_pairs import PAIRS

import xbridge
from xbridge.testing.conformance._cases import (
    disjoint,
    edge_values,
    error_of,
    read,
    same_bits,
    same_memory,
    variants,
)
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.protocol import Array
    from xbridge.testing.samples import Sample

CONTIGUOUS = {
    "numpy": lambda x: x.flags.c_contiguous,
    "torch": lambda x: x.is_contiguous(),
    "cupy": lambda x: x.flags.c_contiguous,
}
"""What a library says of an array; those of others show no layout."""

OPTIONS: tuple[dict[str, Any], ...] = ({"copy": True}, {"dtype": "complex64", "grad": "detach"})


def is_contiguous(name: str, x: Array) -> bool:
    return name not in CONTIGUOUS or CONTIGUOUS[name](x)


def laid(name: str) -> Iterator[Sample]:
    """Arrays of a library in each layout and a few shapes."""
    shapes = [(0, 2), (1, 2, 1), (2, 3, 2)]
    for (layout, case), shape in product(samples_of(name).cases.items(), shapes):
        for dtype in [word for word in ("float32", "complex64") if case.takes(word, shape)][:1]:
            yield from variants(name, layout, edge_values(dtype, shape))


@pytest.mark.parametrize(("source", "target"), [pair for pair in PAIRS if pair[1] in CONTIGUOUS])
def test_to_backend__order_c_is_contiguous_with_the_same_values(source: str, target: str) -> None:
    """Whatever else was asked, the result is contiguous, and otherwise that of the call without an order."""
    for sample, options in product(laid(source), OPTIONS):
        usual = xbridge.to_backend(sample.array, target, **options)
        result = xbridge.to_backend(sample.array, target, order="C", **options)
        assert is_contiguous(target, result), sample
        assert same_bits(read(target, result), read(target, usual)), sample
        assert same_bits(read(source, sample.array), sample.values), "the source was changed"
        assert getattr(result, "requires_grad", None) == getattr(usual, "requires_grad", None)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_to_backend__order_c_copies_only_what_is_not_contiguous(source: str, target: str) -> None:
    """Memory is shared as without an order if it is contiguous; else it is copied, or refused, as planned.

    To JAX and Dask, whose arrays show no layout, the order changes no value and copies nothing more.
    """
    for sample in laid(source):
        x = sample.array
        plan = xbridge.explain(x, target, order="C")
        usual, result = xbridge.to_backend(x, target), xbridge.to_backend(x, target, order="C")
        assert same_bits(read(target, result), read(target, usual)), sample
        before, kept, made = place(source, x), place(target, usual), place(target, result)
        shared = (usual is x or same_memory(kept, before)) and is_contiguous(target, usual)
        assert (result is usual or same_memory(made, before)) if shared else disjoint(made, before)
        refused = error_of(xbridge.to_backend, x, target, order="C", copy=False)
        if sample.values.size:  # an empty array has nothing to copy
            assert plan.copies is not shared, sample
            assert isinstance(refused, xbridge.CopyError) is plan.copies, sample


def test_to_numpy__order_c_says_why_it_copies() -> None:
    """The plan and the refusal have one reason, and an array in C order is the result itself."""
    x = np.zeros((2, 3), order="F")
    (step,) = xbridge.explain(x, "numpy", order="C").steps
    assert (step.reason, step.nbytes) == ("its layout is not C order", 48)
    with pytest.raises(xbridge.CopyError, match="its layout is not C order"):
        xbridge.to_numpy(x, order="C", copy=False)
    assert xbridge.to_numpy(x.T, order="C", copy=False) is not None
    assert xbridge.asarray(x.T, order="C").base is x.T.base
    assert not xbridge.to_numpy(x).flags.c_contiguous


def test_to_torch__order_c_refuses_to_copy_pending_operations() -> None:
    """A lazy conjugate is contiguous or not, as any other tensor."""
    torch = pytest.importorskip("torch")
    z = torch.ones(2, 3, dtype=torch.complex64).conj()
    assert xbridge.to_torch(z, order="C", copy=False) is z
    with pytest.raises(xbridge.CopyError):
        xbridge.to_torch(z.T, order="C", copy=False)


def test_asarray__order_c_holds_for_lists() -> None:
    """The arrays of a list are stacked in C order."""
    x = np.ones((2, 3, 4, 5), "float32", order="F")
    for backend in ("numpy", "torch"):
        pytest.importorskip(backend)
        assert is_contiguous(backend, xbridge.asarray([x, x], backend=backend, order="C"))


@pytest.mark.parametrize("order", ["F", "K", "c", True, 0, []])
def test_to_backend__order_is_c_or_none(order: object) -> None:
    """Any other order is an error that names C, unless it asks for another layout."""
    calls: list[Any] = [xbridge.to_numpy, xbridge.asarray]
    hint = "" if order in ("F", "K") else "; try order='C'"
    for call in calls:
        with pytest.raises(xbridge.OptionError, match=f"it is None or 'C'{hint}$"):
            call(np.ones(2), order=order)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_aligned__order_c_holds_for_every_argument(backend: str) -> None:
    """A function gets contiguous arrays, in the first call, in repeated calls and in those with a graph."""
    torch = pytest.importorskip("torch")
    seen = []

    @xbridge.aligned(backend=backend, order="C", vjp=(lambda g, y, x: g) if backend == "numpy" else None)
    def double(x: Any) -> Any:
        seen.append(is_contiguous(backend, x))
        return x * 2

    for source in (np.ones((2, 3)), torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)):
        for x in (source.T, source.T, source[:, ::2], source):
            assert (double(x) == 2).all()
    assert len(seen) == 12
    assert all(seen)
    (plan,) = xbridge.explain(double, np.ones((2, 3)).T).arguments.values()
    assert plan.copies


def test_to_torch__order_c_keeps_the_graph() -> None:
    """Within torch, a gradient flows through the copy."""
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(xbridge.to_torch(x.T, order="C").sum(), x)
    assert slope.shape == x.shape


def test_to_torch__order_c_in_compiled_code() -> None:
    """A compiler and a transform of torch trace the copy."""
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3, 4).mT
    compiled = torch.compile(lambda t: xbridge.to_torch(t, order="C"), backend="eager", fullgraph=True)
    assert compiled(x).is_contiguous()
    strides = torch.vmap(lambda t: xbridge.to_torch(t, order="C"))(x).stride()
    assert strides == torch.ones(x.shape).stride()
