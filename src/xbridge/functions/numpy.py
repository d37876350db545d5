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
from xbridge.errors import DTypeError, OptionError, type_of
from xbridge.extend import HOST, get_backend, native_dtype
from xbridge.functions.differences import METHODS, Differences, refuse_complex_step
from xbridge.functions.rules import (
    DerivableFunction,
    Spec,
    latest,
    no_derivative_error,
    refuse_user_derivative,
    select,
)
from xbridge.functions.treedef import ARRAY, argument_treedefs, children_of, leaves_like, mask_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.errors import GradientError
    from xbridge.functions.rules import Call, UserDerivative
    from xbridge.functions.signature import Signature
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array, HostArray

_BASELINE_REFCOUNT = 2
"""References to an item of a list, or to the base of an array, while they are counted."""

_SHAPES = "result=numpy.empty_like, or result=f, where f(*args) returns empty arrays like the result"
_TIMES = ("", " twice", " three times")


def rule(call: Call) -> DerivableFunction:
    """Make the rule of a function."""
    numeric = next((given for given in (call.vjp, call.jvp) if given and given.fn in METHODS), None)
    return NumpyRule(
        call, call.name, call.fn, call.treedef, call.vjp or numeric, call.jvp or numeric, call.signature
    )


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
                f"a function of {self.call.library} does not declare its result",
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
    if given.fn in METHODS:
        return f"{how} by {given.fn}, once"
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
    """A function of trees of arrays, and the functions that are its derivatives."""

    wants_outputs = True

    def __init__(
        self,
        call: Call,
        name: str,
        fn: Any,
        treedef: TreeDef,
        vjp: UserDerivative | None,
        jvp: UserDerivative | None,
        signature: Signature | None = None,
    ) -> None:
        super().__init__(call, name)
        self.fn, self.treedef = fn, treedef
        self.functions = {"vjp": vjp, "jvp": jvp}
        self.signature = signature
        self.cores = None if signature is None else tuple(map(len, signature.inputs))
        self.out_cores = None if signature is None else tuple(map(len, signature.outputs))

    def __call__(self, *xs: HostArray) -> list[HostArray]:
        signature = self.signature
        found = None if signature is None else signature.loops(self.name, [x.shape for x in xs])
        args, kwargs = self.call.unflatten(self.treedef, xs)
        made = self.call.read_result(self.fn(*args, **kwargs), xs)
        ys = [_as_array(y, self.name) for y in made]
        if signature is not None and found is not None:
            signature.check(self.name, *found, [y.shape for y in ys])
        return ys

    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], treedef: TreeDef) -> DerivableFunction:
        given = self.functions["vjp"]
        if given is None:
            raise self._no_derivative_error("vjp", "f(g, y, *args) returns the gradient of each argument")
        return _Vjp(self, given, ins, outs, treedef)

    def jvp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], treedef: TreeDef) -> DerivableFunction:
        given = self.functions["jvp"]
        if given is None:
            raise self._no_derivative_error("jvp", "f(tangents, y, *args) returns the tangent of the result")
        return _Jvp(self, given, ins, outs, treedef)

    def _no_derivative_error(self, kind: str, hint: str) -> GradientError:
        name = self.call.name
        if self.order:
            inner = f"{kind}=..." if kind == "vjp" else "vjp=..., jvp=..."
            return no_derivative_error(
                f"{name}{_TIMES[min(self.order, 2)]}",
                f"{self.name} is a NumPy function without a {kind} of its own",
                f"vjp=aligned(backend='numpy', {inner})(f), or a function of a library that differentiates",
            )
        how = " in forward mode" if kind == "jvp" else ""
        return no_derivative_error(
            f"{name}{how}", f"it is a NumPy function without a {kind}", f"{kind}=f, where {hint}"
        )

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        if self.call.result is not None:
            return describe_declared(self.call, specs)
        if self.signature is not None:
            loop, sizes = self.signature.loops(self.name, [spec.shape for spec in specs])
            if all(axis in sizes for core in self.signature.outputs for axis in core):
                dtype = np.result_type(*[native_dtype(spec.dtype) for spec in specs]).name
                outs = tuple(
                    Spec((*loop, *[sizes[axis] for axis in core]), dtype) for core in self.signature.outputs
                )
                return outs, ARRAY if len(outs) == 1 else ("tuple", None, *[ARRAY] * len(outs))
        raise OptionError.build(
            f"trace {self.name}", "a NumPy function does not declare the shape of its result", _SHAPES
        )


