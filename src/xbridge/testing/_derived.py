"""Assertions about what a library derives from a function: its gradients, and its graph of lazy operations.

A derivative is compared with a difference quotient, along one direction for all arguments together. A lazy
function is called with a scheduler that raises, or is traced.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge.errors import GradientError, OptionError
from xbridge.extend import get_backend
from xbridge.testing._call import Call
from xbridge.testing._matches import MismatchError
from xbridge.testing._outcome import Difference, first_line, outcome, parts
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array, HostArray

_CUT = "cuts the graph"
_COMPUTES = "computes a lazy array"
DIFFERENTIABLE = ("torch", "jax")
_COARSE = ", eps=1e-3, atol=1e-2, rtol=2e-2"
"""The options of `torch.autograd.gradcheck` in float32."""

LAZY = ("dask", "jax")


def assert_gradients(f: Callable[..., Any], /, *args: Any, rtol: float | None = None, **kwargs: Any) -> None:
    """Assert that a library's gradient of a function agrees with a difference quotient.

    Every floating argument is varied along one direction, and the floating results are summed with weights.

    Parameters
    ----------
    f : callable
        The function, differentiable at the arguments.
    *args, **kwargs
        Its arguments, with arrays of torch or JAX. float64 gives the sharpest test.
    rtol : float, optional
        The relative tolerance; by default 1e-5 in float64 and 2e-2 in float32.

    Raises
    ------
    AssertionError
        A result does not depend on the arguments for autograd, or the gradient is wrong.
    GradientError
        The library does not differentiate, or no argument is floating.

    Examples
    --------
    >>> import torch
    >>> assert_gradients(torch.tanh, torch.tensor([0.5, 2.0], dtype=torch.float64))
    """
    __tracebackhide__ = True
    call = gradients(f, args, kwargs, rtol)
    if found := call.judge():
        raise MismatchError(call, found)


def assert_lazy(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Assert that a function computes no lazy array.

    With Dask, nothing is computed during the call. With JAX, the function is traced under `jax.jit`, and
    needs no value of its arguments.

    Parameters
    ----------
    f : callable
        The function.
    *args, **kwargs
        Its arguments, with arrays of Dask or JAX. Other arguments are constants.

    Raises
    ------
    AssertionError
        The function computes an array, or needs a value under `jit`.
    OptionError
        The arrays are of a library without lazy arrays.

    Examples
    --------
    >>> import dask.array as da
    >>> assert_lazy(da.sum, da.ones(3))
    """
    __tracebackhide__ = True
    call = laziness(f, args, kwargs)
    if found := call.judge():
        raise MismatchError(call, found)


