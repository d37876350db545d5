"""Embed calls of derivable functions in torch's graphs, transforms and compiled programs.

Outside of transforms, the autograd function is applied without its checks for them, in a quarter of the time.
For the compiler there is one operator, which stands for all functions. It gets the key of the function as an
argument, so that nothing has to be registered while a program is traced.
"""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING, Any

import torch

from xbridge.errors import OptionError
from xbridge.extend import get_backend
from xbridge.functions.programs import Program, key_of, programs
from xbridge.functions.rules import Spec, latest, no_derivative_error, replace_chosen, select
from xbridge.functions.torch.private import (
    current_level,
    dispatch_modes,
    dual_levels,
    get_dispatch_modes,
    is_gradient_batch,
    unwrap_if_dead,
    without_dispatch_modes,
)
from xbridge.functions.torch.purity import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.rules import DerivableFunction
    from xbridge.functions.treedef import TreeDef

    Tensors = Sequence[torch.Tensor]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def move_to_device_of(ts: Tensors, at: int) -> Tensors:
    """Return all tensors on the device of the one at index `at`. Torch's compiler traces this function."""
    place = ts[at].device
    if any(t.is_meta for t in ts):  # which has no values
        return ts
    return [t if t.device == place else t.to(place) for t in ts]


def _is_transformed() -> bool:
    """Return True within a transform of `torch.func`, or in forward mode."""
    return current_level() is not None or dual_levels._current_level >= 0


def run(rule: DerivableFunction, ts: Tensors) -> Tensors:
    """Run a derivable function on tensors, which are moved to the device of the first that is tracked."""
    follows = get_backend("torch").follows
    if follows and len(ts) > 1 and len({t.device for t in ts}) > 1:
        return apply(rule, move_to_device_of(ts, [*map(follows, ts)].index(True)))
    return apply(rule, ts)


def apply(rule: DerivableFunction, ts: Tensors) -> Tensors:
    """Run a derivable function on tensors of one device, within torch's current graph or transforms."""
    if _is_transformed():
        return _apply_transformed(rule, *ts)  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and any(t.requires_grad for t in ts):
        # A wrapped tensor may outlive its transform, as in the pullback of a vjp. It is unwrapped, because it
        # only seems to require grad.
        living = map(unwrap_if_dead, ts)
        return _apply_plain(rule, *living)  # type: ignore[no-any-return, no-untyped-call] # torch leaves it untyped
    return _compute(rule, ts)


@torch.compiler.disable  # type: ignore[untyped-decorator] # it drops the jvp: pytorch#192985
def _apply_transformed(rule: DerivableFunction, *ts: torch.Tensor) -> Any:
    return _Function.apply(rule, *ts)  # type: ignore[no-untyped-call] # torch leaves it untyped


def _compute(rule: DerivableFunction, ts: Tensors) -> Tensors:
    """Run a derivable function without a graph."""
    if any(map(is_gradient_batch, ts)):
        reason = "the batch of is_grads_batched=True and of vectorize=True is none that it can run"
        jacobian = "jacrev" if dual_levels._current_level < 0 else "jacfwd"
        raise no_derivative_error(rule.call.name, reason, f"torch.func.{jacobian}(f)(x)")
    if _is_dispatched() or any(type(t) not in _PLAIN or t.is_meta for t in ts):
        return torch.ops.xbridge.call.default(list(ts), [], key_of(rule), [])  # type: ignore[no-any-return]
    return _evaluate(rule, ts)


def _is_dispatched() -> bool:
    """Return True if a dispatch mode other than our own sees operations, so that it must see an operator."""
    if not dispatch_modes._is_in_torch_dispatch_mode:
        return False
    return any(not isinstance(mode, Watch) for mode in get_dispatch_modes())


def _evaluate(rule: DerivableFunction, ts: Tensors) -> Tensors:
    device = get_backend("torch").device_of(ts[0]) if ts else None
    return tuple(rule.evaluate([t.detach() for t in ts], "torch", device))


def _specs(ts: Tensors) -> tuple[Spec, ...]:
    return tuple(Spec(tuple(map(int, t.shape)), str(t.dtype)[6:]) for t in ts)


