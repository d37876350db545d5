"""The functions that `aligned` wraps, and their calls.

A `Function` has the options of the user and a cache of rules. A `Call` is a function with the structure and
the constants of its arguments, which a backend turns into a rule: a function of arrays alone.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

import numpy as np

from xbridge import asarray, to_backend
from xbridge.errors import DTypeError, OptionError, XBridgeError
from xbridge.extend import (
    CPU,
    DTYPES,
    HOST,
    backend_for,
    call_cache,
    category,
    check_options,
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
    children_of,
    flatten,
    traceable,
    unflatten,
    with_constants,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from xbridge import Device
    from xbridge.functions.rules import DerivableFunction, Run, UserDerivative
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


class FunctionOptions(NamedTuple):
    """The options by which the arguments of a function are converted, as the user gave them."""

    device: object = None
    dtype: object = None
    copy: bool | None = None
    grad: Any = None
    order: Any = None

    def checked(self) -> FunctionOptions:
        """Return `PLAIN` if none was given, by identity, because NumPy's float64 dtype equals None."""
        return PLAIN if all(option is None for option in self) else self

    def are_constant(self) -> bool:
        """Return True if they mean the same in each call, so that a call may be cached."""
        return all(isinstance(option, (str, bool, NoneType)) for option in self)


PLAIN = FunctionOptions()
"""The options of a function for which none was given."""


