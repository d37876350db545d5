"""Rules: functions from a list of arrays to a list of arrays, which can be differentiated and batched.

A tracked call joins two libraries. The library of the function provides the rule, and the vjp, the jvp and
the batch of a rule, which are rules too, so that every order of derivative works in the same way. The library
of the caller runs the rule within its own graphs and transforms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from threading import local
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from xbridge.errors import DeviceError, GradientError, OptionError
from xbridge.extend import get_backend, is_inexact, locks
from xbridge.functions.treedef import ARRAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Protocol, TypeVar

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

    class Call(Protocol):
        """A function with the structure and constants of the arguments of a call, as a backend gets it."""

        name: str
        fn: Callable[..., Any]
        library: str
        array_library: str
        treedef: TreeDef
        modes: Any
        """What `modes` of the backend returned when the call was made."""
        vjp: UserDerivative | None
        jvp: UserDerivative | None
        signature: Signature | None
        result: Callable[..., Any] | None
        device: Device | None
        """The device that the user names, on which arrays that are on several devices are gathered."""

        def rule(self) -> DerivableFunction: ...
        def flatten(self, tree: Any, xs: Sequence[Array]) -> tuple[TreeDef, list[Array]]: ...
        def bind(self, xs: Sequence[Array]) -> tuple[Sequence[Array], dict[str, Any]]: ...
        def read_result(self, tree: Any, xs: Sequence[Array]) -> list[Array]: ...
        def result_dtype(self, dtype: str) -> str: ...
        def state(self) -> object: ...
        def evaluate(
            self, rule: DerivableFunction, xs: Sequence[Array], target: str, device: Device | None = None
        ) -> list[Array]: ...


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


class Mark(NamedTuple):
    """The last output of a recorded rule and an input of its derivatives, as an array of 32-bit integers.

    A library such as JAX passes nothing but arrays from a call to its derivative. A compiler may copy a mark,
    drop it or use it twice.
    """

    version: int
    """The version of what the function read beside its arguments, from 1 on."""
    number: int = 0
    """The number of the record that the run has left; 0 if there is none."""


NO_VALUE = Mark(0)
"""The mark of a derivative whose value nobody uses, so that nothing can contradict it."""


class Recording(NamedTuple):
    """What the last output of a recorded rule, a `Mark`, stands for."""

    of: DerivableFunction
    """The rule that the recorded one was derived from."""
    ins: Mask
    """The inputs whose gradients have a record."""
    hold: Callable[[int], Callable[[], object]]
    """Keep a record for any number of uses, until the function is called that this returns."""


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


class DerivableFunction(ABC):
    """A function of arrays that returns a sequence of arrays.

    A derived rule is called with seeds, the outputs if `wants_outputs`, a mark if `keeps_version`, and the
    inputs, in this order. Seeds are cotangents of the outputs in the mask `outs`, or tangents of the inputs
    in the mask `ins`. A vjp is the adjoint of the jvp: ``vdot(g, jvp(t)) == vdot(vjp(g), t)``, for complex
    numbers too.
    """

    wants_outputs = False
    """True if derived rules take the outputs too."""
    repeats = False
    """True if all inputs of a batch need an axis in front, also those that are the same for all examples."""
    program: object = None
    """The call of this rule in compiled programs, once there is one."""
    keeps_version = False
    """True if derived rules take a `Mark`, because a function may read more than arguments."""
    recording: Recording | None = None
    """What is recorded, if this is a recorded rule."""

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

    def derive(self, how: str, *what: Any) -> Self:
        """Return ``differentiate(how, ins, outs, treedef)`` for "vjp" and "jvp", cached.

        Others are a batch, ``derive("batched", axes)``, and a recorded rule, ``derive("recorded", ins)``.
        """
        make = partial(self.differentiate, how) if how in ("vjp", "jvp") else getattr(self, how)
        return get_or_make(self._derived, (how, what), lambda: make(*what))  # type: ignore[no-any-return] # of the same library

    def state(self) -> object:
        """Return what the description of outputs depends on beside the inputs."""
        return self.call.state()

    @property
    def is_outdated(self) -> bool:
        """True if parts of the function were replaced since, so that a new trace needs another rule."""
        return False

    def recorded(self, ins: Mask) -> DerivableFunction:
        """Derive the rule that keeps what the vjp for the inputs in `ins` needs, if that is possible.

        The first use drops it, because a compiled program does not tell when it drops a mark.
        """
        raise NotImplementedError

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
        return (0,) * len(axes) if self.repeats else axes

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


def refuse_user_derivative(call: Call) -> None:
    """Raise if the user gave a derivative for a function that is not one of NumPy."""
    for how in ("vjp", "jvp"):
        if getattr(call, how) is not None:
            raise OptionError.build(
                f"call {call.name} with {how}=",
                f"it is a function of {call.library}, and only functions of numpy take a derivative",
                f"the same without {how}=, or backend='numpy'",
            )


def sharded_call_error(name: str, array_library: str) -> DeviceError:
    """Return the error for an array on several devices in a call that is not compiled."""
    reason = "an array is on several devices, and is gathered only in compiled code"
    return DeviceError.build(f"call {name}", reason, f"{array_library}.jit(f)(x)")


def no_derivative_error(what: str, reason: str, hint: str) -> GradientError:
    """Return the error for a derivative that does not exist."""
    return GradientError.build(f"differentiate {what}", reason, hint)
