"""The functions that `aligned` wraps, and their calls.

A `Function` has the options of the user and a cache of rules. A `Call` is a function with the structure and
the constants of its arguments, which a backend turns into a rule: a function of arrays alone.
"""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np

from xbridge import asarray, to_backend
from xbridge.errors import DTypeError, OptionError, XBridgeError
from xbridge.extend import (
    CPU,
    HOST,
    Options,
    backend_for,
    call_cache,
    each,
    get_backend,
    is_inexact,
    native_dtype,
    resolve_dtype,
    tracing,
)
from xbridge.functions import numpy
from xbridge.functions.libraries import functions_of
from xbridge.functions.named import protect_host, read_array_parameters
from xbridge.functions.numpy import copy_if_kept
from xbridge.functions.programs import Program
from xbridge.functions.rules import get_or_make, latest, refuse_user_derivative
from xbridge.functions.treedef import (
    ARRAY,
    NUMBERS,
    are_arrays,
    argument_paths,
    children_of,
    flatten,
    traceable,
    unflatten,
    with_constants,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xbridge import Device
    from xbridge.functions.rules import DerivableFunction, UserDerivative
    from xbridge.functions.signature import Signature
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import Array, Backend

functions: WeakValueDictionary[str, Function] = WeakValueDictionary()
"""The functions in use, by key, because a compiler can keep a string in a program and not the object."""


class Definition(NamedTuple):
    """What the user declares about a function: its derivatives, its signature and its result."""

    vjp: UserDerivative | None = None
    jvp: UserDerivative | None = None
    signature: Signature | None = None
    result: Callable[..., Any] | None = None
    restore: str | None = None
    """The dtype that is named, if results of it go back in that of the array that decides."""


PLAIN = Options()
"""The options of a function for which none was given."""


class Function:
    """A function that `aligned` wraps, with its options, its declarations, and its rules by treedef."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        backend: str | None,
        options: Options,
        given: Definition,
        arrays: object = None,
    ) -> None:
        self.fn, self.name, self.backend, self.given = fn, name, backend, given
        self.options = options
        self.arrays, self.named = arrays, read_array_parameters(arrays, fn, name)
        self.narrowing = options.dtype if options.dtype in ("nearest", "default") else None
        self.explain: Callable[..., Any] = fn
        self.rules: dict[Any, DerivableFunction] = {}
        self.programs: list[Program] = []
        """The calls in compiled programs, which live as long as the function."""
        self.key = f"{name}#{uuid4().hex}"
        functions[self.key] = self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what the user gave, without rules and compiled code."""
        given = self.fn, self.name, self.backend, self.options, self.given, self.arrays
        return Function, given, {"explain": self.explain}

    @property
    def dtype(self) -> str | dict[str, str] | None:
        """The dtype that the user names, or maps from those of the arrays."""
        return self.options.dtype or dict(self.options.by_dtype) or None

    def order_keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments in the order of the parameters.

        A declared derivative returns gradients in this order, and `signature` lists arrays in it.
        """
        if len(kwargs) < 2 or self.given[:3] == (None, None, None):
            return kwargs
        with suppress(TypeError, ValueError):  # a function in C may have no signature
            names = inspect.signature(self.fn).parameters
            kwargs = {**{name: kwargs[name] for name in names if name in kwargs}, **kwargs}
        return kwargs

    def rule(self, library: str, array_library: str, treedef: TreeDef) -> DerivableFunction:
        """Return the rule for calls of a structure, whose results go to the library `array_library`."""
        find_modes = functions_of(get_backend(library)).modes
        modes = find_modes and find_modes()
        key = (library, array_library, treedef, modes)
        try:
            found = self.rules.get(key)
        except TypeError as error:
            raise OptionError.build(
                f"call {self.name}",
                f"an argument that is not an array has no hash: {error}",
                "a tuple or a frozenset instead, or an array",
            ) from error
        if found is not None and found.is_outdated:
            self.rules.pop(key, None)
        return get_or_make(self.rules, key, lambda: Call(self, library, array_library, treedef, modes).rule())


class Call:
    """A function with the structure and the constants of the arguments of a call."""

    def __init__(
        self, function: Function, library: str, array_library: str, treedef: TreeDef, modes: object
    ) -> None:
        self.name, self.fn, self.narrowing = function.name, function.fn, function.narrowing
        self.library, self.array_library = library, array_library
        self.vjp, self.jvp, self.signature, self.result, _ = function.given
        self.treedef = treedef
        self.modes: Any = modes
        self._rule: DerivableFunction | None = None
        options = function.options
        self.device = options.device
        """The device that the user names, on which arrays that are on several devices are gathered."""
        self._options = Options(options.device, copy=options.copy, order=options.order)
        args, kwargs = children_of(treedef)
        self._is_flat = not children_of(kwargs) and {*children_of(args)} <= {ARRAY}
        """True if all arguments are arrays and positional."""

    def rule(self) -> DerivableFunction:
        """Return the rule for this call. It is made once."""
        if self._rule is None:
            if self.library != HOST:
                refuse_user_derivative(self)
            self._rule = (functions_of(get_backend(self.library)).rule or numpy.rule)(self)
        return self._rule

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to run the function, which may have no derivatives there."""
        return {**vars(self), "vjp": None, "jvp": None, "result": None, "_rule": None}

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
        if self.narrowing:
            dtype = resolve_dtype(self.narrowing, dtype, array_library, CPU)
        lacks = array_library.unsupported_dtype(dtype, CPU)
        if lacks is None:
            return dtype
        near = resolve_dtype("nearest", dtype, array_library, CPU)
        has_near = array_library.unsupported_dtype(near, CPU) is None
        hint = f"aligned(..., dtype='nearest'), or {lacks.hint}" if has_near else lacks.hint
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
        library = get_backend(self.library)
        try:
            return [
                y if backend_for(type(y)) is library else to_backend(y, self.library, dtype=self.narrowing)
                for y in arrays
            ]
        except XBridgeError as error:
            raise error.at(f"the result of {self.name}") from error

    def evaluate(
        self, rule: DerivableFunction, xs: Sequence[Array], target: str, device: Device | None = None
    ) -> list[Array]:
        """Run a rule on arrays that are not tracked, and return arrays of the library `target`.

        The function cannot write to `xs` through its arguments. No result shares memory with them, or with
        an array that the function of NumPy keeps.
        """
        try:
            given = convert_inputs(xs, get_backend(self.library), self._options)
        except XBridgeError as error:
            paths = argument_paths(self.treedef)
            if error.index is None or len(paths) != len(xs):  # a derivative has more inputs
                raise
            raise error.at(f"{paths[error.index]} of {self.name}") from error
        plain = call_cache.direct[target] if device is None or device == CPU else {}
        narrows = self.narrowing is not None and rule.narrows
        made = []
        ys = rule(*given)
        if self.library == HOST and not get_backend(target).assumes_immutable:
            ys = copy_if_kept(ys)
        for y in ys:
            dtype = self._find_narrower_dtype(y) if narrows else None
            result = plain.get(type(y), call_cache.decline)(y) if dtype is None else None
            if result is None:
                result = to_backend(y, target, device=device, dtype=dtype)
            made.append(result)
        return made

    def _find_narrower_dtype(self, y: Array) -> str | None:
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


def convert_inputs(xs: Sequence[Array], library: Backend, options: Options) -> list[Array]:
    """Convert arguments to the library of a function, which must not write to their memory.

    An error has the index of its argument.
    """
    table = call_cache.direct[library.name] if options == PLAIN else {}
    ys: list[Any] = []
    rest: dict[bool, list[int]] = {}
    for i, x in enumerate(xs):
        copy = must_copy(x, library, options)
        ys.append(None if copy else table.get(type(x), call_cache.decline)(x))  # enough for ordinary arrays
        if ys[i] is None:
            rest.setdefault(copy, []).append(i)
    for copy, at in rest.items():
        asked = options._replace(copy=copy or options.copy)
        try:
            made = each([xs[i] for i in at], library, asked)
        except XBridgeError as error:
            error.remap_index(at)
            if options.dtype is None and isinstance(error, DTypeError) and error.hint.startswith("dtype="):
                hint = re.sub(r"dtype='\w+'", r"aligned(..., \g<0>)", error.hint)
                hinted = error.build(error.action, error.reason, hint)
                hinted.index = error.index
                raise hinted from error
            raise
        for i, y in zip(at, made, strict=True):
            ys[i] = y
    if library.name != HOST:
        return ys
    return [y if y is x else protect_host(y, x) for x, y in zip(xs, ys, strict=True)]


def could_write(owner: Backend, library: Backend, options: Options) -> bool:
    """Return True if a function could write to arrays of a library: NumPy's are passed to it read-only."""
    is_guarded = library.name == HOST or library.assumes_immutable or owner is library
    return options.copy is None and not is_guarded and not (owner.assumes_immutable and owner.readonly)


def must_copy(x: Array, library: Backend, options: Options) -> bool:
    """Return True if the function could write to the memory of an argument."""
    owner = backend_for(type(x))
    if owner is None or not could_write(owner, library, options):
        return False
    return bool(owner.name != HOST or isinstance(x, owner.scalar_types) or x.flags.writeable)


@tracing.constant_in_traces
def program_key(function: str, traced: TreeDef, library: str, array_library: str, *objects: object) -> str:
    """Return a key that stands for a call in a compiled program. `objects` are its constants."""
    own = functions[function]
    traceable(traced)  # raises for a packed sequence, whose lengths stay as they are

    def find(ints: Sequence[int], floats: Sequence[float]) -> DerivableFunction:
        constants: dict[str, Iterator[Any]] = {
            "int": map(int, ints),
            "float": map(float, floats),
            "object": iter(objects),
        }
        return own.rule(library, array_library, with_constants(traced, constants))

    program = Program(own.name, find)
    own.programs.append(program)
    return program.key


@tracing.constant_in_traces
def latest_traceable() -> TreeDef:
    """Return the latest treedef, of containers that a compiler can make."""
    return traceable(latest.treedef)