def describe_declared(call: Call, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
    """Return what `result` declares, for arrays with a shape, a dtype and no memory of their own."""
    assert call.result is not None  # noqa: S101 -- the caller checks it
    stand_ins = [np.broadcast_to(np.zeros((), native_dtype(spec.dtype)), spec.shape) for spec in specs]
    args, kwargs = call.bind(stand_ins)
    treedef, ys = call.flatten(call.result(*args, **kwargs), stand_ins)
    return tuple(Spec(tuple(y.shape), y.dtype.name) for y in map(np.asarray, ys)), treedef


class _Derivative(NumpyRule):
    """A function of (seed, result, *args), in which the seed and the result have a treedef too."""

    kind = ""
    narrows = False

    def __init__(
        self,
        base: NumpyRule,
        given: UserDerivative,
        ins: tuple[bool, ...],
        outs: tuple[bool, ...],
        treedef: TreeDef,
    ) -> None:
        self.base, self.ins, self.outs, self.y_treedef = base, ins, outs, treedef
        self.order = base.order + 1
        args, keywords = children_of(base.treedef)
        self.arguments = ("tuple", None, *argument_treedefs(base.treedef))
        is_vjp = self.kind == "vjp"
        seed = mask_leaves(treedef, iter(outs)) if is_vjp else mask_leaves(self.arguments, iter(ins))
        super().__init__(
            base.call,
            f"the {self.kind} of {base.name}",
            given.fn,
            ("tuple", None, ("tuple", None, seed, treedef, *children_of(args)), keywords),
            given.vjp,
            given.jvp,
        )
        if base.cores is not None and base.out_cores is not None:
            from_, to = (select(outs, base.out_cores), select(ins, base.cores))
            seeds, self.out_cores = (from_, tuple(to)) if is_vjp else (to, tuple(from_))
            self.cores = (*seeds, *base.out_cores, *base.cores)

    def split(self, xs: Sequence[HostArray]) -> tuple[Sequence[HostArray], Sequence[HostArray]]:
        """Return the seeds and the inputs."""
        count = len(self.ins)
        return xs[: len(xs) - count - len(self.outs)], xs[len(xs) - count :]

    def result(self, xs: Sequence[HostArray]) -> Any:
        args, kwargs = self.call.unflatten(self.treedef, xs)
        return self.fn(*args, **kwargs)


class _Vjp(_Derivative):
    kind = "vjp"

    def __call__(self, *xs: HostArray) -> list[HostArray]:
        seeds, inputs = self.split(xs)
        if self.fn in METHODS:
            latest.treedef = ("tuple", None, *[ARRAY] * sum(self.ins))
            refuse_complex_step(self.base.name, self.kind, self.fn, select(self.ins, inputs), seeds)
            return Differences(self.base, self.fn, self.ins, self.outs, inputs).gradients(seeds)
        found = self.result(xs)
        count = len(children_of(self.arguments))
        if count == 1:
            if not (isinstance(found, tuple) and len(found) == 1):
                found = (found,)
            elif any(self.functions.values()):  # they get the gradient itself, which may look like a tuple
                raise self._wrong_result_error("it has a derivative, and returned a tuple of one gradient")
        if found is None:
            found = (None,) * count
        if not isinstance(found, (tuple, list)) or len(found) != count:
            raise self._wrong_result_error(f"it returned {_name_type(found)} for {count} arguments")
        gradients = leaves_like(
            self.arguments,
            found,
            lambda: self._wrong_result_error("a gradient has another form than its argument"),
        )
        latest.treedef = self._gradient_treedef()
        return [
            self._fit_gradient(gradient, i, inputs)
            for i, (gradient, chosen) in enumerate(zip(gradients, self.ins, strict=True))
            if chosen
        ]

    def _gradient_treedef(self) -> TreeDef:
        treedef = mask_leaves(self.arguments, iter(self.ins))
        return treedef if len(treedef) > 3 else treedef[2]

    def _fit_gradient(self, gradient: Any, index: int, inputs: Sequence[HostArray]) -> HostArray:
        """Return a gradient in the shape and dtype of its argument. Axes that were broadcast are summed."""
        x = inputs[index]
        if gradient is None:
            raise no_derivative_error(
                f"{self.call.name} by its array {index}",
                "its vjp returned None for it",
                "x.detach() or stop_gradient(x) for that array, or a vjp that returns its gradient",
            )
        g = self.sum_broadcast_axes(_as_array(gradient, self.name), index, inputs)
        if g.shape != x.shape:
            raise self._wrong_result_error(
                f"a gradient has shape {np.shape(gradient)}, and array {index} has {x.shape}"
            )
        if g.dtype.kind == "c" and x.dtype.kind != "c":
            raise DTypeError.build(
                f"take the gradients of {self.call.name}",
                f"the gradient of array {index} is complex, and the array is real",
                "returning its real part",
            )
        return g.astype(x.dtype, copy=False)

    def sum_broadcast_axes(self, g: HostArray, index: int, inputs: Sequence[HostArray]) -> HostArray:
        """Sum a gradient, or a tangent of one, over the axes to which its argument was broadcast."""
        x = inputs[index]
        if g.shape != x.shape and g.shape == self._broadcast_shape(x, index, inputs):
            g = g.sum(tuple(range(g.ndim - x.ndim)))
            ones = [i for i, (n, m) in enumerate(zip(g.shape, x.shape, strict=True)) if m == 1 != n]
            g = g.sum(tuple(ones), keepdims=True)
        return g

    def _broadcast_shape(
        self, x: HostArray, index: int, inputs: Sequence[HostArray]
    ) -> tuple[int, ...] | None:
        """Return the shape that an argument of a function with a signature is broadcast to."""
        cores = self.base.cores
        if cores is None:
            return None
        outer = [y.shape[: y.ndim - core] for y, core in zip(inputs, cores, strict=True)]
        return (*np.broadcast_shapes(*outer), *x.shape[x.ndim - cores[index] :])

    def _wrong_result_error(self, reason: str) -> OptionError:
        return OptionError.build(
            f"take the gradients of {self.call.name}",
            reason,
            "returning one gradient of the same form for each argument, and None if it has none",
        )

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        return tuple(select(self.ins, specs[len(specs) - len(self.ins) :])), self._gradient_treedef()


class _Jvp(_Derivative):
    kind = "jvp"

    def __call__(self, *xs: HostArray) -> list[HostArray]:
        seeds, inputs = self.split(xs)
        ys = xs[len(seeds) : len(xs) - len(inputs)]
        latest.treedef = mask_leaves(self.y_treedef, iter(self.outs))
        if self.fn in METHODS:
            refuse_complex_step(
                self.base.name, self.kind, self.fn, select(self.ins, inputs), select(self.outs, ys)
            )
            return Differences(self.base, self.fn, self.ins, self.outs, inputs).tangents(seeds)
        found = leaves_like(self.y_treedef, self.result(xs), self._wrong_result_error)
        tangents = select(self.outs, found)
        if any(tangent is None for tangent in tangents):
            raise no_derivative_error(
                f"{self.call.name} in forward mode",
                "its jvp returned None",
                "a jvp that returns all tangents",
            )
        made = []
        for i, tangent, y in zip(
            select(self.outs, range(len(ys))), tangents, select(self.outs, ys), strict=True
        ):
            t = _as_array(tangent, self.name)
            if isinstance(self.base, _Vjp):
                gradients = self.base.ins
                index = select(gradients, range(len(gradients)))[i]
                t = self.base.sum_broadcast_axes(t, index, inputs[-len(gradients) :])
            if t.shape != y.shape or (t.dtype.kind == "c" and y.dtype.kind != "c"):
                raise self._wrong_result_error()
            made.append(t.astype(y.dtype, copy=False))
        return made

    def _wrong_result_error(self) -> OptionError:
        return OptionError.build(
            f"take the tangent of {self.call.name}",
            "its jvp returned another form, shape or kind of numbers than the function",
            "returning one tangent for each array of the result",
        )

    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        ys = specs[len(specs) - len(self.ins) - len(self.outs) : len(specs) - len(self.ins)]
        return tuple(select(self.outs, ys)), mask_leaves(self.y_treedef, iter(self.outs))


def _name_type(found: object) -> str:
    return f"{len(found)} gradients" if isinstance(found, (tuple, list)) else type_of(found)
