"""The functions that `aligned` wraps, and their calls.

A `Function` has the options of the user and a cache of rules. A `Call` is a function with the structure and
the constants of its arguments, which a backend turns into a rule: a function of arrays alone.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from inspect import signature
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from uuid import uuid4
from weakref import WeakValueDictionary

from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, UNNAMED, category, holds_every, is_inexact
from xbridge._core.literals import NUMBERS
from xbridge._core.tracing import constant_in_traces
from xbridge._engine import verbs
from xbridge._engine.source import resolve_source
from xbridge._engine.stack import promote_dtypes
from xbridge._plan.options import CallOptions, read_options
from xbridge._plan.rules import chosen, destination
from xbridge._registry.call_cache import decline, direct, lookup_direct
from xbridge._registry.registry import are_arrays, backend_for, get
from xbridge.backends import HOST
from xbridge.errors import DTypeError, OptionError, XBridgeError
from xbridge.functions.libraries import functions_of
from xbridge.functions.named import make_array, protect_host
from xbridge.functions.numpy import make_opaque_rule
from xbridge.functions.programs import Program
from xbridge.functions.results import refuse_async_result
from xbridge.functions.rules import get_or_make, latest
from xbridge.functions.treedef import (
    ARRAY,
    children_of,
    flatten,
    number_slots,
    traceable,
    unflatten,
    with_objects,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge.functions.named import ArrayParameters
    from xbridge.functions.rules import DerivableFunction, Run, UserDerivative
    from xbridge.functions.signature import Signature
    from xbridge.functions.treedef import TreeDef

_BASELINE_REFCOUNT = 2
"""References to an item of a list, or to the base of an array, while they are counted."""

functions: WeakValueDictionary[str, Function] = WeakValueDictionary()
"""The functions in use, by key, because a compiler can keep a string in a program and not the object."""


class Definition(NamedTuple):
    """What the user declares about a function: its derivatives, its signature and the shape of its result."""

    vjp: UserDerivative | None = None
    jvp: UserDerivative | None = None
    signature: Signature | None = None
    result: Callable[..., Any] | None = None


class Function:
    """A function that `aligned` wraps, with its options, its declarations, and its rules by treedef."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        target: tuple[str | ModuleType | None, Array | None],
        options: CallOptions,
        given: Definition,
        named: ArrayParameters | None = None,
    ) -> None:
        self.fn, self.name, self.options, self.given, self.named = fn, name, options, given, named
        self.backend, self.like = target
        dtype = options.dtype
        self.narrowing = dtype if isinstance(dtype, str) and dtype in UNNAMED else None
        self.is_plain = self.like is None and options.are_plain()
        self.explain: Callable[..., Any] = fn
        self.rules: dict[Any, DerivableFunction] = {}
        self.programs: list[Program] = []
        """The calls in compiled programs, which live as long as the function."""
        self.key = f"{name}#{uuid4().hex}"
        functions[self.key] = self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what the user gave, without rules and compiled code."""
        target = self.backend, self.like
        given = self.fn, self.name, target, self.options, self.given, self.named
        return Function, given, {"explain": self.explain}

    def order_keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments in the order of the parameters.

        A declared derivative returns gradients in this order, and `signature` lists arrays in it.
        """
        if len(kwargs) < 2 or self.given[:3] == (None, None, None):
            return kwargs
        with suppress(TypeError, ValueError):  # a function in C may have no signature
            names = signature(self.fn).parameters
            kwargs = {**{name: kwargs[name] for name in names if name in kwargs}, **kwargs}
        return kwargs

    def rule(
        self,
        library: str,
        array_library: str,
        treedef: TreeDef,
        numbers: tuple[Any, ...],
        device: Device | None,
    ) -> DerivableFunction:
        """Return the rule for calls of a structure, whose results go to the library `array_library`."""
        exact = tuple([(type(n), n.hex() if type(n) is float else n) for n in numbers])
        find_modes = functions_of(get(library)).modes
        modes = find_modes and find_modes()
        key = (library, array_library, device, treedef, exact, modes)
        try:
            found = self.rules.get(key)
        except TypeError as error:
            raise OptionError.build(
                f"call {self.name}",
                f"an argument that is not an array has no hash: {error}",
                "a tuple or a frozenset instead, or an array",
            ) from error
        return found or get_or_make(
            self.rules,
            key,
            lambda: Call(self, (library, array_library), treedef, numbers, device, modes).rule(),
        )