def _is_inexact(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _save_for_derivatives(ctx: Any, rule: DerivableFunction | Program, ts: Tensors, ys: Tensors) -> Tensors:
    """Store what the derivatives need in the context of an autograd function."""
    ctx.rule, ctx.treedef = rule, latest.treedef
    ctx.ins, ctx.outs = tuple(map(_is_inexact, ts)), tuple(map(_is_inexact, ys))
    if not all(ctx.outs):
        ctx.mark_non_differentiable(*[y for y, out in zip(ys, ctx.outs, strict=True) if not out])
    kept = (*ys, *ts) if rule.wants_outputs else ts
    ctx.save_for_backward(*kept)
    return kept


def _pull_back(
    ctx: Any, needs: Sequence[bool], cotangents: Tensors, call: Callable[[Any, list[torch.Tensor]], Tensors]
) -> list[Any]:
    """Return the gradients of the inputs that need one, and None for the others."""
    ins = tuple([need and exact for need, exact in zip(needs, ctx.ins, strict=True)])
    derived = ctx.rule.derive("vjp", ins, ctx.outs, ctx.treedef)
    made = call(derived, [*select(ctx.outs, cotangents), *ctx.saved_tensors])
    latest.treedef = ctx.treedef
    return replace_chosen(ins, made, [None] * len(ins))


class _Function(torch.autograd.Function):
    """A call in a graph, and under transforms such as `torch.func.vmap`."""

    @staticmethod
    def forward(rule: DerivableFunction, *ts: torch.Tensor) -> Any:
        return tuple(_compute(rule, ts))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_forward(*_save_for_derivatives(ctx, inputs[0], inputs[1:], output))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
        return None, *_pull_back(ctx, ctx.needs_input_grad[1:], cotangents, apply)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        ins = tuple(t is not None and exact for t, exact in zip(tangents, ctx.ins, strict=True))
        rule = ctx.rule.derive("jvp", ins, ctx.outs, ctx.treedef)
        made = apply(rule, [*select(ins, tangents), *ctx.saved_tensors])
        latest.treedef = ctx.treedef
        return tuple(replace_chosen(ctx.outs, made, [None] * len(ctx.outs)))

    @staticmethod
    def vmap(info: Any, in_dims: Any, rule: DerivableFunction, *ts: torch.Tensor) -> Any:
        ys = _run_batched(rule, ts, in_dims[1:], info.batch_size)
        return tuple(ys), (0,) * len(ys)


_apply_plain = super(torch.autograd.Function, _Function).apply
"""`apply` of the base class in C, without the checks for transforms that `Function.apply` makes in Python."""


def _run_batched(rule: DerivableFunction, ts: Tensors, dims: Sequence[int | None], size: int) -> Tensors:
    """Run a derivable function on each example of a batch. The batch is the first axis of the results."""
    axes = rule.batch_axes(tuple(None if d is None else 0 for d in dims))
    moved = [
        t.movedim(d, 0) if d is not None else t if axis is None else t.expand(size, *t.shape)
        for t, d, axis in zip(ts, dims, axes, strict=True)
    ]
    batch = rule.derive("batched", axes)
    if size:
        return apply(batch, moved)
    specs, latest.treedef = batch.outputs(_specs(moved))
    return _empty_tensors(specs, ts[0].device)


# -- the operators, which a compiler and other tools of torch see --------------------------------------------


def trace(key: str, ts: list[torch.Tensor], numbers: list[Any]) -> Tensors:
    """Add a call to the program that is traced. A compiler follows this function."""
    ints = [n for n in numbers if type(n) in (int, torch.SymInt)]
    floats = [n for n in numbers if type(n) in (float, torch.SymFloat)]
    if _is_transformed():  # the compiler would silently drop the jvp and vjp, so it interrupts here
        return _apply_key(key, ts, ints, floats)  # type: ignore[no-any-return]
    if any(t.device != ts[0].device for t in ts):
        tracked = [i for i, t in enumerate(ts) if t.requires_grad and torch.is_grad_enabled()]
        ts = list(move_to_device_of(ts, tracked[0] if tracked else 0))
    # The compiler makes a program for each value of a float. Those in tensors are inputs of one program.
    held = [torch.tensor(1.0, dtype=torch.float64, device="cpu") * n for n in floats]
    return torch.ops.xbridge.call.default(ts, held, key, ints)  # type: ignore[no-any-return]


@torch.compiler.disable  # type: ignore[untyped-decorator] # torch leaves it untyped
def _apply_key(key: str, ts: Tensors, ints: list[int], floats: list[float]) -> Any:
    return apply(_program_of(key).rule(ints, floats), ts)


def _program_of(key: str) -> Program:
    """Return the call of a key; raise if the key was saved by another process."""
    found = programs.get(key)
    if found is None:
        raise OptionError.build(
            f"run {key.partition('#')[0]} in a program",
            "the program was saved, and the function is not in this process",
            "torch.export.export(model, args) in this process",
        )
    return found


def _describe_program(ts: Tensors, floats: Tensors, key: str, ints: list[int]) -> Tensors:
    places = [t.device for t in ts] or [torch.device("cpu")]
    device = next((place for place in places if place.type == "meta"), places[0])  # it has no values
    program = _program_of(key)
    if torch.compiler.is_exporting():
        _exported.add(program)
    specs = _describe_outputs(program, ts, floats, ints)
    return _empty_tensors(specs, device)


def _empty_tensors(specs: Sequence[Spec], device: torch.device) -> Tensors:
    return [torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device) for spec in specs]


