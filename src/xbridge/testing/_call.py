"""Compare a call with arrays of a library with the same call with NumPy's arrays.

The arrays are recipes, so the call can be repeated: with other properties, to find out which one matters, and
as a program without xbridge.
"""

from __future__ import annotations

import math
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge.errors import XBridgeError
from xbridge.extend import CPU, HOST, backend_for, category, get_backend, is_inexact
from xbridge.testing._diff import resolve, same_numbers
from xbridge.testing._outcome import MOST_LISTED, Difference, Promise, compare, outcome
from xbridge.testing._source import (
    Recipe,
    definition_of,
    find_function,
    host_copy,
    read_expression,
    recipe_of,
)
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from xbridge.protocol import Array, HostArray
    from xbridge.testing._outcome import Outcome
    from xbridge.testing._reachable import ReachableState

_FIRST = 4
"""The numbers that are shown of a large array."""

_SMALL = 11
"""The bound of integers that do not overflow in any dtype if a few are added or multiplied."""

_FLAGS: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    HOST: ("read-only", lambda x: not x.flags.writeable and 0 not in x.strides, "assert {}.flags.writeable"),
    "torch": ("requires_grad", lambda x: x.requires_grad, "assert not {}.requires_grad"),
}
"""The flag of each library that a call may set on an argument, how it is read, and that it is not set."""

_WIDE = {"float": "float64", "complex": "complex128", "int": "int64"}


class Call(NamedTuple):
    """A function, its arguments with a recipe for each array, and what is promised."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reference: Callable[..., Any] | None = None
    options: Any = None
    """The options of a `Promise`, as a dict."""
    path: tuple[str, str] | None = None
    """The module and the name by which the function is imported."""
    by: Callable[[Call], Difference | None] | None = None
    """A way to judge the call other than by a comparison with NumPy's, or None."""
    state: ReachableState | None = None
    """The state that the function keeps between calls, if it is restored before each."""

    @classmethod
    def of(
        cls,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[Array] | None = None,
    ) -> Call:
        """Describe a call with given arrays, at any depth of lists, tuples and dicts."""
        args, kwargs = _map_leaves(partial(_describe, given=given), (args, kwargs))
        return cls(f, args, kwargs, path=find_function(f))

    def recipes(self) -> list[Recipe]:
        """Return the recipes of all arrays, in order."""
        found: list[Recipe] = []

        def note(x: Recipe) -> Recipe:
            found.append(x)
            return x

        self.map(note)
        return found

    def map(self, change: Callable[[Recipe], Any]) -> Call:
        """Return the call with other recipes, or with what a function makes of them."""

        def fill(x: Any) -> Any:
            return change(x) if isinstance(x, Recipe) else x

        args, kwargs = _map_leaves(fill, (self.args, self.kwargs))
        return self._replace(args=args, kwargs=kwargs)

    @property
    def promise(self) -> Promise:
        """The library and device of its arrays, and the options."""
        recipes = self.recipes()
        used = [one for one in recipes if one.backend != HOST] or recipes
        backend = used[0].backend if used else HOST
        device = used[0].device if used else CPU
        home = get_backend(backend).devices()[0]
        inputs = dict.fromkeys(one.dtype for one in recipes if is_inexact(one.dtype))
        there = home if device == CPU else device
        return Promise(backend, there, **(self.options or {}), inputs=tuple(inputs))

    def judge(self) -> Difference | None:
        """Run both calls. Return the first difference, or the first argument that was changed."""
        return self.compare(*self.perform()) if self.by is None else self.by(self)

    def compare(self, arrays: list[Array], actual: Outcome) -> Difference | None:
        """Return the first argument that a call has changed, or the first difference from NumPy's outcome."""
        return self.changed(arrays) or compare(actual, self.expected(), self.promise)

    def fill(self, arrays: Iterable[Array]) -> Call:
        """Return the call with arrays in the places of the recipes."""
        left = iter(arrays)
        return self.map(lambda _: next(left))

    def bind(self, arrays: Iterable[Array]) -> partial[Any]:
        """Return the function with its arguments, and arrays in the places of the recipes."""
        filled = self.fill(arrays)
        return partial(self.f, *filled.args, **filled.kwargs)

    def perform(self) -> tuple[list[Array], Outcome]:
        """Run the call with new arrays, and return these too."""
        arrays = [one.make() for one in self.recipes()]
        if self.state is not None:
            self.state.restore()
        return arrays, outcome(self.bind(arrays))

    def run(self) -> Outcome:
        """Run the call with new arrays."""
        return self.perform()[1]

    def expected(self) -> Outcome:
        """Run the reference on NumPy's arrays."""
        if self.state is not None:
            self.state.restore()
        host = self.fill([host_copy(one.values) for one in self.recipes()])
        return outcome(partial(self.reference or self.f, *host.args, **host.kwargs))

    def changed(self, arrays: list[Array]) -> Difference | None:
        """Return the first change of an array by the call: of its values, or a flag that it did not have."""
        for number, (one, x) in enumerate(zip(self.recipes(), arrays, strict=True)):
            now = samples_of(one.backend).read(x)
            flag, is_set, statement = _FLAGS.get(one.backend, ("", bool, ""))
            is_same = now.shape == one.values.shape and (
                now.tobytes() == one.values.tobytes() or same_numbers(now, one.values).all()
            )
            if is_same and not (flag and flag not in one.properties and is_set(x)):
                continue
            name, made = f"array {number}", program(self)
            if not is_same:
                read = read_expression(one.backend, made.arrays[number])
                said = f"{name} was {_shown(one.values)} and became {_shown(now)}"
                before = [*{"import numpy as np"}.difference(made.lines), f"before = np.array({read})"]
                check = f"np.testing.assert_array_equal({read}, before)"
            else:
                said, before, check = f"{name} became {flag}", [], statement.format(made.arrays[number])
            return Difference("changes its input", said, program=(*before, f"{made.call}  # {said}", check))
        return None


