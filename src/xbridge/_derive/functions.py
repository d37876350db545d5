"""Rules: flat functions of one library's arrays, and the functions that are derived from them.

A call joins two libraries. The function's library derives: its backend makes a rule, and the vjp, the jvp
and the batch of a rule are rules again. So every order of derivative consists of the same operations. The
caller's library embeds: its backend runs a rule within its own graphs and transforms.
"""

# ruff: noqa: ARG002 -- not every library needs the form of a result

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from xbridge._core.dtypes import is_inexact
from xbridge._core.locks import lock
from xbridge._derive.treedef import ARRAY, reorder_leaves
from xbridge.errors import GradientError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Protocol, TypeVar

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array
    from xbridge._derive.signature import Signature
    from xbridge._derive.treedef import TreeDef

    K = TypeVar("K")
    V = TypeVar("V")

    class Call(Protocol):
        """A function with the form and the static arguments of a call, as the core passes it to a backend."""

        name: str
        fn: Callable[..., Any]
        library: str
        caller: str
        form: TreeDef
        declared: TreeDef
        """The form that compiled code was made for, in another process."""
        numbers: tuple[Any, ...]
        vjp: UserDerivative | None
        jvp: UserDerivative | None
        signature: Signature | None
        result: Callable[..., Any] | None

        def rule(self) -> DerivableFunction: ...
        def without_rules(self, declared: TreeDef) -> Call: ...
        def flatten(self, tree: Any, xs: Sequence[Array]) -> tuple[TreeDef, list[Array]]: ...
        def unflatten(self, form: TreeDef, leaves: Iterable[Any]) -> Any: ...
        def read_result(self, tree: Any, xs: Sequence[Array]) -> list[Array]: ...
        def result_dtype(self, dtype: str) -> str: ...
        def state(self) -> object: ...
        def evaluate(
            self, rule: Run, xs: Sequence[Array], target: str, device: Device | None = None
        ) -> list[Array]: ...

    class Run(Protocol):
        """A rule, or what runs it in another way."""

        narrows: bool

        def __call__(self, *xs: Array) -> Sequence[Array]: ...


MAX_RULES = 128
"""Rules to keep for one function, and derived rules for one rule. The oldest goes first."""


_lock = lock()


class Spec(NamedTuple):
    """The shape and the canonical dtype of an array that may not exist yet."""

    shape: tuple[int, ...]
    dtype: str


class UserDerivative(NamedTuple):
    """A derivative as the user gives it: a function or the name of a method, and its own derivatives."""

    fn: Any
    vjp: UserDerivative | None = None
    jvp: UserDerivative | None = None


class Mark(NamedTuple):
    """What derived rules take in the place of a version: the version, and the number of a record."""

    version: int
    high: int
    low: int


class Recorded(NamedTuple):
    """The outputs of a run, which may turn out to be of no use."""

    ys: Sequence[Array]
    keep: Callable[[bool], tuple[Mark, Callable[[], None]]]
    """Keeps the record, and returns its mark and what forgets it. With True, its first use does."""


class NoRecordError(Exception):
    """A run cannot be recorded. It stopped halfway, and may have written to its arguments."""


class _Latest(local):
    form: TreeDef = ARRAY


latest = _Latest()
"""The form of the result of the last function that this thread ran or described."""

