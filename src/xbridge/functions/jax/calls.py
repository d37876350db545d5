"""Embed calls of rules in JAX's transforms, by a primitive for calls and one for their tangents.

The tangent primitive is linear in the tangents, and its transpose is a call of the rule's vjp. So reverse
mode needs no jvp of the function. `jax.custom_vjp` would not support forward mode, and `jax.custom_jvp` with
a linear call would not support batches.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import finalize

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import ad as _ad  # for `linearize`, whose rules JAX does not export
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_rules, partial_eval_jaxpr_custom_rules
from jax.sharding import PartitionSpec, reshard

from xbridge._core.devices import SHARDED
from xbridge.backends.jax._devices import device_of_sharding
from xbridge.backends.jax._dtypes import find_unsupported
from xbridge.functions.jax.callbacks import inside
from xbridge.functions.jax.rules import conj
from xbridge.functions.records import NO_RECORD, NO_VALUE
from xbridge.functions.rules import (
    NoRecordError,
    Spec,
    latest,
    mask_inexact,
    select,
    sharded_call_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.rules import DerivableFunction, Run
    from xbridge.functions.treedef import TreeDef

    Arrays = Sequence[Any]
    Mask = tuple[bool, ...]
    Specs = tuple[Spec, ...]
    Declared = list[tuple[tuple[int, ...], np.dtype[Any]]]

_Tracer = jax.core.Tracer
_ShapedArray = jax.core.ShapedArray

call_p, tangent_p = Primitive("xbridge_call"), Primitive("xbridge_tangent")
call_p.multiple_results = tangent_p.multiple_results = True
version_p, record_p = Primitive("xbridge_version"), Primitive("xbridge_record")
no_value_p = Primitive("xbridge_no_value")
record_p.multiple_results = True


def apply(rule: DerivableFunction, xs: Arrays) -> Arrays:
    """Run a rule within JAX's current transforms, and store the form of the result in `latest.form`.

    JAX caches the shapes of a primitive, and may not ask for them again. The form is then looked up here.
    """
    latest.form = None
    ys = _bind(call_p, *xs, rule=rule)
    if latest.form is None:
        rule.shapes(_specs(xs))
    return ys  # type: ignore[no-any-return]


def _specs(xs: Any) -> tuple[Spec, ...]:
    return tuple(map(_spec, map(jax.typeof, xs)))


def _spec(aval: Any) -> Spec:
    refused = find_unsupported(aval)
    if refused:
        action = f"convert a jax {aval.dtype} array of shape {aval.shape}"
        raise refused.error.build(action, refused.reason, refused.hint)
    return Spec(tuple(aval.shape), aval.dtype.name)


def _result_avals(specs: Sequence[Spec], inputs: Sequence[Any]) -> list[Any]:
    """Return the abstract values of results, which vary over the axes of the inputs in `shard_map`."""
    explicit = [x for x in inputs if not x.sharding.mesh.empty]
    if not explicit and not any(map(_varying, inputs)):
        return [_ShapedArray(spec.shape, jnp.dtype(spec.dtype)) for spec in specs]
    like = (explicit or inputs)[0]
    return [
        like.update(
            shape=spec.shape,
            dtype=jnp.dtype(spec.dtype),
            weak_type=False,
            sharding=like.sharding.update(spec=PartitionSpec(*[None] * len(spec.shape))),  # type: ignore[no-untyped-call] # JAX leaves it untyped
        )
        for spec in specs
    ]


_varying = attrgetter("vma" if hasattr(_ShapedArray, "vma") else "manual_axis_type.varying")


def _bind(primitive: Primitive, *xs: Any, **what: Any) -> Any:
    """Bind a primitive; inside `shard_map`, cast the inputs to vary over the same axes of the mesh.

    JAX transposes such a cast to a sum over devices, so that the gradient of an input that is the same on all
    devices is complete.
    """
    kinds = [_varying(jax.typeof(x)) for x in xs]
    if any(kinds):
        axes = frozenset[Any]().union(*kinds)
        xs = tuple(
            jax.lax.pcast(x, tuple(axes - kind), to="varying") for x, kind in zip(xs, kinds, strict=True)
        )
    return primitive.bind(*xs, **what)  # type: ignore[no-untyped-call] # JAX leaves it untyped


def _run(rule: DerivableFunction, xs: Arrays, *, runs: Run | None = None) -> Arrays:
    """Run a rule now, in this thread. Results are on the device where JAX would compute with the inputs."""
    # A Python number gets the dtype that JAX would give it, which depends on the x64 mode.
    given = [x if isinstance(x, jax.Array) else np.asarray(x, jax.typeof(x).dtype) for x in xs]
    arrays = [x for x in given if isinstance(x, jax.Array)]
    places = [device_of_sharding(x.sharding) for x in [x for x in arrays if x.committed] or arrays]
    device = places[0] if places and SHARDED not in places else None
    if SHARDED in places and not rule.call.gathers:
        raise sharded_call_error(rule.call.name, "jax")
    return rule.call.evaluate(runs or rule, given, "jax", device)


def _run_inside(
    rule: DerivableFunction, declared: Declared, form: TreeDef, *hosts: Any, runs: Any = None
) -> tuple[Any, ...]:
    """Run a rule in a callback of compiled code, on host arrays. JAX must not be called from here."""
    views = []
    for host in hosts:
        view = np.asarray(host).view()
        view.flags.writeable = False
        views.append(view)
    with inside:
        ys = rule.arrange(rule.call.evaluate(runs or rule, views, "numpy"), form)
    found = [(y.shape, y.dtype) for y in ys]
    if found != declared:  # the name of a dtype takes as long as a small function
        rule.check(_named_specs(found), _named_specs(declared))
    return tuple(ys)


def _named_specs(declared: Declared) -> tuple[Spec, ...]:
    return tuple([Spec(shape, dtype.name) for shape, dtype in declared])


def _declare(avals: Any) -> Declared:
    return [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in avals]


def _describe_results(*avals: Any, rule: DerivableFunction) -> list[Any]:
    return _result_avals(rule.shapes(_aval_specs(avals)), avals)


def _aval_specs(avals: Any) -> tuple[Spec, ...]:
    return tuple(map(_spec, avals))


def _lower_call(ctx: Any, *args: Any, rule: DerivableFunction) -> Any:
    outer = latest.form
    rule.shapes(_aval_specs(ctx.avals_in))
    run, latest.form = partial(_run_inside, rule, _declare(ctx.avals_out), latest.form), outer
    return mlir.emit_python_callback(
        ctx, run, None, args, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )[0]


call_p.def_impl(lambda *xs, rule: _run(rule, xs))  # type: ignore[no-untyped-call]
call_p.def_abstract_eval(_describe_results)  # type: ignore[no-untyped-call]
mlir.register_lowering(call_p, _lower_call)


def _current_mark(rule: DerivableFunction) -> np.ndarray[Any, Any]:
    return np.asarray((rule.version(), *NO_RECORD), "int32")


def _lower_version(ctx: Any, *, rule: DerivableFunction) -> Any:
    return mlir.emit_python_callback(
        ctx, lambda: (_current_mark(rule),), None, (), [], ctx.avals_out, has_side_effect=False
    )[0]


_MARK = _ShapedArray((3,), jnp.dtype("int32"))
version_p.def_impl(lambda *, rule: jnp.asarray(_current_mark(rule)))  # type: ignore[no-untyped-call]
version_p.def_abstract_eval(lambda **_: _MARK)  # type: ignore[no-untyped-call]
mlir.register_lowering(version_p, _lower_version)

_NO_VALUE = np.asarray((NO_VALUE, *NO_RECORD), "int32")
no_value_p.def_impl(lambda: jnp.asarray(_NO_VALUE))  # type: ignore[no-untyped-call]
no_value_p.def_abstract_eval(lambda: _MARK)  # type: ignore[no-untyped-call]
mlir.register_lowering(no_value_p, lambda _: [mlir.ir_constant(_NO_VALUE)])


def _bind_mark(rule: DerivableFunction) -> Any:
    """Return the mark, as a traced array, of a call that just ran and was not recorded."""
    return _bind(version_p, rule=rule) if rule.reads else np.zeros(3, "int32")


def _residuals(rule: DerivableFunction, ys: Arrays, xs: Arrays) -> tuple[Any, ...]:
    """Return what derived rules of a call that just ran take besides their seeds."""
    outputs = ys if rule.wants_outputs else ()
    return (*outputs, _bind_mark(rule), *xs) if rule.keeps_version else (*outputs, *xs)


# record_p(*inputs) is a call whose run is recorded, so that a value and its gradient take one run. Its last
# result is the mark of the record.
class _Recorder:
    """Runs a rule with a record, in place of the rule."""

    def __init__(self, rule: DerivableFunction, ins: Mask) -> None:
        self.narrows = rule.narrows
        self._rule, self._ins = rule, ins

    def __call__(self, *xs: Any) -> Any:
        self._made = self._rule.record(self._ins, xs)
        return self._made.ys

    def run(self, run: Callable[[Run], Arrays], *, once: bool) -> tuple[Arrays, np.ndarray[Any, Any], Any]:
        """Return what `run` returns, the mark, and a function that drops the record, if there is one.

        If a run cannot be recorded, the rule runs again without a record: the gradient may never be needed.
        """
        try:
            ys = run(self)
        except NoRecordError:
            return run(self._rule), _current_mark(self._rule), None
        mark, drop = self._made.keep(once)
        return ys, np.asarray(mark, "int32"), drop


def _run_recorded(*xs: Any, rule: DerivableFunction, ins: Mask) -> list[Any]:
    """Run a call with a record. The record is dropped with the array of its mark."""
    ys, numbers, drop = _Recorder(rule, ins).run(lambda runs: _run(rule, xs, runs=runs), once=False)
    mark = jnp.asarray(numbers)
    if drop is not None:
        finalize(mark, drop).atexit = False
    return [*ys, mark]


def _lower_record(ctx: Any, *args: Any, rule: DerivableFunction, ins: Mask) -> Any:
    outer = latest.form
    rule.shapes(_aval_specs(ctx.avals_in))
    declared, form, latest.form = _declare(ctx.avals_out[:-1]), latest.form, outer

    def run(*hosts: Any) -> tuple[Any, ...]:
        ys, mark, _ = _Recorder(rule, ins).run(
            lambda runs: _run_inside(rule, declared, form, *hosts, runs=runs), once=True
        )
        return (*ys, mark)

    return mlir.emit_python_callback(
        ctx, run, None, args, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )[0]


def _describe_record(*avals: Any, rule: DerivableFunction, ins: Mask) -> list[Any]:
    ys = rule.shapes(_aval_specs(avals))
    return _result_avals([*ys, Spec(_MARK.shape, "int32")], avals)


def _record_jvp(xs: Arrays, tangents: Arrays, *, rule: DerivableFunction, ins: Mask) -> Any:
    """Differentiate a recorded call for higher orders, whose derivatives run the function again."""
    ys, made = _jvp(xs, tangents, rule=rule)
    mark = jnp.asarray(_bind_mark(rule))
    return [*ys, mark], [*made, _zero_tangent(mark)]


def _batch_record(xs: Arrays, dims: Arrays, *, rule: DerivableFunction, ins: Mask) -> Any:
    ys, outs = _batch(xs, dims, rule=rule)
    return [*ys, jnp.asarray(_bind_mark(rule))], [*outs, None]


def _drop_unused_record(used: list[bool], *rest: Any) -> Any:
    """Replace a recorded call by a plain one if its mark is not used: a rule for dead code elimination.

    If only the mark is used, the call is dropped: the derivative runs the function in one callback, not two.
    """
    eqn = rest[-1]  # JAX 0.12 gives the inputs that are in use before it
    if not any(used[:-1]):
        mark = eqn.replace(primitive=no_value_p, params={}, invars=[], outvars=eqn.outvars[-1:])
        return [False] * len(eqn.invars), mark if used[-1] else None
    if not used[-1]:
        eqn = eqn.replace(primitive=call_p, params={"rule": eqn.params["rule"]}, outvars=eqn.outvars[:-1])
    return [True] * len(eqn.invars), eqn


record_p.def_impl(_run_recorded)  # type: ignore[no-untyped-call]
record_p.def_abstract_eval(_describe_record)  # type: ignore[no-untyped-call]
mlir.register_lowering(record_p, _lower_record)
ad.primitive_jvps[record_p] = _record_jvp
batching.primitive_batchers[record_p] = _batch_record
dce_rules[record_p] = _drop_unused_record


def linearizations(module: Any) -> tuple[dict[Primitive, Any], Any, bool]:
    """Return JAX's private table of linearization rules, the default rule, and if rules have two residuals.

    In a version of JAX without them, the table is empty, and gradients run functions again. JAX 0.12 asks
    for residuals with a structure beside the others.
    """
    default = getattr(module, "fallback_linearize_rule", None)
    names = [] if default is None else [*signature(default).parameters][:3]
    known = names == ["_prim", "_is_vjp", "_nonzeros"]
    if not known:
        return {}, default, False
    names_of_caller = module.LinearizeTrace.process_primitive.__code__.co_varnames
    return module.primitive_linearizations, default, "structured_res" in names_of_caller


_rules, _default_rule, _has_two_residuals = linearizations(_ad)


def _linearize(is_vjp: Any, moving: Sequence[bool], *xs: Any, rule: DerivableFunction) -> Any:
    """Linearize a call: for reverse mode by a recorded run, for forward mode by the default rule."""
    ins = tuple(chosen and kind for chosen, kind in zip(moving, mask_inexact(_specs(xs)), strict=True))
    if not (is_vjp and rule.records and any(ins)):
        return _default_rule(call_p, is_vjp, moving, *xs, rule=rule)
    latest.form = None
    *ys, mark = _bind(record_p, *xs, rule=rule, ins=ins)
    if latest.form is None:
        rule.shapes(_specs(xs))
    form, outs = latest.form, mask_inexact(_specs(ys))
    what = {"rule": rule, "ins": ins, "outs": outs, "form": form, "specs": tuple(select(outs, _specs(ys)))}
    zeros = [_zero_tangent(y) for y in ys]

    def linear(kept: Arrays, *tangents: Any) -> list[Any]:
        tangents = tangents[_has_two_residuals:]
        made = iter(_bind(tangent_p, *select(ins, tangents), *kept, **what) if any(outs) else ())
        return [next(made) if out else zero for out, zero in zip(outs, zeros, strict=True)]

    residuals = ((mark, *xs), None)[: 1 + _has_two_residuals]
    return ys, list(outs), *residuals, linear


_rules[call_p] = _linearize


def _keep_in_checkpoint(_: Any, unknown: Sequence[bool], there: Sequence[bool], eqn: Any) -> Any:
    """Keep what a call returns for the backward pass of `jax.checkpoint`, whatever its policy.

    The call could return something else when it runs again, because what it reads has changed since.
    """
    outs = len(eqn.outvars)
    if not any(unknown):
        return eqn, None, [False] * outs, [False] * outs, []
    needed = [x for x, known in zip(eqn.invars, there, strict=True) if not known]
    return None, eqn, [True] * outs, [True] * outs, needed


partial_eval_jaxpr_custom_rules.update(dict.fromkeys((call_p, version_p, record_p), _keep_in_checkpoint))


def _zero_tangent(y: Any) -> Any:
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def _mask_with_tangent(xs: Arrays, tangents: Arrays) -> Mask:
    """Return the mask of the inputs with a tangent."""
    kinds = mask_inexact(_specs(xs))
    return tuple(kind and not isinstance(t, ad.Zero) for t, kind in zip(tangents, kinds, strict=True))


def _jvp(xs: Arrays, tangents: Arrays, *, rule: DerivableFunction) -> Any:
    ys = apply(rule, xs)
    form = latest.form
    ins, outs = _mask_with_tangent(xs, tangents), mask_inexact(_specs(ys))
    if not any(ins) or not any(outs):
        return ys, [_zero_tangent(y) for y in ys]
    kept = _residuals(rule, ys, xs)
    what = {"rule": rule, "ins": ins, "outs": outs, "form": form, "specs": tuple(select(outs, _specs(ys)))}
    made = iter(_bind(tangent_p, *select(ins, tangents), *kept, **what))
    latest.form = form
    return ys, [next(made) if out else _zero_tangent(y) for y, out in zip(ys, outs, strict=True)]


ad.primitive_jvps[call_p] = _jvp


# tangent_p(*tangents, *kept) is the rule's jvp. `specs` describes its results, so JAX never runs the rule to
# learn their shapes.
def _lower_tangent(
    ctx: Any, *a: Any, rule: DerivableFunction, ins: Mask, outs: Mask, form: TreeDef, specs: Specs
) -> Any:
    return _lower_call(ctx, *a, rule=rule.derive("jvp", ins, outs, form))


def _compute_tangent(
    *a: Any, rule: DerivableFunction, ins: Mask, outs: Mask, form: TreeDef, specs: Specs
) -> Arrays:
    return _run(rule.derive("jvp", ins, outs, form), a)


tangent_p.def_impl(_compute_tangent)  # type: ignore[no-untyped-call]
tangent_p.def_abstract_eval(lambda *avals, specs, **_: _result_avals(specs, avals))  # type: ignore[no-untyped-call]
mlir.register_lowering(tangent_p, _lower_tangent)


def _jvp_of_tangent(
    a: Arrays,
    tangents: Arrays,
    *,
    rule: DerivableFunction,
    ins: Mask,
    outs: Mask,
    form: TreeDef,
    specs: Specs,
) -> Any:
    made = _bind(tangent_p, *a, rule=rule, ins=ins, outs=outs, form=form, specs=specs)
    moving = _mask_with_tangent(a, tangents)
    again = rule.derive("jvp", ins, outs, form)
    if again.wants_outputs:
        again.shapes(_specs(a))  # for the form of the tangents
    kept, form = _residuals(again, made, a), latest.form
    what = {"rule": again, "ins": moving, "outs": (True,) * len(made), "form": form, "specs": specs}
    return made, _bind(tangent_p, *select(moving, tangents), *kept, **what)


ad.primitive_jvps[tangent_p] = _jvp_of_tangent


def _transpose(
    cotangents: Arrays, *a: Any, rule: DerivableFunction, ins: Mask, outs: Mask, form: TreeDef, specs: Specs
) -> list[Any]:
    kept = a[sum(ins) :]
    seeds = [
        jnp.zeros(spec.shape, spec.dtype) if isinstance(c, ad.Zero) else c
        for c, spec in zip(cotangents, specs, strict=True)
    ]
    back = rule.derive("vjp", ins, outs, form)
    made = _bind(call_p, *map(conj, seeds), *kept, rule=back)
    made = [_place_like(conj(y), x) for y, x in zip(made, select(ins, kept[-len(ins) :]), strict=True)]
    return [*made, *[None] * len(kept)]


def _place_like(y: Any, x: Any) -> Any:
    """Return a gradient on the devices of its argument, if it is computed now and for one example.

    In compiled code, it gets the explicit sharding of the argument.
    """
    y = _shard(y, list(jax.typeof(x).sharding.spec))
    here, there = _find_numbers(y), _find_numbers(x)
    if here is None or there is None or not here.shape == there.shape == y.shape:
        return y
    place = getattr(there, "sharding", None)
    return y if place in (None, here.sharding) else jax.device_put(y, place)


ad.primitive_transposes[tangent_p] = _transpose


def _move_batch_first(xs: Arrays, dims: Arrays, *, everything: bool) -> tuple[list[Any], int]:
    """Move the batch to the first axis; with `everything`, also repeat the inputs without one.

    With explicit sharding, the examples are gathered on all devices.
    """
    size = next(x.shape[d] for x, d in zip(xs, dims, strict=True) if d is not None)
    moved = []
    for x, d in zip(xs, dims, strict=True):
        x = _shard(x, [])  # noqa: PLW2901 -- the same array
        if d is not None:
            moved.append(jnp.moveaxis(x, d, 0))
        else:
            moved.append(jnp.broadcast_to(x, (size, *jnp.shape(x))) if everything else x)
    return moved, size


def _shard_batch(made: Sequence[Any], xs: Arrays, dims: Arrays) -> tuple[list[Any], list[int]]:
    """Shard results over their first axis as the batch is, which JAX expects with explicit sharding."""
    shardings = (jax.typeof(x).sharding.spec[d] for x, d in zip(xs, dims, strict=True) if d is not None)
    axis = next(filter(None, shardings), None)
    return [_shard(y, [axis]) for y in made], [0] * len(made)


def _shard(x: Any, axes: list[Any]) -> Any:
    """Shard an array over these axes of a mesh, if it has an explicit sharding."""
    sharding = jax.typeof(x).sharding
    spec = PartitionSpec(*axes, *[None] * (jnp.ndim(x) - len(axes)))  # type: ignore[no-untyped-call] # JAX leaves it untyped
    return x if sharding.mesh.empty or sharding.spec == spec else reshard(x, sharding.update(spec=spec))  # type: ignore[no-untyped-call] # JAX leaves it untyped


def _batch(xs: Arrays, dims: Arrays, *, rule: DerivableFunction) -> Any:
    if rule.batches:
        moved, size = _move_batch_first(xs, dims, everything=False)
        axes = tuple(None if d is None else 0 for d in dims)
        if size:
            made = _bind(call_p, *moved, rule=rule.derive("batched", axes))
        else:  # torch computes with the first of numbers, and there is none
            example = tuple(
                spec if d is None else spec._replace(shape=spec.shape[1:])
                for spec, d in zip(_specs(moved), axes, strict=True)
            )
            made = _empty(rule.shapes(example))
    else:
        moved, size = _move_batch_first(xs, dims, everything=True)
        if rule.cores is not None:
            made = _bind(call_p, *_align_batch_axes(moved, size, rule.cores), rule=rule)
            form = latest.form
            one = tuple(spec._replace(shape=spec.shape[1:]) for spec in _specs(moved))
            shapes = rule.batch_shapes(size, one, [jnp.shape(y) for y in made])
            made, latest.form = list(map(jnp.reshape, made, shapes)), form
        else:
            made = _run_each(partial(_run_one_example, rule, []), moved, size, moved)
    return _shard_batch(made, xs, dims)


def _empty(specs: Sequence[Spec]) -> list[Any]:
    """Return the results of a batch without examples, which have these shapes."""
    return [jnp.zeros((0, *spec.shape), spec.dtype) for spec in specs]


def _run_one_example(rule: DerivableFunction, forms: list[TreeDef], *xs: Any) -> Arrays:
    """Run a call for one of several examples, and arrange its results like those of the first."""
    ys = _bind(call_p, *xs, rule=rule)
    forms.append(latest.form)
    return rule.arrange(ys, forms[0])


def _run_each(run: Any, xs: Arrays, size: int, kept: Arrays) -> Any:
    """Run a call for each example: now if `kept` has numbers, and else in a loop of the compiled program."""
    if size and not any(_find_numbers(x) is None for x in kept):
        rows = [run(*[x[i] for x in xs]) for i in range(size)]
        return [jnp.stack(ys) for ys in zip(*rows, strict=True)]
    return jax.lax.map(lambda one: run(*one), tuple(xs))


def _find_numbers(x: Any) -> Any:
    """Return an array, or the one that a tracer of a derivative or a batch stands for, if it is computed."""
    while isinstance(x, _Tracer):
        x = getattr(x, "primal", getattr(x, "val", None))
    return x if isinstance(x, (jax.Array, np.ndarray)) else None  # JAX's variables are values of tracers too


def _align_batch_axes(xs: Arrays, size: int, cores: Sequence[int]) -> list[Any]:
    """Give all inputs the same number of axes before their core axes."""
    loop = max(x.ndim - 1 - core for x, core in zip(xs, cores, strict=True))
    return [
        x.reshape(size, *(1,) * (loop - x.ndim + 1 + core), *x.shape[1:])
        for x, core in zip(xs, cores, strict=True)
    ]


batching.primitive_batchers[call_p] = _batch


def _batch_tangent(
    a: Arrays, dims: Arrays, *, rule: DerivableFunction, ins: Mask, outs: Mask, form: TreeDef, specs: Specs
) -> Any:
    moved, size = _move_batch_first(a, dims, everything=True)
    what = {"ins": ins, "outs": outs, "form": form}
    if rule.batches and not size:
        made = _empty(specs)
    elif rule.batches:
        more = rule.derive("batched", (0,) * len(ins))
        wide = tuple(spec._replace(shape=(size, *spec.shape)) for spec in specs)
        made = _bind(tangent_p, *moved, rule=more, specs=wide, **what)
    else:
        cores = rule.tangent_cores(ins)
        if cores is not None:
            axes = _align_batch_axes(moved, size, cores)
            like = _specs(select(outs, axes[sum(ins) : sum(ins) + len(outs)]))
            made = _bind(tangent_p, *axes, rule=rule, specs=like, **what)
            made = [y.reshape(size, *spec.shape) for y, spec in zip(made, specs, strict=True)]
        else:
            one = partial(_bind, tangent_p, rule=rule, specs=specs, **what)
            made = _run_each(one, moved, size, moved[sum(ins) :])
    return _shard_batch(made, a, dims)


batching.primitive_batchers[tangent_p] = _batch_tangent
