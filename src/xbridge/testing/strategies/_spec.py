"""The options of an array, and their combinations: layouts with dtypes, shapes, devices and flags.

A value is checked at once. A strategy is checked by the values that it draws.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import strategies as st

from xbridge.errors import DTypeError, GradientError, OptionError
from xbridge.extend import CPU, get_backend, is_inexact
from xbridge.testing._without import REQUIRES_GRAD, excluded
from xbridge.testing.samples.lookup import dtypes_of, samples_of, states_of
from xbridge.testing.strategies._names import ORDER, read_device, read_dtypes, read_layout, read_shape
from xbridge.testing.strategies._values import has_bounds, read_elements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Literal, TypedDict, Unpack

    from xbridge import Device
    from xbridge.protocol import Backend
    from xbridge.testing.samples.lookup import State
    from xbridge.testing.strategies._values import Elements

    Shape: TypeAlias = tuple[int, ...]
    Dtypes: TypeAlias = st.SearchStrategy[Any] | Sequence[Any] | str | type | None
    Shapes: TypeAlias = st.SearchStrategy[Shape] | st.SearchStrategy[int] | Shape | int | None
    Layouts: TypeAlias = st.SearchStrategy[str] | str | None
    Devices: TypeAlias = st.SearchStrategy[Device] | st.SearchStrategy[str] | str | None

    class Asked(TypedDict, total=False):
        """The options of `arrays`."""

        dtypes: Dtypes
        shapes: Shapes
        layouts: Layouts
        devices: Devices
        writable: bool | None
        requires_grad: Literal["any"] | bool | None
        nan: Literal["quiet", "any"] | None
        elements: Elements


_SIDES = {1: (1, 2, 3, 5, 17), 2: (1, 2, 3, 4), 3: (1, 2, 3), 4: (1, 2)}
"""Lengths of axes, by the number of axes."""

SHAPES: tuple[Shape, ...] = (
    *[()] * 5,  # more often than each other shape
    *(shape for axes, sides in _SIDES.items() for shape in product(sides, repeat=axes)),
    *(shape for axes in (1, 2, 3) for shape in product((0, 2), repeat=axes) if 0 in shape),
)
"""Shapes of few elements, the simplest first."""


_FLAGS: dict[str, tuple[object, ...]] = {
    "writable": (None, True, False),
    REQUIRES_GRAD: (None, True, False, "any"),
    "nan": (None, "quiet", "any"),
}


MOST_STATES = 3
"""Unchanged, read-only, tracked by autograd."""


class ArraySpec:
    """The checked options of an array: strategies, values, or None for an open option."""

    def __init__(self, backend: str, *, everything: bool = False, **asked: Unpack[Asked]) -> None:
        self._everything = everything
        self.backend: Backend = get_backend(backend)
        self.cases = samples_of(backend).cases
        self._asked = {
            word: value
            for word, value in asked.items()
            if value is not None and (word, value) != ("nan", "quiet")
        }
        self.elements = read_elements(asked.get("elements"))
        self.dtypes = self._option("dtypes", read_dtypes)
        self.layouts = self._option("layouts", read_layout)
        self.shapes = self._option("shapes", read_shape)
        self.devices = self._option("devices", read_device)
        self._refuse_flags()
        if isinstance(self.dtypes, str) and not has_bounds(self.dtypes, self.elements):
            reason = f"{self.dtypes} does not have both bounds"
            raise DTypeError.build(f"draw {self!r}", reason, "bounds that it has")
        self.quiet_nan = asked.get("nan") != "any" and not everything
        self._here = {
            device: [word for word in ORDER if word in here and has_bounds(word, self.elements)]
            for device in {CPU, *self.backend.devices()}
            for here in [dtypes_of(self.backend, device)]
        }
        self.usual, self.fitting = cache(self._usual), cache(self._fitting)
        options = (self.dtypes, self.layouts, self.devices)
        dtype, layout, device = (None if isinstance(one, st.SearchStrategy) else one for one in options)
        is_open = isinstance(self.shapes, st.SearchStrategy)
        if not (is_open or self.usual(dtype, layout, device or CPU, self.left_out())):
            hint = "leaving one of these open"
            raise OptionError.build(f"draw arrays({self!r})", "no array fits all options", hint)

    def __repr__(self) -> str:
        """Return the options as they were written."""
        options = [f"{word}={value!r}" for word, value in self._asked.items()]
        return ", ".join([repr(self.backend.name), *options])

    def _option(self, word: str, read: Callable[[Backend, object], Any]) -> Any:
        asked = self._asked.get(word)
        if isinstance(asked, st.SearchStrategy):
            return asked.map(lambda value: read(self.backend, value))
        return None if asked is None else read(self.backend, asked)

    def _refuse_flags(self) -> None:
        name = self.backend.name
        for word, known in _FLAGS.items():
            asked = self._asked.get(word)
            if not any(type(asked) is type(one) and asked == one for one in known):  # 1 is not True
                reason = f"it is {', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
                raise OptionError.build(f"take {word}={asked!r}", reason, f"{word}={known[0]!r}")
        unwritable = self.backend.readonly or self.backend.assumes_immutable
        if self._asked.get("writable") is False and not unwritable:
            raise OptionError.build(f"draw read-only {name} arrays", f"{name} has none", "writable=None")
        if self._asked.get("requires_grad") is True:
            if not self.backend.autograd:
                raise GradientError.build(
                    f"draw {name} arrays that require grad", f"{name} has no gradients", "requires_grad=None"
                )
            if isinstance(self.dtypes, str) and not is_inexact(self.dtypes):
                raise GradientError.build(
                    f"draw {name} arrays of {self.dtypes} that require grad",
                    f"no gradient flows through {self.dtypes}",
                    "dtypes='float32'",
                )

    def left_out(self) -> frozenset[str]:
        """Return the layouts and properties that no option asks for and that are drawn only on request."""
        if self._everything:
            return frozenset()
        return excluded() - ({REQUIRES_GRAD} if self._asked.get("requires_grad") in (True, "any") else set())

    def _usual(
        self, dtype: str | None, layout: str | None, device: Device, left_out: frozenset[str]
    ) -> list[Shape]:
        """Return the given shape, or all usual ones, if an array of that shape exists."""
        shapes = SHAPES if self.shapes is None else (self.shapes,)
        return [shape for shape in shapes if any(self._pairs(dtype, layout, shape, device, left_out))]

    def _fitting(self, *asked: Any) -> dict[str, list[str]]:
        """Return the layouts that fit, each with its dtypes."""
        found: dict[str, list[str]] = {}
        for name, word in self._pairs(*asked):
            found.setdefault(name, []).append(word)
        return found

    def _pairs(
        self, dtype: str | None, layout: str | None, shape: Shape, device: Device, left_out: frozenset[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the layouts and dtypes that fit."""
        tracked = {name for name, case in self.cases.items() if case.tracked and REQUIRES_GRAD in left_out}
        open_ones = [name for name in self.cases if name not in left_out | tracked]
        for name in open_ones if layout is None else (layout,):
            for word in self._here[device]:
                is_asked = dtype in (None, word) and self.cases[name].takes(word, shape)
                if is_asked and self.states(name, word, device, left_out):
                    yield name, word

    def states(self, layout: str, dtype: str, device: Device, left_out: frozenset[str]) -> list[State]:
        """Return the states that arrays of a layout can have and the options allow, the plain one first."""
        writable, tracked = (self._asked.get(word) for word in ("writable", "requires_grad"))
        is_tracked = self.cases[layout].tracked or REQUIRES_GRAD not in left_out
        return [
            state
            for state in states_of(self.cases, layout, dtype, device)
            if writable in (None, state.writable)
            and tracked in (None, "any", state.tracked)
            and (is_tracked or not state.tracked)
        ]
