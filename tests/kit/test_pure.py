"""`assert_pure`, which watches a torch function as closely as the first run of an aligned function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from xbridge import aligned
from xbridge.testing import assert_pure

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")

X = np.ones((3, 2))
GENERATOR = torch.Generator()
WEIGHT = torch.ones(2)


def seeded(x: Any) -> Any:
    """Draw the same numbers in each run."""
    torch.manual_seed(0)
    return x * torch.rand(2)


def cached() -> Callable[[Any], Any]:
    """Return a function that makes a tensor in its first run, and reads it in later ones."""
    cache: list[Any] = []

    def fn(x: Any) -> Any:
        cache[:] = cache or [torch.ones(2)]
        return x * cache[0]

    return fn


def counting() -> Callable[[Any], Any]:
    """Return a function that returns another number in each run."""
    runs: list[int] = []

    def fn(x: Any) -> Any:
        runs.append(1)
        return x * len(runs)

    return fn


def replacing() -> Callable[[Any], Any]:
    """Return a function that reads another tensor in each run."""
    weights = [torch.ones(2), torch.ones(2)]

    def fn(x: Any) -> Any:
        weights.reverse()
        return x * weights[0]

    return fn


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, scale=2: {"y": x * scale},
        lambda x: x.add_(1),
        lambda x: torch.from_numpy(np.zeros((3, 2))).add_(x),
        aligned(backend="torch")(torch.sin),
        torch.nn.BatchNorm1d(2).double().eval(),
        seeded,
        cached(),
    ],
)
def test_assert_pure__accepts(fn: Callable[..., Any]) -> None:
    """A function may write to what is its own, set a seed, and keep what it would compute again."""
    x = X.copy()
    assert_pure(fn, x)
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (torch.nn.Dropout(0.5), "draws"),
        (lambda x: x * torch.rand(2, generator=GENERATOR), "draws"),
        (lambda x: x * WEIGHT.add_(1), "writes"),
        (lambda x: x * WEIGHT.data.mul_(2) + WEIGHT, "writes"),
        (torch.nn.BatchNorm1d(2).double(), "writes"),
        (replacing(), "reads"),
        (counting(), "returns"),
    ],
)
def test_assert_pure__refuses(fn: Callable[..., Any], reason: str) -> None:
    """A draw, a write to a tensor of others, another read and another result are each named."""
    with pytest.raises(AssertionError, match=f"is not pure: it {reason}"):
        assert_pure(fn, X)
