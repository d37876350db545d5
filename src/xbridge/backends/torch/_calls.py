"""Calls within torch's graphs, transforms and compiler.

Plain autograd has a function of its own, because the one for transforms takes four times as long. A compiler
sees one operator for all functions. The key of the rule is an argument of it, so nothing is registered while
a program is traced.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.utils import _python_dispatch

from xbridge.backends._rules import Rule, Spec, latest, replaced, rules, select
from xbridge.backends.torch._devices import named
from xbridge.backends.torch._purity import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    Tensors = Sequence[torch.Tensor]

_functorch = torch._C._functorch
_level = _functorch.maybe_current_level
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def apply(rule: Rule, ts: Tensors) -> Tensors:
    """Run a rule, in whatever torch is doing now."""
    if _level() is None and forward_ad._current_level < 0:
        if torch.is_grad_enabled() and any(t.requires_grad for t in ts):
            return _apply_plain(rule, *ts)  # type: ignore[no-any-return, no-untyped-call] # theirs
        return _compute(rule, ts)
    return _transformed(rule, *ts)  # type: ignore[no-any-return]


@torch.compiler.disable  # type: ignore[untyped-decorator] # a compiler would drop the jvp, without an error
def _transformed(rule: Rule, *ts: torch.Tensor) -> Any:
    return _Transformed.apply(rule, *ts)  # type: ignore[no-untyped-call] # theirs


def _compute(rule: Rule, ts: Tensors) -> Tensors:
    """Run a rule on what the tensors hold."""
    if _is_dispatched() or any(type(t) not in _PLAIN or t.is_meta for t in ts):
        return torch.ops.xbridge.bare.default(list(ts), rule.key, [], [])  # type: ignore[no-any-return]
    if any(map(_functorch.is_legacy_batchedtensor, ts)):
        count = len(rule.shapes(_specs(ts)))
        made = _without_lists(len(ts), count)(*ts, rule.key)
        return made if isinstance(made, tuple) else (made,)
    return _evaluate(rule, ts)


def _is_dispatched() -> bool:
    """Return True if a mode sees operations, other than ours."""
    if not _python_dispatch._is_in_torch_dispatch_mode:
        return False
    return any(type(mode) is not Watch for mode in _python_dispatch._get_current_dispatch_mode_stack())


def _evaluate(rule: Rule, ts: Tensors) -> Tensors:
    device = ts[0].device if ts else torch.device("cpu")
    return tuple(rule.call.evaluate(rule, [t.detach() for t in ts], "torch", named(device)))


def _specs(ts: Tensors) -> tuple[Spec, ...]:
    return tuple(Spec(tuple(map(int, t.shape)), str(t.dtype)[6:]) for t in ts)


def _is_inexact(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _keep(ctx: Any, rule: Rule, ts: Tensors, ys: Tensors) -> Tensors:
    """Keep what the derivatives need."""
    ctx.rule, ctx.form = rule, latest.form
    ctx.ins, ctx.outs = tuple(map(_is_inexact, ts)), tuple(map(_is_inexact, ys))
    if not all(ctx.outs):
        ctx.mark_non_differentiable(*[y for y, out in zip(ys, ctx.outs, strict=True) if not out])
    kept = (*ys, *ts) if rule.wants_outputs else tuple(ts)
    ctx.save_for_backward(*kept)
    return kept


def _backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
    needs = tuple([need and exact for need, exact in zip(ctx.needs_input_grad[1:], ctx.ins, strict=True)])
    seeds = select(ctx.outs, cotangents)
    made = apply(ctx.rule.derive("vjp", needs, ctx.outs, ctx.form), [*seeds, *ctx.saved_tensors])
    latest.form = ctx.form
    return (None, *replaced(needs, made, [None] * len(needs)))


class _Plain(torch.autograd.Function):
    """A call in a graph, outside of transforms."""

    @staticmethod
    def forward(ctx: Any, rule: Rule, *ts: torch.Tensor) -> Any:
        ys = tuple(_compute(rule, ts))
        _keep(ctx, rule, ts, ys)
        return ys

    backward = staticmethod(_backward)


_apply_plain = super(torch.autograd.Function, _Plain).apply
"""Without the checks of `Function.apply` for transforms."""


class _Transformed(torch.autograd.Function):
    """A call under transforms."""

    @staticmethod
    def forward(rule: Rule, *ts: torch.Tensor) -> Any:
        return tuple(_compute(rule, ts))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        rule, *ts = inputs
        ctx.save_for_forward(*_keep(ctx, rule, ts, output))

    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        ins = tuple(t is not None and exact for t, exact in zip(tangents, ctx.ins, strict=True))
        rule = ctx.rule.derive("jvp", ins, ctx.outs, ctx.form)
        made = apply(rule, [*select(ins, tangents), *ctx.saved_tensors])
        latest.form = ctx.form
        return tuple(replaced(ctx.outs, made, [None] * len(ctx.outs)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, rule: Rule, *ts: torch.Tensor) -> Any:
        ys = _batched(rule, ts, in_dims[1:], info.batch_size)
        return tuple(ys), (0,) * len(ys)


def _batched(rule: Rule, ts: Tensors, dims: Sequence[int | None], size: int) -> Tensors:
    """Run a rule on each example of a batch. The batch is the first axis of the results."""
    moved = [t if d is None else t.movedim(d, 0) for t, d in zip(ts, dims, strict=True)]
    if rule.batches:
        return apply(rule.derive("batched", tuple(None if d is None else 0 for d in dims)), moved)
    one = tuple(
        Spec(spec.shape if d is None else spec.shape[1:], spec.dtype)
        for spec, d in zip(_specs(moved), dims, strict=True)
    )
    if rule.cores is not None:
        loop = max(len(spec.shape) - core for spec, core in zip(one, rule.cores, strict=True))
        wide = []
        for t, d, spec, core in zip(moved, dims, one, rule.cores, strict=True):
            full = t.expand(size, *t.shape) if d is None else t
            wide.append(full.reshape(size, *(1,) * (loop - len(spec.shape) + core), *spec.shape))
        return apply(rule, wide)
    if size:
        rows = [[t if d is None else t[i] for t, d in zip(moved, dims, strict=True)] for i in range(size)]
        return [torch.stack(ys) for ys in zip(*[apply(rule, row) for row in rows], strict=True)]
    device = ts[0].device
    return [
        torch.empty(0, *spec.shape, dtype=getattr(torch, spec.dtype), device=device)
        for spec in rule.shapes(one)
    ]


# -- the operators, which a compiler and other tools of torch see --------------------------------------------


def call(key: str, ts: list[torch.Tensor], numbers: list[Any]) -> Tensors:
    """Add a call to the program that is traced. A compiler follows this function."""
    ints = [n for n in numbers if type(n) is int]
    floats = [n for n in numbers if type(n) is float]
    if _level() is not None:  # a compiler would drop the jvp and the vjp, without an error; so it stops here
        return _opened(key, ts, ints, floats)  # type: ignore[no-any-return]
    return torch.ops.xbridge.call.default(ts, key, ints, floats)  # type: ignore[no-any-return]


@torch.compiler.disable  # type: ignore[untyped-decorator] # theirs
def _opened(key: str, ts: Tensors, ints: list[int], floats: list[float]) -> Any:
    return apply(_rule(key, ints, floats), ts)


def _rule(key: str, ints: Sequence[int], floats: Sequence[float]) -> Rule:
    found = rules[key]
    return found if isinstance(found, Rule) else found.rule(ints, floats)


def _described(ts: Tensors, key: str, ints: list[int], floats: list[float]) -> Tensors:
    places = [t.device for t in ts] or [torch.device("cpu")]
    device = next((place for place in places if place.type == "meta"), places[0])  # it has no values
    specs = _rule(key, ints, floats).shapes(_specs(ts))
    return [torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device) for spec in specs]


def _checked(ts: list[torch.Tensor], key: str, ints: list[int], floats: list[float]) -> list[torch.Tensor]:
    rule = _rule(key, ints, floats)
    declared = rule.shapes(_specs(ts))
    # Below autograd no tensor has a tangent, and torch cannot be asked for one.
    level, forward_ad._current_level = forward_ad._current_level, -1
    try:
        ys = _evaluate(rule, ts)
    finally:
        forward_ad._current_level = level
    rule.check(_specs(ys), declared)
    return list(ys)


_SCHEMA = "(Tensor[] ts, str key, SymInt[] ints, float[] floats) -> Tensor[]"


def _operator(name: str) -> Any:
    operator = torch.library.custom_op(f"xbridge::{name}", _checked, mutates_args=(), schema=_SCHEMA)
    operator.register_fake(_described)
    return operator


_operator("bare")
_graph = _operator("call")


@cache
def _without_lists(inputs: int, outputs: int) -> Any:
    """Return the operator without lists, the only kind that `is_grads_batched` can repeat."""
    result = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    schema = f"({', '.join(f'Tensor x{i}' for i in range(inputs))}, str key) -> {result}"

    def run(*given: Any) -> Any:
        *ts, key = given
        ys = tuple(_evaluate(rules[key], ts))
        return ys[0] if outputs == 1 else ys

    return torch.library.custom_op(f"xbridge::flat_{inputs}_{outputs}", run, mutates_args=(), schema=schema)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ts, key, ints, floats = inputs
    rule = _rule(key, ints, floats)
    rule.shapes(_specs(ts))  # for the form of the result
    ctx.rule, ctx.form, ctx.count, ctx.numbers = rule, latest.form, len(ts), (ints, floats)
    ctx.outs = tuple(map(_is_inexact, output))
    ctx.save_for_backward(*(output if rule.wants_outputs else ()), *ts)


def _backward_of_operator(ctx: Any, cotangents: Tensors) -> Any:
    kept = ctx.saved_tensors
    ins = tuple(map(_is_inexact, kept[len(kept) - ctx.count :]))
    seeds = select(ctx.outs, cotangents)
    rule = ctx.rule.derive("vjp", ins, ctx.outs, ctx.form)
    made = torch.ops.xbridge.call.default([*seeds, *kept], rule.key, [], [])
    # A list of numbers is one leaf, and an empty list is none.
    return replaced(ins, made, [None] * len(ins)), None, *[None if n else [] for n in ctx.numbers]


_graph.register_autograd(_backward_of_operator, setup_context=_setup)
