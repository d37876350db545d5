"""Functions of torch as rules: torch differentiates and batches them, and fake tensors give their shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode

from xbridge.backends._numpy_rules import declared
from xbridge.backends._rules import Spec, TracedRule, latest, no_derivative, refuse_given, restricted, select
from xbridge.errors import FOREIGN_ERRORS, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.backends._rules import Call, Form, Rule

    Tensors = Sequence[torch.Tensor]

_level = torch._C._functorch.maybe_current_level
_BY_VALUE = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def rule_of(call: Call) -> Rule:
    """Make the rule of a function."""
    refuse_given(call)

    def flat(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = call.unflatten(call.form, xs)
        return tuple(map(torch.as_tensor, call.returned(call.fn(*args, **kwargs), xs)))

    return TorchRule(call, call.name, flat)


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call] # theirs
    """Notices random numbers."""

    drew = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drew |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


class TorchRule(TracedRule):
    """A function of tensors."""

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():  # a function may differentiate inside
            return [y.detach() for y in self.fn(*xs)]

    def vjp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        fn, count = self.fn, sum(outs)
        watched = self._watched()

        def vjp(*a: torch.Tensor) -> Tensors:
            cotangents, xs = a[:count], a[count:]
            if _level() is not None:
                part = restricted(fn, ins, outs, xs)
                return torch.func.vjp(part, *select(ins, xs))[1](tuple(cotangents))  # type: ignore[no-any-return]
            # Torch's engine accepts functions that differentiate inside, and old autograd functions.
            again = any(x.requires_grad for x in a)
            xs = tuple(
                x if not chosen or (again and x.requires_grad) else x.detach().requires_grad_()
                for x, chosen in zip(xs, ins, strict=True)
            )
            with torch.enable_grad():
                ys = watched(lambda: select(outs, fn(*xs)))
                live = [(y, c) for y, c in zip(ys, cotangents, strict=True) if y.requires_grad]
                if not live:
                    return [torch.zeros_like(x) for x in select(ins, xs)]
                return torch.autograd.grad(
                    [y for y, _ in live],
                    select(ins, xs),
                    [c for _, c in live],
                    allow_unused=True,
                    materialize_grads=True,
                    create_graph=again,
                )

        return vjp

    def jvp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        fn, count = self.fn, sum(ins)
        watched = self._watched()

        def jvp(*a: torch.Tensor) -> Tensors:
            tangents, xs = a[:count], a[count:]
            part = restricted(fn, ins, outs, xs)
            return watched(lambda: torch.func.jvp(part, tuple(select(ins, xs)), tuple(tangents))[1])  # type: ignore[no-any-return]

        return jvp

    def batch_of(self, axes: tuple[int | None, ...]) -> Callable[..., Any]:
        return torch.func.vmap(self.fn, in_dims=axes, randomness="error")

    def _watched(self) -> Callable[[Callable[[], Any]], Any]:
        """Return a function that makes calls, and raises if the first one draws random numbers."""
        done: list[bool] = []

        def run(do: Callable[[], Any]) -> Any:
            if done or _level() is not None:
                return do()
            with _Draws() as draws:  # type: ignore[no-untyped-call] # theirs
                made = do()
            self._refuse(drew=draws.drew)
            done.append(True)
            return made

        return run

    def _refuse(self, *, drew: bool) -> None:
        if drew:
            raise no_derivative(
                self.call.name,
                "it draws random numbers, and would draw others when it runs again for its derivative",
                "module.eval(), or random numbers as an argument",
            )

    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: Form) -> Rule:
        self._refuse(drew=self.random)
        return super().vjp(ins, outs, form)

    def jvp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: Form) -> Rule:
        self._refuse(drew=self.random)
        return super().jvp(ins, outs, form)

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], Form]:
        if self.call.result is not None and not self.order:
            return declared(self.call, specs)
        try:
            draws = _Draws()  # type: ignore[no-untyped-call] # theirs
            with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad(), draws:
                xs = [torch.empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs]
                ys = self.fn(*xs)
        except _BY_VALUE as error:
            raise OptionError.build(
                f"trace {self.name}",
                "its control flow or the shape of its result depends on the values of its arrays",
                "torch.where, jax.lax.cond outside of it, or result=f with the shapes of the result",
            ) from error
        except FOREIGN_ERRORS as error:
            error.add_note(
                f"{self.name} ran on tensors without values; result=f gives the shapes of its result instead."
            )
            raise
        self.random |= draws.drew
        return tuple(Spec(tuple(y.shape), str(y.dtype).removeprefix("torch.")) for y in ys), latest.form
