"""Transforms, tracers, symbolic traces and fake tensors: free within torch, never a leak on the way out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import forget_calls

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Fn = Callable[[Tensor], Tensor]

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402 -- not without torch
from torch.autograd import forward_ad  # noqa: E402
from torch.func import functionalize, grad, hessian, jvp, vmap  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

# torch itself uses what it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

X = torch.arange(1.0, 4.0)
TWICE = X.repeat(2, 1)

TRANSFORMS: dict[str, Callable[[Fn], Any]] = {
    "vmap": lambda f: vmap(f)(TWICE),
    "vmap over a view": lambda f: vmap(lambda y: f(y[1:]))(TWICE),
    "grad": lambda f: grad(lambda y: f(y).sum())(X),
    "grad of vmap": lambda f: grad(lambda y: vmap(f)(y).sum())(TWICE),
    "jvp": lambda f: jvp(f, (X,), (X,)),
    "hessian": lambda f: hessian(lambda y: f(y).sum())(X),
    "functionalize": lambda f: functionalize(f)(X),
    "functionalize over a view": lambda f: functionalize(lambda y: f(y[1:]))(X),
    "make_fx": lambda f: make_fx(f)(X)(X),
    "make_fx of symbols": lambda f: make_fx(f, tracing_mode="symbolic")(X)(X),
    "make_fx of a gradient": lambda f: make_fx(lambda x: x * grad(lambda y: f(y).sum())(x))(X)(X),
}

WITHIN: dict[str, tuple[Fn, Fn]] = {
    "itself": (lambda y: xbridge.asarray(y) * y, lambda y: y * y),
    "a keep": (lambda y: xbridge.asarray(y, grad="keep") * y, lambda y: y * y),
    "a cast": (lambda y: xbridge.to_backend(y, "torch", dtype="float64") ** 2, lambda y: y.double() ** 2),
    "a copy": (lambda y: xbridge.asarray(y, copy=True, device="cpu") ** 2, lambda y: y.clone() ** 2),
    "an end": (lambda y: xbridge.asarray(y, grad="detach") * y, lambda y: y.detach() * y),
    "a list": (lambda y: xbridge.asarray([y, y * y]), lambda y: torch.stack([y, y * y])),
    "a list with an array": (
        lambda y: xbridge.asarray([y, np.ones(y.shape, "f4")]),
        lambda y: torch.stack([y, torch.ones(y.shape)]),
    ),
    "a list after an array": (
        lambda y: xbridge.asarray([[2.0] * y.shape[0], y], like=y) * y,
        lambda y: torch.stack([torch.full(y.shape, 2.0), y]) * y,
    ),
    "an alignment": (lambda y: xbridge.align(y, np.ones(1, "f4"))[1] * y, lambda y: y * 1),
    "an array": (lambda y: xbridge.to_backend(np.ones(1, "f4"), "torch", copy=True) * y, lambda y: y * 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", WITHIN)
def test_asarray__is_transformed_like_torch_operations(transform: str, name: str) -> None:
    """A call within torch gives the result of torch's own operations under any transform."""
    ours, theirs = (TRANSFORMS[transform](call) for call in WITHIN[name])
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


OUT: dict[str, Callable[[Tensor], object]] = {
    "to_numpy": xbridge.to_numpy,
    "a copy": lambda y: xbridge.to_numpy(y, copy=True),
    "detached": lambda y: xbridge.to_numpy(y, grad="detach", dtype="float64"),
    "to_list": xbridge.to_list,
    "a list": lambda y: xbridge.asarray([np.ones(y.shape, "f4"), y]),
    "shares_memory": lambda y: xbridge.shares_memory(y, y),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", OUT)
def test_to_numpy__refuses_transformed_tensors(transform: str, name: str) -> None:
    """A tensor that a transform is tracing does not leave torch."""

    def leave(y: Tensor) -> Tensor:
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"transform is|not plain|tracer"):
            OUT[name](y)
        return y * 1

    TRANSFORMS[transform](leave)


