"""NumPy's functions: they run as they are, and have the derivatives and the shapes that the caller gives.

The vjp of a function is another function of NumPy, of the cotangent, the result and the arguments. So the
derivative of a rule is a rule of the same class, and a vjp with a vjp has a second derivative.
"""

# ruff: noqa: ARG002 -- as in `functions.py`

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge import asarray
from xbridge.errors import DTypeError, GradientError, OptionError, type_of
from xbridge.extend import HOST, get_backend, native_dtype
from xbridge.functions.rules import (
    DerivableFunction,
    Spec,
    UserDerivative,
    latest,
    no_derivative_error,
    refuse_user_derivative,
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
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.functions.rules import Call
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array, HostArray

_BASELINE_REFCOUNT = 2
"""References to an item of a list, or to the base of an array, while they are counted."""

_SHAPES = "result=numpy.empty_like, or result=f, where f(*args) returns empty arrays like the result"
FORMS = {
    "vjp": "vjp=f, where f(g, y, *args) returns the gradient of each argument, or None if it has none",
    "jvp": "jvp=f, where f(tangents, y, *args) returns the tangent of the result",
}
"""What a derivative is, for hints."""


def rule(call: Call) -> DerivableFunction:
    """Make the rule of a function."""
    return _Value(call)


def copy_if_kept(ys: Sequence[HostArray]) -> list[HostArray]:
    """Return arrays that nothing but this list refers to: a function may fill the same buffer in each call.

    A view refers to the array that owns its memory.
    """
    held = [
        sys.getrefcount(ys[i]) > _BASELINE_REFCOUNT
        or (isinstance(ys[i].base, type(ys[i])) and sys.getrefcount(ys[i].base) > _BASELINE_REFCOUNT)
        for i in range(len(ys))
    ]
    return [y.copy() if kept and y.flags.writeable else y for y, kept in zip(ys, held, strict=True)]


def _as_array(y: Any, name: str) -> HostArray:
    """Return an array of a result; raise if it would lose more than its class, such as a mask."""
    if type(y) is not np.ndarray and isinstance(y, np.ndarray):
        lacks = get_backend(HOST).unsupported(y, leaving=True)
        if lacks is not None:
            raise lacks.error.build(f"use the result of {name}", lacks.reason, lacks.hint)
    return np.asarray(y)


class OpaqueRule(DerivableFunction):
    """A function of a library whose backend has no rules. It runs, and has no derivatives."""

    repeats = True
    cores: tuple[int, ...] | None = None
    """The number of trailing axes of each input that belong to one example, while the others broadcast. None
    if the function does not broadcast."""

    def __call__(self, *xs: Array) -> list[Array]:
        args, kwargs = self.call.bind(xs)
        return self.call.read_result(self.call.fn(*args, **kwargs), xs)

    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], treedef: TreeDef) -> DerivableFunction:
        reason = f"it is a function of {self.call.library}, for which xbridge has no derivatives"
        raise no_derivative_error(self.name, reason, "x.detach(), or the same function of NumPy with vjp=f")

    jvp = vjp

    def batched(self, axes: tuple[int | None, ...]) -> DerivableFunction:
        return _Batch(self, 1)

    def report(self) -> dict[str, str]:
        signature, result = self.call.signature, self.call.result
        declared = f"signature {signature.text}" if signature else "not declared"
        return {
            "derivative": "; ".join(_describe_order(how, getattr(self.call, how)) for how in ("vjp", "jvp")),
            "batch": "one call for each example" if self.cores is None else "one call for all examples",
            "shapes": declared if result is None else "result=",
        }

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        if self.call.result is None:
            raise OptionError.build(
                f"trace {self.name}",
                f"a function of {self.call.library} does not declare the shape of its result",
                _SHAPES,
            )
        return describe_declared(self.call, specs)


def make_opaque_rule(call: Call) -> DerivableFunction:
    """Make the rule of a function of another library."""
    refuse_user_derivative(call)
    return OpaqueRule(call, call.name)


def _describe_order(how: str, given: UserDerivative | None) -> str:
    """Return how often a derivative can be taken, in words."""
    if given is None:
        return f"no {how}"
    count = 0
    while given is not None:
        count, given = count + 1, getattr(given, how)
    return f"{how} given, {('once', 'twice', 'three times')[min(count, 3) - 1]}"


