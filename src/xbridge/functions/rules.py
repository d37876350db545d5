"""Calls, and their rules: functions of arrays alone, which can be differentiated and batched.

A tracked call joins two libraries. The library of the function makes a rule of the call, and the vjp, the jvp
and the batch of a rule, which are rules too, so that every order of derivative works in the same way. The
library of the caller runs the rule within its own graphs and transforms.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from xbridge import asarray, to_backend
from xbridge.errors import DeviceError, GradientError, OptionError, XBridgeError
from xbridge.extend import (
    CPU,
    HOST,
    Options,
    backend_for,
    call_cache,
    get_backend,
    is_inexact,
    locks,
    native_dtype,
    resolve_dtype,
)
from xbridge.functions.inputs import convert_inputs, copy_if_kept, error_at
from xbridge.functions.treedef import (
    ARRAY,
    NUMBERS,
    are_arrays,
    argument_paths,
    children_of,
    flatten,
    unflatten,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from xbridge import Device
    from xbridge.functions.signature import Signature
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array

    Mask = tuple[bool, ...]
    """Which of some arrays are chosen."""
    Axes = tuple[int | None, ...]
    """Which of some arrays have the axis of a batch: 0, or None for those without one."""
    Described = tuple[tuple["Spec", ...], TreeDef]
    """The specs of the outputs of a rule, and the structure of its result."""

    K = TypeVar("K")
    V = TypeVar("V")


MAX_RULES = 128
"""The most rules that are cached for one function, and derived rules for one rule. The oldest goes first."""


_lock = locks.lock()


class Spec(NamedTuple):
    """The shape and the canonical dtype of an array that may not exist yet."""

    shape: tuple[int, ...]
    dtype: str


class UserDerivative(NamedTuple):
    """A function that the user gave, with its derivatives."""

    fn: Callable[..., Any]
    vjp: UserDerivative | None = None
    jvp: UserDerivative | None = None


class Definition(NamedTuple):
    """What the user declares about a function: its derivatives, its signature and its result."""

    vjp: UserDerivative | None = None
    jvp: UserDerivative | None = None
    signature: Signature | None = None
    result: Callable[..., Any] | None = None
    restore: str | None = None
    """The dtype that is named, if results of it go back in that of the array that decides."""
    narrowing: str | None = None
    """"nearest" or "default", if results go back in such a dtype."""


class Mark(NamedTuple):
    """The last output of a recorded call and an input of its derivatives, as an array of 32-bit integers.

    A library such as JAX passes nothing but arrays from a call to its derivative. A compiler may copy a mark,
    drop it or use it twice.
    """

    version: int
    """The version of what the function read beside its arguments, from 1 on."""
    number: int = 0
    """The number of the record that the run has left; 0 if there is none."""


NO_VALUE = Mark(0)
"""The mark of a derivative whose value nobody uses, so that nothing can contradict it."""


class _Latest(local):
    """The treedef of a result, for each thread."""

    treedef: TreeDef = ARRAY


latest = _Latest()
"""The treedef of the result of the last function that this thread ran or traced."""


def get_or_make(cache: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """Return the value of a key, or make it, without holding the lock. The oldest value is dropped for it."""
    found = cache.get(key)
    if found is None:
        made = make()
        with _lock:
            found = cache.setdefault(key, made)
            if len(cache) > MAX_RULES:
                del cache[next(iter(cache))]
    return found


@dataclass(eq=False)
class Call:
    """A function with the structure and the constants of the arguments of a call."""

    name: str
    fn: Callable[..., Any]
    options: Options
    given: Definition
    library: str
    """The library of the function."""
    array_library: str
    """The library of the caller, to which results go."""
    treedef: TreeDef
    modes: Any
    """What `modes` of the backend returned when the call was made."""
    rule: DerivableFunction | None = None
    """The rule of this call, once it is made."""

    def __post_init__(self) -> None:
        options, (args, kwargs) = self.options, children_of(self.treedef)
        self._for_inputs = Options(options.device, copy=options.copy, order=options.order)
        self._is_flat = not children_of(kwargs) and {*children_of(args)} <= {ARRAY}
        """True if all arguments are arrays and positional."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to run the function, which may have no derivatives there."""
        return {**vars(self), "given": self.given._replace(vjp=None, jvp=None, result=None), "rule": None}

    def flatten(self, tree: Any, xs: Sequence[Array]) -> tuple[TreeDef, list[Array]]:
        """Return the treedef and the arrays of a result. Numbers in it become arrays; `xs` are the inputs."""
        if are_arrays(type(tree)):
            return ARRAY, [tree]
        arrays: list[Array] = []
        treedef = flatten_result(tree, self.name, arrays, None)
        return treedef, [self._number(y, xs) if type(y) in NUMBERS else y for y in arrays]

    def _number(self, y: Any, xs: Sequence[Array]) -> Array:
        """Return a number as an array of the function's library.

        A float or a complex number has the precision of the arrays that it may come from, as a number in an
        expression has; other numbers have the default dtype of the library that they go to, or the nearest
        one of the function's library.
        """
        library, array_library = get_backend(self.library), get_backend(self.array_library)
        kind = type(y).__name__
        names = dict.fromkeys([dtype for dtype in map(library.dtype_of, xs) if is_inexact(dtype)])
        if names and kind in ("float", "complex"):
            found = library.promote and library.promote([*names], [y])
            weak = np.complex64 if kind == "complex" else native_dtype(next(iter(names)))
            dtype = found or np.result_type(*map(native_dtype, names), weak).name
        else:
            dtype = "bool" if kind == "bool" else array_library.default_dtype(kind, CPU)
        return asarray(y, backend=self.library, dtype=resolve_dtype("nearest", dtype, library, CPU))

    def result_dtype(self, dtype: str) -> str:
        """Return the dtype in which a result goes back to its caller, or raise if the caller has none."""
        array_library = get_backend(self.array_library)
        if self.given.narrowing:
            dtype = resolve_dtype(self.given.narrowing, dtype, array_library, CPU)
        lacks = array_library.unsupported_dtype(dtype, CPU)
        if lacks is None:
            return dtype
        near = resolve_dtype("nearest", dtype, array_library, CPU)
        has_near = array_library.unsupported_dtype(near, CPU) is None
        option = "aligned(..., dtype='nearest')" if has_near else ""
        hint = ", or ".join(filter(None, (option, lacks.hint)))
        raise lacks.error.build(f"give the result of {self.name} to {self.array_library}", lacks.reason, hint)

    def state(self) -> object:
        """Return the state on which the dtypes of results depend, such as JAX's x64 mode."""
        states = [get_backend(name).fast.plan_state for name in (self.library, self.array_library)]
        return tuple([state() for state in states if state])

    def bind(self, xs: Sequence[Array]) -> tuple[Sequence[Array], dict[str, Any]]:
        """Return the arguments of the function, positional and by keyword, with these arrays."""
        return (xs, {}) if self._is_flat else unflatten(self.treedef, iter(xs))

    def read_result(self, tree: Any, xs: Sequence[Array]) -> list[Array]:
        """Return the arrays in a result of the function, and store its treedef in `latest.treedef`."""
        latest.treedef, arrays = self.flatten(tree, xs)
        library, dtype = get_backend(self.library), self.given.narrowing
        try:
            return [
                y if backend_for(type(y)) is library else to_backend(y, library.name, dtype=dtype)
                for y in arrays
            ]
        except XBridgeError as error:
            raise error_at(error, f"the result of {self.name}") from error

    def convert_inputs(self, xs: Sequence[Array]) -> list[Array]:
        """Convert arguments of the function or of a derivative, as `convert_inputs` does."""
        try:
            return convert_inputs(xs, get_backend(self.library), self._for_inputs)
        except XBridgeError as error:
            paths = argument_paths(self.treedef)
            i = error.index if len(paths) == len(xs) else None  # a derivative has more inputs
            raise error_at(error, f"{'an input' if i is None else paths[i]} of {self.name}") from error

    def find_narrower_dtype(self, y: Array) -> str | None:
        """Return the dtype to which a result is cast without losing a value; None if it stays."""
        library = get_backend(self.library)
        own = library.dtype_of(y)
        dtype = self.result_dtype(own)
        if dtype == own:
            return None
        library.check_cast(y, dtype)
        return dtype