rules: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Rules by key, for programs in which an argument cannot be an object. A rule lives with its function."""


def get_or_make(cache: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """Return the value of a key. A new one is made without the lock, and the oldest is dropped for it."""
    found = cache.get(key)
    if found is None:
        made = make()
        with _lock:
            found = cache.setdefault(key, made)
            if len(cache) > MAX_RULES:
                del cache[next(iter(cache))]
    return found


class DerivableFunction(ABC):
    """A function of arrays that returns a sequence of arrays.

    A derived rule takes (*seeds, *outputs if `wants_outputs`, mark if `keeps_version`, *inputs). Seeds are
    cotangents of the outputs in `outs`, or tangents of the inputs in `ins`; both are masks. A vjp is the
    adjoint of the jvp: ``vdot(g, jvp(t)) == vdot(vjp(g), t)``, for complex numbers too.
    """

    wants_outputs = False
    """True if derived rules take the outputs, too."""
    batches = True
    """True if `derive("batched", axes)` works. Otherwise the caller's library repeats the call, or:"""
    cores: tuple[int, ...] | None = None
    """The number of trailing axes of each input that belong to one example. The others broadcast."""

    order = 0
    """The number of derivations that this rule is the result of."""
    narrows = True
    """True if the dtypes of the results are the function's; gradients have those of its arguments."""
    keeps_version = False
    """True if derived rules take a mark, too: a version of what the function reads besides its arguments, and
    the number of the record of a run or zeros."""

    def __init__(self, call: Call, name: str) -> None:
        self.call = call
        self.name = name
        self._key = ""
        self._derived: dict[Any, DerivableFunction] = {}
        self._described: dict[Any, tuple[tuple[Spec, ...], TreeDef]] = {}
        """What `shapes` returns, by all that it depends on."""

    @abstractmethod
    def __call__(self, *xs: Array) -> Sequence[Array]:
        """Run the function on arrays of its library."""

    @property
    def key(self) -> str:
        """A string that stands for this rule in this process, and for no rule in another process."""
        if not self._key:
            self._key = f"{self.name}#{uuid4().hex}"
            rules[self._key] = self
        return self._key

    def derive(self, how: str, *what: Any) -> DerivableFunction:
        """Return ``vjp(ins, outs, form)``, ``jvp(ins, outs, form)`` or ``batched(axes)``, made once."""
        return get_or_make(self._derived, (how, what), lambda: getattr(self, how)(*what))

    @property
    def reads(self) -> bool:
        """True if the function reads what may change, so that its version has to be asked for."""
        return False

    def version(self) -> int:
        """Return a number that changes when what the function reads besides its arguments changes."""
        return 0

    @property
    def records(self) -> bool:
        """True if `record` works: one run gives the value and what its vjp needs."""
        return False

    def record(self, ins: tuple[bool, ...], xs: Sequence[Array]) -> Recorded:
        """Run the function for gradients of the inputs in `ins`.

        Raise `NoRecordError` if the function has to run without a record, on arrays that were not written to.
        """
        raise NotImplementedError

    def shapes(self, specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
        """Describe the outputs for inputs like these, as the caller gets them. Nothing is computed."""
        found, latest.form = get_or_make(
            self._described, (specs, self.call.state()), lambda: self._describe_outputs(specs)
        )
        return found

    def _describe_outputs(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        found, form = self.describe(specs)
        if self.narrows:
            found = tuple(spec._replace(dtype=self.call.result_dtype(spec.dtype)) for spec in found)
        return found, form

    def tangent_cores(self, ins: tuple[bool, ...]) -> tuple[int, ...] | None:
        """Return the `cores` of the rule for tangents of the inputs in `ins`, without deriving it."""
        return None

    def batch_shapes(
        self, size: int, specs: tuple[Spec, ...], found: list[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """Return the shapes of the results of one call for all examples, for inputs described of one.

        A derivative has the shape of an argument or a result, whose axes may be fewer than those in the call.
        """
        return [(size, *spec.shape) for spec in self.shapes(specs)] if self.order else found

    def arrange(self, ys: Sequence[Array], form: TreeDef) -> Sequence[Array]:
        """Return the results of the last call in the order of a form of the same structure, or raise.

        A dict may have its keys in another order than the one that was declared, or than in another example.
        """
        if self.order or latest.form == form:
            return ys
        ys = reorder_leaves(form, latest.form, iter(ys), self._other_tree_error)
        latest.form = form
        return ys

    def _other_tree_error(self) -> OptionError:
        return OptionError.build(
            f"use the result of {self.name}",
            "its containers, keys or constants are others than declared, or than in another example",
            "the same containers, keys and constants in each call, and in result=",
        )

    @abstractmethod
    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: TreeDef) -> DerivableFunction:
        """Derive the rule for gradients of the inputs in `ins`."""

    @abstractmethod
    def jvp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: TreeDef) -> DerivableFunction:
        """Derive the rule for tangents of the outputs in `outs`."""

    @abstractmethod
    def describe(self, specs: tuple[Spec, ...]) -> tuple[tuple[Spec, ...], TreeDef]:
        """Return what `shapes` returns, and the form of the result."""

    def report(self) -> dict[str, str]:
        """Return where the derivative, the batches and the shapes come from, in a few words each."""
        return {
            "derivative": f"by {self.call.library}, any order",
            "batch": f"by {self.call.library}",
            "shapes": f"by {self.call.library}",
        }

    def check(self, found: tuple[Spec, ...], declared: tuple[Spec, ...]) -> None:
        """Raise if a function returned other arrays than those that memory was planned for."""
        if found != declared:
            raise OptionError.build(
                f"use the result of {self.name}",
                f"it was declared as {_format_specs(declared)}, "
                f"and the function returned {_format_specs(found)}",
                "result=f, where f(*args) returns empty arrays of the shapes and dtypes of the result",
            )


def _format_specs(specs: tuple[Spec, ...]) -> str:
    return ", ".join(f"{spec.dtype} {spec.shape}" for spec in specs) or "nothing"


class TracedFunction(DerivableFunction):
    """A rule of a library that transforms functions: what is derived is a function again."""

    def __init__(self, call: Call, name: str, fn: Callable[..., Any]) -> None:
        super().__init__(call, name)
        self.fn = fn

    def vjp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: TreeDef) -> DerivableFunction:
        made = self._derive_function(f"the vjp of {self.name}", self.vjp_of(ins, outs))
        made.narrows = False
        return made

    def jvp(self, ins: tuple[bool, ...], outs: tuple[bool, ...], form: TreeDef) -> DerivableFunction:
        return self._derive_function(f"the jvp of {self.name}", self.jvp_of(ins, outs))

    def batched(self, axes: tuple[int | None, ...]) -> DerivableFunction:
        """Derive the rule for inputs with one more axis, the first, or none."""
        return self._derive_function(f"a batch of {self.name}", self.batch_of(axes))

    def _derive_function(self, name: str, fn: Callable[..., Any]) -> DerivableFunction:
        made = type(self)(self.call, name, fn)
        made.order, made.narrows = self.order + 1, self.narrows
        return made

    @abstractmethod
    def vjp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        """Return the function of (*cotangents, *inputs)."""

    @abstractmethod
    def jvp_of(self, ins: tuple[bool, ...], outs: tuple[bool, ...]) -> Callable[..., Any]:
        """Return the function of (*tangents, *inputs)."""

    @abstractmethod
    def batch_of(self, axes: tuple[int | None, ...]) -> Callable[..., Any]:
        """Return the function of batched inputs."""


def restrict(
    fn: Callable[..., Any], ins: tuple[bool, ...], outs: tuple[bool, ...], xs: Sequence[Array]
) -> Callable[..., tuple[Array, ...]]:
    """Return the function of the inputs in `ins` alone, to the outputs in `outs`."""

    def part(*chosen: Array) -> tuple[Array, ...]:
        return tuple(select(outs, fn(*replace_chosen(ins, chosen, xs))))

    return part


def select(mask: Sequence[bool], xs: Sequence[Array]) -> list[Array]:
    """Return the items that a mask chooses."""
    return [x for x, chosen in zip(xs, mask, strict=True) if chosen]


def replace_chosen(mask: Sequence[bool], news: Iterable[Array], xs: Sequence[Array]) -> list[Array]:
    """Return `xs`, with new items for those that a mask chooses."""
    it: Iterator[Array] = iter(news)
    return [next(it) if chosen else x for x, chosen in zip(xs, mask, strict=True)]


def mask_inexact(specs: Iterable[Any]) -> tuple[bool, ...]:
    """Return the mask of the specs whose dtype has derivatives."""
    return tuple(is_inexact(spec.dtype) for spec in specs)


def refuse_given(call: Call) -> None:
    """Raise if the user gives a derivative of a function that its library derives."""
    for how in ("vjp", "jvp"):
        if getattr(call, how) is not None:
            raise OptionError.build(
                f"call {call.name} with {how}=",
                f"it is a function of {call.library}, which has derivatives of its own",
                f"the same without {how}=, or backend='numpy'",
            )


def no_derivative_error(what: str, reason: str, hint: str) -> GradientError:
    """Return the error for a derivative that does not exist."""
    return GradientError.build(f"differentiate {what}", reason, hint)