def _map_leaves(change: Callable[[Any], Any], x: Any) -> Any:
    """Return lists, tuples, named tuples and dicts with other leaves, at any depth."""
    if isinstance(x, list | tuple) and not isinstance(x, Recipe):
        made = [_map_leaves(change, part) for part in x]
        make: Callable[[list[Any]], Any] = getattr(x, "_make", type(x))
        return make(made)
    if isinstance(x, dict):
        return {key: _map_leaves(change, part) for key, part in x.items()}
    return change(x)


def _describe(x: Any, *, given: list[Array] | None) -> Any:
    """Replace an array by its recipe, and append it to `given`."""
    backend = backend_for(type(x))
    if backend is None or isinstance(x, backend.scalar_types):
        return x
    try:
        recipe = recipe_of(resolve(x, "call a function with")[1], backend)
    except XBridgeError:
        return x
    if given is not None:
        given.append(x)
    return recipe


def _shown(values: HostArray) -> str:
    """Return the numbers of an array; a few and the number of all if a message has no place for them."""
    if values.size <= MOST_LISTED:
        return str(values.tolist())
    return f"{str(values.reshape(-1)[:_FIRST].tolist())[:-1]}, ...] ({values.size} numbers)"


# -- causes --------------------------------------------------------------------------------------


def _removals(call: Call) -> dict[str, Callable[[Recipe], Recipe]]:
    """Return every property of the arrays of a call, with a function that removes it from an array."""
    recipes = call.recipes()
    found: dict[str, Callable[[Recipe], Recipe]] = {
        name: methodcaller("without", name) for one in recipes for name in one.properties
    }
    if any(one.device != CPU for one in recipes):
        found["another device"] = methodcaller("_replace", device=CPU)
    for name in _VALUES:
        if any(_select(name, one.values).any() for one in recipes):
            found[name] = partial(_without_values, name)
    for dtype in {one.dtype: None for one in recipes}:
        wide = _WIDE.get(category(dtype), dtype)
        lacks = (get_backend(one.backend).unsupported_dtype(wide, one.device) for one in recipes)
        if wide != dtype and not any(lacks):
            found[dtype] = partial(_widen, dtype, wide)
    return found


