"""What a reader sees of calls: `explain`, policies and records; and the function that a compiler follows."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pytest
from crossed import X, aligned, by_hand, in_library, leaf, same, slope, value

import xbridge
from xbridge import DeviceError, PolicyError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

explain: Any = xbridge.explain


def test_aligned__explain_shows_the_plan_of_each_argument_and_where_the_derivative_comes_from() -> None:
    """`explain` shows the plan of each argument and where the derivative comes from."""

    def scale(x: Any, n: int, *, dtype: Any = None) -> Any:
        return x * n

    bare = explain(aligned(backend="numpy")(scale), leaf(), 3)
    assert bare[1:4] == ("numpy", "torch", True)
    assert list(bare.arguments) == ["argument 0"]
    assert bare.derivative == "no vjp; no jvp"
    assert [step.op for step in bare.arguments["argument 0"].steps] == [
        "detach",
        "to_numpy",
        "as_readonly",
        "from_numpy",
    ]
    by_jax = explain(aligned(backend="jax")(scale), torch.ones(2), n=3, dtype="f4")
    assert (by_jax.tracked, by_jax.derivative) == (False, "by jax, any order")
    assert explain(by_hand(), leaf()).derivative == "vjp given; jvp given"
    assert explain(aligned(backend="numpy", vjp=np.cos)(np.sin), leaf()).derivative == "vjp given; no jvp"
    text = str(bare)
    assert text.splitlines()[-1] == "derivative  no vjp; no jvp"
    assert bare._repr_html_() == f"<pre>{escape(text)}</pre>"
    assert ", tracked" in text
    assert "nothing is tracked" in str(by_jax)


def test_aligned__explain_shows_the_copy_of_an_array_that_the_function_could_write_to() -> None:
    """`explain` shows the copy of an array that the function could write to."""

    def add(x: Any) -> Any:
        x += 1
        return x

    f, x = aligned(backend="torch")(add), np.zeros(2)
    (plan,) = explain(f, x).arguments.values()
    assert (plan.copies, f(x).tolist(), x.tolist()) == (True, [1, 1], [0, 0])


def test_aligned__explain_runs_nothing() -> None:
    """`explain` runs nothing."""
    ran: list[Any] = []
    f = aligned(backend="jax")(ran.append)
    explain(f, leaf())
    assert ran == []


def test_aligned__policy_sees_the_conversions_in_calls() -> None:
    """A policy sees the conversions in calls."""
    with xbridge.policy(detaches="raise"):
        for name in ("numpy", "jax"):
            x = leaf()
            same(torch.autograd.grad(in_library(name)(x).sum(), x)[0], slope(X))
        one, x = torch.nn.Parameter(torch.ones((), dtype=torch.float64)), jax.numpy.asarray(X)
        f = aligned(backend="torch")(lambda x: one * x * torch.sin(x))
        y, pull = jax.vjp(f, x)
        same(y, value(X))
        for slopes in (pull(x)[0], jax.jvp(f, (x,), (x,))[1]):
            same(slopes, X * slope(X))
        same(jax.vmap(f)(x), value(X))
    with xbridge.policy(copies="raise"):
        x = leaf()
        same(torch.autograd.grad(in_library("numpy")(x).sum(), x)[0], slope(X))
        with pytest.raises(PolicyError, match="forbids copies"):
            in_library("jax")(leaf())
        with pytest.raises(PolicyError, match="forbids copies"):
            in_library("torch")(jax.numpy.asarray(X))


def test_aligned__record_has_a_row_for_each_conversion_in_a_call_and_its_gradient() -> None:
    """A record has a row for each conversion in a call and its gradient."""
    f = in_library("numpy")
    with xbridge.record() as seen:
        f(leaf()).sum().backward()
    assert sum(row.calls for row in seen.rows) == 6  # x and y; then g, y and x, and the gradient
    assert {(row.source, row.target) for row in seen.rows} == {
        ("torch float64 on cpu", "numpy float64 on cpu"),
        ("numpy float64 on cpu", "torch float64 on cpu"),
    }


def test_aligned__every_call_brings_a_result_to_the_device_of_the_caller() -> None:
    """Every call brings a result to the device of the caller."""
    f = aligned(backend="numpy")(lambda x: torch.ones(2, device="meta"))
    for _ in range(2):
        with pytest.raises(DeviceError, match="from 'meta' to 'cpu'"):
            f(torch.ones(2))


def test_aligned__option_that_is_given_is_kept_on_every_way() -> None:
    """An option that is given is kept on every way."""
    x = torch.from_numpy(X)
    like = aligned(like=np.ones(1))(lambda x: x + 1)
    same(like(x), X + 1)
    far = aligned(backend="jax", device="cpu")(lambda x: x * x)
    y = leaf()
    same(torch.autograd.grad(far(y).sum(), y)[0], 2 * X)
    copied = aligned(backend="numpy", copy=True)(lambda x: np.multiply(x, 2))
    assert copied(leaf()).requires_grad
    with pytest.raises(xbridge.CopyError):
        aligned(backend="jax", copy=False)(lambda x: x)(leaf())
