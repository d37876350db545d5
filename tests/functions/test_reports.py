"""What a reader sees of calls: `explain`, policies and records; and the function that a compiler follows."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crossed import X, by_hand, curve, in_library, same, slope, value, wide
from inside import cached, get_backend

import xbridge
from xbridge import DeviceError, GradientError, OptionError, PolicyError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
from xbridge.functions.torch import calls as _calls  # noqa: E402 -- only where the library is

aligned: Any = xbridge.aligned
explain: Any = xbridge.explain
wide64 = pytest.fixture(autouse=True)(wide)


def leaf() -> Any:
    return torch.from_numpy(X.copy()).requires_grad_()


def test_aligned__explain_shows_the_plan_of_each_argument_and_where_the_derivative_comes_from() -> None:
    """`explain` shows the plan of each argument and where the derivative comes from."""

    def scale(x: Any, n: int, *, dtype: Any = None) -> Any:
        return x * n

    bare = explain(aligned(backend="numpy")(scale), leaf(), 3)
    assert bare[1:4] == ("numpy", "torch", True)
    assert list(bare.arguments) == ["argument 0"]
    assert bare[-3:] == ("no vjp; no jvp", "one call for each example", "not declared")
    assert [step.op for step in bare.arguments["argument 0"].steps] == [
        "detach",
        "to_numpy",
        "as_readonly",
        "from_numpy",
    ]
    by_jax = explain(aligned(backend="jax")(scale), torch.ones(2), n=3, dtype="f4")
    assert (by_jax.tracked, by_jax.derivative, by_jax.shapes) == (False, "by jax, any order", "by jax")
    twice = explain(by_hand(), leaf())
    assert (twice.derivative, twice.batch, twice.shapes) == (
        "vjp given, twice; jvp given, twice",
        "one call for all examples",
        "signature ()->()",
    )
    numeric = explain(aligned(backend="numpy", vjp="central", result=np.empty_like)(np.sin), leaf())
    assert (numeric.derivative, numeric.shapes) == ("vjp by central, once; no jvp", "result=")
    text = str(bare)
    assert text.splitlines()[-1] == "shapes      not declared"
    assert ", tracked" in text
    assert "nothing is tracked" in str(by_jax)


def test_the_plan_of_a_call_is_a_table_in_a_notebook_and_with_rich() -> None:
    plan = explain(aligned(backend="numpy", signature="(n)->(n)")(np.sort), torch.ones(2))
    html = plan._repr_html_()
    assert html.count("<tr>") == len(str(plan).splitlines()) == 5
    assert "shares memory" in html
    assert "signature (n)-&gt;(n)" in html
    (table,) = plan.__rich_console__(None, None)
    assert table.row_count == 5


def test_aligned__explain_shows_the_copy_of_an_array_that_the_function_could_write_to() -> None:
    """`explain` shows the copy of an array that the function could write to."""

    def add(x: Any) -> Any:
        x += 1
        return x

    f, x = aligned(backend="torch")(add), np.zeros(2)
    (plan,) = explain(f, x).arguments.values()
    assert (plan.copies, f(x).tolist(), x.tolist()) == (True, [1, 1], [0, 0])


def test_aligned__explain_runs_nothing_and_needs_an_array() -> None:
    """`explain` runs nothing and needs an array."""
    ran: list[Any] = []
    f = aligned(backend="jax")(ran.append)
    explain(f, leaf())
    assert ran == []
    with pytest.raises(OptionError, match="no argument is an array"):
        explain(f, 3)
    with pytest.raises(OptionError, match="a conversion has one target"):
        explain(np.ones(2), "torch", 3)
    wrapped = OrderedDict(vars(f))
    assert "__xbridge__" in wrapped


def test_aligned__policy_sees_the_conversions_in_calls() -> None:
    """A policy sees the conversions in calls."""
    with xbridge.policy(detaches="raise"):
        for name in ("numpy", "jax"):
            x = leaf()
            same(torch.autograd.grad(in_library(name)(x).sum(), x)[0], slope(X))
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


def test_aligned__record_has_the_conversions_of_each_call_that_is_repeated_within_it() -> None:
    """A record has the conversions of each call that is repeated within it."""
    f, x = in_library("numpy"), torch.from_numpy(X)
    f(x), f(x)
    with xbridge.record() as seen:
        for calls in (1, 2, 3):
            f(x)
            assert sum(row.calls for row in seen.rows) == 2 * calls


def test_aligned__call_without_arrays_is_a_call_of_the_function() -> None:
    """A call without arrays is a call of the function."""
    assert aligned(backend="jax")(lambda *xs, **named: (xs, named))(1, a="b") == ((1,), {"a": "b"})


def test_aligned__shortcut_gives_way_to_what_it_does_not_know() -> None:
    """A shortcut gives way to what it does not know."""
    f = in_library("numpy")
    x = torch.from_numpy(X)
    same(f(x), value(X))
    assert f(leaf()).requires_grad
    same(f(x.to_sparse().to_dense()), value(X))
    conjugate = aligned(backend="numpy")(lambda z: z + 0)
    z = torch.tensor([1 + 1j])
    conjugate(z)
    assert conjugate(z.conj()).tolist() == [1 - 1j]
    tree = aligned(backend="numpy")(lambda x: {"y": x + 1})
    tree(x)
    same(tree(x)["y"], X + 1)
    with xbridge.policy(casts="raise"):
        same(f(x), value(X))


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


def test_aligned__function_that_a_compiler_follows_works_without_one() -> None:
    """The function that a compiler follows works without one."""
    from xbridge.functions.function import latest_form, program_key

    f = aligned(
        backend="numpy",
        result=lambda x, i, k: np.empty_like(x),
        vjp=lambda g, y, x, i, k: (g * k, None, None),
    )(lambda x, i, k: x * k)
    key = vars(f)["__xbridge__"].key
    form = ("tuple", ("tuple", "*", "int", "float"), ("dict", (), ()))
    program = program_key(key, form, "numpy", "torch")
    assert program_key(key, form, "numpy", "torch") != program  # each call in a program has a key
    x = leaf()
    (y,) = _calls.call_by_key(program, [x], [2, 3.0])
    assert latest_form() == "*"
    same(torch.autograd.grad(y.sum(), x)[0], 3 + 0 * X)
    doubled = torch.func.grad(lambda v: _calls.call_by_key(program, [v], [2, 3.0])[0].sum())(x.detach())
    same(doubled, 3 + 0 * X)


# torch hides this warning of its own where warnings are shown, and the suite raises them.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_aligned__torch_checks_the_operator() -> None:
    """torch checks the operator."""
    f = in_library("numpy")
    f(leaf())
    (rule,) = vars(f)["__xbridge__"].rules.values()
    torch.library.opcheck(torch.ops.xbridge.call.default, ([leaf()], [], rule.key, []))


def test_aligned__call_in_a_program_of_another_compiler_is_part_of_it() -> None:
    """A call in a program of another compiler is part of it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    f = aligned(backend="jax")(lambda x: x * 2)
    graph = make_fx(f)(torch.from_numpy(X))
    assert any("xbridge" in str(node.target) for node in graph.graph.nodes)
    same(graph(torch.from_numpy(X)), 2 * X)


