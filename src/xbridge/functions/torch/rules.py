"""Make derivable functions of torch functions, from reverse mode and `torch.func.vmap` alone.

A tangent is the gradient of a gradient, because torch's forward mode is wrong for a class of operators
(pytorch#198017). A batch of a derivative is the derivative of a batch, so that torch never nests its
transforms. The graph of a run is recorded where possible, so that a vjp needs no second run.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from random import getrandbits
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from xbridge.errors import FOREIGN_ERRORS, GradientError, OptionError, XBridgeError
from xbridge.extend import CPU, get_backend
from xbridge.functions.numpy import describe_declared
from xbridge.functions.rules import (
    NO_VALUE,
    DerivableFunction,
    Mark,
    Spec,
    latest,
    no_derivative_error,
    select,
    specs_of_example,
)
from xbridge.functions.torch.private import (
    FakeTensorMode,
    any_autocast_enabled,
    enter_autocast,
    run_backward,
    shared_flags,
    unwrap,
)
from xbridge.functions.torch.purity import Purity, Watch, find_cut
from xbridge.functions.treedef import ARRAY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.functions.rules import Axes, Call, Described, Mask
    from xbridge.functions.treedef import TreeDef

    Tensors = Sequence[torch.Tensor]

_WRITES = "used in an in-place operation"
"""What torch says, before a write, to one that would write to a leaf."""

_LACKS_DERIVATIVE = re.compile("derivative for .* is not implemented")
"""What torch says where it has a first derivative, and no other."""

_NOTHING = nullcontext()

MAX_UNUSED = 32
"""The most graphs of one function that are kept for a single use."""

_numbers = count(1 + getrandbits(30))  # random, so that numbers of another process are unknown here


def _with_gradients() -> AbstractContextManager[object]:
    """Leave inference mode, and enable gradients, so that a function may differentiate inside of it."""
    recording = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    return _NOTHING if recording else torch.inference_mode(mode=False)


def _any_requires_grad(xs: Tensors) -> bool:
    return any(x.requires_grad for x in xs)


def _detach(ys: Tensors) -> list[torch.Tensor]:
    return [y.detach() if y.requires_grad else y for y in ys]


def _versions(xs: Tensors) -> list[int]:
    return [x._version for x in xs]


def _differentiate(ys: Tensors, xs: Tensors, seeds: Tensors, *, again: bool) -> list[torch.Tensor]:
    """Return the gradients of `xs` along the graph of `ys`, with a graph of their own if `again`.

    Those that are missing are zeros. That of an embedding may be sparse, and becomes dense.
    """
    live = [y.requires_grad for y in ys]
    made: Sequence[torch.Tensor | None] = [None] * len(xs)
    if any(live):
        ends, starts = tuple(select(live, ys)), tuple(select(live, seeds))
        made = run_backward(ends, starts, True, again, tuple(xs), True, accumulate_grad=False)  # noqa: FBT003 -- torch's order
    return [
        torch.zeros_like(x) if g is None else g if g.layout is torch.strided else g.to_dense()
        for x, g in zip(xs, made, strict=True)
    ]


class _Graph(NamedTuple):
    """The graph of a recorded run: the mask of differentiated inputs, its leaves and its outputs."""

    ins: Mask
    xs: Tensors
    ys: Tensors


class SavedGraphs:
    """The graphs of the recorded runs of a rule, by number. If one is gone, the function runs again."""

    def __init__(self) -> None:
        self._once: dict[int, _Graph] = {}
        self._held: dict[int, _Graph] = {}

    def keep(self, graph: _Graph) -> int:
        """Keep a graph for a single use, in place of the oldest of many, and return its number."""
        number = 1 + next(_numbers) % (2**31 - 1)  # not 0, and of 32 bits, as JAX's integers may be
        self._once[number] = graph
        for oldest in [*self._once][:-MAX_UNUSED]:
            self._once.pop(oldest, None)
        return number

    def hold(self, number: int) -> Callable[[], object]:
        """Keep a graph for any number of uses, until the function is called that this returns."""
        graph = self._once.pop(number, None)
        if graph is not None:
            self._held[number] = graph
        return lambda: self._held.pop(number, None)

    def find(self, number: int) -> _Graph | None:
        """Return the graph of a number, or None if it is gone."""
        return self._once.pop(number, None) or self._held.get(number)


class TorchRule(DerivableFunction):
    """A derivable function of tensors.

    Its derivatives share what is known of the function's purity, and the graphs of its recorded runs.
    """

    keeps_version = True

    def __init__(self, call: Call, name: str, of: TorchRule | None = None) -> None:
        super().__init__(call, name, of)
        self.purity: Purity = of.purity if of else Purity(call.name, call.fn)
        self.marks: tuple[int, ...] = of.marks if of else ()
        """The positions of marks in the inputs: as many as the order of the derivative that this is."""
        self.graphs = SavedGraphs()
        self.watched = set[object]()
        """The signatures of the runs that were watched."""

    def fn(self, *xs: torch.Tensor) -> Tensors:
        """Run within the graph of the inputs."""
        raise NotImplementedError

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        with _with_gradients():
            own = [x.clone() if x.is_inference() else x for x in xs]
            if self.marks:
                self._refuse_changed(own)
            return _detach(self.run(own))

    def _refuse_changed(self, xs: Tensors) -> None:
        """Raise if what the function reads has changed since the values of the marks were computed."""
        rows = [row for i in self.marks for row in xs[i].reshape(-1, len(Mark._fields)).tolist()]
        versions = {version for version, _ in rows} - {NO_VALUE.version}
        if versions and versions != {self.purity.version()}:
            raise no_derivative_error(
                self.call.name,
                "a tensor that it reads has changed since its value was computed",
                "torch.func.functional_call with that tensor as an argument",
            )

    def run(self, xs: Tensors) -> Tensors:
        """Run, and raise if torch lacks the derivative, or if the function writes to what it reads again."""
        versions = _versions(xs)
        try:
            ys = self.purity.run(self.fn, xs, self.watched)
        except RuntimeError as error:
            if _WRITES in str(error):
                raise self._writes_error() from error
            if _LACKS_DERIVATIVE.search(str(error)):
                raise no_derivative_error(
                    self.call.name,
                    f"torch has no such derivative: {error}",
                    "operations of torch that have one, such as attention by SDPBackend.MATH",
                ) from error
            raise
        if self.marks and _versions(xs) != versions:
            raise self._writes_error()
        if self.purity.has_norms and len(self.marks) > 2:
            # They are wrong in torch: pytorch#175754, pytorch#186256. pytorch#176234 is to mend them.
            raise no_derivative_error(
                self.call.name,
                "torch's third derivatives of norms are wrong",
                "means and products in place of the norm",
            )
        return ys

    def _writes_error(self) -> XBridgeError:
        """Return the error for a first write to what is read again, and have it copied from now on."""
        self.purity.overwrites = True
        return GradientError.build(
            f"run {self.name}",
            "it writes to its arguments, as it did not before, and would read them again",
            "the same call again, which will copy them",
        )

    def state(self) -> object:
        return self.call.state(), self.purity.describe_modules()

    @property
    def is_outdated(self) -> bool:
        self.purity.version()
        return self.purity.layout > 0

    def differentiate(self, kind: str, ins: Mask, outs: Mask, treedef: TreeDef) -> TorchRule:  # noqa: ARG002 -- no rule of torch asks for the treedef
        derivative = _Jvp if kind == "jvp" else _VjpOfJvp if isinstance(self, _Jvp) else _Vjp
        return derivative(self, kind, ins, outs)

    def batched(self, axes: Axes) -> TorchRule:
        return _Batch(self, axes)

    def record(self, ins: Mask, *xs: torch.Tensor) -> list[torch.Tensor]:
        graph = None
        if any(ins) and not self.marks:
            with _with_gradients():
                graph = self._run_with_graph(ins, [x.clone() if x.is_inference() else x for x in xs])
        number = 0 if graph is None else self.graphs.keep(graph)
        ys = self(*xs) if graph is None else _detach(graph.ys)
        mark = np.array(Mark(self.purity.last_version, number), "int32")
        return [*ys, torch.from_numpy(mark)]  # `torch.tensor` takes twenty times as long

    def _run_with_graph(self, ins: Mask, xs: Tensors) -> _Graph | None:
        """Return the graph of a run; None if the function leaves the graph, such as by `x.numpy()`."""
        versions = _versions(xs)
        leaves = [x.detach().requires_grad_(chosen) for x, chosen in zip(xs, ins, strict=True)]
        try:
            return _Graph(ins, leaves, self.purity.run(self.fn, leaves, self.watched))
        except GradientError:
            raise
        except (XBridgeError, *FOREIGN_ERRORS) as error:
            if _versions(xs) != versions:
                raise self._writes_error() from error
            return None

    def hold(self, number: int) -> Callable[[], object]:
        return self.graphs.hold(number)


# -- the function itself, and batches of it ------------------------------------------------------------------


def rule(call: Call) -> DerivableFunction:
    """Make the rule of a function."""
    return ValueRule(call)


class ValueRule(TorchRule):
    """The function itself."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, call.name)
        self._autocast = dict(call.modes[1])

    def fn(self, *xs: torch.Tensor) -> Tensors:
        # Derivatives read their inputs again, and torch forbids to write to leaves and captured tensors.
        purity, call = self.purity, self.call
        copies = purity.overwrites or not purity.known
        own = tuple([x.clone() for x in xs]) if copies else xs
        args, kwargs = call.bind(own)
        casts = self._autocast or any_autocast_enabled()
        try:
            with enter_autocast(self._autocast) if casts else _NOTHING:
                result = call.fn(*args, **kwargs)
        finally:
            if copies and any(unwrap(x)._version > 0 for x in own):
                purity.overwrites = True
        return tuple(call.read_result(result, xs))

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        if self.call.given.result is not None:
            return describe_declared(self.call, specs)
        with _with_gradients():
            return self.specs_of(self._describe_fake(specs) or self._describe_zeros(specs)), latest.treedef

    def _describe_fake(self, specs: tuple[Spec, ...]) -> Tensors | None:
        """Run on tensors without values; return None if the function needs values, or may draw."""
        try:
            with shared_flags, FakeTensorMode(allow_non_fake_inputs=True):
                xs = self._make_inputs(torch.empty, specs)
                with Watch(self.name, xs) as watch:
                    ys = self.fn(*xs)
        except GradientError:
            raise
        except (XBridgeError, *FOREIGN_ERRORS):
            return None
        if watch.may_draw:
            return None
        self.purity.learn(watch)
        return ys

    def _describe_zeros(self, specs: tuple[Spec, ...]) -> Tensors:
        """Run on zeros. Each call compares its shapes, but JAX drops one whose results have no elements."""
        try:
            ys = self.purity.watch(self.fn, self._make_inputs(torch.zeros, specs))
        except XBridgeError:
            raise
        except FOREIGN_ERRORS as error:
            error.add_note(f"{self.name} ran on zeros; result=f gives the shapes of its result instead.")
            raise
        if not all(map(torch.Tensor.numel, ys)):
            raise OptionError.build(
                f"trace {self.name}",
                "its control flow or the shape of its result depends on the values of its arrays",
                "torch.where, jax.lax.cond outside of it, or result=f with the shapes of the result",
            )
        return ys

    def _make_inputs(self, make: Callable[..., torch.Tensor], specs: tuple[Spec, ...]) -> Tensors:
        device = self.call.options.device or CPU
        for spec in specs:
            if lacks := get_backend("torch").unsupported_dtype(spec.dtype, CPU):
                hint = "aligned(..., dtype='nearest')"
                raise lacks.error.build(f"trace {self.name} for {spec.dtype}", lacks.reason, hint)
        return [make(spec.shape, dtype=getattr(torch, spec.dtype), device=device) for spec in specs]