class _Batch(OpaqueRule):
    """A batch of a rule, in one call if it broadcasts, else example by example.

    Batches of batches have several axes in front, of which `depth` are those of one call.
    """

    def __init__(self, of: OpaqueRule, depth: int) -> None:
        super().__init__(of.call, f"a batch of {of.name}")
        self.of, self.depth = of, depth
        self.order, self.narrows, self.wants_outputs = of.order + 1, of.narrows, of.wants_outputs

    def __call__(self, *xs: Array) -> list[Array]:
        return self._run_each(xs) if self.of.cores is None else self._run_whole(xs, self.of.cores)

    def _run_each(self, xs: Sequence[Array]) -> list[Array]:
        keep = copy_if_kept if self.call.library == HOST else list
        rows = [keep(self.of(*[x[0, ...] for x in xs]))]
        treedef, specs = latest.treedef, tuple(map(self._spec, rows[0]))
        for i in range(1, xs[0].shape[0]):
            rows.append(keep(self.of(*[x[i, ...] for x in xs])))
            self.of.check_treedef(treedef)
            self.of.check(tuple(map(self._spec, rows[i])), specs)
        return [asarray(list(ys), backend=self.call.library) for ys in zip(*rows, strict=True)]

    def _spec(self, y: Array) -> Spec:
        return Spec(tuple(y.shape), get_backend(self.call.library).dtype_of(y))

    def _run_whole(self, xs: Sequence[HostArray], cores: tuple[int, ...]) -> list[HostArray]:
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
        treedef = latest.treedef  # a derivative may have more axes than the argument that it belongs to
        found, _ = self.describe(tuple(map(self._spec, xs)))
        latest.treedef = treedef
        return [y.reshape(spec.shape) for y, spec in zip(ys, found, strict=True)]

    def batched(self, axes: tuple[int | None, ...]) -> DerivableFunction:
        return _Batch(self, 1) if self.of.cores is None else _Batch(self.of, self.depth + 1)

    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], treedef: TreeDef) -> DerivableFunction:
        return self._batch_of(self.of.derive("vjp", ins, outs, treedef))

    def jvp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], treedef: TreeDef) -> DerivableFunction:
        return self._batch_of(self.of.derive("jvp", ins, outs, treedef))

    def _batch_of(self, derived: DerivableFunction) -> DerivableFunction:
        assert isinstance(derived, OpaqueRule)  # noqa: S101 -- derivatives are of the same kind
        return _Batch(derived, self.depth)

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        n, sizes = self.depth, specs[0].shape[: self.depth]
        found, treedef = self.of.describe(tuple(spec._replace(shape=spec.shape[n:]) for spec in specs))
        return tuple(spec._replace(shape=(*sizes, *spec.shape)) for spec in found), treedef


class NumpyRule(OpaqueRule):
    """A function of trees of arrays: that of the user, or a derivative that the user gave."""

    wants_outputs = True
    out_cores: tuple[int, ...] | None = None
    """The number of core axes of each output."""

    def __init__(self, call: Call, name: str, given: UserDerivative, treedef: TreeDef) -> None:
        super().__init__(call, name)
        self.given, self.treedef = given, treedef

    def result(self, xs: Sequence[HostArray]) -> Any:
        """Return what the function of the user returns."""
        args, kwargs = self.call.unflatten(self.treedef, xs)
        return self.given.fn(*args, **kwargs)

    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], treedef: TreeDef) -> DerivableFunction:
        return _Derivative(self, "vjp", ins, outs, treedef)

    def jvp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], treedef: TreeDef) -> DerivableFunction:
        return _Derivative(self, "jvp", ins, outs, treedef)