def _describe_outputs(program: Program, ts: Tensors, floats: Tensors, ints: Sequence[int]) -> Sequence[Spec]:
    """Describe the outputs. Their sizes are symbols if they follow from symbolic sizes of the inputs."""
    if program.gradients is not None:
        like = select(program.gradients, ts[len(ts) - len(program.gradients) :])
        return [Spec(tuple(t.shape), str(t.dtype)[6:]) for t in like]
    dtypes, ranks = [str(t.dtype)[6:] for t in ts], [t.ndim for t in ts]
    values = [_known_value(t) for t in floats]

    def describe(numbers: Sequence[int]) -> tuple[tuple[Spec, ...], TreeDef]:
        rest = iter(numbers)
        ints_ = [next(rest) for _ in ints]
        shapes = [tuple([next(rest) for _ in range(rank)]) for rank in ranks]
        return program.describe(ints_, values, tuple(map(Spec, shapes, dtypes)))

    sizes: list[Any] = [*ints, *[n for t in ts for n in t.shape]]
    symbols = tuple([n.node.expr if _is_symbol(n) else None for n in sizes])
    if any(symbol is not None for symbol in symbols):
        formula = program.formula(symbols, [_size_hint(n) for n in sizes], describe)
        if formula is not None:
            latest.treedef = formula.treedef
            return list(map(Spec, formula.shapes(sizes), formula.dtypes))
    specs, latest.treedef = describe(list(map(int, sizes)))
    return specs


def _is_symbol(n: Any) -> bool:
    return isinstance(n, torch.SymInt) and n.node.maybe_as_int() is None


def _size_hint(n: Any) -> int:
    """Return an example value of a size; 4 for a symbol without one, which depends on values of a tensor."""
    if not _is_symbol(n):
        return int(n)
    return int(n.node.hint) if n.node.has_hint() else 4


def _known_value(t: torch.Tensor) -> float | None:
    """Return the number in a tensor; None if it is not known while a compiler traces."""
    known = t if type(t) is torch.Tensor else getattr(t, "constant", None)
    with without_dispatch_modes():
        number = nan if known is None else float(known)
    return None if isnan(number) else number


def _compute_checked(
    ts: list[torch.Tensor], floats: list[torch.Tensor], key: str, ints: list[int]
) -> list[torch.Tensor]:
    program = _program_of(key)
    rule = program.rule(ints, [float(t) for t in floats])
    specs = _specs(ts)
    declared, treedef = rule.outputs(specs)
    ys = _evaluate(rule, ts)
    if rule.order == 0:
        rule.check_treedef(treedef)
    rule.check(_specs(ys), declared)
    program.check([*ints, *[n for spec in specs for n in spec.shape]], declared)
    return list(ys)


_exported: set[Program] = set()
"""The calls in exported programs, kept alive because such a program has only their keys."""

_call = torch.library.custom_op(
    "xbridge::call",
    _compute_checked,
    mutates_args=(),
    schema="(Tensor[] ts, Tensor[] floats, str key, SymInt[] ints) -> Tensor[]",
)
_call.register_fake(_describe_program)


def _set_up_context(ctx: Any, inputs: Any, output: Any) -> None:
    ts, ctx.floats, key, ctx.ints = inputs
    _save_for_derivatives(ctx, _program_of(key), ts, output)


def _backward_of_operator(ctx: Any, cotangents: Tensors) -> Any:
    def call(program: Program, ts: list[torch.Tensor]) -> Tensors:
        return torch.ops.xbridge.call.default(ts, ctx.floats, program.key, ctx.ints)  # type: ignore[no-any-return]

    made = _pull_back(ctx, ctx.needs_input_grad[0], cotangents, call)
    # A list of numbers is one leaf, and an empty list is none.
    return made, [None] * len(ctx.floats), None, None if ctx.ints else []


_call.register_autograd(_backward_of_operator, setup_context=_set_up_context)
