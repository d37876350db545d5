"""Aligned functions in other processes, and their names."""

from __future__ import annotations

import copy
import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crossed import aligned, same

import xbridge

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

NARROW = True

if TYPE_CHECKING:
    from collections.abc import Callable


@xbridge.aligned(backend="numpy", vjp=lambda g, y, x: g * np.cos(x))
def sine(x: Any) -> Any:
    return np.sin(x)


def cosine(x: Any) -> Any:
    return np.cos(x)


def gradient(g: Any, y: Any, x: Any) -> Any:
    return -g * np.sin(x)


class Holder(torch.nn.Module):  # type: ignore[misc, name-defined] # Any, where torch is missing
    """A module with an aligned function that has no name of its own, and one of another module."""

    def __init__(self) -> None:
        super().__init__()
        self.f = aligned(backend=np, vjp=gradient)(cosine)
        self.own = torch.nn.Linear(2, 2)
        self.layer = aligned(backend="torch")(self.own)
        self.method = aligned(backend="numpy")(self.doubled)

    def doubled(self, x: Any) -> Any:
        return 2 * x


def saved(x: Any) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def by_cloudpickle(x: Any) -> Any:
    return pickle.loads(pytest.importorskip("cloudpickle").dumps(x))


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "torch.save": saved,
    "deepcopy": copy.deepcopy,
    "cloudpickle": by_cloudpickle,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=list(COPIES))
def test_pickle__function_that_has_another_name(copied: Callable[[Any], Any]) -> None:
    """What `aligned` makes of a function with a name of its own is copied with it and the options."""
    holder = Holder()
    x = torch.ones(2, requires_grad=True)
    same(holder.f(x), np.cos(np.ones(2, "f4")))
    other = copied(holder)
    assert other.f is not holder.f
    same(torch.autograd.grad(other.f(x).sum(), x)[0], -np.sin(np.ones(2, "f4")))
    same(other.layer(np.ones(2, "f4")), holder.layer(np.ones(2, "f4")))
    assert other.layer.__wrapped__ is other.own
    assert other.method.__wrapped__.__self__ is other
    same(other.method(x.detach()), np.full(2, 2, "f4"))


def test_pickle__function_that_was_called() -> None:
    """A decorated function of a module is pickled by its name, called or not."""
    sine(torch.ones(2, requires_grad=True))
    assert pickle.loads(pickle.dumps(sine)) is sine


def test_cloudpickle__function_that_was_called() -> None:
    """A function sent by value converts, differentiates and explains as before, whatever it has done."""
    cloudpickle = pytest.importorskip("cloudpickle")
    f = aligned(backend="numpy", signature="()->()", vjp=lambda g, y, x: g * np.cos(x))(np.sin)
    x = torch.ones(2, requires_grad=True)
    jax.jit(f)(np.ones(2, "f4"))
    for _ in range(3):
        f(x), f(x.detach())
    sent = pickle.loads(cloudpickle.dumps(f))
    assert sent is not f
    for _ in range(3):
        same(sent(x.detach()), np.sin(np.ones(2, "f4")))
        same(torch.autograd.grad(sent(x).sum(), x)[0], np.cos(np.ones(2, "f4")))
    assert xbridge.explain(sent, x) == xbridge.explain(f, x)