class _Batch(TorchRule):
    """A batch of the function: inputs have an additional first axis, except where `axes` has None."""

    def __init__(self, of: TorchRule, axes: Axes) -> None:
        super().__init__(of.call, f"a batch of {of.name}", of)
        self._of, self._axes = of, axes
        self._whole = torch.func.vmap(of.fn, in_dims=axes, randomness="same")

    def fn(self, *xs: torch.Tensor) -> Tensors:
        versions = _versions(xs)
        try:
            return self._whole(*xs)
        except XBridgeError:
            raise
        except RuntimeError as error:  # of control flow on values, a write to a new tensor, an LSTM
            if _versions(xs) != versions:
                raise self._writes_error() from error
        # Torch does not batch what the function does. It runs on copies of each example, because it may write
        # to an argument that all examples share.
        pairs = list(zip(xs, self._axes, strict=True))
        size = next(len(x) for x, axis in pairs if axis is not None)
        columns = self._of.run_each(
            size, lambda i: self._of.fn(*[(x if axis is None else x[i]).clone() for x, axis in pairs])
        )
        return [torch.stack(ys) for ys in columns]

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        found, treedef = self._of.describe(specs_of_example(specs, self._axes))
        size = next(spec.shape[0] for spec, axis in zip(specs, self._axes, strict=True) if axis is not None)
        return tuple(spec._replace(shape=(size, *spec.shape)) for spec in found), treedef


