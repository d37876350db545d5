"""Assertions about what a library derives from a function: its gradients, and its graph of lazy operations.

A derivative is compared with a difference quotient, along one direction for all arguments together. A lazy
function is called with a scheduler that raises, or is traced.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge.errors import GradientError, OptionError
from xbridge.extend import category, get_backend
from xbridge.testing._call import Call, program
from xbridge.testing._derivatives import GRADIENTS, Case, product
from xbridge.testing._matches import MismatchError
from xbridge.testing._outcome import Difference, describe_error, outcome, parts
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array, HostArray

_CUT = "cuts the graph"
_COMPUTES = "computes a lazy array"
_COARSE = ", eps=1e-3, atol=1e-2, rtol=2e-2"
"""The options of `torch.autograd.gradcheck` in float32."""

LAZY = ("dask", "jax")


def assert_gradients(f: Callable[..., Any], /, *args: Any, rtol: float | None = None, **kwargs: Any) -> None:
    """Assert that a library's gradient of a function agrees with a difference quotient.

    All floating arguments are varied together along one direction, and the floating results are weighted.

    Parameters
    ----------
    f : callable
        The function, differentiable at the arguments.
    *args, **kwargs
        Its arguments, with arrays of torch or JAX. float64 gives the sharpest test.
    rtol : float, optional
        The relative tolerance; by default the error of central differences, 6e-6 in float64 and 5e-3 in
        float32.

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
    call = as_differentiable(Call.of(f, args, kwargs), rtol)
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
    call = Call.of(f, args, kwargs)
    if call.promise.backend not in LAZY:
        reason = f"{call.promise.backend} has no lazy arrays"
        raise OptionError.build("check what a function computes", reason, "arrays of dask or jax")
    call = as_lazy(call)
    if found := call.judge():
        raise MismatchError(call, found)


def as_lazy(call: Call) -> Call:
    """Return a call with arrays of Dask or JAX that is judged by which lazy arrays it computes."""
    return call._replace(by=_traced if call.promise.backend == "jax" else _unscheduled)


def _unscheduled(call: Call) -> Difference | None:
    import dask.config  # noqa: PLC0415 -- only for its arrays

    computed = []

    def refuse(*_args: object, **_kwargs: object) -> None:
        computed.append(1)
        raise RuntimeError("a lazy array is computed")

    with dask.config.set(scheduler=refuse):
        found = call.run()
    if found.error is None and not computed:
        return None
    made = Difference(_COMPUTES, "the function computes a lazy array")
    made = made if computed else describe_error(found.error)  # type: ignore[arg-type] # it is one
    lines = (
        "import dask",
        "def refuse(*args, **kwargs): raise RuntimeError('a lazy array is computed')",
        f"with dask.config.set(scheduler=refuse): {program(call).call}  # {made.message}",
    )
    return made._replace(program=lines)


def _traced(call: Call) -> Difference | None:
    import jax  # noqa: PLC0415 -- only for its arrays

    recipes = call.recipes()
    arrays = [one.make() for one in recipes]

    def traced(*given: Array) -> Any:
        filled = call.fill(given)
        return call.f(*filled.args, **filled.kwargs)

    found = outcome(partial(jax.make_jaxpr(traced), *arrays))
    if found.error is None:
        return None
    difference, made = describe_error(found.error), program(call)
    if isinstance(found.error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        difference = difference._replace(kind=_COMPUTES)
    is_plain = made.arguments and not call.kwargs
    text = f"jax.jit({made.function})({made.arguments})" if is_plain else f"jax.jit(lambda: {made.call})()"
    return difference._replace(program=("import jax", f"{text}  # {difference.message}"))


# -- gradients -----------------------------------------------------------------------------------


def as_differentiable(call: Call, rtol: float | None = None) -> Call:
    """Return a call of torch's or JAX's arrays that is judged by its gradient."""
    backend = call.promise.backend
    if backend not in GRADIENTS:
        raise GradientError.build(f"check gradients of {backend}", "it has none", "arrays of torch or jax")
    if not any(np.issubdtype(one.values.dtype, np.floating) for one in call.recipes()):  # NumPy's own
        raise GradientError.build("check gradients", "no argument is floating", "dtype='float64'")
    return call._replace(by=partial(_judge_gradient, rtol=rtol))


def _judge_gradient(call: Call, *, rtol: float | None) -> Difference | None:
    """Compare the gradient along one direction with differences of values; a program uses the library's."""
    found = _compare_gradients(call, rtol)
    if found is None:
        return None
    made, dtypes = program(call), [one.values.dtype for one in call.recipes()]
    moving = [(name, x) for name, x in zip(made.arrays, dtypes, strict=True) if x.kind == "f"]
    names = ", ".join(name for name, _ in moving)
    if call.promise.backend == "jax":
        lines = ["from jax.test_util import check_grads"]
        text = f"check_grads(lambda {names}: {made.call}, ({names},), order=1, modes=['rev'])"
    else:
        lines, leaves = [], "".join(f"{name}.clone().requires_grad_(), " for name, _ in moving).rstrip()
        options = "" if all(dtype == np.float64 for _, dtype in moving) else _COARSE
        text = f"torch.autograd.gradcheck(lambda {names}: {made.call}, ({leaves}){options})"
    return found._replace(program=(*lines, f"{text}  # {found.message}"))


def _compare_gradients(call: Call, rtol: float | None) -> Difference | None:
    """Return the difference of the gradient along one direction from a difference quotient."""
    library = call.promise.backend
    recipes, read = [one.without("requires_grad") for one in call.recipes()], samples_of(library).read
    moving = [n for n, one in enumerate(recipes) if np.issubdtype(one.values.dtype, np.floating)]

    def run(*moved: Array) -> list[Array]:
        arrays = dict(zip(moving, moved, strict=True))
        result = call.bind(arrays[n] if n in arrays else one.make() for n, one in enumerate(recipes))()
        return [part for _, part in parts(result) if _is_floating(part, library)]

    def values(*xs: HostArray) -> list[HostArray]:
        made = [recipes[n].with_values(x).make() for n, x in zip(moving, xs, strict=True)]
        return [read(part) for part in run(*made)]

    made = outcome(partial(Case, values, [recipes[n].values for n in moving]))
    if made.error is not None:
        return describe_error(made.error)
    tangents, seeds = next(made.result.directions())
    own = outcome(partial(GRADIENTS[library], run, [recipes[n].make() for n in moving], seeds))
    if own.error is not None:
        return describe_error(own.error)
    if own.result is None:
        return Difference(_CUT, "the result does not require grad, and the arguments do")
    close = made.result.eps ** (1 / 3) if rtol is None else rtol
    right = made.result.slope(tangents, seeds, close)
    slope = sum(map(product, map(read, own.result), right.tangents))
    if abs(slope - right.value) <= close * right.size + right.noise or np.isnan([slope, right.value]).all():
        return None
    text = f"the derivative is {slope:.6g}, and the difference quotient {right.value:.6g}"
    return Difference("gradient", text)


def _is_floating(part: Any, library: str) -> bool:
    backend = get_backend(library)
    return isinstance(part, backend.array_types) and category(backend.array_info(part).dtype) == "float"
