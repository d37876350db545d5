"""NumPy's functions: they run as they are, and have the derivatives and the shapes that the caller gives.

The vjp of a function is another function of NumPy, of the cotangent, the result and the arguments. So the
derivative of a rule is a rule of the same class, and a vjp with a vjp has a second derivative.
"""

# ruff: noqa: ARG002 -- a function of NumPy needs no axes of a batch

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge import asarray
from xbridge.errors import DTypeError, GradientError, OptionError, XBridgeError
from xbridge.extend import HOST, get_backend, native_dtype
from xbridge.functions.inputs import copy_if_kept
from xbridge.functions.rules import (
    DerivableFunction,
    Spec,
    UserDerivative,
    latest,
    no_derivative_error,
    select,
)
from xbridge.functions.treedef import (
    ARRAY,
    argument_paths,
    argument_treedefs,
    children_of,
    leaf_paths,
    leaves_like,
    mask_leaves,
    unflatten,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.functions.rules import Axes, Call, Described, Mask
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array, HostArray

_SHAPES = "result=numpy.empty_like, or result=f, where f(*args) returns empty arrays like the result"
FORMS = {
    "vjp": "vjp=f, where f(g, y, *args) returns the gradient of each argument, or None if it has none",
    "jvp": "jvp=f, where f(tangents, y, *args) returns the tangent of the result",
}
"""What a derivative is, for hints."""


def rule(call: Call) -> DerivableFunction:
    """Make the rule of a function of NumPy, or of a library that has no rules."""
    return _Value(call)


def _as_array(y: Any, name: str) -> HostArray:
    """Return an array of a result; raise if it would lose more than its class, such as a mask."""
    if type(y) is not np.ndarray and isinstance(y, np.ndarray):
        lacks = get_backend(HOST).unsupported(y, leaving=True)
        if lacks is not None:
            raise lacks.error.build(f"use the result of {name}", lacks.reason, lacks.hint)
    return np.asarray(y)


class NumpyRule(DerivableFunction):
    """A rule of a library that does not differentiate: NumPy, or another one whose backend has no rules."""

    wants_outputs = True
    cores: tuple[int, ...] | None = None
    """The number of trailing axes of each input that belong to one example, while the others broadcast. None
    if the function does not broadcast."""
    out_cores: tuple[int, ...] | None = None
    """The number of core axes of each output."""

    def batch_axes(self, axes: Axes) -> Axes:
        return (0,) * len(axes)

    def batched(self, axes: Axes) -> NumpyRule:
        return _Batch(self, 1)


class _Batch(NumpyRule):
    """A batch of a rule, in one call if it broadcasts, else example by example.

    Batches of batches have several axes in front, of which `depth` are those of one call.
    """

    def __init__(self, of: NumpyRule, depth: int) -> None:
        super().__init__(of.call, f"a batch of {of.name}", of)
        self.of, self.depth = of, depth

    def __call__(self, *xs: Array) -> Sequence[Array]:
        if self.of.cores is not None:
            return self._run_whole(xs, self.of.cores)
        keep = copy_if_kept if self.call.library == HOST else list
        columns = self.of.run_each(xs[0].shape[0], lambda i: keep(self.of(*[x[i, ...] for x in xs])))
        return [asarray(list(ys), backend=self.call.library) for ys in columns]

    def _run_whole(self, xs: Sequence[HostArray], cores: tuple[int, ...]) -> Sequence[HostArray]:
        """Run with the same number of axes before the core axes of all inputs."""
        n, ranks = self.depth, [x.ndim - core for x, core in zip(xs, cores, strict=True)]
        ys = self.of(
            *[
                x.reshape(*x.shape[:n], *(1,) * (max(ranks) - rank), *x.shape[n:])
                for x, rank in zip(xs, ranks, strict=True)
            ]
        )
        if self.of.order == 0:
            return ys
        # A derivative may have more axes than the argument that it belongs to.
        found, _ = self.describe(self.specs_of(xs))
        return [y.reshape(spec.shape) for y, spec in zip(ys, found, strict=True)]

    def batched(self, axes: Axes) -> NumpyRule:
        return _Batch(self, 1) if self.of.cores is None else _Batch(self.of, self.depth + 1)

    def differentiate(self, kind: str, ins: Mask, outs: Mask, treedef: TreeDef) -> NumpyRule:
        return _Batch(self.of.derive(kind, ins, outs, treedef), self.depth)

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        n, sizes = self.depth, specs[0].shape[: self.depth]
        found, treedef = self.of.describe(tuple(spec._replace(shape=spec.shape[n:]) for spec in specs))
        return tuple(spec._replace(shape=(*sizes, *spec.shape)) for spec in found), treedef


class _Given(NumpyRule):
    """A function of trees of arrays: that of the user, or a derivative that the user gave."""

    def __init__(
        self, call: Call, name: str, given: UserDerivative, treedef: TreeDef, of: _Given | None = None
    ) -> None:
        super().__init__(call, name, of)
        self.given, self.treedef = given, treedef

    def result(self, xs: Sequence[HostArray]) -> Any:
        """Return what the function of the user returns."""
        args, kwargs = unflatten(self.treedef, iter(xs))
        return self.given.fn(*args, **kwargs)

    def differentiate(self, kind: str, ins: Mask, outs: Mask, treedef: TreeDef) -> NumpyRule:
        return _Derivative(self, kind, ins, outs, treedef)


class _Value(_Given):
    """The function itself."""

    def __init__(self, call: Call) -> None:
        super().__init__(
            call, call.name, UserDerivative(call.fn, call.given.vjp, call.given.jvp), call.treedef
        )
        if call.given.signature is not None and call.library == HOST:
            self.cores = tuple(map(len, call.given.signature.inputs))
            self.out_cores = tuple(map(len, call.given.signature.outputs))

    def __call__(self, *xs: Array) -> list[Array]:
        if self.call.library != HOST:
            return self.call.read_result(self.result(xs), xs)
        signature = self.call.given.signature
        found = None if signature is None else signature.loops(self.name, [x.shape for x in xs])
        ys = [_as_array(y, self.name) for y in self.call.read_result(self.result(xs), xs)]
        if signature is not None and found is not None:
            signature.check(self.name, *found, [y.shape for y in ys])
        return ys

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        signature = self.call.given.signature
        if self.call.given.result is not None:
            return describe_declared(self.call, specs)
        if self.cores is not None and signature is not None:
            loop, sizes = signature.loops(self.name, [spec.shape for spec in specs])
            if all(axis in sizes for core in signature.outputs for axis in core):
                dtype = np.result_type(*[native_dtype(spec.dtype) for spec in specs]).name
                outs = [Spec((*loop, *[sizes[axis] for axis in core]), dtype) for core in signature.outputs]
                return tuple(outs), ARRAY if len(outs) == 1 else ("tuple", None, *[ARRAY] * len(outs))
        raise OptionError.build(
            f"trace {self.name}",
            f"a function of {self.call.library} does not declare the shape of its result",
            _SHAPES,
        )

    def report(self) -> str:
        return "; ".join(f"{how} given" if getattr(self.call.given, how) else f"no {how}" for how in FORMS)


def describe_declared(call: Call, specs: tuple[Spec, ...]) -> Described:
    """Return what `result` declares, for arrays with a shape, a dtype and no memory of their own."""
    assert call.given.result is not None  # noqa: S101 -- the caller checks it
    stand_ins = [np.broadcast_to(np.zeros((), native_dtype(spec.dtype)), spec.shape) for spec in specs]
    args, kwargs = call.bind(stand_ins)
    treedef, ys = call.flatten(call.given.result(*args, **kwargs), stand_ins)
    return tuple(Spec(tuple(y.shape), y.dtype.name) for y in map(np.asarray, ys)), treedef


class _Derivative(_Given):
    """A vjp or a jvp: a function of (seed, result, *args), in which the seed and the result have a treedef.

    Its outputs are like some of the arrays that it gets: a vjp's like the arguments in the mask `ins`, and a
    jvp's like the results in the mask `outs`.
    """

    def __init__(self, of: _Given, kind: str, ins: Mask, outs: Mask, y_treedef: TreeDef) -> None:
        given = getattr(of.given, kind)
        if given is None:
            raise _missing_derivative_error(of, kind)
        self.kind: str = kind
        args, keywords = children_of(of.treedef)
        arguments = ("tuple", None, *argument_treedefs(of.treedef))
        gradients, results = mask_leaves(arguments, iter(ins)), mask_leaves(y_treedef, iter(outs))
        if kind == "vjp":
            seed, self.found_treedef = results, gradients if len(gradients) > 3 else gradients[2]
            self.like_treedef, self.mask, self.start = arguments, ins, -len(ins)
            self.nouns, self.paths = ("gradient", "argument"), select(ins, argument_paths(of.treedef))
        else:
            seed, self.found_treedef = gradients, results
            self.like_treedef, self.mask, self.start = y_treedef, outs, -len(ins) - len(outs)
            self.nouns, self.paths = ("tangent", "result"), select(outs, leaf_paths(y_treedef, "the result"))
        treedef = ("tuple", None, ("tuple", None, seed, y_treedef, *children_of(args)), keywords)
        super().__init__(of.call, f"the {kind} of {of.name}", given, treedef, of)
        self.narrows = False
        if of.cores is not None and of.out_cores is not None:
            chosen = tuple(select(outs, of.out_cores)), tuple(select(ins, of.cores))
            seeds, self.out_cores = chosen if kind == "vjp" else chosen[::-1]
            self.cores = (*seeds, *of.out_cores, *of.cores)

    def outputs_like(self, xs: Sequence[Any]) -> list[Any]:
        """Return the inputs that the outputs are like."""
        return select(self.mask, xs[self.start :][: len(self.mask)])

    def __call__(self, *xs: HostArray) -> list[HostArray]:
        try:
            found = self.result(xs)
        except ValueError as error:  # such as of broadcasting, or a `LinAlgError`
            if isinstance(error, XBridgeError) or not any(self._loops(xs)):
                raise
            raise self._batch_error(f"it raised {error!r}") from error
        if self.kind == "vjp":
            found = self._list_gradients(found)
        latest.treedef = self.found_treedef
        noun, counterpart = self.nouns
        leaves = leaves_like(
            self.like_treedef,
            found,
            lambda: self._wrong_result_error(f"a {noun} has another form than its {counterpart}"),
        )
        chosen = zip(select(self.mask, leaves), self.outputs_like(xs), self.paths, strict=True)
        made = []
        for i, (y, like, path) in enumerate(chosen):
            if y is None:
                hint = "x.detach() or stop_gradient(x) for that array" if self.kind == "vjp" else FORMS["jvp"]
                if self.kind == "vjp" and self.order > 1:  # its arguments include the result
                    hint = (
                        "returning numpy.zeros_like(y) for an argument y that its result does not depend on"
                    )
                raise no_derivative_error(self.call.name, f"{self.name} returned None for {path}", hint)
            t = self._sum_broadcast_axes(_as_array(y, self.name), like, i, xs)
            if t.shape != like.shape:
                reason = f"a {noun} has shape {t.shape}, and {path} has {like.shape}"
                ours = self._batch_error if any(self._loops(xs)) else self._wrong_result_error
                raise ours(reason)
            if t.dtype.kind == "c" and like.dtype.kind != "c":
                raise DTypeError.build(
                    f"use {self.name}", f"a {noun} is complex, and {path} is real", "returning its real part"
                )
            made.append(t.astype(like.dtype, copy=False))
        return made

    def _list_gradients(self, found: Any) -> Any:
        """Return the gradients of all arguments. That of a single one may be returned as it is."""
        count = len(children_of(self.like_treedef))
        if count != 1:
            if isinstance(found, (tuple, list)) and len(found) != count:
                raise self._wrong_result_error(f"it returned {len(found)} gradients for {count} arguments")
            return found
        if not (isinstance(found, tuple) and len(found) == 1):
            return (found,)
        if self.given.vjp or self.given.jvp:  # they get the gradient itself, which may look like a tuple
            raise self._wrong_result_error("it has a derivative, and returned a tuple of one gradient")
        return found

    def _sum_broadcast_axes(
        self, y: HostArray, like: HostArray, i: int, xs: Sequence[HostArray]
    ) -> HostArray:
        """Sum output `i`, or a tangent of one, over the axes to which a signature broadcast its argument."""
        if y.shape == like.shape or self.out_cores is None:
            return y
        if y.shape != (*np.broadcast_shapes(*self._loops(xs)), *like.shape[like.ndim - self.out_cores[i] :]):
            return y
        new = y.ndim - like.ndim
        ones = [new + axis for axis, n in enumerate(like.shape) if n == 1]
        return np.asarray(y.sum((*range(new), *ones), keepdims=True)).reshape(like.shape)

    def _loops(self, xs: Sequence[HostArray]) -> list[tuple[int, ...]]:
        """Return the shapes of the axes in front of one example, of which only a signature tells."""
        cores = self.cores or [x.ndim for x in xs]
        return [x.shape[: x.ndim - core] for x, core in zip(xs, cores, strict=True)]

    def _batch_error(self, reason: str) -> OptionError:
        hint = f"{self.kind}=f that takes the axes of a batch in front of each array, as in g[..., None] * x"
        return OptionError.build(f"use {self.name} for a batch", reason, hint)

    def _wrong_result_error(self, reason: str) -> OptionError:
        return OptionError.build(f"use {self.name}", reason, FORMS[self.kind])

    def describe(self, specs: tuple[Spec, ...]) -> Described:
        return tuple(self.outputs_like(specs)), self.found_treedef


def _missing_derivative_error(of: _Given, kind: str) -> GradientError:
    if of.call.library != HOST:
        reason = f"it is a function of {of.call.library}, for which xbridge has no derivatives"
        return no_derivative_error(of.name, reason, "x.detach(), or the same function of NumPy with vjp=f")
    what, hint = of.name if kind == "vjp" else f"{of.name} in forward mode", FORMS[kind]
    if isinstance(of, _Derivative):
        options = ", ".join(f"{how}=..." for how in FORMS if how == kind or getattr(of.given, how))
        hint = f"{of.kind}=aligned(backend='numpy', {options})(f)"
    return no_derivative_error(what, f"it is a NumPy function without a {kind}", hint)