def flatten_result(result: Any, name: str, arrays: list[Array], traced: list[Any] | None) -> TreeDef:
    """Flatten the result of a function; raise if it comes later than the call."""
    later = isinstance(result, (map, filter, zip)) or inspect.isgenerator(result)
    if later or (inspect.isawaitable(result) and backend_for(type(result)) is None):  # Dask's are both
        raise async_result_error(name)
    try:
        return flatten(result, arrays, traced)
    except XBridgeError as error:
        raise error.at(f"the result of {name}") from error


def async_result_error(name: str) -> OptionError:
    """Return the error for a function whose results come later than the call."""
    return OptionError.build(
        f"align {name}", "its results come later than it returns", "align_back inside it"
    )


class DerivableFunction(ABC):
    """A function of arrays that returns a sequence of arrays.

    A derived rule is called with seeds, the outputs if `wants_outputs`, a mark if `keeps_version`, and the
    inputs, in this order. Seeds are cotangents of the outputs in the mask `outs`, or tangents of the inputs
    in the mask `ins`. A vjp is the adjoint of the jvp: ``vdot(g, jvp(t)) == vdot(vjp(g), t)``, for complex
    numbers too.
    """

    wants_outputs = False
    """True if derived rules take the outputs too."""
    program: object = None
    """The call of this rule in compiled programs, once there is one."""
    keeps_version = False
    """True if derived rules take a `Mark`, because a function may read more than arguments."""

    def __init__(self, call: Call, name: str, of: DerivableFunction | None = None) -> None:
        self.call = call
        self.name = name
        self.order: int = 0 if of is None else of.order + 1
        """How many times this rule was derived: 0 for the function itself."""
        self.narrows: bool = of is None or of.narrows
        """True if the dtypes of the results are the function's; gradients have those of its arguments."""
        self._derived: dict[Any, Any] = {}
        self._described: dict[Any, Described] = {}
        """The results of `outputs`, by the inputs and the state of the libraries."""

    @abstractmethod
    def __call__(self, *xs: Array) -> Sequence[Array]:
        """Run the function on arrays of its library."""

    def record(self, ins: Mask, *xs: Array) -> Sequence[Array]:
        """Run, and keep what the vjp for the inputs in `ins` needs, if that is possible. Return a `Mark` too.

        The first use drops it, because a compiled program does not tell when it drops a mark.
        """
        raise NotImplementedError

    def hold(self, number: int) -> Callable[[], object]:
        """Keep a record for any number of uses, until the function is called that this returns."""
        raise NotImplementedError

    def evaluate(
        self, xs: Sequence[Array], target: str, device: Device | None = None, ins: Mask | None = None
    ) -> list[Array]:
        """Run on arrays that are not tracked, and return arrays of the library `target`.

        With `ins`, the run is recorded for the gradients of these inputs. The function cannot write to `xs`
        through its arguments. No result shares memory with them, or with an array that the function of NumPy
        keeps.
        """
        call = self.call
        given = call.convert_inputs(xs)
        plain = call_cache.direct[target] if device is None or device == CPU else {}
        narrows = call.given.narrowing is not None and self.narrows
        made = []
        ys = self(*given) if ins is None else self.record(ins, *given)
        if call.library == HOST and not get_backend(target).assumes_immutable:
            ys = copy_if_kept(ys)
        for y in ys:
            dtype = call.find_narrower_dtype(y) if narrows else None
            result = plain.get(type(y), call_cache.decline)(y) if dtype is None else None
            if result is None:
                try:
                    result = to_backend(y, target, device=device, dtype=dtype)
                except XBridgeError as error:
                    raise error_at(error, f"the result of {self.name}") from error
            made.append(result)
        return made

    def derive(self, how: str, *what: Any) -> Self:
        """Return ``differentiate(how, ins, outs, treedef)`` or, for "batched", ``batched(axes)``, cached."""
        make = partial(self.differentiate, how) if how in ("vjp", "jvp") else getattr(self, how)
        return get_or_make(self._derived, (how, what), lambda: make(*what))  # type: ignore[no-any-return] # of the same library

    def state(self) -> object:
        """Return what the description of outputs depends on beside the inputs."""
        return self.call.state()

    @property
    def is_outdated(self) -> bool:
        """True if parts of the function were replaced since, so that a new trace needs another rule."""
        return False

    def outputs(self, specs: tuple[Spec, ...]) -> Described:
        """Describe the outputs, as the caller gets them, with the treedef of the result.

        They are those for inputs of these specs. Nothing is computed.
        """

        def describe() -> Described:
            found, treedef = self.describe(specs)
            if self.narrows:
                found = tuple(spec._replace(dtype=self.call.result_dtype(spec.dtype)) for spec in found)
            return found, treedef

        return get_or_make(self._described, (specs, self.state()), describe)

    def check_treedef(self, treedef: TreeDef) -> None:
        """Raise if the result of the last call has another structure than the given one."""
        if latest.treedef != treedef:
            raise OptionError.build(
                f"use the result of {self.name}",
                "its containers, keys or constants are others than declared, or than in another example",
                "the same containers, keys and constants in each call, and in result=",
            )

    @abstractmethod
    def differentiate(self, kind: str, ins: Mask, outs: Mask, treedef: TreeDef) -> DerivableFunction:
        """Derive the vjp for the inputs in `ins`, or the jvp for the outputs in `outs`."""

    @abstractmethod
    def batched(self, axes: Axes) -> DerivableFunction:
        """Derive the rule for inputs with an additional first axis, except where `axes` has None."""

    @abstractmethod
    def describe(self, specs: tuple[Spec, ...]) -> Described:
        """Describe the outputs in the dtypes of the function's library, with the treedef of the result."""

    def batch_axes(self, axes: Axes) -> Axes:
        """Return the axes that `batched` needs for a batch with these: an input may have to be repeated."""
        return axes

    def report(self) -> str:
        """Return where the derivative comes from, in a few words."""
        return f"by {self.call.library}, any order"

    def check(self, found: tuple[Spec, ...], declared: tuple[Spec, ...]) -> None:
        """Raise if a function returned arrays of other shapes or dtypes than it had declared."""
        if found != declared:
            raise OptionError.build(
                f"use the result of {self.name}",
                f"it was declared as {_format_specs(declared)}, "
                f"and the function returned {_format_specs(found)}",
                "result=f, where f(*args) returns empty arrays of the shapes and dtypes of the result",
            )

    def specs_of(self, ys: Sequence[Array]) -> tuple[Spec, ...]:
        """Return the specs of arrays of the function's library."""
        dtype_of = get_backend(self.call.library).dtype_of
        return tuple([Spec(tuple(y.shape), dtype_of(y)) for y in ys])

    def run_each(self, count: int, run: Callable[[int], Sequence[Array]]) -> list[tuple[Array, ...]]:
        """Return each output of all examples of a batch, of which `run` computes the one of an index.

        Raise if an example has another structure, shape or dtype than the first.
        """
        rows = [run(0)]
        treedef, specs = latest.treedef, self.specs_of(rows[0])
        for i in range(1, count):
            rows.append(run(i))
            self.check_treedef(treedef)
            self.check(self.specs_of(rows[i]), specs)
        return list(zip(*rows, strict=True))