# -- derivatives, and batches of them ------------------------------------------------------------------------


class _Derivative(TorchRule):
    """A derivative of a rule: a function of seeds, a mark, and the inputs of the rule."""

    def __init__(self, of: TorchRule, kind: str, ins: Mask, outs: Mask) -> None:
        super().__init__(of.call, f"the {kind} of {of.name}", of)
        self.graphs, self.narrows = of.graphs, of.narrows and kind == "jvp"
        self.of, self.kind, self.ins, self.outs = of, kind, ins, outs
        self.seeds = sum(outs if kind == "vjp" else ins)
        """The number of seeds, which come before a mark and the inputs."""
        self.marks = (self.seeds, *[self.seeds + 1 + i for i in of.marks])

    def batch_axes(self, axes: Axes) -> Axes:
        """Return the axes that a batch needs. Inputs with a derivative move in each example by themselves."""
        n = self.seeds
        inputs = tuple([0 if moves else axis for moves, axis in zip(self.ins, axes[n + 1 :], strict=True)])
        return (0,) * n + axes[n : n + 1] + self.of.batch_axes(inputs)

    def batched(self, axes: Axes) -> TorchRule:
        """Return the derivative of a batch in place of the batch of a derivative."""
        rule = self.of.derive("batched", axes[self.seeds + 1 :])
        return rule.derive(self.kind, self.ins, self.outs, ARRAY)

    def split(self, a: Tensors) -> tuple[Tensors, Tensors]:
        """Return the seeds and the inputs."""
        return a[: self.seeds], a[self.seeds + 1 :]

    def follow(self, xs: Tensors, seeds: Tensors | None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Run the rule with a graph; return the inputs in `ins` and the results in `outs`.

        Raise if no result has a graph, unless all are constant, or all seeds are zero.
        """
        leaves = [
            x if not moves or x.requires_grad else x.detach().requires_grad_()
            for x, moves in zip(xs, self.ins, strict=True)
        ]
        starts, ys = select(self.ins, leaves), select(self.outs, self.of.fn(*leaves))
        if not _any_requires_grad(ys) and (seeds is None or any(map(torch.Tensor.any, seeds))):
            error = find_cut(self.call.name, lambda: select(self.outs, self.of.fn(*leaves)), starts)
            if error is not None:
                raise error
        return starts, ys


class _Vjp(_Derivative):
    """The gradients of a rule, or of one run for many cotangents along an axis, as for a Jacobian."""

    def __init__(self, of: TorchRule, kind: str, ins: Mask, outs: Mask, axis: int | None = None) -> None:
        super().__init__(of, kind, ins, outs)
        self._axis = axis

    def fn(self, *a: torch.Tensor) -> Tensors:
        cotangents, inputs = self.split(a)
        xs, ys = self.follow(inputs, cotangents)
        return self._pull_back(ys, xs, cotangents, again=_any_requires_grad(a))

    def _pull_back(self, ys: Tensors, xs: Tensors, cotangents: Tensors, *, again: bool) -> Tensors:
        """Return the gradients of `xs` along the graph of `ys`."""

        def pull(*one: torch.Tensor) -> Tensors:
            return _differentiate(ys, xs, one, again=again)

        if self._axis is None:
            return pull(*cotangents)
        try:
            return torch.func.vmap(pull, self._axis, self._axis)(*cotangents)
        except XBridgeError:
            raise
        except RuntimeError:  # torch does not batch what the backward pass does
            rows = zip(*[c.unbind(self._axis) for c in cotangents], strict=True)
            made = [pull(*row) for row in rows]
            return [torch.stack(gradients, self._axis) for gradients in zip(*made, strict=True)]

    def run(self, xs: Tensors) -> Tensors:
        mark = xs[self.seeds]
        graph = self.graphs.find(mark.tolist()[1]) if mark.ndim == 1 else None
        made = None if graph is None else self._pull_back_recorded(graph, xs)
        return super().run(xs) if made is None else made

    def _pull_back_recorded(self, graph: _Graph, a: Tensors) -> Tensors | None:
        """Return gradients along the graph of a recorded run, or None if the function has to run again.

        It has to if there is no gradient, to find the reason, and if the backward pass draws or writes. The
        graph has the weights of the value, but code that runs in it, such as a hook or a part that is
        computed again, reads those of now.
        """
        ys, xs = select(self.outs, graph.ys), select(graph.ins, graph.xs)
        if self.ins != graph.ins or not _any_requires_grad(ys):
            return None
        before = self.purity.counters()
        try:
            made = self._pull_back(ys, xs, a[: self.seeds], again=False)
        except RuntimeError:
            return None
        return None if self.purity.have_moved(before) else made

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        found, at = select(self.ins, specs[self.seeds + 1 :]), self._axis
        if at is not None:
            size = specs[0].shape[at]
            found = [spec._replace(shape=(*spec.shape[:at], size, *spec.shape[at:])) for spec in found]
        return tuple(found), ARRAY

    def batch_axes(self, axes: Axes) -> Axes:
        return (0,) * self.seeds + axes[self.seeds :] if self._is_one_run(axes) else super().batch_axes(axes)

    def batched(self, axes: Axes) -> TorchRule:
        if self._is_one_run(axes):
            return _Vjp(self.of, self.kind, self.ins, self.outs, 0)
        if self._axis is None:
            return super().batched(axes)
        rule = self.of.derive("batched", axes[self.seeds + 1 :])
        return _Vjp(rule, self.kind, self.ins, self.outs, self._axis + 1)

    def _is_one_run(self, axes: Axes) -> bool:
        """Return True if a batch has the same inputs for all of its cotangents."""
        is_plain = type(self) is _Vjp and self._axis is None
        return is_plain and not any(axis is not None for axis in axes[self.seeds + 1 :])


class _Jvp(_Derivative):
    """The tangents of a rule.

    If ``G(c, x)`` is the gradient for the cotangent ``c``, and ``J(x) v`` the tangent, then
    ``<c, J(x) v> == <G(c, x), v>`` for every ``c``. So the tangent is the gradient of the right side.
    """

    def fn(self, *a: torch.Tensor) -> Tensors:
        tangents, inputs = self.split(a)
        again = _any_requires_grad(a)
        if isinstance(self.of, _Jvp):
            ys = select(self.outs, self.of.fn(*inputs))
            seeds = [torch.ones_like(y, requires_grad=True) for y in ys]
            pull = self.of.derive("vjp", self.ins, self.outs, ARRAY)
            gradients = pull.fn(*seeds, a[self.seeds], *inputs)
        else:
            xs, ys = self.follow(inputs, None)
            seeds = [torch.ones_like(y, requires_grad=True) for y in ys]
            gradients = _differentiate(ys, xs, seeds, again=True)
        return _differentiate(gradients, seeds, tangents, again=again)

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        found, treedef = self.of.describe(specs[self.seeds + 1 :])
        return tuple(select(self.outs, found)), treedef


class _VjpOfJvp(_Vjp):
    """The gradients of tangents, from ``<G(c, x), v>`` and its gradient by `x`: of the second order only."""

    of: _Jvp

    def fn(self, *a: torch.Tensor) -> Tensors:
        of, (cotangents, inputs) = self.of, self.split(a)
        tangents, (mark, *xs) = inputs[: of.seeds], inputs[of.seeds :]
        seeds = (*cotangents, mark, *xs)
        chosen, moving = self.ins[: of.seeds], self.ins[of.seeds + 1 :]
        of_outs = iter(self.outs)
        pull = of.of.derive("vjp", of.ins, tuple([out and next(of_outs) for out in of.outs]), ARRAY)
        made = select(chosen, pull.fn(*seeds)) if any(chosen) else []
        if any(moving):
            ins = (False,) * (len(cotangents) + 1) + moving
            again = pull.derive("vjp", ins, (True,) * of.seeds, ARRAY)
            made += again.fn(*tangents, mark, *seeds)
        return made
