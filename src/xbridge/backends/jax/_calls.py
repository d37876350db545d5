"""Calls within JAX's transforms: a primitive for calls, and one for their tangents.

The tangent is linear in the seeds. Its transpose is a call of the rule's vjp, so reverse mode never asks for
a jvp. `custom_vjp` would have no forward mode, and `custom_jvp` with a linear call no batches.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from xbridge.backends._rules import Spec, inexact, latest, select
from xbridge.backends.jax._functions import conj
from xbridge.backends.jax._inside import inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.backends._rules import Form, Rule

    Arrays = Sequence[Any]
    Mask = tuple[bool, ...]
    Specs = tuple[Spec, ...]

_Tracer = jax.core.Tracer
_ShapedArray = jax.core.ShapedArray

call_p, tangent_p = Primitive("xbridge_call"), Primitive("xbridge_tangent")
call_p.multiple_results = tangent_p.multiple_results = True
version_p = Primitive("xbridge_version")


def apply(rule: Rule, xs: Arrays) -> Arrays:
    """Run a rule, in whatever JAX is doing now.

    JAX keeps what it knows of a primitive, so it may not ask for the shapes, and the form, again.
    """
    latest.form = None
    ys = call_p.bind(*xs, rule=rule)  # type: ignore[no-untyped-call]
    if latest.form is None:
        rule.shapes(_specs(xs))
    return ys  # type: ignore[no-any-return]


def _specs(xs: Any) -> tuple[Spec, ...]:
    return tuple(Spec(tuple(x.shape), x.dtype.name) for x in map(jax.typeof, xs))


def _avals(specs: Sequence[Spec]) -> list[Any]:
    return [_ShapedArray(spec.shape, jnp.dtype(spec.dtype)) for spec in specs]


def _run(rule: Rule, xs: Arrays) -> Arrays:
    """Run a rule now, in this thread."""
    return rule.call.evaluate(rule, [x if isinstance(x, jax.Array) else np.asarray(x) for x in xs], "jax")


def _run_inside(rule: Rule, declared: tuple[Spec, ...], *hosts: Any) -> tuple[Any, ...]:
    """Run a rule for compiled code, on arrays of the host: JAX must not be called from here."""
    views = []
    for host in hosts:
        view = np.asarray(host).view()
        view.flags.writeable = False
        views.append(view)
    with inside():
        ys = rule.call.evaluate(rule, views, "numpy")
    rule.check(tuple(Spec(y.shape, y.dtype.name) for y in ys), declared)
    return tuple(ys)


def _abstract(*avals: Any, rule: Rule) -> list[Any]:
    return _avals(rule.shapes(_aval_specs(avals)))


def _aval_specs(avals: Any) -> tuple[Spec, ...]:
    return tuple(Spec(tuple(aval.shape), aval.dtype.name) for aval in avals)


def _lowered(ctx: Any, *args: Any, rule: Rule) -> Any:
    run = partial(_run_inside, rule, _aval_specs(ctx.avals_out))
    return mlir.emit_python_callback(
        ctx, run, None, args, ctx.avals_in, ctx.avals_out, has_side_effect=False
    )[0]


call_p.def_impl(lambda *xs, rule: _run(rule, xs))  # type: ignore[no-untyped-call]
call_p.def_abstract_eval(_abstract)  # type: ignore[no-untyped-call]
mlir.register_lowering(call_p, _lowered)


def _version(rule: Rule) -> np.ndarray[Any, Any]:
    return np.asarray(rule.version(), "int32")


def _version_lowered(ctx: Any, *, rule: Rule) -> Any:
    return mlir.emit_python_callback(
        ctx, lambda: (_version(rule),), None, (), [], ctx.avals_out, has_side_effect=False
    )[0]


version_p.def_impl(lambda *, rule: jnp.asarray(_version(rule)))  # type: ignore[no-untyped-call]
version_p.def_abstract_eval(lambda **_: _ShapedArray((), jnp.dtype("int32")))  # type: ignore[no-untyped-call]
mlir.register_lowering(version_p, _version_lowered)


def _kept(rule: Rule, ys: Arrays, xs: Arrays) -> tuple[Any, ...]:
    """Return what derived rules take beside their seeds, of a call that just ran."""
    outputs = ys if rule.wants_outputs else ()
    if not rule.keeps_version:
        return (*outputs, *xs)
    return (*outputs, version_p.bind(rule=rule) if rule.reads else np.asarray(0, "int32"), *xs)  # type: ignore[no-untyped-call]


def _zero(y: Any) -> Any:
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def _moving(xs: Arrays, tangents: Arrays) -> Mask:
    """Return the mask of the inputs with a tangent."""
    kinds = inexact(_specs(xs))
    return tuple(kind and not isinstance(t, ad.Zero) for t, kind in zip(tangents, kinds, strict=True))


def _jvp(xs: Arrays, tangents: Arrays, *, rule: Rule) -> Any:
    ys = apply(rule, xs)
    form = latest.form
    ins, outs = _moving(xs, tangents), inexact(_specs(ys))
    if not any(ins) or not any(outs):
        return ys, [_zero(y) for y in ys]
    kept = _kept(rule, ys, xs)
    what = {"rule": rule, "ins": ins, "outs": outs, "form": form, "specs": tuple(select(outs, _specs(ys)))}
    made = iter(tangent_p.bind(*select(ins, tangents), *kept, **what))  # type: ignore[no-untyped-call]
    latest.form = form
    return ys, [next(made) if out else _zero(y) for y, out in zip(ys, outs, strict=True)]


ad.primitive_jvps[call_p] = _jvp


# tangent_p(*tangents, *kept) is the rule's jvp. `specs` describes its results, so JAX never runs the rule to
# learn their shapes.
def _tangent_lowered(ctx: Any, *a: Any, rule: Rule, ins: Mask, outs: Mask, form: Form, specs: Specs) -> Any:
    return _lowered(ctx, *a, rule=rule.derive("jvp", ins, outs, form))


def _tangent_now(*a: Any, rule: Rule, ins: Mask, outs: Mask, form: Form, specs: Specs) -> Arrays:
    return _run(rule.derive("jvp", ins, outs, form), a)


tangent_p.def_impl(_tangent_now)  # type: ignore[no-untyped-call]
tangent_p.def_abstract_eval(lambda *_, specs, **__: _avals(specs))  # type: ignore[no-untyped-call]
mlir.register_lowering(tangent_p, _tangent_lowered)


def _tangent_jvp(
    a: Arrays, tangents: Arrays, *, rule: Rule, ins: Mask, outs: Mask, form: Form, specs: Specs
) -> Any:
    made = tangent_p.bind(*a, rule=rule, ins=ins, outs=outs, form=form, specs=specs)  # type: ignore[no-untyped-call]
    moving = _moving(a, tangents)
    again = rule.derive("jvp", ins, outs, form)
    if again.wants_outputs:
        again.shapes(_specs(a))  # for the form of the tangents
    kept, form = _kept(again, made, a), latest.form
    what = {"rule": again, "ins": moving, "outs": (True,) * len(made), "form": form, "specs": specs}
    return made, tangent_p.bind(*select(moving, tangents), *kept, **what)  # type: ignore[no-untyped-call]


ad.primitive_jvps[tangent_p] = _tangent_jvp


def _transpose(
    cotangents: Arrays, *a: Any, rule: Rule, ins: Mask, outs: Mask, form: Form, specs: Specs
) -> list[Any]:
    kept = a[sum(ins) :]
    seeds = [
        jnp.zeros(spec.shape, spec.dtype) if isinstance(c, ad.Zero) else c
        for c, spec in zip(cotangents, specs, strict=True)
    ]
    back = rule.derive("vjp", ins, outs, form)
    made = call_p.bind(*map(conj, seeds), *kept, rule=back)  # type: ignore[no-untyped-call]
    return [*map(conj, made), *[None] * len(kept)]


ad.primitive_transposes[tangent_p] = _transpose


def _first(xs: Arrays, dims: Arrays, *, everything: bool) -> tuple[list[Any], int]:
    """Move the batch to the first axis; with `everything`, also repeat the inputs without one."""
    size = next(x.shape[d] for x, d in zip(xs, dims, strict=True) if d is not None)
    moved = []
    for x, d in zip(xs, dims, strict=True):
        if d is not None:
            moved.append(jnp.moveaxis(x, d, 0))
        else:
            moved.append(jnp.broadcast_to(x, (size, *jnp.shape(x))) if everything else x)
    return moved, size


def _batch(xs: Arrays, dims: Arrays, *, rule: Rule) -> Any:
    if rule.batches:
        moved, _ = _first(xs, dims, everything=False)
        axes = tuple(None if d is None else 0 for d in dims)
        made = call_p.bind(*moved, rule=rule.derive("batched", axes))  # type: ignore[no-untyped-call]
    else:
        moved, size = _first(xs, dims, everything=True)
        if rule.cores is not None:
            made = call_p.bind(*_wide(moved, size, rule.cores), rule=rule)  # type: ignore[no-untyped-call]
        else:
            made = _each(partial(call_p.bind, rule=rule), moved, size, moved)
    return made, [0] * len(made)


def _each(run: Any, xs: Arrays, size: int, kept: Arrays) -> Any:
    """Run a call for each example: now if `kept` has numbers, and else in a loop of the compiled program."""
    if size and all(map(_has_numbers, kept)):
        rows = [run(*[x[i] for x in xs]) for i in range(size)]
        return [jnp.stack(ys) for ys in zip(*rows, strict=True)]
    return jax.lax.map(lambda one: run(*one), tuple(xs))


def _has_numbers(x: Any) -> bool:
    """Return True if an array, or what a tracer of a derivative or a batch stands for, is computed."""
    while isinstance(x, _Tracer):
        x = getattr(x, "primal", getattr(x, "val", None))
    return x is not None


def _wide(xs: Arrays, size: int, cores: Sequence[int]) -> list[Any]:
    """Give all inputs the same number of axes before their core axes."""
    loop = max(x.ndim - 1 - core for x, core in zip(xs, cores, strict=True))
    return [
        x.reshape(size, *(1,) * (loop - x.ndim + 1 + core), *x.shape[1:])
        for x, core in zip(xs, cores, strict=True)
    ]


batching.primitive_batchers[call_p] = _batch


def _tangent_batch(
    a: Arrays, dims: Arrays, *, rule: Rule, ins: Mask, outs: Mask, form: Form, specs: Specs
) -> Any:
    moved, size = _first(a, dims, everything=True)
    what = {"ins": ins, "outs": outs, "form": form}
    if rule.batches:
        more = rule.derive("batched", (0,) * len(ins))
        wide = tuple(spec._replace(shape=(size, *spec.shape)) for spec in specs)
        made = tangent_p.bind(*moved, rule=more, specs=wide, **what)  # type: ignore[no-untyped-call]
    else:
        one = partial(tangent_p.bind, rule=rule, specs=specs, **what)
        made = _each(one, moved, size, moved[sum(ins) :])
    return made, [0] * len(made)


batching.primitive_batchers[tangent_p] = _tangent_batch
