"""Embed calls of rules in JAX's transforms, by primitives for calls and for tangents.

The tangent primitive is linear in the tangents, and its transpose is a call of the rule's vjp. So reverse
mode needs no jvp of the function. A differentiated call is recorded if its rule has records: its last result
is a mark, which goes to the vjp, so that a value and its gradient take one run.
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
from xbridge.functions.jax import private
from xbridge.functions.jax.rules import callback, conj
from xbridge.functions.named import protect_host
from xbridge.functions.rules import (
    NO_VALUE,
    Spec,
    latest,
    mask_inexact,
    no_derivative_error,
    select,
    sharded_call_error,
    specs_of_example,
)
from xbridge.functions.treedef import ARRAY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.rules import Axes, DerivableFunction, Mask, Run
    from xbridge.functions.treedef import TreeDef

    Arrays = Sequence[Any]
    Declared = list[tuple[tuple[int, ...], np.dtype[Any]]]

call_p, tangent_p = Primitive("xbridge_call"), Primitive("xbridge_tangent")
no_value_p = Primitive("xbridge_no_value")
call_p.multiple_results = tangent_p.multiple_results = True

_jax, _SHARDED = get_backend("jax"), Device("sharded")
_MARK = Spec((2,), "int32")


def apply(rule: DerivableFunction, xs: Arrays) -> Arrays:
    """Run a rule within JAX's current transforms, and store `latest.treedef`."""
    return _bind_call(rule, xs, None)  # type: ignore[no-any-return] # arrays of JAX


def _bind_call(rule: DerivableFunction, xs: Arrays, ins: Mask | None) -> Any:
    """Bind a call. JAX caches the shapes of a primitive, so the structure of the result may be looked up."""
    latest.treedef = None
    ys = _bind(call_p, *xs, rule=rule, ins=ins)
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


def _run(rule: DerivableFunction, xs: Arrays, run: Run | None = None) -> Arrays:
    """Run a rule now, in this thread. Results are on the device where JAX would compute with the inputs."""
    # A Python number gets the dtype that JAX would give it, which depends on the x64 mode.
    given = [x if isinstance(x, jax.Array) else np.asarray(x, jax.typeof(x).dtype) for x in xs]
    arrays = [x for x in given if isinstance(x, jax.Array)]
    places = [_jax.device_of(x) for x in [x for x in arrays if x.committed] or arrays]
    is_sharded = any(place.kind == _SHARDED for place in places)
    device = places[0] if places and not is_sharded else None
    if is_sharded and rule.call.device is None:
        raise sharded_call_error(rule.call.name, "jax")
    return rule.call.evaluate(run or rule, given, "jax", device)


class _Callback:
    """What compiled code calls to run a rule. The results are as they were declared when it was compiled."""

    def __init__(self, rule: DerivableFunction, inputs: Any, outputs: Any) -> None:
        self._rule, (_, self._treedef) = rule, rule.outputs(_specs(inputs))
        self._declared: Declared = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in outputs]

    def __call__(self, *hosts: Any, run: Run | None = None) -> tuple[Any, ...]:
        """Run on host arrays. JAX must not be called from here."""
        views = [protect_host(host, host) for host in map(np.asarray, hosts)]
        rule = self._rule
        with callback:
            ys = rule.call.evaluate(run or rule, views, "numpy")
        if rule.order == 0:
            rule.check_treedef(self._treedef)
        found = [(y.shape, y.dtype) for y in ys]
        if found != self._declared:  # the name of a dtype takes as long as a small function
            rule.check(*[tuple([Spec(s, dtype.name) for s, dtype in of]) for of in (found, self._declared)])
        # JAX computes with the bytes of booleans, which are 0 or another number here, and 1 there.
        return tuple([y if y.dtype.char != "?" else y.view("u1") != 0 for y in ys])


def _emit(ctx: Any, run: Callable[..., Any], args: Any) -> Any:
    return private.emit_python_callback(
        ctx, run, None, args, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )[0]


class _Recorder:
    """Runs a rule with a record, in place of the rule, and then has the mark and what drops the record."""

    def __init__(self, rule: DerivableFunction, ins: Mask, *, once: bool) -> None:
        self.narrows = rule.narrows
        self._record = partial(rule.record, ins, once=once)

    def __call__(self, *xs: Any) -> Any:
        ys, mark, self.drop = self._record(xs)
        self.mark = np.asarray(mark, "int32")
        return ys


# -- call_p(*inputs) is a rule; with a mask `ins`, it is recorded, and its last result is a mark -------------
def _run_call(*xs: Any, rule: DerivableFunction, ins: Mask | None) -> Arrays:
    """Run a call. A record is dropped with the array of its mark."""
    if ins is None:
        return _run(rule, xs)
    recorder = _Recorder(rule, ins, once=False)
    ys = _run(rule, xs, recorder)
    mark = jnp.asarray(recorder.mark)
    if recorder.drop is not None:
        finalize(mark, recorder.drop).atexit = False
    return [*ys, mark]


def _describe_call(*avals: Any, rule: DerivableFunction, ins: Mask | None) -> list[Any]:
    specs, latest.treedef = rule.outputs(_specs(avals))
    return _result_avals(specs if ins is None else [*specs, _MARK], avals)


def _lower_call(ctx: Any, *args: Any, rule: DerivableFunction, ins: Mask | None) -> Any:
    if ins is None:
        return _emit(ctx, _Callback(rule, ctx.avals_in, ctx.avals_out), args)
    call = _Callback(rule, ctx.avals_in, ctx.avals_out[:-1])

    def run(*hosts: Any) -> tuple[Any, ...]:
        recorder = _Recorder(rule, ins, once=True)
        return (*call(*hosts, run=recorder), recorder.mark)

    return _emit(ctx, run, args)