class Call:
    """A function with the structure and the constants of the arguments of a call."""

    def __init__(
        self,
        function: Function,
        libraries: tuple[str, str],
        treedef: TreeDef,
        numbers: tuple[Any, ...],
        device: Device | None,
        modes: object,
    ) -> None:
        self.name, self.fn, self.narrowing = function.name, function.fn, function.narrowing
        self.library, self.array_library = libraries
        self.declared: TreeDef = None
        self.vjp, self.jvp, self.signature, self.result = function.given
        self.treedef, self.numbers, self.modes = treedef, numbers, modes
        args, kwargs = children_of(treedef)
        self._is_flat = not children_of(kwargs) and {*children_of(args)} <= {ARRAY}
        """True if all arguments are arrays and positional."""
        self._rule: DerivableFunction | None = None
        self._device = device
        self._host_types = get(HOST).fast.types
        self._options = CallOptions(device=device, copy=function.options.copy)
        self._is_direct = self._options.are_plain()
        self._writes = self._options.copy is None and could_write(get(self.library))

    @property
    def device(self) -> Device:
        """Where the function computes with arrays of the host."""
        return destination(get(self.library), self._device, CPU)

    @property
    def gathers(self) -> bool:
        """True if a device is named, on which arrays that are on several devices are gathered."""
        return self._device is not None

    def rule(self) -> DerivableFunction:
        """Return the rule for this call. It is made once."""
        if self._rule is None:
            self._rule = (functions_of(get(self.library)).rule or make_opaque_rule)(self)
        return self._rule

    def without_rules(self, declared: TreeDef) -> Call:
        """Return a copy without a rule and derivatives, to be pickled for another process."""
        other = copy(self)
        vars(other).update(vjp=None, jvp=None, result=None, _rule=None, declared=declared)
        return other

    def flatten(self, tree: Any, xs: Sequence[Array]) -> tuple[TreeDef, list[Array]]:
        """Return the treedef and the arrays of a result. Numbers in it become arrays; `xs` are the inputs."""
        if are_arrays(type(tree)):
            return ARRAY, [tree]
        arrays: list[Array] = []
        refuse_async_result(tree, self.name)
        treedef = flatten(tree, arrays, None)
        return treedef, [self._number(y, xs) if type(y) in NUMBERS else y for y in arrays]

    def _number(self, y: Any, xs: Sequence[Array]) -> Array:
        """Return a number as an array of the function's library.

        A float or a complex number has the precision of the arrays that it may come from, as a number in an
        expression has; other numbers have the default dtype of the library that they go to, or the nearest
        one of the function's library.
        """
        library, array_library = get(self.library), get(self.array_library)
        kind = type(y).__name__
        names = dict.fromkeys([dtype for dtype in map(library.dtype_of, xs) if is_inexact(dtype)])
        if names and kind in ("float", "complex"):
            dtype = promote_dtypes([*names], [y], library)
        else:
            dtype = "bool" if kind == "bool" else array_library.default_dtype(kind, CPU)
        return make_array(y, self.library, chosen("nearest", dtype, library, CPU))

    def result_dtype(self, dtype: str) -> str:
        """Return the dtype in which a result goes back to its caller, or raise if the caller has none."""
        array_library = get(self.array_library)
        if self.narrowing:
            dtype = chosen(self.narrowing, dtype, array_library, CPU)
        lacks = array_library.unsupported_dtype(dtype, CPU)
        if lacks is None:
            return dtype
        near = chosen("nearest", dtype, array_library, CPU)
        has_near = array_library.unsupported_dtype(near, CPU) is None
        hint = f"aligned(..., dtype='nearest'), or {lacks.hint}" if has_near else lacks.hint
        raise lacks.error.build(f"give the result of {self.name} to {self.array_library}", lacks.reason, hint)

    def state(self) -> object:
        """Return the state on which the dtypes of results depend, such as JAX's x64 mode."""
        states = [get(name).fast.plan_state for name in (self.library, self.array_library)]
        return tuple([state() for state in states if state])

    def bind(self, xs: Sequence[Array]) -> tuple[Sequence[Array], dict[str, Any]]:
        """Return the arguments of the function, positional and by keyword, with these arrays."""
        if self._is_flat:
            return xs, {}
        bound: tuple[Sequence[Array], dict[str, Any]] = self.unflatten(self.treedef, xs)
        return bound

    def unflatten(self, treedef: TreeDef, leaves: Iterable[Any]) -> Any:
        """Return the tree of a treedef, with the given leaves and the numbers of this call."""
        return unflatten(treedef, iter(leaves), iter(self.numbers))

    def read_result(self, tree: Any, xs: Sequence[Array]) -> list[Array]:
        """Return the arrays in a result of the function, and store its treedef in `latest.treedef`."""
        try:
            latest.treedef, arrays = self.flatten(tree, xs)
        except XBridgeError as error:
            raise error.at(f"the result of {self.name}") from error
        return arrays

    def evaluate(
        self, rule: Run, xs: Sequence[Array], target: str, device: Device | None = None
    ) -> list[Array]:
        """Run a rule on arrays that are not tracked, and return arrays of the library `target`.

        The function cannot write to `xs` through its arguments. No result shares memory with them, or with
        an array that the function of NumPy keeps.
        """
        given = [self._convert_input(x) for x in xs]
        plain = direct[target] if device is None or device == CPU else {}
        narrows = self.narrowing is not None and rule.narrows
        made = []
        ys = rule(*given)
        if self.library == HOST and not get(target).assumes_immutable:
            ys = _copy_if_kept(ys)
        for y in ys:
            dtype = self._find_narrower_dtype(y) if narrows else None
            result = plain.get(type(y), decline)(y) if dtype is None else None
            if result is None:
                result = verbs.to_backend(y, target, CallOptions(device=device, dtype=dtype))
            made.append(result)
        return made

    def _find_narrower_dtype(self, y: Array) -> str | None:
        """Return the dtype to which a result is cast without losing a value; None if it stays."""
        library = get(self.library)
        own = library.dtype_of(y)
        dtype = self.result_dtype(own)
        if not holds_every(own, dtype):
            library.check_cast(y, dtype)
        return None if dtype == own else dtype

    def _convert_input(self, x: Array) -> Array:
        """Convert an argument to the library of the function."""
        is_readonly = type(x) in self._host_types and not x.flags.writeable
        isolated = self._writes and not is_readonly and could_write(get(self.library), (type(x),))
        direct_to = lookup_direct(self.library, type(x)) if self._is_direct and not isolated else decline
        y = direct_to(x)
        if y is None:
            convert = verbs.to_isolated if isolated else verbs.to_backend
            try:
                y = convert(x, self.library, self._options)
            except DTypeError as error:
                raise_with_hint(error, [x], get(self.library), self._options)
        return protect_host(y, x) if self.library == HOST else y