@pytest.mark.parametrize("transform", ["make_fx", "make_fx of symbols"])
def test_to_numpy__refuses_to_bake_values_into_a_trace(transform: str) -> None:
    """Under a tracer, even a plain tensor is refused, as its values would be baked in."""

    def leave(y: Tensor) -> Tensor:
        with pytest.raises(xbridge.UnsupportedArrayError, match="bake"):
            xbridge.to_numpy(X)
        return y * 1

    TRANSFORMS[transform](leave)


# -- forward mode --------------------------------------------------------------------------------


def dual_of(x: Tensor) -> Tensor:
    """A dual number whose tangent is its value."""
    dual: Tensor = forward_ad.make_dual(x, x.clone())  # type: ignore[no-untyped-call] # theirs
    return dual


def tangent(x: Tensor) -> list[Any] | None:
    """The derivative that a dual number carries."""
    held = forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call] # theirs
    return None if held is None else held.tolist()


@pytest.mark.parametrize("options", [{"dtype": "float64"}, {"copy": True}])
@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, lambda f: torch.vmap(torch.func.grad(f))])
def test_asarray__freed_storage_in_a_transform(transform: Any, options: dict[str, Any]) -> None:
    """A tensor whose storage was freed is refused inside a transform."""
    freed = torch.ones(3, 2)
    freed.untyped_storage().resize_(0)
    read = transform(lambda x: xbridge.asarray(x, **options).sum())
    with pytest.raises(xbridge.UnsupportedArrayError, match="storage was freed or shrunk"):
        read(freed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("view", [lambda d: d, lambda d: d[1:], lambda d: d.conj(), lambda d: d.conj().real])
@pytest.mark.parametrize("name", OUT)
def test_to_numpy__refuses_to_lose_a_tangent(dtype: Any, view: Any, name: str) -> None:
    """A dual tensor does not leave torch, since its tangent would be lost."""
    with forward_ad.dual_level():
        dual = view(dual_of(torch.ones(4, dtype=dtype)))
        with pytest.raises(xbridge.UnsupportedArrayError, match="tangent would be lost; try forward_ad"):
            OUT[name](dual)


def test_asarray__keeps_a_tangent_within_torch() -> None:
    """A tangent survives casts, copies and stacks, and is dropped on request."""
    with forward_ad.dual_level():
        dual = dual_of(torch.ones(2))
        assert xbridge.asarray(dual) is dual
        for made in (xbridge.asarray(dual, dtype="float64"), xbridge.asarray(dual, copy=True)):
            assert tangent(made) == [1.0, 1.0]
        listed = xbridge.asarray([dual, np.ones(2, "f4")])
        assert tangent(listed) == [[1.0, 1.0], [0.0, 0.0]]
        assert tangent(xbridge.asarray(dual, grad="detach")) is None
        for options in ({"grad": "keep", "dtype": "int64"}, {"requires_grad": True}):
            with pytest.raises(xbridge.GradientError, match="; try "):
                xbridge.asarray(dual, **options)


def test_to_numpy__plain_tensor_in_forward_mode() -> None:
    """A tensor without a tangent leaves as usual in forward mode."""
    tracked = torch.ones(2, requires_grad=True)
    with forward_ad.dual_level():
        assert xbridge.to_numpy(X).tolist() == [1.0, 2.0, 3.0]
        assert not xbridge.to_numpy(tracked).flags.writeable
        assert xbridge.to_backend(np.ones(2), "torch").tolist() == [1.0, 1.0]
        dual = dual_of(torch.ones(2))
    assert xbridge.to_numpy(dual).tolist() == [1.0, 1.0]


# -- fake tensors --------------------------------------------------------------------------------


def test_asarray__fake_tensors_stay_fake() -> None:
    """Fake tensors are cast, copied and stacked as fake tensors."""
    with FakeTensorMode():
        x = torch.ones(2, 3)
        assert xbridge.asarray(x) is x
        for made, dtype in (
            (xbridge.asarray(x, dtype="bfloat16", copy=True), torch.bfloat16),
            (xbridge.asarray([x, x]), torch.float32),
            (xbridge.align(x, np.ones(3))[1], torch.float64),
        ):
            assert type(made) is type(x)
            assert made.dtype == dtype
        assert xbridge.asarray(x, requires_grad=True).requires_grad
        assert (xbridge.device_of(x), xbridge.dtype_of(x)) == ("cpu", "float32")


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: xbridge.transfer(x, "torch").result(),
        lambda x: list(xbridge.prefetch([x], "torch")),
    ],
    ids=["transfer", "prefetch"],
)
def test_transfer__refuses_other_threads_in_fake_tensor_mode(convert: Callable[[Any], Any]) -> None:
    """Another thread would not be in the mode, and would make real tensors of the arrays."""
    with FakeTensorMode(), pytest.raises(xbridge.DeviceError, match="FakeTensorMode is on"):
        convert(np.ones(2))