def laziness(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return a call that is judged by which lazy arrays it computes."""
    call = Call.of(f, args, kwargs, None, {})
    if call.promise.backend not in LAZY:
        reason = f"{call.promise.backend} has no lazy arrays"
        raise OptionError.build("check what a function computes", reason, "arrays of dask or jax")
    return as_lazy(call)


def as_lazy(call: Call) -> Call:
    """Return a call with arrays of Dask or JAX that is judged by which lazy arrays it computes."""
    if call.promise.backend == "jax":
        count = len(call.args)
        text = "jax.jit({f})({args})" if not call.kwargs and count else "jax.jit(lambda: {})()"
        return call._replace(by=_traced, written=(("import jax",), text))
    lines = (
        "import dask",
        "def refuse(*args, **kwargs): raise RuntimeError('a lazy array is computed')",
    )
    return call._replace(by=_unscheduled, written=(lines, "with dask.config.set(scheduler=refuse): {}"))


class _ComputedError(RuntimeError):
    """Raised if the scheduler is called, which computes a lazy array."""


def _unscheduled(_call: Call, run: Callable[[], Any]) -> Difference | None:
    import dask.config  # noqa: PLC0415 -- only for its arrays

    computed = []

    def refuse(*_args: object, **_kwargs: object) -> None:
        computed.append(1)
        raise _ComputedError("a lazy array is computed")

    with dask.config.set(scheduler=refuse):
        found = outcome(run)
    if computed:
        return Difference(_COMPUTES, "the function computes a lazy array")
    if found.error is None:
        return None
    return Difference("raises", f"{type(found.error).__name__}: {first_line(found.error)}")


def _traced(call: Call, _run: Callable[[], Any]) -> Difference | None:
    import jax  # noqa: PLC0415 -- only for its arrays

    recipes = call.recipes()
    arrays = [one.make() for one in recipes]

    def traced(*given: Array) -> Any:
        filled = call.fill(given)
        return call.f(*filled.args, **filled.kwargs)

    found = outcome(partial(jax.make_jaxpr(traced), *arrays))
    if found.error is None:
        return None
    if isinstance(found.error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return Difference(_COMPUTES, f"{type(found.error).__name__}: {first_line(found.error)}")
    return Difference("raises", f"{type(found.error).__name__}: {first_line(found.error)}")


# -- gradients -----------------------------------------------------------------------------------


def gradients(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rtol: float | None = None
) -> Call:
    """Return a call that is judged by its gradient."""
    return as_differentiable(Call.of(f, args, kwargs, None, {}), rtol)


def as_differentiable(call: Call, rtol: float | None = None) -> Call:
    """Return a call of torch's or JAX's arrays that is judged by its gradient."""
    backend = call.promise.backend
    if backend not in DIFFERENTIABLE:
        raise GradientError.build(f"check gradients of {backend}", "it has none", "arrays of torch or jax")
    floating = [one.values.dtype for one in call.recipes() if one.values.dtype.kind == "f"]
    if not floating:
        raise GradientError.build("check gradients", "no argument is floating", "dtype='float64'")
    options = "" if all(dtype == np.float64 for dtype in floating) else _COARSE
    text = (
        f"torch.autograd.gradcheck(lambda {{floating}}: {{}}, ({{leaves}}){options})"
        if backend == "torch"
        else "check_grads(lambda {floating}: {}, ({floating},), order=1, modes=['rev'])"
    )
    lines = () if backend == "torch" else ("from jax.test_util import check_grads",)
    return call._replace(by=partial(_compare_gradients, rtol=rtol), written=(lines, text))


def _compare_gradients(call: Call, _run: Callable[[], Any], *, rtol: float | None) -> Difference | None:
    recipes = [one.without("requires_grad") for one in call.recipes()]
    floating = [one.values.dtype.kind == "f" for one in recipes]
    rng = np.random.default_rng(0)
    ways = [
        rng.uniform(0.5, 1.5, one.values.shape) if is_float else None
        for one, is_float in zip(recipes, floating, strict=True)
    ]

    def run(arrays: list[Array]) -> list[Array]:
        filled = call.fill(arrays)
        return [part for _, part in parts(call.f(*filled.args, **filled.kwargs)) if _is_floating(part, call)]

    def at(step: float) -> float:
        moved = [
            one if way is None else one.with_values((one.values + step * way).astype(one.values.dtype))
            for one, way in zip(recipes, ways, strict=True)
        ]
        found = run([one.make() for one in moved])
        return sum(_weighted(samples_of(call.promise.backend).read(part)) for part in found)

    coarse = max(
        (np.finfo(one.values.dtype).eps for one in recipes if one.values.dtype.kind == "f"), default=0
    )
    step = float(coarse) ** (1 / 3)
    own = outcome(partial(_DERIVE[call.promise.backend], run, recipes, floating, ways))
    if own.error is not None:
        return Difference(
            f"raises {type(own.error).__name__}", f"{type(own.error).__name__}: {first_line(own.error)}"
        )
    if own.result is None:
        return Difference(_CUT, "the result does not require grad, and the arguments do")
    quotient = (at(step) - at(-step)) / (2 * step)
    allowed = rtol if rtol is not None else (1e-5 if coarse < 1e-10 else 2e-2)
    both = np.isnan(own.result) and np.isnan(quotient)
    if both or abs(own.result - quotient) <= allowed * max(1.0, abs(quotient)):
        return None
    return Difference(
        "gradient", f"the derivative is {own.result:.6g}, and the difference quotient {quotient:.6g}"
    )


def _is_floating(part: Any, call: Call) -> bool:
    backend = get_backend(call.promise.backend)
    return isinstance(part, backend.array_types) and backend.array_info(part).dtype.startswith(
        ("float", "bfloat")
    )


def _weights(shape: tuple[int, ...]) -> HostArray:
    return np.random.default_rng(1).uniform(0.5, 1.5, shape)


def _weighted(values: HostArray) -> float:
    return float((values.astype(np.float64) * _weights(values.shape)).sum())


def _derive_torch(run: Any, recipes: Any, floating: Any, ways: Any) -> float | None:
    import torch  # noqa: PLC0415 -- only for its arrays

    arrays = [one.make() for one in recipes]
    leaves = [x.requires_grad_() for x, is_float in zip(arrays, floating, strict=True) if is_float]
    found = [part for part in run(arrays) if part.numel()]
    if not any(part.requires_grad for part in found):
        return None if found else 0.0
    whole: Any = sum(
        (part * torch.as_tensor(_weights(tuple(part.shape)), dtype=part.dtype)).sum() for part in found
    )
    made = torch.autograd.grad(whole, leaves, allow_unused=True)
    given = [way for way in ways if way is not None]
    return float(
        sum(
            (g.detach() * torch.as_tensor(way)).sum()
            for g, way in zip(made, given, strict=True)
            if g is not None
        )
    )


def _derive_jax(run: Any, recipes: Any, floating: Any, ways: Any) -> float | None:
    import jax  # noqa: PLC0415 -- only for its arrays

    arrays = [one.make() for one in recipes]
    numbers = [n for n, is_float in enumerate(floating) if is_float]

    def whole(*given: Array) -> Array:
        found = run(list(given))
        return sum((part * jax.numpy.asarray(_weights(part.shape), part.dtype)).sum() for part in found)

    made = jax.grad(whole, argnums=tuple(numbers))(*arrays)
    return float(
        sum((g * jax.numpy.asarray(ways[n], g.dtype)).sum() for g, n in zip(made, numbers, strict=True))
    )


_DERIVE: dict[str, Callable[..., float | None]] = {"torch": _derive_torch, "jax": _derive_jax}
