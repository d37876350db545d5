"""Make rules of JAX functions: JAX differentiates and batches them, and tells the shapes of their results."""

# ruff: noqa: ARG002 -- JAX needs no treedef of the result

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from xbridge.errors import OptionError
from xbridge.extend import locks
from xbridge.functions.rules import (
    DerivableFunction,
    Spec,
    latest,
    replace_chosen,
    select,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.rules import Axes, Call, Described, Mask
    from xbridge.functions.treedef import TreeDef

callback: locks.Nesting = locks.Nesting()
"""The blocks in which compiled code is waiting for this thread, where a call of JAX could be a deadlock."""


class _Result:
    """The arrays of a result, and its treedef as static data, which JAX keeps with a compiled function."""

    def __init__(self, treedef: TreeDef, arrays: Any) -> None:
        self.treedef = treedef
        self.arrays = arrays


jax.tree_util.register_pytree_node(_Result, lambda x: (x.arrays, x.treedef), _Result)


def rule(call: Call) -> DerivableFunction:
    """Make the rule of a function."""

    def flat(*xs: jax.Array) -> _Result:
        args, kwargs = call.bind(xs)
        ys = call.read_result(call.fn(*args, **kwargs), xs)
        return _Result(latest.treedef, tuple(ys))

    # JAX traces the function once for each shape, so what it reads besides its arguments is the same in the
    # value and in all derivatives.
    return JaxRule(call, call.name, jax.jit(flat))


def check_call(name: str) -> None:
    """Raise if compiled JAX code is waiting for this thread, because a function of JAX might never return."""
    if callback.depth and jax.config.read("jax_cpu_enable_async_dispatch"):  # type: ignore[no-untyped-call] # JAX leaves it untyped
        raise OptionError.build(
            f"run {name}, a function of JAX",
            "compiled code of JAX waits for the function that calls it, and JAX may wait for itself then",
            "jax.config.update('jax_cpu_enable_async_dispatch', False) before JAX computes",
        )


def conj(x: jax.Array) -> jax.Array:
    """Return the conjugate of a complex array: JAX's gradients are conjugates of those that rules return."""
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


class JaxRule(DerivableFunction):
    """A rule whose function takes JAX arrays and returns a `_Result`, which JAX transforms."""

    def __init__(self, call: Call, name: str, fn: Callable[..., _Result], of: JaxRule | None = None) -> None:
        super().__init__(call, name, of)
        self.fn, self._compiled = fn, jax.jit(fn)

    def __call__(self, *xs: jax.Array) -> tuple[jax.Array, ...]:
        check_call(self.call.name)
        try:
            result = self._compiled(*xs)
        except jax.errors.ConcretizationTypeError as error:
            raise self._shape_by_value_error() from error
        latest.treedef = result.treedef
        return result.arrays  # type: ignore[no-any-return]

    def differentiate(self, kind: str, ins: Mask, outs: Mask, treedef: TreeDef) -> DerivableFunction:
        def restrict(xs: Sequence[Any]) -> Callable[..., Any]:
            """Return the function from the inputs in the mask `ins` to the outputs in the mask `outs`."""
            return lambda *chosen: tuple(select(outs, self.fn(*replace_chosen(ins, chosen, xs)).arrays))

        def vjp(*a: jax.Array) -> _Result:
            cotangents, xs = a[: sum(outs)], a[sum(outs) :]
            made = jax.vjp(restrict(xs), *select(ins, xs))[1](tuple(map(conj, cotangents)))
            return _Result("", tuple(map(conj, made)))

        def jvp(*a: jax.Array) -> _Result:
            tangents, xs = a[: sum(ins)], a[sum(ins) :]
            return _Result("", jax.jvp(restrict(xs), tuple(select(ins, xs)), tangents)[1])

        made = JaxRule(self.call, f"the {kind} of {self.name}", vjp if kind == "vjp" else jvp, self)
        made.narrows = self.narrows and kind == "jvp"
        return made

    def batched(self, axes: Axes) -> DerivableFunction:
        return JaxRule(self.call, f"a batch of {self.name}", jax.vmap(self.fn, in_axes=axes), self)

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        try:
            stand_ins = [jax.ShapeDtypeStruct(*spec) for spec in specs]  # type: ignore[no-untyped-call] # JAX leaves it untyped
            result = jax.eval_shape(self.fn, *stand_ins)
        except jax.errors.ConcretizationTypeError as error:
            raise self._shape_by_value_error() from error
        return tuple(Spec(tuple(y.shape), y.dtype.name) for y in result.arrays), result.treedef

    def _shape_by_value_error(self) -> OptionError:
        return OptionError.build(
            f"trace {self.call.name}",
            "its control flow depends on the values of its arrays",
            "jax.lax.cond or jax.numpy.where, or a Python number for that argument",
        )