@pytest.mark.parametrize("name", [name for name in OUT if name != "shares_memory"])
@pytest.mark.parametrize("lenient", [False, True])
def test_to_numpy__refuses_real_tensors_in_a_fake_mode(name: str, *, lenient: bool) -> None:
    """In a fake mode, a real tensor does not leave torch."""
    mode = FakeTensorMode(allow_non_fake_inputs=lenient)
    torch.set_warn_always(True)
    try:
        with mode, pytest.raises(xbridge.UnsupportedArrayError, match="a fake mode"):
            OUT[name](X)
    finally:
        torch.set_warn_always(False)
    assert xbridge.to_numpy(X).tolist() == [1.0, 2.0, 3.0]


def test_to_numpy__jit_trace_warns() -> None:
    """`torch.jit.trace` warns of the values that it bakes into the program."""

    def leave(x: Tensor) -> Tensor:
        return x.add(float(xbridge.to_numpy(x)[0]))

    with pytest.warns(torch.jit.TracerWarning, match="to a NumPy array"):
        torch.jit.trace(leave, (X,), check_trace=False)


@pytest.mark.parametrize("options", [{"copy": True}, {"dtype": "bfloat16"}], ids=str)
def test_to_torch__jit_trace_sees_the_same_program_twice(options: dict[str, Any]) -> None:
    """A call that is not cached yet is planned in both runs that `torch.jit.trace` compares."""
    forget_calls()
    with pytest.warns(torch.jit.TracerWarning, match="constants in the trace"):
        traced = torch.jit.trace(lambda x: x + xbridge.to_torch(np.arange(3.0), **options), (X,))
    assert traced(X).tolist() == (X + xbridge.to_torch(np.arange(3.0), **options)).tolist()


def test_to_torch__copy_in_a_fake_mode_is_the_same_after_one_outside() -> None:
    """A call that was cached outside of a mode is not repeated in it."""
    x = np.arange(6.0)[::2]

    def in_mode() -> Tensor:
        with FakeTensorMode():
            return xbridge.to_torch(x, copy=True)

    forget_calls()
    first = in_mode()
    for _ in range(2):
        assert xbridge.to_torch(x, copy=True).stride() == (1,)
    assert in_mode().stride() == first.stride()


@pytest.mark.parametrize("before", [False, True], ids=["first call", "repeated call"])
@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float32"}, {"grad": "keep"}], ids=str)
def test_to_backend__fake_mode_agrees_with_explain(options: dict[str, Any], *, before: bool) -> None:
    """A NumPy array becomes a fake tensor, as in torch, and the plan shares no memory."""
    a = np.ones(3)
    if before:
        assert xbridge.to_numpy(xbridge.to_backend(a, "torch", **options)).tolist() == [1, 1, 1]
    with FakeTensorMode():
        made = xbridge.to_backend(a, "torch", **options)
        (both,) = tree.to_backend([a], "torch", **options)
        plan = xbridge.explain(a, "torch", **options)
        assert {type(made), type(both)} == {FakeTensor}
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
    with FakeTensorMode():
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
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"torch\.fx: it has no dtype"):
        torch.fx.symbolic_trace(CALLS[verb])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xbridge-")]