def _copy_if_kept(ys: Sequence[HostArray]) -> list[HostArray]:
    """Return arrays that nothing but this list refers to: a function may fill the same buffer in each call.

    A view refers to the array that owns its memory.
    """
    held = [
        getrefcount(ys[i]) > _BASELINE_REFCOUNT
        or (isinstance(ys[i].base, type(ys[i])) and getrefcount(ys[i].base) > _BASELINE_REFCOUNT)
        for i in range(len(ys))
    ]
    return [y.copy() if kept and y.flags.writeable else y for y, kept in zip(ys, held, strict=True)]


def could_write(library: Backend, kinds: Iterable[type] | None = None) -> bool:
    """Return True if a function of a library could write to the source of an argument of one of these types.

    It could not if the library is NumPy, whose arrays are passed read-only, or assumes immutable memory. Nor
    if the source is immutable and read-only, because such memory is copied for a library that can write.
    Without types, the answer is for arrays of any other library.
    """
    if library.name == HOST or library.assumes_immutable:
        return False
    owners = [None] if kinds is None else map(backend_for, kinds)
    return any(
        owner is None or (owner is not library and not (owner.assumes_immutable and owner.readonly))
        for owner in owners
    )


def raise_with_hint(
    error: DTypeError, xs: Sequence[Array], library: Backend, options: CallOptions
) -> NoReturn:
    """Raise an error for a missing dtype again, with a better hint if ``dtype='default'`` helps."""
    for x in xs if options.dtype is None else ():
        dtype = resolve_source(x).info().dtype
        if dtype in DTYPES and library.unsupported_dtype(dtype, CPU) and category(dtype) != "bool":
            default = chosen("default", dtype, library, CPU)
            if library.unsupported_dtype(default, CPU) is None:
                hint = f"{error.hint}; or aligned(..., dtype='default')"
                raise DTypeError.build(error.action, error.reason, hint) from error
    raise error


@constant_in_traces
def program_key(function: str, traced: TreeDef, library: str, array_library: str, *objects: object) -> str:
    """Return a key that stands for a call in a compiled program. `objects` are its constants."""
    treedef = with_objects(traced, iter(objects))
    own = functions[function]
    device = read_options((get(library),), own.options).device
    kinds = number_slots(treedef)

    def find(ints: Sequence[int], floats: Sequence[float]) -> DerivableFunction:
        values: dict[str, Any] = {"int": map(int, ints), "float": map(float, floats)}
        return own.rule(
            library, array_library, treedef, tuple([next(values[kind]) for kind in kinds]), device
        )

    program = Program(own.name, find)
    own.programs.append(program)
    return program.key


@constant_in_traces
def latest_treedef() -> TreeDef:
    """Return the treedef of the result of the call that was last run or described in this thread."""
    return latest.treedef


@constant_in_traces
def latest_traceable() -> TreeDef:
    """Return the latest treedef, of containers that a compiler can make."""
    return traceable(latest.treedef)
