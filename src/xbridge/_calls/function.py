"""Functions that `aligned` wraps: their options, their rules, and the conversions around a call."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from xbridge._calls.flatten import flatten
from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, UNNAMED, category
from xbridge._core.dynamo import constant
from xbridge._engine import verbs
from xbridge._engine.source import resolve_source
from xbridge._plan.rules import chosen
from xbridge.backends import HOST
from xbridge.backends._forms import closed, holes, unflatten
from xbridge.backends._numpy_rules import opaque
from xbridge.backends._programs import Program
from xbridge.backends._registry import backend_for, fast_converters, get
from xbridge.backends._rules import kept, latest
from xbridge.errors import DTypeError, OptionError, XBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from xbridge._calls.named import Named
    from xbridge._calls.run import Shortcut
    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend
    from xbridge.backends._rules import Form, Given, Rule
    from xbridge.backends._signature import Signature

functions: WeakValueDictionary[str, Function] = WeakValueDictionary()
"""The functions in use, by key, for a compiler."""


class Definition(NamedTuple):
    """What the user gives beside a function."""

    vjp: Given | None = None
    jvp: Given | None = None
    signature: Signature | None = None
    result: Callable[..., Any] | None = None


class Function:
    """A function, the derivatives and shapes that its user gives, and its rules by the form of a call."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        target: tuple[str | ModuleType | None, Array | None],
        keywords: dict[str, Any],
        given: Definition,
        named: Named | None = None,
    ) -> None:
        self.fn, self.name, self.keywords, self.given, self.named = fn, name, keywords, given, named
        self.backend, self.like = target
        dtype = keywords["dtype"]
        self.narrowing = dtype if isinstance(dtype, str) and dtype in UNNAMED else None
        self.is_plain = self.like is None and all(option is None for option in keywords.values())
        self.explain: Callable[..., Any] = fn
        self.rules: dict[Any, Rule] = {}
        self.shortcuts: dict[tuple[Any, ...], Shortcut] = {}
        self.programs: list[Program] = []
        """The calls in compiled programs, which live as long as the function."""
        self.key = f"{name}#{uuid4().hex}"
        functions[self.key] = self

    def in_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return keyword arguments in the order of the signature, as a derivative returns its gradients."""
        if len(kwargs) < 2 or (self.given.vjp is None and self.given.jvp is None):
            return kwargs
        with suppress(TypeError, ValueError):  # a function in C may have no signature
            names = signature(self.fn).parameters
            kwargs = {**{name: kwargs[name] for name in names if name in kwargs}, **kwargs}
        return kwargs

    def rule(self, library: str, form: Form, numbers: tuple[Any, ...], device: Device | None) -> Rule:
        """Return the rule of the function for calls of a form."""
        key = (library, device, form, tuple([(type(n), n.hex() if type(n) is float else n) for n in numbers]))
        try:
            found = self.rules.get(key)
        except TypeError as error:
            raise OptionError.build(
                f"call {self.name}",
                f"an argument that is not an array has no hash: {error}",
                "a tuple or a frozenset instead, or an array",
            ) from error
        return found or kept(self.rules, key, lambda: self._rule(library, form, numbers, device))

    def _rule(self, library: str, form: Form, numbers: tuple[Any, ...], device: Device | None) -> Rule:
        return Call(self, library, form, numbers, device).rule()


class Call:
    """A function with the form and the static arguments of a call."""

    def __init__(
        self,
        function: Function,
        library: str,
        form: Form,
        numbers: tuple[Any, ...],
        device: Device | None,
    ) -> None:
        self.name, self.fn, self.library = function.name, function.fn, library
        self.vjp, self.jvp, self.signature, self.result = function.given
        self.form, self.numbers = form, numbers
        self._rule: Rule | None = None
        self._keywords = {**function.keywords, "device": device, "dtype": None, "grad": None}
        self._direct = device is None and self._keywords["copy"] is None
        self._writes = self._keywords["copy"] is None and could_write(get(library))

    def rule(self) -> Rule:
        """Return the rule, made once."""
        rule = self._rule
        if rule is None:
            rule = self._rule = (get(self.library).rule or opaque)(self)
        return rule

    def detached(self) -> Call:
        """Return a copy without a rule and without derivatives, for another process."""
        other = copy(self)
        vars(other).update(vjp=None, jvp=None, result=None, _rule=None)
        return other

    def flatten(self, tree: Any) -> tuple[Form, list[Array]]:
        """Return the form of a tree with its numbers as constants, and its arrays."""
        arrays: list[Array] = []
        numbers: list[Any] = []
        form = flatten(tree, arrays, numbers)
        return closed(form, iter(numbers)) if numbers else form, arrays

    def unflatten(self, form: Form, leaves: Iterable[Any]) -> Any:
        """Return the tree of a form. Its numbers are those of the arguments."""
        return unflatten(form, iter(leaves), iter(self.numbers))

    def returned(self, tree: Any) -> list[Array]:
        """Return the arrays in the result of the function, and keep its form for this thread."""
        try:
            latest.form, arrays = self.flatten(tree)
        except XBridgeError as error:
            raise error.at(f"the result of {self.name}") from error
        return arrays

    def evaluate(
        self, rule: Rule, xs: Sequence[Array], target: str, device: Device | None = None
    ) -> list[Array]:
        """Run a rule on arrays that nothing follows, and return arrays of another library.

        The function cannot write to `xs`, and no result shares memory with them.
        """
        given = [self._given(x) for x in xs]
        direct = fast_converters[target] if device is None or device == CPU else {}
        made = []
        for y in rule(*given):
            convert = direct.get(type(y))
            result = None if convert is None else convert(y)
            if result is None:
                result = verbs.to_backend(y, target, device=device, dtype=None, copy=None, grad=None)
            made.append(result)
        return made

    def _given(self, x: Array) -> Array:
        """Convert an argument to the library of the function."""
        if self._writes and could_write(get(self.library), (type(x),)):
            return bring(x, self.library, self._keywords, isolated=True)
        if self._direct:
            convert = fast_converters[self.library].get(type(x))
            y = None if convert is None else convert(x)
            if y is not None:
                return protected(y, x) if self.library == HOST else y
        return bring(x, self.library, self._keywords)


def could_write(library: Backend, kinds: Iterable[type] | None = None) -> bool:
    """Return True if a function of a library could write to arrays of these types, if it shared their memory.

    NumPy's arrays are read-only in it, and a library that assumes immutable memory does not write. Arrays of
    such a library, if they are read-only, are not shared with one that writes. Without types, arrays of any
    other library are meant.
    """
    if library.name == HOST or library.assumes_immutable:
        return False
    for owner in [None] if kinds is None else map(backend_for, kinds):
        if owner is None or (owner is not library and not (owner.assumes_immutable and owner.readonly)):
            return True
    return False


def bring(x: Array, library: str, keywords: dict[str, Any], *, isolated: bool = False) -> Array:
    """Convert an array to the library of a function, which cannot write to its memory then."""
    convert = verbs.to_isolated if isolated else verbs.to_backend
    try:
        y = convert(x, library, **keywords)
    except DTypeError as error:
        raise narrowing(error, [x], get(library), keywords) from error
    return protected(y, x) if library == HOST else y


def narrowing(
    error: DTypeError, xs: Sequence[Array], library: Backend, keywords: dict[str, Any]
) -> DTypeError:
    """Return the error for a dtype that a library lacks, with a hint that the default dtype would do."""
    for x in xs if keywords["dtype"] is None else ():
        dtype = resolve_source(x).info().dtype
        if dtype in DTYPES and library.unsupported_dtype(dtype, CPU) and category(dtype) != "bool":
            default = chosen("default", dtype, library, CPU)
            if library.unsupported_dtype(default, CPU) is None:
                hint = f"{error.hint}; or aligned(..., dtype='default')"
                return DTypeError.build(error.action, error.reason, hint)
    return error


def protected(host: Any, x: Array) -> Any:
    """Return a host array that is read-only. Only a conversion to itself returns an array of the caller."""
    if host.flags.writeable:
        host = host.view() if host is x else host
        host.flags.writeable = False
    return host


@constant
def program_key(function: str, form: Form, library: str) -> str:
    """Return a key for a call in a program that is being compiled."""
    own = functions[function]
    kinds = holes(form)

    def find(ints: Sequence[int], floats: Sequence[float]) -> Rule:
        values: dict[str, Any] = {"int": map(int, ints), "float": map(float, floats)}
        return own.rule(library, form, tuple([next(values[kind]) for kind in kinds]), None)

    program = Program(own.name, find)
    own.programs.append(program)
    return program.key


@constant
def latest_form() -> Form:
    """Return the form of the result of the call that was described last."""
    return latest.form
