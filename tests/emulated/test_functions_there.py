"""Functions of the host on tensors of a device: results and gradients are where the caller's tensors are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from emulated.there import DEVICE
from inside import get_backend

import xbridge
from xbridge.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

aligned: Any = xbridge.aligned
jax = pytest.importorskip("jax")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "numpy": aligned(backend="numpy", vjp=lambda g, y, a, b: (g * b, g * a))(lambda a, b: a * b),
    "jax": aligned(backend="jax", device="cpu")(lambda a, b: a * b),
    "torch": aligned(backend="torch", device="cpu")(lambda a, b: a * b),
}
functions = pytest.mark.parametrize("f", FUNCTIONS.values(), ids=list(FUNCTIONS))


def there(value: float, *, tracked: bool = False) -> Any:
    return torch.full((2,), float(value), device=DEVICE, requires_grad=tracked)


WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda f: f(there(2), there(3)),
    "tracked": lambda f: f(there(2), there(3, tracked=True)),
    "a host array first": lambda f: f(np.full(2, 2, "f4"), there(3, tracked=True)),
    "vmap": lambda f: torch.vmap(f)(there(2), there(3)),
    "jvp": lambda f: torch.func.jvp(lambda x: f(x, there(6)), (there(2),), (there(1),))[1],
    "grad": lambda f: torch.func.grad(lambda x: f(x, there(6)).sum())(there(2)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
@functions
def test_aligned__results_are_on_the_callers_device(f: Any, way: Callable[[Any], Any]) -> None:
    """`device` is where the function computes; results and gradients stay with the caller."""
    if f is FUNCTIONS["numpy"] and way is WAYS["jvp"]:
        return  # it has no jvp
    made = way(f)
    assert str(made.device) == DEVICE
    assert made.tolist() == [6, 6]


@functions
def test_aligned__gradients_are_on_the_devices_of_their_arguments(f: Any) -> None:
    """A gradient is on the device of its argument, and the result on that of the first one tracked."""
    here, far = torch.full((2,), 2.0), there(3, tracked=True)
    y = f(here, far)
    assert str(y.device) == DEVICE
    (gradient,) = torch.autograd.grad(y.sum(), far)
    assert (str(gradient.device), gradient.tolist()) == (DEVICE, [2, 2])
    y = f(here.requires_grad_(), far)
    assert y.is_cpu
    places = [str(g.device) for g in torch.autograd.grad(y.sum(), (here, far))]
    assert places == ["cpu", DEVICE]


@pytest.mark.parametrize("tracked", [False, True])
def test_aligned__is_compiled_for_a_device(*, tracked: bool) -> None:
    """A compiled program computes on the device that `device` names."""
    torch._dynamo.reset()
    f = torch.compile(FUNCTIONS["jax"], fullgraph=True, backend="eager")
    here, far = torch.full((2,), 2.0), there(3, tracked=tracked)
    assert str(f(far, far).device) == DEVICE
    assert str(f(here, far).device) == (DEVICE if tracked else "cpu")
    assert f(here, far).tolist() == [6, 6]


@pytest.mark.parametrize("tracked", [False, True])
def test_aligned__program_gathers_tensors_of_several_devices(
    monkeypatch: pytest.MonkeyPatch, *, tracked: bool
) -> None:
    """What a compiler follows gives the same in eager code, where the calls of a program are seen."""
    here, far = torch.full((2,), 2.0), there(3, tracked=tracked)
    monkeypatch.setattr(get_backend("torch"), "is_tracing", lambda: True)
    y = aligned(backend="jax", device="cpu")(lambda a, b: a * b)(here, far)
    assert (str(y.device), y.tolist()) == (DEVICE if tracked else "cpu", [6, 6])


def test_aligned__refuses_a_device_that_the_library_lacks() -> None:
    """A library that lacks the device of an array refuses it unless `device` is given."""
    if DEVICE.startswith("emu"):
        f = aligned(backend="jax")(jax.numpy.sin)
        with pytest.raises(DeviceError, match="try device='cpu'"):
            f(there(2, tracked=True))


@pytest.mark.parametrize("xs", [(0, 1), (1, 0)])
def test_aligned__meta_argument_gives_a_meta_result(xs: tuple[int, int]) -> None:
    """A meta tensor has no values to compute with, so the result is a meta tensor too."""
    each = torch.ones(2, device="meta"), there(3)
    assert FUNCTIONS["jax"](*[each[i] for i in xs]).is_meta
