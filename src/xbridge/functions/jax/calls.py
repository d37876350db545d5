"""Embed calls of rules in JAX's transforms, by primitives for calls and for tangents.

The tangent primitive is linear in the tangents, and its transpose is a call of the rule's vjp. So reverse
mode needs no jvp of the function. A differentiated call is recorded, if its rule can be: its last result is a
mark, which goes to the vjp, so that a value and its gradient take one run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from weakref import finalize

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.sharding import AxisType, PartitionSpec

from xbridge import Device
from xbridge.errors import DeviceError, UnsupportedArrayError
from xbridge.extend import DTYPES, get_backend
from xbridge.functions.inputs import protect_host
from xbridge.functions.jax import private
from xbridge.functions.jax.rules import callback, conj
from xbridge.functions.rules import (
    NO_VALUE,
    Mark,
    Spec,
    latest,
    mask_inexact,
    no_derivative_error,
    select,
    sharded_call_error,
)
from xbridge.functions.treedef import ARRAY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.functions.rules import Axes, DerivableFunction, Mask
    from xbridge.functions.treedef import TreeDef

    Arrays = Sequence[Any]

call_p, tangent_p = Primitive("xbridge_call"), Primitive("xbridge_tangent")
call_p.multiple_results = tangent_p.multiple_results = True

_jax, _SHARDED = get_backend("jax"), Device("sharded")


def run(rule: DerivableFunction, xs: Arrays, ins: Mask | None = None) -> list[Any]:
    """Run a rule within JAX's current transforms, and store `latest.treedef`.

    JAX caches the shapes of a primitive, so the structure of the result may have to be looked up.
    """
    latest.treedef = None
    ys: list[Any] = _bind(call_p, *xs, rule=rule, ins=ins)
    if latest.treedef is None:
        _, latest.treedef = rule.outputs(_specs(map(jax.typeof, xs)))
    return ys


def _specs(avals: Any) -> tuple[Spec, ...]:
    return tuple(map(_spec, avals))


def _spec(aval: Any) -> Spec:
    if aval.dtype.name not in DTYPES:
        action, reason = f"convert a jax {aval.dtype} array of shape {aval.shape}", "it has no numeric dtype"
        raise UnsupportedArrayError.build(action, reason, "jax.random.key_data(x)")
    if AxisType.Explicit in aval.sharding.mesh.axis_types:
        action, reason = f"call a function with {aval}", "a callback has no explicit sharding"
        raise DeviceError.build(action, reason, "jax.sharding.auto_axes(f, out_sharding=P())(x)")
    return Spec(tuple(aval.shape), aval.dtype.name)


def _result_avals(specs: Sequence[Spec], inputs: Sequence[Any]) -> list[Any]:
    """Return the abstract values of results, which vary over the axes of the inputs in `shard_map`."""
    on_mesh = [x for x in inputs if not x.sharding.mesh.empty]
    if not on_mesh and not any(map(private.varying_axes, inputs)):
        return [jax.core.ShapedArray(spec.shape, jnp.dtype(spec.dtype)) for spec in specs]
    like = (on_mesh or inputs)[0]
    return [
        like.update(
            shape=spec.shape,
            dtype=jnp.dtype(spec.dtype),
            weak_type=False,
            sharding=like.sharding.update(spec=PartitionSpec(*[None] * len(spec.shape))),  # type: ignore[no-untyped-call] # JAX leaves it untyped
        )
        for spec in specs
    ]


def _bind(primitive: Primitive, *xs: Any, **what: Any) -> Any:
    """Bind a primitive; inside `shard_map`, cast the inputs to vary over the same axes of the mesh.

    JAX transposes such a cast to a sum over devices, so that the gradient of an input that is the same on all
    devices is complete.
    """
    kinds = [private.varying_axes(jax.typeof(x)) for x in xs]
    if any(kinds):
        axes = frozenset[Any]().union(*kinds)
        xs = tuple(
            jax.lax.pcast(x, tuple(axes - kind), to="varying") for x, kind in zip(xs, kinds, strict=True)
        )
    return primitive.bind(*xs, **what)  # type: ignore[no-untyped-call] # JAX leaves it untyped


def _evaluate(rule: DerivableFunction, xs: Arrays, ins: Mask | None = None) -> Arrays:
    """Run a rule now, in this thread. Results are on the device where JAX would compute with the inputs."""
    # A Python number gets the dtype that JAX would give it, which depends on the x64 mode.
    given = [x if isinstance(x, jax.Array) else np.asarray(x, jax.typeof(x).dtype) for x in xs]
    arrays = [x for x in given if isinstance(x, jax.Array)]
    places = [_jax.device_of(x) for x in [x for x in arrays if x.committed] or arrays]
    is_sharded = any(place.kind == _SHARDED for place in places)
    device = places[0] if places and not is_sharded else None
    if is_sharded and rule.call.options.device is None:
        raise sharded_call_error(rule.call.name, "jax")
    return rule.evaluate(given, "jax", device, ins)


# -- call_p(*inputs) is a rule, recorded for the gradients of the inputs in a mask, or not -------------------
def _run_call(*xs: Any, rule: DerivableFunction, ins: Mask | None) -> Arrays:
    """Run a call. A record is dropped with the array of its mark."""
    ys = _evaluate(rule, xs, ins)
    if ins is not None:
        number = np.asarray(ys[-1]).tolist()[1]
        finalize(ys[-1], rule.hold(number)).atexit = False
    return ys


def _describe(avals: Any, rule: DerivableFunction, ins: Mask | None) -> tuple[Spec, ...]:
    specs, latest.treedef = rule.outputs(_specs(avals))
    return specs if ins is None else (*specs, Spec((len(Mark._fields),), "int32"))


def _lower_call(ctx: Any, *args: Any, rule: DerivableFunction, ins: Mask | None = None) -> Any:
    """Compile a call to a callback, whose results are as they were declared then."""
    _, treedef = rule.outputs(_specs(ctx.avals_in))
    declared = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in ctx.avals_out]

    def call(*hosts: Any) -> tuple[Any, ...]:
        """Run on host arrays. JAX must not be called from here."""
        views = [protect_host(host, host) for host in map(np.asarray, hosts)]
        with callback:
            ys = rule.evaluate(views, "numpy", ins=ins)
        if rule.order == 0:
            rule.check_treedef(treedef)
        found = [(y.shape, y.dtype) for y in ys]
        if found != declared:  # the name of a dtype takes as long as a small function
            rule.check(*[tuple([Spec(s, dtype.name) for s, dtype in of]) for of in (found, declared)])
        # JAX computes with the bytes of booleans, which are 0 or another number here, and 1 there.
        return tuple([y if y.dtype.char != "?" else y.view("u1") != 0 for y in ys])

    avals = ctx.avals_in, ctx.avals_out
    return private.emit_python_callback(ctx, call, None, args, *avals, has_side_effect=False)[0]


def _drop_unused(used: list[bool], *rest: Any) -> Any:
    """Record no call whose mark is not used: a rule for dead code elimination.

    If only the mark is used, the call is dropped: the derivative runs the function in one callback, not two.
    """
    eqn = rest[-1]  # JAX 0.12 gives the inputs that are in use before it
    is_recorded = eqn.params["ins"] is not None
    if is_recorded and used[-1] and not any(used[:-1]):
        constant = jax.make_jaxpr(partial(jnp.zeros, 2, "int32"))().eqns[0]
        return [False] * len(eqn.invars), constant.replace(outvars=eqn.outvars[-1:])
    if not any(used):
        return [False] * len(eqn.invars), None
    if is_recorded and not used[-1]:
        eqn = eqn.replace(params={**eqn.params, "ins": None}, outvars=eqn.outvars[:-1])
    return [True] * len(eqn.invars), eqn


call_p.def_impl(_run_call)  # type: ignore[no-untyped-call] # JAX leaves it untyped
call_p.def_abstract_eval(lambda *avals, rule, ins: _result_avals(_describe(avals, rule, ins), avals))  # type: ignore[no-untyped-call]
private.register_lowering(call_p, _lower_call)
private.dce_rules[call_p] = _drop_unused


def _keep_in_checkpoint(_: Any, unknown: Sequence[bool], there: Sequence[bool], eqn: Any) -> Any:
    """Keep what a call returns for the backward pass of `jax.checkpoint`, whatever its policy.

    The call could return something else when it runs again, because what it reads has changed since.
    """
    outs = len(eqn.outvars)
    if not any(unknown):
        return eqn, None, [False] * outs, [False] * outs, []
    needed = [x for x, known in zip(eqn.invars, there, strict=True) if not known]
    return None, eqn, [True] * outs, [True] * outs, needed


private.checkpoint_rules[call_p] = _keep_in_checkpoint


# -- tangent_p(*tangents, *kept) is the jvp of a rule --------------------------------------------------------
class _Tangent(NamedTuple):
    """Of which outputs of a rule there are tangents, and for those of which inputs.

    `specs` describes them, so that JAX never runs the rule to learn their shapes.
    """

    rule: DerivableFunction
    ins: Mask
    outs: Mask
    treedef: TreeDef
    specs: tuple[Spec, ...]

    def derive(self, how: str) -> DerivableFunction:
        return self.rule.derive(how, self.ins, self.outs, self.treedef)


def _zero_tangent(y: Any) -> Any:
    return private.Zero(jax.typeof(y).to_tangent_aval())


def _mask_with_tangent(xs: Arrays, tangents: Arrays) -> Mask:
    kinds = mask_inexact(_specs(map(jax.typeof, xs)))
    return tuple(kind and not isinstance(t, private.Zero) for t, kind in zip(tangents, kinds, strict=True))


def _call_jvp(xs: Arrays, tangents: Arrays, *, rule: DerivableFunction, ins: Mask | None) -> Any:
    """Run a call, and the tangents of its results. Where it is recorded, its mark is that of the new run."""
    moving = _mask_with_tangent(xs, tangents)
    found = run(rule, xs, moving if rule.keeps_version else None)
    marks = found[-1:] if rule.keeps_version else []
    ys = found[: len(found) - len(marks)]
    treedef, specs = latest.treedef, _specs(map(jax.typeof, ys))
    outs = mask_inexact(specs)
    news = iter(())
    if any(moving) and any(outs):
        kept = (*(ys if rule.wants_outputs else ()), *marks, *xs)
        tangent = _Tangent(rule, moving, outs, treedef, tuple(select(outs, specs)))
        news = iter(_bind(tangent_p, *select(moving, tangents), *kept, of=tangent))
        latest.treedef = treedef
    else:
        outs = (False,) * len(ys)
    made = [next(news) if out else _zero_tangent(y) for y, out in zip(ys, outs, strict=True)]
    return (ys, made) if ins is None else (found, [*made, *map(_zero_tangent, marks)])


private.primitive_jvps[call_p] = _call_jvp


def _tangent_jvp(a: Arrays, tangents: Arrays, *, of: _Tangent) -> Any:
    ts = _bind(tangent_p, *a, of=of)
    rule, ins = of.derive("jvp"), _mask_with_tangent(a, tangents)
    treedef = rule.outputs(_specs(map(jax.typeof, a)))[1] if rule.wants_outputs else ARRAY
    # The inputs have the mark of the value, which shows whether what the function reads has changed since.
    marks = [np.asarray(NO_VALUE, "int32")] if rule.keeps_version else []
    kept = (*(ts if rule.wants_outputs else ()), *marks, *a)
    again = _Tangent(rule, ins, (True,) * len(ts), treedef, of.specs)
    return ts, _bind(tangent_p, *select(ins, tangents), *kept, of=again)


def _transpose(cotangents: Arrays, *a: Any, of: _Tangent) -> list[Any]:
    kept = a[sum(of.ins) :]
    seeds = [
        jnp.zeros(spec.shape, spec.dtype) if isinstance(c, private.Zero) else c
        for c, spec in zip(cotangents, of.specs, strict=True)
    ]
    gradients = _bind(call_p, *map(conj, seeds), *kept, rule=of.derive("vjp"), ins=None)
    xs = select(of.ins, kept[-len(of.ins) :])
    return [*[_place_like(conj(g), x) for g, x in zip(gradients, xs, strict=True)], *[None] * len(kept)]


def _refuse_transpose(_: Arrays, *_xs: Any, rule: DerivableFunction, ins: Mask | None) -> NoReturn:
    """Raise for `jax.linear_transpose`, whose argument JAX takes for linear."""
    what, reason = f"{rule.call.name} by its transpose", "only JAX's own functions tell if they are linear"
    raise no_derivative_error(what, reason, "jax.vjp(f, x)[1](y)")


def _place_like(y: Any, x: Any) -> Any:
    """Return a gradient on the devices of its argument, if it is computed now and for one example."""
    if isinstance(x, jax.core.Tracer) or isinstance(y, jax.core.Tracer) or jnp.shape(x) != jnp.shape(y):
        return y
    place = getattr(x, "sharding", None)
    return y if place in (None, y.sharding) else jax.device_put(y, place)


tangent_p.def_impl(lambda *a, of: _evaluate(of.derive("jvp"), a))  # type: ignore[no-untyped-call]
tangent_p.def_abstract_eval(lambda *avals, of: _result_avals(of.specs, avals))  # type: ignore[no-untyped-call]
private.register_lowering(tangent_p, lambda ctx, *a, of: _lower_call(ctx, *a, rule=of.derive("jvp")))
private.primitive_jvps[tangent_p] = _tangent_jvp
private.primitive_transposes[tangent_p] = _transpose
private.primitive_transposes[call_p] = _refuse_transpose


# -- batches -------------------------------------------------------------------------------------------------
def _move_batch_first(xs: Arrays, dims: Arrays, axes: Sequence[int | None]) -> tuple[list[Any], int]:
    """Move the batch to the first axis; repeat the inputs without one, except where `axes` has None."""
    size = next(x.shape[d] for x, d in zip(xs, dims, strict=True) if d is not None)
    moved = []
    for x, d, axis in zip(xs, dims, axes, strict=True):
        if d is not None:
            moved.append(jnp.moveaxis(x, d, 0))
        else:
            moved.append(x if axis is None else jnp.broadcast_to(x, (size, *jnp.shape(x))))
    return moved, size


def _batch_axes(rule: DerivableFunction, ins: Mask | None, dims: Arrays) -> Axes:
    """Return the axes of a batch. Inputs with a tangent have one: a recorded call and its tangents agree."""
    moving = (False,) * len(dims) if ins is None else ins
    return rule.batch_axes(
        tuple([None if d is None and not moves else 0 for d, moves in zip(dims, moving, strict=True)])
    )


def _batch_call(xs: Arrays, dims: Arrays, *, rule: DerivableFunction, ins: Mask | None) -> Any:
    axes = _batch_axes(rule, ins, dims)
    moved, size = _move_batch_first(xs, dims, axes)
    batch = rule.derive("batched", axes)
    if size:
        made = _bind(call_p, *moved, rule=batch, ins=ins)
    else:  # torch would look at the first example
        made = [jnp.zeros(*spec) for spec in _describe(map(jax.typeof, moved), batch, ins)]
    return made, [0] * len(made) if ins is None else [*[0] * (len(made) - 1), None]


def _batch_tangent(a: Arrays, dims: Arrays, *, of: _Tangent) -> Any:
    """Run a batch of tangents as the tangents of a batch."""
    rule, seeds, outputs = of.rule, sum(of.ins), len(a) - len(of.ins)
    inner = _batch_axes(rule, of.ins, dims[outputs:])
    kept = [None if d is None and not rule.wants_outputs else 0 for d in dims[seeds:outputs]]
    moved, size = _move_batch_first(a, dims, (*[0] * seeds, *kept, *inner))
    specs = tuple([spec._replace(shape=(size, *spec.shape)) for spec in of.specs])
    wide = of._replace(rule=rule.derive("batched", inner), specs=specs)
    batch = _bind(tangent_p, *moved, of=wide) if size else [jnp.zeros(*spec) for spec in specs]
    return batch, [0] * len(batch)


private.primitive_batchers[call_p] = _batch_call
private.primitive_batchers[tangent_p] = _batch_tangent
