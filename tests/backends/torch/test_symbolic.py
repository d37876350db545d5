"""Programs that compute no values: a fake mode, and symbolic traces of torch.fx."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")
fake = pytest.importorskip("torch._subclasses.fake_tensor")


@pytest.mark.parametrize("before", [False, True], ids=["first call", "repeated call"])
@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float32"}, {"grad": "keep"}], ids=str)
def test_to_backend__fake_mode_agrees_with_explain(options: dict[str, Any], *, before: bool) -> None:
    """A NumPy array becomes a fake tensor, as in torch, and the plan shares no memory."""
    a = np.ones(3)
    if before:
        assert xbridge.to_numpy(xbridge.to_backend(a, "torch", **options)).tolist() == [1, 1, 1]
    with fake.FakeTensorMode():
        made = xbridge.to_backend(a, "torch", **options)
        (both,) = tree.to_backend([a], "torch", **options)
        plan = xbridge.explain(a, "torch", **options)
        assert {type(made), type(both)} == {fake.FakeTensor}
        assert plan.copies
        assert "no values" in str(plan) or options
    real = xbridge.to_backend(a, "torch")
    assert np.shares_memory(real.numpy(), a)


@pytest.mark.parametrize("before", [False, True], ids=["first call", "repeated call"])
def test_to_backend__fake_mode_shares_no_memory(*, before: bool) -> None:
    """`copy=False` is refused in a fake mode, even after the same call succeeded outside of it."""
    a = np.ones(3)
    calls: list[Callable[[], object]] = [
        lambda: xbridge.to_backend(a, "torch", copy=False),
        lambda: tree.to_backend([a], "torch", copy=False),
        lambda: xbridge.unsafe_share(a, "torch"),
    ]
    for call in calls if before else ():
        call()
    with fake.FakeTensorMode():
        for call in calls:
            with pytest.raises(xbridge.CopyError, match="a fake mode is running"):
                call()


CALLS: dict[str, Callable[[Any], Any]] = {
    "asarray": lambda x: xbridge.asarray(x, dtype="float64"),
    "to_backend": lambda x: xbridge.to_backend(x, "torch", dtype="float64"),
    "to_numpy": lambda x: xbridge.to_numpy(x),  # noqa: PLW0108 -- torch.fx would pass a proxy for each option
    "a list": lambda x: xbridge.asarray([x, x], dtype="float64"),
    "align": lambda x: xbridge.align(torch.ones(1), x, dtype="float64"),
    "tree": lambda x: tree.to_backend({"a": [x, 1]}, "torch", dtype="float64")["a"][0],
    "tree.to_numpy": lambda x: tree.to_numpy([x]),
    "tree.align": lambda x: tree.align([torch.ones(1)], x, dtype="float64"),
    "exporters": lambda x: tree.to_backend([x], "torch", dtype="float64", exporters=True),
    "restore": lambda x: xbridge.align_back(torch.ones(1))[1]([x], dtype="float64"),
    "aligned": lambda x: [xbridge.aligned(backend="numpy")(np.sin)(x)],
    "transfer": lambda x: xbridge.transfer([x], "torch", dtype="float64").result(),
    "prefetch": lambda x: next(iter(xbridge.prefetch([[x]], "torch", dtype="float64"))),
    "dtype_of": lambda x: [xbridge.dtype_of(x)],
    "device_of": lambda x: [xbridge.device_of(x)],
}


@pytest.mark.parametrize("verb", CALLS)
def test_fx__proxy_is_always_refused(verb: str) -> None:
    """A conversion of a proxy is refused anywhere, and never left out of the traced program."""
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"torch\.fx: .*; try x\.to\(dtype\)"):
        torch.fx.symbolic_trace(CALLS[verb])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xbridge-")]


def test_fx__advice_of_the_error_works() -> None:
    """The cast that the error suggests works in a traced program."""
    program = torch.fx.symbolic_trace(lambda x: tree.map(lambda y: y.to(torch.float64), {"a": x})["a"] + 1)
    assert program(torch.ones(2)).dtype == torch.float64