def _drop_unused(used: list[bool], *rest: Any) -> Any:
    """Record no call whose mark is not used: a rule for dead code elimination.

    If only the mark is used, the call is dropped: the derivative runs the function in one callback, not two.
    """
    eqn = rest[-1]  # JAX 0.12 gives the inputs that are in use before it
    if not any(used):
        return [False] * len(eqn.invars), None
    is_recorded = eqn.params["ins"] is not None
    if is_recorded and not any(used[:-1]):
        mark = eqn.replace(primitive=no_value_p, params={}, invars=[], outvars=eqn.outvars[-1:])
        return [False] * len(eqn.invars), mark
    if is_recorded and not used[-1]:
        eqn = eqn.replace(params={**eqn.params, "ins": None}, outvars=eqn.outvars[:-1])
    return [True] * len(eqn.invars), eqn


call_p.def_impl(_run_call)  # type: ignore[no-untyped-call] # JAX leaves it untyped
call_p.def_abstract_eval(_describe_call)  # type: ignore[no-untyped-call]
private.register_lowering(call_p, _lower_call)
private.dce_rules[call_p] = _drop_unused

_NO_VALUE = np.asarray(NO_VALUE, "int32")
no_value_p.def_impl(lambda: jnp.asarray(_NO_VALUE))  # type: ignore[no-untyped-call]
no_value_p.def_abstract_eval(lambda: _result_avals([_MARK], [])[0])  # type: ignore[no-untyped-call]
private.register_lowering(no_value_p, lambda _: [private.ir_constant(_NO_VALUE)])


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
    """Return the mask of the inputs with a tangent."""
    kinds = mask_inexact(_specs(map(jax.typeof, xs)))
    return tuple(kind and not isinstance(t, private.Zero) for t, kind in zip(tangents, kinds, strict=True))


def _call_jvp(xs: Arrays, tangents: Arrays, *, rule: DerivableFunction, ins: Mask | None) -> Any:
    """Run a call, and the tangents of its results. Where it is recorded, its mark is that of the new run."""
    moving = _mask_with_tangent(xs, tangents)
    found = _bind_call(rule, xs, moving if rule.keeps_version else None)
    ys, marks = (found[:-1], found[-1:]) if rule.keeps_version else (found, [])
    treedef, specs = latest.treedef, _specs(map(jax.typeof, ys))
    outs = mask_inexact(specs)
    news = iter(())
    if any(moving) and any(outs):
        kept = (*(ys if rule.wants_outputs else ()), *marks, *xs)
        of = _Tangent(rule, moving, outs, treedef, tuple(select(outs, specs)))
        news = iter(_bind(tangent_p, *select(moving, tangents), *kept, of=of))
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
    kept = (*(ts if rule.wants_outputs else ()), *([_NO_VALUE] if rule.keeps_version else ()), *a)
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


tangent_p.def_impl(lambda *a, of: _run(of.derive("jvp"), a))  # type: ignore[no-untyped-call]
tangent_p.def_abstract_eval(lambda *avals, of: _result_avals(of.specs, avals))  # type: ignore[no-untyped-call]
private.register_lowering(
    tangent_p, lambda ctx, *a, of: _lower_call(ctx, *a, rule=of.derive("jvp"), ins=None)
)
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


def _batch_axes(rule: DerivableFunction, ins: Mask, dims: Arrays) -> Axes:
    """Return the axes of a batch. Inputs with a tangent have one: a recorded call and its tangents agree."""
    return rule.batch_axes(
        tuple([None if d is None and not c else 0 for d, c in zip(dims, ins, strict=True)])
    )


def _batch_call(xs: Arrays, dims: Arrays, *, rule: DerivableFunction, ins: Mask | None) -> Any:
    axes = _batch_axes(rule, ins or (False,) * len(xs), dims)
    moved, size = _move_batch_first(xs, dims, axes)
    marks: list[Any] = [] if ins is None else [jnp.asarray(_NO_VALUE)]
    if size:
        made = _bind(call_p, *moved, rule=rule.derive("batched", axes), ins=ins)
    else:
        made = [*_empty(rule, moved, axes), *marks]
    return made, [*[0] * (len(made) - len(marks)), *[None] * len(marks)]


def _batch_tangent(a: Arrays, dims: Arrays, *, of: _Tangent) -> Any:
    """Run a batch of tangents as the tangents of a batch."""
    rule, seeds, outputs = of.rule, sum(of.ins), len(a) - len(of.ins)
    inner = _batch_axes(rule, of.ins, dims[outputs:])
    kept = [None if d is None and not rule.repeats else 0 for d in dims[seeds:outputs]]
    moved, size = _move_batch_first(a, dims, (*[0] * seeds, *kept, *inner))
    specs = tuple([spec._replace(shape=(size, *spec.shape)) for spec in of.specs])
    wide = of._replace(rule=rule.derive("batched", inner), specs=specs)
    batch = _bind(tangent_p, *moved, of=wide) if size else [jnp.zeros(*spec) for spec in specs]
    return batch, [0] * len(batch)


def _empty(rule: DerivableFunction, xs: Arrays, axes: Sequence[int | None]) -> list[Any]:
    """Return the results of a batch without examples: torch would look at the first of them."""
    specs, latest.treedef = rule.outputs(specs_of_example(_specs(map(jax.typeof, xs)), axes))
    return [jnp.zeros((0, *spec.shape), spec.dtype) for spec in specs]


private.primitive_batchers[call_p] = _batch_call
private.primitive_batchers[tangent_p] = _batch_tangent