def _format_specs(specs: tuple[Spec, ...]) -> str:
    return ", ".join(f"{spec.dtype} {spec.shape}" for spec in specs) or "nothing"


def select(mask: Sequence[bool], xs: Sequence[Array]) -> list[Array]:
    """Return the items that a mask chooses."""
    return [x for x, chosen in zip(xs, mask, strict=True) if chosen]


def replace_chosen(mask: Sequence[bool], news: Iterable[Array], xs: Sequence[Array]) -> list[Array]:
    """Return `xs` with the items that a mask chooses replaced by `news`, in order."""
    it: Iterator[Array] = iter(news)
    return [next(it) if chosen else x for x, chosen in zip(xs, mask, strict=True)]


def mask_inexact(specs: Iterable[Any]) -> Mask:
    """Return the mask of the specs whose dtype has derivatives."""
    return tuple(is_inexact(spec.dtype) for spec in specs)


def specs_of_example(specs: Sequence[Spec], axes: Sequence[int | None]) -> tuple[Spec, ...]:
    """Return the specs of one example of a batch, whose axis is the first, except where `axes` has None."""
    pairs = zip(specs, axes, strict=True)
    return tuple([spec if axis is None else spec._replace(shape=spec.shape[1:]) for spec, axis in pairs])


def sharded_call_error(name: str, array_library: str) -> DeviceError:
    """Return the error for an array on several devices in a call that is not compiled."""
    reason = "an array is on several devices, and is gathered only in compiled code"
    return DeviceError.build(f"call {name}", reason, f"{array_library}.jit(f)(x)")


def no_derivative_error(what: str, reason: str, hint: str) -> GradientError:
    """Return the error for a derivative that does not exist."""
    return GradientError.build(f"differentiate {what}", reason, hint)