class Function:
    """A function that `aligned` wraps, with its options, its declarations, and its rules by treedef."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        backend: str | None,
        options: FunctionOptions,
        given: Definition,
        arrays: object = None,
    ) -> None:
        self.fn, self.name, self.backend, self.given = fn, name, backend, given
        self.options = options.checked()
        self.arrays, self.named = arrays, read_array_parameters(arrays, fn, name)
        dtype = options.dtype
        self.narrowing = dtype if isinstance(dtype, str) and dtype in ("nearest", "default") else None
        self.keeps_results = self.narrowing is None and options.grad != "detach" and given.restore is None
        """True if results go back as they are: neither cast nor cut out of a graph."""
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

    def rule(
        self, library: str, array_library: str, treedef: TreeDef, device: Device | None
    ) -> DerivableFunction:
        """Return the rule for calls of a structure, whose results go to the library `array_library`."""
        find_modes = functions_of(get_backend(library)).modes
        modes = find_modes and find_modes()
        key = (library, array_library, device, treedef, modes)
        try:
            found = self.rules.get(key)
        except TypeError as error:
            raise OptionError.build(
                f"call {self.name}",
                f"an argument that is not an array has no hash: {error}",
                "a tuple or a frozenset instead, or an array",
            ) from error
        if found is not None:
            if not found.is_outdated:
                return found
            self.rules.pop(key, None)
        return get_or_make(
            self.rules, key, lambda: Call(self, (library, array_library), treedef, device, modes).rule()
        )


class Call:
    """A function with the structure and the constants of the arguments of a call."""

    def __init__(
        self,
        function: Function,
        libraries: tuple[str, str],
        treedef: TreeDef,
        device: Device | None,
        modes: object,
    ) -> None:
        self.name, self.fn, self.narrowing = function.name, function.fn, function.narrowing
        self.library, self.array_library = libraries
        self.vjp, self.jvp, self.signature, self.result, _ = function.given
        self.treedef = treedef
        self.modes: Any = modes
        self._rule: DerivableFunction | None = None
        self.device = device
        """The device that the user names, on which arrays that are on several devices are gathered."""
        own = function.options
        self._options = FunctionOptions(device=device, copy=own.copy, order=own.order).checked()
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

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _options=state["_options"].checked())

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
        if self._is_flat:
            return xs, {}
        bound: tuple[Sequence[Array], dict[str, Any]] = self.unflatten(self.treedef, xs)
        return bound

    def unflatten(self, treedef: TreeDef, leaves: Iterable[Any]) -> Any:
        """Return the tree of a treedef, with the given leaves."""
        return unflatten(treedef, iter(leaves))

    def read_result(self, tree: Any, xs: Sequence[Array]) -> list[Array]:
        """Return the arrays in a result of the function, and store its treedef in `latest.treedef`."""
        latest.treedef, arrays = self.flatten(tree, xs)
        try:
            return list(map(self._take_over, arrays))
        except XBridgeError as error:
            raise error.at(f"the result of {self.name}") from error

    def _take_over(self, y: Array) -> Array:
        """Return an array of a result in the library of the function, by the rules of `align`."""
        owner = backend_for(type(y))
        return (
            y if owner and owner.name == self.library else to_backend(y, self.library, dtype=self.narrowing)
        )

    def evaluate(
        self, run: Run, xs: Sequence[Array], target: str, device: Device | None = None
    ) -> list[Array]:
        """Run a rule on arrays that are not tracked, and return arrays of the library `target`.

        The function cannot write to `xs` through its arguments. No result shares memory with them, or with
        an array that the function of NumPy keeps.
        """
        library = get_backend(self.library)
        given = [convert_input(x, library, self._options, self.device) for x in xs]
        plain = call_cache.direct[target] if device is None or device == CPU else {}
        narrows = self.narrowing is not None and run.narrows
        made = []
        ys = run(*given)
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


def convert_input(x: Array, library: Backend, options: FunctionOptions, device: object) -> Array:
    """Convert an argument to the library of the function, which must not write to the memory of `x`."""
    copy, y = copy_option(x, library, options), None
    if options is PLAIN and copy is None and device is None:  # one look-up, if it is an ordinary array
        y = call_cache.lookup_direct(library.name, type(x))(x)
    if y is None:
        y = _convert_as_asked(x, library, options, device=device, copy=copy)
    return protect_host(y, x) if library.name == HOST and y is not x else y


def _convert_as_asked(
    x: Array, library: Backend, options: FunctionOptions, *, device: object, copy: bool | None
) -> Array:
    """Convert an argument by the options; say in the error for its dtype how to cast it."""
    _, dtype, _, grad, order = options
    rare = {"order": order} if order else {}  # a call with it is planned each time
    try:
        return to_backend(x, library.name, device=device, dtype=dtype, copy=copy, grad=grad, **rare)
    except DTypeError as error:
        own = backend_for(type(x))
        kind = own.dtype_of(x) if dtype is None and own and not isinstance(x, own.scalar_types) else None
        if kind in DTYPES and category(kind) != "bool" and library.unsupported_dtype(kind, CPU):
            hint = f"{error.hint}; or aligned(..., dtype='default')"
            raise DTypeError.build(error.action, error.reason, hint) from error
        raise


def copy_option(x: Array, library: Backend, options: FunctionOptions) -> bool | None:
    """Return `copy` for the conversion of an argument: True if the function could write to its memory."""
    if options.copy is not None or not could_write(library):
        return options.copy
    owner = backend_for(type(x))
    if owner is library or owner is None or (owner.assumes_immutable and owner.readonly):
        return None
    is_writable = owner.name != HOST or isinstance(x, owner.scalar_types) or x.flags.writeable
    return True if is_writable else None


def could_write(library: Backend) -> bool:
    """Return True if functions of a library can write to their arguments: NumPy's are passed read-only."""
    return library.name != HOST and not library.assumes_immutable


@tracing.constant_in_traces
def program_key(function: str, traced: TreeDef, library: str, array_library: str, *objects: object) -> str:
    """Return a key that stands for a call in a compiled program. `objects` are its constants."""
    own = functions[function]
    device = check_options((get_backend(library),), device=own.options.device).device

    def find(ints: Sequence[int], floats: Sequence[float]) -> DerivableFunction:
        constants: dict[str, Iterator[Any]] = {
            "int": map(int, ints),
            "float": map(float, floats),
            "object": iter(objects),
        }
        return own.rule(library, array_library, with_constants(traced, constants), device)

    program = Program(own.name, find)
    own.programs.append(program)
    return program.key


@tracing.constant_in_traces
def latest_traceable() -> TreeDef:
    """Return the latest treedef, of containers that a compiler can make."""
    return traceable(latest.treedef)