def test_aligned__tangent_that_nothing_moves_is_zero() -> None:
    """A tangent that nothing moves is zero."""
    f = in_library("torch")
    v = jax.numpy.asarray(X)
    _, tangent = jax.jvp(lambda w: jax.jvp(f, (v,), (v,))[1] + 0 * w, (v,), (v,))
    same(tangent, 0 * X)
    linear = jax.linearize(f, v)[1]
    same(jax.jvp(linear, (v,), (v,))[1], X * slope(X))


def test_aligned__missing_library_for_a_check_of_derivatives_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing library for a check of derivatives is an error."""
    from xbridge.testing import _derivatives, assert_derivative

    monkeypatch.setattr(_derivatives, "_LIBRARIES", {})
    with pytest.raises(OptionError, match="no other library"):
        assert_derivative(in_library("numpy"), X)


def test_aligned__order_of_an_error_is_counted_in_words() -> None:
    """The order of an error is counted in words."""
    t = torch.from_numpy(X)
    f = by_hand()

    def tangent(of: Any) -> Any:
        return lambda x: torch.func.jvp(of, (x,), (t,))[1]

    same(tangent(tangent(f))(t), X * X * curve(X))
    with pytest.raises(GradientError, match="three times"):
        tangent(tangent(tangent(f)))(t)


def test_aligned__default_dtype_that_the_library_lacks_too_is_not_advised() -> None:
    """A default dtype that the library lacks too is not advised."""
    pytest.importorskip("array_api_strict")
    with pytest.raises(xbridge.DTypeError) as caught:
        aligned(backend="array_api_strict")(lambda x: x)(torch.ones(2, dtype=torch.float16))
    assert "aligned(" not in str(caught.value)


def test_aligned__empty_batch_has_the_shape_that_is_declared() -> None:
    """An empty batch has the shape that is declared."""
    f = aligned(backend="numpy", result=lambda m: np.empty(m.shape[0]))(lambda m: m.sum(1))
    batch = torch.ones(0, 3, 2, dtype=torch.float64)
    assert torch.vmap(f)(batch).shape == (0, 3)
    assert jax.vmap(f)(jax.numpy.ones((0, 3, 2))).shape == (0, 3)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_aligned__empty_batch_for_a_function_of_torch(shape: tuple[int, ...], transform: Any) -> None:
    """An empty batch has the shapes and dtypes of one example, also if that is a number."""
    f = aligned(backend="torch")(lambda x: {"b": x * 2, "a": (x > 0).sum()})
    batch = jax.numpy.zeros(shape)
    made = transform(jax.vmap(f))(batch)
    assert (made["b"].shape, made["a"].shape, made["a"].dtype) == (shape, (0,), "int64")
    assert transform(jax.vmap(jax.grad(lambda x: f(x)["b"].sum())))(batch).shape == shape
    assert transform(lambda x: jax.jvp(jax.vmap(f), (x,), (x,))[1])(batch)["b"].shape == shape


def test_aligned__batch_in_a_compiled_program_is_a_loop_of_it() -> None:
    """A batch in a compiled program is a loop of it."""
    f = aligned(backend="numpy", result=lambda m: np.empty(m.shape[0]))(lambda m: m.sum(1))
    batch = np.arange(24.0).reshape(4, 3, 2)
    same(jax.jit(jax.vmap(f))(jax.numpy.asarray(batch)), batch.sum(-1))


def test_aligned__index_does_not_move_a_tangent() -> None:
    """An index does not move a tangent."""
    f = aligned(backend="torch")(lambda x, i: x[i] * 2)
    v, i = jax.numpy.asarray(X), jax.numpy.array([3, 1])

    def tangent(i: Any) -> Any:
        return jax.jvp(lambda x: f(x, i), (v,), (v,))[1]

    found, still = jax.jvp(tangent, (i,), (np.zeros(2, jax.dtypes.float0),))
    same(found, 2 * X[[3, 1]])
    same(still, 0 * X[:2])


def test_aligned__function_that_returns_none_runs_once_a_call() -> None:
    """A function that returns None runs once in each call."""
    seen: list[Any] = []
    call = aligned(backend="jax")(seen.append)
    for count in range(1, 4):
        assert call(torch.ones(2)) is None
        assert len(seen) == count


def test_aligned__followed_call_that_was_seen_before_is_examined_again_while_a_compiler_traces() -> None:
    """A followed call that was seen before is examined again while a compiler traces."""
    call = aligned(backend="jax")(lambda x: jax.numpy.sin(x))  # noqa: PLW0108 -- a function of its own
    for _ in range(3):
        x = leaf()
        same(torch.autograd.grad(call(x).sum(), x)[0], np.cos(X))
    same(torch.compile(lambda x: call(x) + 1, fullgraph=True, backend="eager")(leaf()), np.sin(X) + 1)
    function = call.__xbridge__
    repeat: Any
    (repeat,) = [run for key, run in cached.items() if function.key in key]
    with pytest.MonkeyPatch.context() as patch:
        traced = SimpleNamespace(**{**vars(get_backend("torch")), "is_tracing": lambda: True})
        patch.setattr(repeat.__self__, "_caller", traced)
        assert repeat(function, (leaf(),), {}) is None
