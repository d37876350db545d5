"""Make derivable functions of torch functions.

Torch itself differentiates and batches them, and a run on fake tensors tells the shapes of the results. The
graph of a run is recorded where possible, so that a vjp needs no second run.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import _engine_run_backward as run_backward
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from xbridge._core.locks import lock
from xbridge.backends.torch._modes import enter_autocast
from xbridge.errors import FOREIGN_ERRORS, GradientError, OptionError, XBridgeError
from xbridge.functions.numpy import describe_declared
from xbridge.functions.records import NO_VALUE, Records
from xbridge.functions.rules import (
    Mark,
    NoRecordError,
    Recorded,
    Spec,
    TracedFunction,
    get_or_make,
    latest,
    no_derivative_error,
    refuse_user_derivative,
    restrict,
    select,
)
from xbridge.functions.torch.norms import ExactNorms
from xbridge.functions.torch.purity import (
    Calls,
    Purity,
    Watch,
    changed_error,
    inside,
    random_error,
    shared_flags,
)
from xbridge.functions.torch.refusals import (
    NOTHING,
    Departures,
    NoTangents,
    Origins,
    has_tangent,
    is_tracked,
    unwrap,
    with_gradients,
)
from xbridge.functions.torch.tangents import Tangents
from xbridge.functions.treedef import ARRAY, order_like, outline, reorder_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeVar

    from xbridge.functions.rules import Call, DerivableFunction
    from xbridge.functions.treedef import TreeDef

    Tensors = Sequence[torch.Tensor]
    Y = TypeVar("Y")

_functorch = torch._C._functorch
_level = _functorch.maybe_current_level
_WRITES = "used in an in-place operation"
"""What torch says, before a write, to one that would write to a leaf."""

_LACKS_DERIVATIVE = re.compile("derivative for .* is not implemented")
"""What torch says where it has a first derivative, and no other."""

_BY_VALUE = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


def rule_of(call: Call) -> DerivableFunction:
    """Make the derivable function for a call."""
    refuse_user_derivative(call)

    autocast = dict(call.modes[1])

    def flat(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # Derivatives read their inputs again, and torch forbids to write to leaves and captured tensors.
        # A watch sees what a first run writes to, unless it is a derivative.
        purity = rule._purity
        level, recording = _level() or 0, any(map(_requires_grad, xs))
        writes = purity.overwrites or level > 0 or (recording and not purity.known)
        own = tuple([x.clone() for x in xs]) if writes else xs
        args, kwargs = call.bind(own)
        casts = autocast or torch._C._is_any_autocast_enabled()
        fn, inside.level = _with_exact_norms(call.fn) if purity.derives_norms else call.fn, level
        try:
            with enter_autocast(autocast) if casts else NOTHING, inside:
                result = fn(*args, **kwargs)
        finally:
            if writes and any(map(_is_written, own)):
                purity.overwrites = True
        ys = rule.keep_order(call.read_result(result, xs))
        # `as_tensor` moves a tensor to the default device, if one is set.
        return tuple([y if isinstance(y, torch.Tensor) else torch.as_tensor(y) for y in ys])

    rule = TorchRule(call, call.name, flat)
    return rule


_forward_mode = lock()
"""Guards forward mode, because torch has one level of it for all threads."""


def _requires_grad(x: torch.Tensor) -> bool:
    return x.requires_grad


def _specs(ys: Tensors) -> tuple[Spec, ...]:
    # `_calls` has this too, but registers operators of torch when it is imported, which takes a second.
    return tuple([Spec(tuple(y.shape), str(y.dtype).removeprefix("torch.")) for y in ys])


def _batch_size(axes: tuple[int | None, ...], xs: Sequence[Any]) -> int:
    return next(int(x.shape[0]) for x, axis in zip(xs, axes, strict=True) if axis is not None)


def _is_written(x: torch.Tensor) -> bool:
    """Return True if a new tensor has been written to."""
    return unwrap(x)._version > 0


def _versions(xs: Tensors) -> list[int]:
    """Return numbers that change when tensors are written to."""
    return [unwrap(x)._version for x in xs]


def _has_values(x: torch.Tensor) -> bool:
    """Return True if any number is not zero, in any example of a batch."""
    x = unwrap(x)
    return not isinstance(x, FakeTensor) and bool(x.any())


def _is_cut(ys: Tensors, cotangents: Tensors) -> bool:
    """Return True if a result has a cotangent other than zero, but no graph along which it could flow."""
    return any(not y.requires_grad and _has_values(c) for y, c in zip(ys, cotangents, strict=True))


def _pull_back(ys: Tensors, xs: Tensors, cotangents: Tensors, *, again: bool) -> Tensors:
    """Return the gradients of `xs` along the graph of `ys`; zeros where there is no graph."""
    live = [(y, c) for y, c in zip(ys, cotangents, strict=True) if y.requires_grad]
    if not live:
        return [torch.zeros_like(x) for x in xs]
    # `torch.autograd.grad` is a call of torch itself, within which our modes would see no other.
    ends, seeds = tuple([y for y, _ in live]), tuple([c for _, c in live])
    return _fill(xs, run_backward(ends, seeds, again, again, tuple(xs), True, accumulate_grad=False))  # noqa: FBT003 -- torch's order


def _fill(xs: Tensors, made: Sequence[torch.Tensor | None]) -> Tensors:
    """Return gradients of `xs`, with zeros for those that are missing. That of an embedding may be sparse."""
    return [
        torch.zeros_like(x) if g is None else g if g.layout is torch.strided else g.to_dense()
        for x, g in zip(xs, made, strict=True)
    ]


def _runs_python(ys: Tensors) -> bool:
    """Return True if a backward pass from these tensors runs Python code of an autograd function."""
    nodes = [y.grad_fn for y in ys]
    seen = set(nodes)
    for node in nodes:
        if isinstance(node, BackwardCFunction):
            return True
        more = {other for other, _ in node.next_functions} - seen if node is not None else ()
        seen.update(more)
        nodes += more
    return False


def _with_exact_norms(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExactNorms():
            return fn(*args, **kwargs)

    return run


class _Graph(NamedTuple):
    """The graph of a recorded run: the mask of differentiated inputs, its leaves and its outputs."""

    ins: tuple[bool, ...]
    xs: Tensors
    ys: Tensors


class TorchRule(TracedFunction):
    """A derivable function of tensors, or a derivative of one."""

    keeps_version = True

    def __init__(self, call: Call, name: str, fn: Callable[..., Any]) -> None:
        super().__init__(call, name, fn)
        self._purity = Purity(call.name)
        self._versions: tuple[int, ...] = ()
        """The positions of versions in the inputs."""
        self._is_whole = True
        """True if this is the function itself, and not a batch or a derivative of it."""
        self._is_value = True
        """True if the outputs are those of the function itself, or of a batch of calls."""
        self._orders: dict[TreeDef, TreeDef] = {}
        """The first form of each result, by its outline."""
        self._gradients: tuple[bool, ...] | None = None
        """The mask of the inputs that the outputs are gradients of."""
        self._graphs = Records[_Graph]()
        self._pulls: tuple[tuple[bool, ...], tuple[bool, ...], TorchRule] | None = None
        """The masks of the inputs and the outputs of a function that may be recorded, if this is its vjp."""
        self._depth = 0
        """The order of the derivative that this is."""
        self._tangents: Tangents | None = None
        """The function of which this is the jvp."""
        self._batched: tuple[TorchRule, tuple[int | None, ...]] | None = None
        """The function of which this is a batch, and the axis of each input."""

    def keep_order(self, ys: Sequence[Y]) -> Sequence[Y]:
        """Return the results of the last run in the order of the first, in which all derivatives are.

        A run may list the keys of a dict in another order than the one before, or than it is declared.
        """
        form = latest.form
        if form == ARRAY:
            return ys
        first = get_or_make(self._orders, outline(form), lambda: form)
        if form == first:
            return ys
        latest.form, ordered = order_like(first, form, iter(ys))
        return ordered

    def __call__(self, *xs: torch.Tensor) -> list[torch.Tensor]:
        with with_gradients():
            own = [x.clone() if x.is_inference() else x for x in xs]
            if self._versions:
                made = self._run_marked(own)
            else:
                made = self._purity.run(self.fn, own, again=False, whole=self._is_whole)
            return [y.detach() if y.requires_grad else y for y in made]

    def _run_marked(self, xs: Tensors) -> Tensors:
        """Run on inputs with marks: along the graph of a recorded run, or if what was read is the same."""
        marks = [xs[i] for i in self._versions]
        rows = [row for mark in marks for row in mark.reshape(-1, len(Mark._fields)).tolist()]
        graphs = [self._graphs.find((high, low)) for _, high, low in rows]
        versions = {version for version, *_ in rows} - {NO_VALUE}
        if self._pulls and marks[0].ndim == 1 and _level() is None:  # a batch of marks has many graphs
            before = _versions(xs)
            made = self._pull_back_recorded(graphs[0], xs, versions)
            if made is not None:
                return made
            if before != _versions(xs):
                raise self._writes_error()
        self._refuse_changed(versions)
        return self._run_derived(xs, again=bool(versions))

    def _run_derived(self, xs: Tensors, *, again: bool) -> Tensors:
        """Run a derivative, and raise if torch lacks it, or if it starts to write to what it reads again."""
        purity, marks = self._purity, _versions(xs)
        copies, error = purity.overwrites, None
        try:
            made = purity.run(self.fn, xs, again=again, whole=self._is_whole)
        except RuntimeError as raised:
            error = raised
        if not copies and marks != _versions(xs):
            raise self._writes_error() from error
        if error is None:
            if purity.hides_norms and self._depth > 2:
                raise no_derivative_error(
                    self.call.name,
                    "torch's third derivatives of norms are wrong, and TorchScript hides the norms",
                    "the same module without torch.jit",
                )
            return made
        if _WRITES in str(error) and not copies:
            purity.overwrites = True
            return self._run_derived(xs, again=again)
        if not _LACKS_DERIVATIVE.search(str(error)):
            raise error
        raise no_derivative_error(
            self.call.name,
            f"torch has no such derivative: {error}",
            "operations of torch that have one, such as attention by SDPBackend.MATH",
        ) from error

    def _writes_error(self) -> XBridgeError:
        """Return the error for a first write to what is read again, and have it copied from now on."""
        self._purity.overwrites = True
        return GradientError.build(
            f"run {self.name}",
            "it writes to its arguments, as it did not before, and would read them again",
            "the same call again, which will copy them",
        )

    def _refuse_changed(self, versions: set[int]) -> None:
        """Raise if what the function reads has changed since values of these versions were computed."""
        if versions and self.reads and versions != {self.version()}:
            raise changed_error(self.call.name)

    @property
    def records(self) -> bool:
        return self._is_value

    def record(self, ins: tuple[bool, ...], xs: Tensors) -> Recorded:
        with with_gradients():
            graph = self._run_recorded(ins, xs, again=False)
        return Recorded([y.detach() for y in graph.ys], partial(self._keep, graph, self.version()))

    def _run_recorded(self, ins: tuple[bool, ...], xs: Tensors, *, again: bool) -> _Graph:
        def fn(*given: torch.Tensor) -> Any:
            try:
                return self.fn(*given)
            except (XBridgeError, *FOREIGN_ERRORS) as error:  # such as of `x.numpy()`, which leaves the graph
                raise NoRecordError from error

        own = [x.clone() if x.is_inference() else x for x in xs]
        leaves = [x.detach().requires_grad_(chosen) for x, chosen in zip(own, ins, strict=True)]
        ys = self._purity.run(fn, leaves, again=again, whole=self._is_whole)
        return _Graph(ins, leaves, ys)

    def _keep(self, graph: _Graph, version: int, once: bool) -> tuple[Mark, Callable[[], None]]:  # noqa: FBT001 -- a callback
        number = self._graphs.keep(graph, once=once)
        return Mark(version, *number), partial(self._graphs.drop, number)

    def _pull_back_recorded(self, graph: _Graph | None, a: Tensors, versions: set[int]) -> Tensors | None:
        """Return gradients along the graph of a recorded run, or None if the function has to run again.

        It has to if there is no gradient, to find the reason, and if the backward pass draws or writes.
        Without a graph, a run is recorded now.
        """
        assert self._pulls is not None  # noqa: S101 -- a type checker cannot know
        ins, outs, value = self._pulls
        if graph is None:
            self._refuse_changed(versions)
            try:
                graph = value._run_recorded(ins, a[sum(outs) + 1 :], again=bool(versions))
            except NoRecordError:
                return None
        cotangents, ys = a[: sum(outs)], select(outs, graph.ys)
        xs, live = tuple(select(ins, graph.xs)), [y.requires_grad for y in ys]
        if ins != graph.ins or not any(live) or _is_cut(ys, cotangents):
            return None
        ends, seeds = tuple(select(live, ys)), tuple(select(live, cotangents))

        def run() -> Sequence[torch.Tensor | None]:
            return run_backward(ends, seeds, True, False, xs, True, accumulate_grad=False)  # noqa: FBT003 -- torch's order

        try:
            # The graph has the weights of the value. They may have changed, unless functions read them anew.
            plain = self._purity.plain_backward and not _runs_python(ends)
            made = Calls(a, {}).follow_backward(run) if plain else None
            if made is None:
                self._purity.plain_backward = False
                self._refuse_changed(versions)
                with shared_flags, Watch(self.call.name, a, real=True) as watch:
                    made = run()
                if watch.draws or watch.writes or not self._purity.knows(watch, *graph.xs, *graph.ys):
                    return None
        except RuntimeError:  # a tensor of the graph was written to, for example
            return None
        return _fill(xs, made)

    @property
    def reads(self) -> bool:
        return self._purity.reads

    def version(self) -> int:
        return self._purity.version()

    def _link_derived(self, made: DerivableFunction, seeds: int | None) -> TorchRule:
        """Give a derived function the records of this one, and the positions of versions among its inputs."""
        assert isinstance(made, TorchRule)  # noqa: S101 -- a type checker cannot know
        made._purity = self._purity
        if seeds is not None:  # the graph of a batch is another
            made._graphs = self._graphs
        made._is_whole = False
        made._is_value = self._is_value and seeds is None
        made._depth = self._depth + (seeds is not None)
        if made._depth == 3 > self._depth:
            made.fn = _with_exact_norms(made.fn)
        made._versions = (
            self._versions if seeds is None else (seeds, *[seeds + 1 + i for i in self._versions])
        )
        return made

    def check(self, found: tuple[Spec, ...], declared: tuple[Spec, ...]) -> None:
        """Raise if a result is not as declared, in other words if the default dtype has changed since."""
        before, now = self.call.modes[0], torch.get_default_dtype()
        if found != declared and before != now:
            raise OptionError.build(
                f"use the result of {self.name}",
                f"it was compiled with the default dtype {before}, and {now} is the default now",
                f"torch.set_default_dtype({before}), or jax.clear_caches()",
            )
        super().check(found, declared)

    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: TreeDef) -> DerivableFunction:
        made = self._link_derived(super().vjp(ins, outs, form), sum(outs))
        made._gradients = (False,) * (sum(outs) + 1) + ins
        made._pulls = (ins, outs, self) if self.records else None
        return made

    def jvp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: TreeDef) -> DerivableFunction:
        made = self._link_derived(super().jvp(ins, outs, form), sum(ins))
        made._tangents = Tangents(self, ins, outs)
        return made

    def batched(self, axes: tuple[int | None, ...]) -> DerivableFunction:
        if self._tangents and None not in axes:  # a batch of tangents is the tangents of a batch
            rule, ins, outs = self._tangents
            return rule.derive("batched", axes[-len(ins) :]).derive("jvp", ins, outs, ARRAY)
        made = self._link_derived(super().batched(axes), None)
        made._batched = self, axes
        return made

    def vjp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        if self._tangents:
            return self._tangents.vjp_of(ins, outs)
        fn, count = self.fn, sum(outs)

        def pull(
            cotangents: Tensors, xs: Tensors, *, again: bool, watch: AbstractContextManager[object]
        ) -> Tensors:
            if _level() is not None:
                restriction = restrict(fn, ins, outs, xs)

                def part(*chosen: torch.Tensor) -> Tensors:
                    ys = restriction(*chosen)
                    if _is_cut(ys, cotangents):
                        level = _level() or 0  # a tensor of an outer level is a constant here
                        error = self._find_cut(
                            lambda: restriction(*chosen),
                            select(ins, xs),
                            lambda x: x.requires_grad and _functorch.maybe_get_level(x) >= level,
                        )
                        if error:
                            raise error
                    return ys

                back = torch.func.vjp(part, *select(ins, xs))[1]
                with watch:
                    return back(tuple(cotangents))  # type: ignore[no-any-return]
            # `torch.autograd.grad` also supports functions that differentiate inside of them, and autograd
            # functions without `setup_context`, which `torch.func.vjp` refuses.
            xs = tuple(
                x if not chosen or (again and x.requires_grad) else x.detach().requires_grad_()
                for x, chosen in zip(xs, ins, strict=True)
            )
            with torch.enable_grad():
                ys = select(outs, fn(*xs))
                if _is_cut(ys, cotangents):
                    error = self._find_cut(lambda: select(outs, fn(*xs)), select(ins, xs), _requires_grad)
                    if error:
                        raise error
                with watch:
                    return _pull_back(ys, select(ins, xs), cotangents, again=again)

        def vjp(*a: torch.Tensor) -> Tensors:
            cotangents, xs = a[:count], a[count + 1 :]
            if not any(map(is_tracked, a)):
                return pull(cotangents, xs, again=False, watch=NOTHING)
            with_graph = any(map(_requires_grad, a))
            made = pull(
                cotangents, xs, again=with_graph, watch=(departures := Departures(is_tracked, backward=True))
            )
            # If the backward pass, and not the function, has left torch, the gradients have no graph, or only
            # that of the cotangents.
            if departures.leave and not any(map(is_tracked, made)):
                raise departures.error(self.call.name)
            if departures.leave and any(map(is_tracked, cotangents)):
                vjp(*[c.detach() for c in cotangents], *a[count:])
            return made

        return vjp

    def jvp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        if self._tangents:
            return self._tangents.jvp_of(ins, outs)
        fn, count = self.fn, sum(ins)

        def jvp(*a: torch.Tensor) -> Tensors:
            tangents, xs = a[:count], a[count + 1 :]
            restriction = restrict(fn, ins, outs, xs)

            def part(*chosen: torch.Tensor) -> Tensors:
                with NoTangents(self.call.name):
                    ys = restriction(*chosen)
                if not all(map(has_tangent, ys)) and self._find_cut(
                    lambda: restriction(*chosen), select(ins, xs), has_tangent
                ):
                    raise NotImplementedError
                return ys

            try:
                if not self._purity.hides:
                    with _forward_mode:
                        return torch.func.jvp(part, tuple(select(ins, xs)), tuple(tangents))[1]  # type: ignore[no-any-return]
            except NotImplementedError:  # there is no forward mode for some operations
                pass
            return Tangents(self, ins, outs).by_gradients()(*a)  # type: ignore[no-any-return]

        return jvp

    def _find_cut(
        self, run: Callable[[], Tensors], xs: Tensors, follows: Callable[[torch.Tensor], bool]
    ) -> XBridgeError | None:
        """Return an error if a result without a graph has left it in the function, and is no constant."""
        if not self._is_value:
            return None
        with shared_flags, Origins(xs) as origins, Departures(follows) as departures:
            ys = run()
        cut = any(origins.reach(y) and not follows(y) for y in ys)
        return departures.error(self.call.name) if cut or origins.leave or departures.leave else None

    def batch_of(self, axes: tuple[int | None, ...]) -> Callable[..., Any]:
        whole = torch.func.vmap(self.fn, in_dims=axes, randomness="same")

        def batch(*xs: torch.Tensor) -> Tensors:
            if self._purity.hides:  # nested transforms of torch cut the derivatives of TorchScript
                return self._run_each(_batch_size(axes, xs), axes, xs)
            try:
                return whole(*xs)  # type: ignore[no-any-return] # tensors
            except XBridgeError:
                raise
            except RuntimeError:  # such as of control flow on values, a write to a new tensor, or an LSTM
                size = _batch_size(axes, xs)
                if not size:
                    raise
            return self._run_each(size, axes, xs)

        return batch

    def _run_each(self, size: int, axes: tuple[int | None, ...], xs: Tensors) -> Tensors:
        """Run the function on each example of a batch, because torch does not batch what it does.

        Each run gets copies, because the function may write to an argument that all examples share.
        """

        def run(i: int) -> Tensors:
            own = [(x if axis is None else x[i]).clone() for x, axis in zip(xs, axes, strict=True)]
            return self.fn(*own)  # type: ignore[no-any-return] # tensors

        made = [run(0)]
        form = latest.form
        for i in range(1, size):
            ys = run(i)
            if self._is_value and latest.form != form:
                ys = reorder_leaves(form, latest.form, iter(ys), self._other_tree_error)
                latest.form = form
            self.check(_specs(ys), _specs(made[0]))
            made.append(ys)
        return [torch.stack(ys) for ys in zip(*made, strict=True)]

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        if self._gradients is not None:
            return tuple(select(self._gradients, specs)), ARRAY
        if self._tangents:
            rule, ins, outs = self._tangents
            found, form = rule.describe(specs[-len(ins) :])
            return tuple(select(outs, found)), form
        if self._batched:
            rule, axes = self._batched
            one = [
                spec if axis is None else spec._replace(shape=spec.shape[1:])
                for spec, axis in zip(specs, axes, strict=True)
            ]
            found, form = rule.describe(tuple(one))
            size = _batch_size(axes, specs)
            return tuple(spec._replace(shape=(size, *spec.shape)) for spec in found), form
        if self.call.result is not None and not self.order:
            declared, latest.form = describe_declared(self.call, specs)
            return tuple(self.keep_order(declared)), latest.form
        empty = partial(torch.empty, device=self.call.device)
        try:
            with shared_flags, FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(mode=False):
                xs = [empty(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs]
                with Watch(self.call.name, xs, real=False) as watch:
                    ys = self.fn(*xs)
        except _BY_VALUE as error:
            raise OptionError.build(
                f"trace {self.name}",
                "its control flow or the shape of its result depends on the values of its arrays",
                "torch.where, jax.lax.cond outside of it, or result=f with the shapes of the result",
            ) from error
        except XBridgeError:
            raise
        except FOREIGN_ERRORS as error:
            error.add_note(
                f"{self.name} ran on tensors without values; result=f gives the shapes of its result instead."
            )
            raise
        if watch.draws:
            raise random_error(self.call.name)
        self._purity.learn(watch)
        return _specs(ys), latest.form
