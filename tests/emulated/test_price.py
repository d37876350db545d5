"""What a transfer costs on the host, held as counts: they are the same on every machine.

Counted are the functions of Python and of C that the package calls, and what the device is asked for. Times
depend on the machine, and these counts decide most of them for small arrays.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from emulated.there import KIND

import xbridge
import xbridge.tree

if KIND != "emu":
    pytest.skip("the emulated accelerator counts what it is asked for", allow_module_level=True)

from xbridge.testing.emulated import _kernels, _memory, _streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = str(Path(xbridge.__file__).parent)
KIT = str(Path(PACKAGE, "testing"))


class Price(NamedTuple):
    """What a call costs."""

    python: int
    c: int
    copies: int
    allocations: int
    waits: int


def price(fn: Callable[[], object]) -> Price:
    """Count what a function asks for when it has been called a few times."""
    for _ in range(4):
        fn()
    counts = dict.fromkeys(Price._fields, 0)

    def see(frame: FrameType, event: str, arg: object) -> None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE) and not file.startswith(KIT) and event in ("call", "c_call"):
            counts["python" if event == "call" else "c"] += 1

    def counted(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            counts[what] += 1
            return real(*args)

        return count

    with pytest.MonkeyPatch.context() as outer, pytest.MonkeyPatch.context() as patch:
        outer.setattr(_kernels, "_moved", counted("copies", _kernels._moved))
        patch.setattr(_memory, "_allocate", counted("allocations", _memory._allocate))
        patch.setattr(_streams.Event, "synchronize", counted("waits", _streams.Event.synchronize))
        threading.setprofile(see)
        sys.setprofile(see)
        try:
            fn()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        patch.undo()
        _streams.synchronize()  # each copy is counted when it runs
    return Price(**counts)


def hosts(n: int) -> list[np.ndarray]:
    return [np.full(64, i, np.float32) for i in range(n)]


def there(xs: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(x).to(KIND) for x in xs]


def test_to_backend__ordinary_array_costs_as_much_as_torch() -> None:
    """A repeated call asks torch for one copy, and nothing is planned."""
    (a,) = hosts(1)
    for device in (KIND, f"{KIND}:0", torch.device(KIND)):
        cost = price(partial(xbridge.to_backend, a, "torch", device=device))
        assert (cost.copies, cost.allocations, cost.waits) == (1, 1, 1)
        assert cost.python <= 4, cost
        assert cost.c <= 6, cost


def test_to_numpy__ordinary_tensor_costs_as_much_as_torch() -> None:
    """A repeated call costs one copy and one wait, and a few checks."""
    (t,) = there(hosts(1))
    cost = price(lambda: xbridge.to_numpy(t))
    assert (cost.copies, cost.allocations, cost.waits) == (1, 0, 1)
    assert cost.python <= 5, cost
    assert cost.c <= 12, cost


WAYS: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "tree": (lambda xs: xbridge.tree.to_backend(xs, "torch", device=KIND), xbridge.tree.to_numpy),
    "transfer": (
        lambda xs: xbridge.transfer(xs, "torch", device=KIND).result(),
        lambda xs: xbridge.transfer(xs, "numpy").result(),
    ),
    "prefetch": (
        lambda xs: next(iter(xbridge.prefetch([xs], "torch", device=KIND))),
        lambda xs: next(iter(xbridge.prefetch([xs], "numpy"))),
    ),
    "asarray": (
        lambda xs: xbridge.asarray(list(xs.values()), backend="torch", device=KIND),
        lambda xs: xbridge.asarray(list(xs.values()), backend="numpy"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_batch__another_array_of_any_way_costs_no_python_call(way: str) -> None:
    """Another array of a batch costs no Python call, and no copy, allocation or wait."""
    send, fetch = WAYS[way]
    for fn, make in ((send, hosts), (fetch, lambda n: there(hosts(n)))):
        few, many = (price(partial(fn, dict(enumerate(make(n))))) for n in (20, 40))
        assert few._replace(c=0) == many._replace(c=0)