class _Value(NumpyRule):
    """The function itself."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, call.name, UserDerivative(call.fn, call.vjp, call.jvp), call.treedef)
        if call.signature is not None:
            self.cores = tuple(map(len, call.signature.inputs))
            self.out_cores = tuple(map(len, call.signature.outputs))

    def __call__(self, *xs: HostArray) -> list[HostArray]:
        signature = self.call.signature
        found = None if signature is None else signature.loops(self.name, [x.shape for x in xs])
        ys = [_as_array(y, self.name) for y in self.call.read_result(self.result(xs), xs)]
        if signature is not None and found is not None:
            signature.check(self.name, *found, [y.shape for y in ys])
        return ys

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        signature = self.call.signature
        if self.call.result is not None or signature is None:
            return super().describe(specs)
        loop, sizes = signature.loops(self.name, [spec.shape for spec in specs])
        if not all(axis in sizes for core in signature.outputs for axis in core):
            return super().describe(specs)  # raises
        dtype = np.result_type(*[native_dtype(spec.dtype) for spec in specs]).name
        outs = tuple(Spec((*loop, *[sizes[axis] for axis in core]), dtype) for core in signature.outputs)
        return outs, ARRAY if len(outs) == 1 else ("tuple", None, *[ARRAY] * len(outs))


def describe_declared(call: Call, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
    """Return what `result` declares, for arrays with a shape, a dtype and no memory of their own."""
    assert call.result is not None  # noqa: S101 -- the caller checks it
    stand_ins = [np.broadcast_to(np.zeros((), native_dtype(spec.dtype)), spec.shape) for spec in specs]
    args, kwargs = call.bind(stand_ins)
    treedef, ys = call.flatten(call.result(*args, **kwargs), stand_ins)
    return tuple(Spec(tuple(y.shape), y.dtype.name) for y in map(np.asarray, ys)), treedef


class _Derivative(NumpyRule):
    """A vjp or a jvp: a function of (seed, result, *args), in which the seed and the result have a treedef.

    Its outputs are like some of the arrays that it gets: a vjp's like the arguments in the mask `ins`, and a
    jvp's like the results in the mask `outs`.
    """

    def __init__(
        self, of: NumpyRule, kind: str, ins: tuple[bool, ...], outs: tuple[bool, ...], y_treedef: TreeDef
    ) -> None:
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
        super().__init__(of.call, f"the {kind} of {of.name}", given, treedef)
        self.order, self.narrows = of.order + 1, False
        if of.cores is not None and of.out_cores is not None:
            chosen = tuple(select(outs, of.out_cores)), tuple(select(ins, of.cores))
            seeds, self.out_cores = chosen if kind == "vjp" else chosen[::-1]
            self.cores = (*seeds, *of.out_cores, *of.cores)

    def outputs_like(self, xs: Sequence[Any]) -> list[Any]:
        """Return the inputs that the outputs are like."""
        return select(self.mask, xs[self.start :][: len(self.mask)])

    def __call__(self, *xs: HostArray) -> list[HostArray]:
        found = self.result(xs)
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
                raise no_derivative_error(self.call.name, f"{self.name} returned None for {path}", hint)
            t = self._sum_broadcast_axes(_as_array(y, self.name), like, i, xs)
            if t.shape != like.shape:
                raise self._wrong_result_error(f"a {noun} has shape {t.shape}, and {path} has {like.shape}")
            if t.dtype.kind == "c" and like.dtype.kind != "c":
                raise DTypeError.build(
                    f"use {self.name}", f"a {noun} is complex, and {path} is real", "returning its real part"
                )
            made.append(t.astype(like.dtype, copy=False))
        return made

    def _list_gradients(self, found: Any) -> Any:
        """Return the gradients of all arguments. That of a single one may be returned as it is."""
        count = len(children_of(self.like_treedef))
        if count == 1:
            if not (isinstance(found, tuple) and len(found) == 1):
                return (found,)
            if self.given.vjp or self.given.jvp:  # they get the gradient itself, which may look like a tuple
                raise self._wrong_result_error("it has a derivative, and returned a tuple of one gradient")
        if found is not None and not (isinstance(found, (tuple, list)) and len(found) == count):
            raise self._wrong_result_error(f"it returned {_name_type(found)} for {count} arguments")
        return found

    def _sum_broadcast_axes(
        self, y: HostArray, like: HostArray, i: int, xs: Sequence[HostArray]
    ) -> HostArray:
        """Sum output `i`, or a tangent of one, over the axes to which a signature broadcast its argument."""
        if y.shape == like.shape or self.cores is None or self.out_cores is None:
            return y
        loops = [x.shape[: x.ndim - core] for x, core in zip(xs, self.cores, strict=True)]
        if y.shape != (*np.broadcast_shapes(*loops), *like.shape[like.ndim - self.out_cores[i] :]):
            return y
        new = y.ndim - like.ndim
        ones = [new + axis for axis, n in enumerate(like.shape) if n == 1]
        return np.asarray(y.sum((*range(new), *ones), keepdims=True)).reshape(like.shape)

    def _wrong_result_error(self, reason: str) -> OptionError:
        return OptionError.build(f"use {self.name}", reason, FORMS[self.kind])

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        return tuple(self.outputs_like(specs)), self.found_treedef


def _missing_derivative_error(of: NumpyRule, kind: str) -> GradientError:
    """Return the error for a derivative that the user did not give."""
    what, hint = of.name if kind == "vjp" else f"{of.name} in forward mode", FORMS[kind]
    if isinstance(of, _Derivative):
        options = ", ".join(f"{how}=..." for how in FORMS if how == kind or getattr(of.given, how))
        hint = f"{of.kind}=aligned(backend='numpy', {options})(f)"
    return no_derivative_error(what, f"it is a NumPy function without a {kind}", hint)


def _name_type(found: object) -> str:
    return f"{len(found)} gradients" if isinstance(found, (tuple, list)) else type_of(found)