_VALUES: dict[str, tuple[str, Callable[[Any], HostArray], float]] = {
    "NaN": ("fc", np.isnan, 1.0),
    "infinity": ("fc", np.isinf, 2.0),
    "large integers": ("iu", lambda values: (values > _SMALL) | (values < -_SMALL), 3),
}
"""Numbers by which a call may fail: the kinds of dtypes that have them, a mask, and what stands for them."""


def _select(name: str, values: HostArray) -> HostArray:
    kinds, find, _ = _VALUES[name]
    return find(values) if values.dtype.kind in kinds else np.zeros(values.shape, bool)


def _without_values(name: str, one: Recipe) -> Recipe:
    return one._replace(
        values=np.where(_select(name, one.values), _VALUES[name][2], one.values).astype(one.values.dtype)
    )


def _widen(dtype: str, wide: str, one: Recipe) -> Recipe:
    return one._replace(values=one.values.astype(wide)) if one.dtype == dtype else one


def minimal(call: Call, kind: str) -> tuple[Call, list[str]]:
    """Remove every property without which the call still fails in the same way; return the necessary ones."""
    needed = []
    for name, remove in _removals(call).items():
        simpler = call.map(remove)
        again = simpler.judge()
        if again is not None and again.kind == kind:
            call = simpler
        else:
            needed.append(name)
    return call, needed


# -- programs ------------------------------------------------------------------------------------


class Program(NamedTuple):
    """Source code of a call."""

    imports: list[str]
    made: list[str]
    """The statements that make its arrays."""
    arrays: list[str]
    """The names of its arrays."""
    function: str
    arguments: str
    like: str
    """The name of the first array of the library of the call."""

    @property
    def lines(self) -> list[str]:
        """The statements before the call."""
        return [*self.imports, *self.made]

    @property
    def call(self) -> str:
        """The expression of the call."""
        return f"{self.function}({self.arguments})"

    def checked(self, found: Difference, call: str = "") -> list[str]:
        """Return statements that fail if the result of a call, this one by default, is as it was found."""
        call, said = call or self.call, f"  # {found.message.splitlines()[0]}"
        if not found.check:
            return [call + said]
        check = found.check.replace("{part}", f"result{found.path}").replace("{array}", self.like)
        numpy = ["import numpy as np"] if "np." in check and "import numpy as np" not in self.lines else []
        return [*numpy, f"result = {call}{said}", check]


def program(call: Call, *, taken: int = 0) -> Program:
    """Return the source code of a call. A function without source code has the name `f`.

    The first names are left out if they are taken by the arrays of another call.
    """
    found = call.path
    recipes = call.recipes()
    numbers = range(taken, taken + len(recipes))
    names = [chr(ord("a") + n) if numbers.stop <= len("abcde") else f"x{n}" for n in numbers]
    imports = [line for one in recipes for line in one.imports()]
    defined = [] if found else definition_of(call.f)
    imports += [f"from {found[0]} import {found[1]}"] if found else defined
    made = [f"{name} = {one.expression()}" for name, one in zip(names, recipes, strict=True)]
    name = found[1] if found else getattr(call.f, "__name__", "f") if defined else "f"
    name = "f" if name == "<lambda>" else name
    left = iter(names)
    shown = [_written(arg, left) for arg in call.args]
    shown += [f"{key}={_written(value, left)}" for key, value in call.kwargs.items()]
    library = call.promise.backend
    own = [name for name, one in zip(names, recipes, strict=True) if one.backend == library]
    return Program([*dict.fromkeys(imports)], made, names, name, ", ".join(shown), "".join(own[:1]))


def _written(x: Any, names: Iterator[str]) -> str:
    """Return source code of an argument. Each array takes the next name."""
    if isinstance(x, Recipe):
        return next(names)
    if isinstance(x, list):
        return f"[{', '.join(_written(part, names) for part in x)}]"
    if isinstance(x, tuple):
        return f"({', '.join(_written(part, names) for part in x)}{',' * (len(x) == 1)})"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{key!r}: {_written(part, names)}' for key, part in x.items())}}}"
    if isinstance(x, float) and not math.isfinite(x):
        return f"float('{x}')"
    return getattr(x, "__name__", "") if callable(x) else repr(x)
