"""Make rules of JAX functions: JAX differentiates and batches them, and tells the shapes of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from xbridge.errors import OptionError
from xbridge.functions.jax.callbacks import refuse_inside
from xbridge.functions.rules import Spec, TracedFunction, latest, refuse_user_derivative, restrict, select

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.functions.rules import Call, DerivableFunction
    from xbridge.functions.treedef import TreeDef


class _Result:
    """The arrays of a result, and its treedef as static data, which JAX keeps with a compiled function."""

    def __init__(self, treedef: TreeDef, arrays: Any) -> None:
        self.treedef = treedef
        self.arrays = arrays


jax.tree_util.register_pytree_node(_Result, lambda x: (x.arrays, x.treedef), _Result)


def rule_of(call: Call) -> DerivableFunction:
    """Make the rule of a function."""
    refuse_user_derivative(call)

    def flat(*xs: jax.Array) -> _Result:
        args, kwargs = call.bind(xs)
        ys = call.read_result(call.fn(*args, **kwargs), xs)
        return _Result(latest.treedef, tuple(map(jnp.asarray, ys)))

    # JAX traces the function once for each shape, so what it reads besides its arguments is the same in the
    # value and in all derivatives.
    return JaxRule(call, call.name, jax.jit(flat))


def conj(x: jax.Array) -> jax.Array:
    """Return the conjugate of a complex array: JAX's gradients are conjugates of those that rules return."""
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


class JaxRule(TracedFunction):
    """A rule whose function takes JAX arrays and returns a `_Result`."""

    def __init__(self, call: Call, name: str, fn: Callable[..., Any]) -> None:
        super().__init__(call, name, fn)
        self._compiled = jax.jit(fn)

    def __call__(self, *xs: jax.Array) -> tuple[jax.Array, ...]:
        refuse_inside(self.call.name)
        try:
            result = self._compiled(*xs)
        except jax.errors.ConcretizationTypeError as error:
            raise self._shape_by_value_error() from error
        latest.treedef = result.treedef
        return result.arrays  # type: ignore[no-any-return]

    def _arrays(self, *xs: jax.Array) -> tuple[jax.Array, ...]:
        return self.fn(*xs).arrays  # type: ignore[no-any-return]

    def vjp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        count = sum(outs)

        def vjp(*a: jax.Array) -> _Result:
            cotangents, xs = a[:count], a[count:]
            part = restrict(self._arrays, ins, outs, xs)
            made = jax.vjp(part, *select(ins, xs))[1](tuple(map(conj, cotangents)))
            return _Result("", tuple(map(conj, made)))

        return vjp

    def jvp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        count = sum(ins)

        def jvp(*a: jax.Array) -> _Result:
            tangents, xs = a[:count], a[count:]
            part = restrict(self._arrays, ins, outs, xs)
            return _Result("", jax.jvp(part, tuple(select(ins, xs)), tuple(tangents))[1])

        return jvp

    def batch_of(self, axes: tuple[int | None, ...]) -> Callable[..., Any]:
        return jax.vmap(self.fn, in_axes=axes)

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
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
