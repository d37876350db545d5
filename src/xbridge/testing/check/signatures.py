"""How to call a function with arrays: its signature, its type hints and its docstring, or the caller's words.

A docstring gives types, shapes such as ``(n_samples, n_features)``, and examples with literals.
What is inferred is tried with NumPy. The first arguments with which the function does not raise are the base
of its check. Further bases give another optional argument each.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import time
from doctest import DocTestParser
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from xbridge._registry.registry import backend_for
from xbridge.errors import OptionError
from xbridge.testing._outcome import outcome, parts
from xbridge.testing.check.examples import calls_in_examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xbridge._core.protocol import HostArray
    from xbridge.testing._outcome import Outcome

_ARRAY = re.compile(r"array|tensor|ndarray|matrix|sequence", re.IGNORECASE)
_ARRAYS = re.compile(r"[\w.]*(union\[[\w.]*)?(tuple|list|sequence)\[.*(array|tensor)", re.IGNORECASE)
_BOOLEANS = re.compile(
    r"((array[-_ ]?like|ndarray|array|tensor)s?(,| of)? ?(dtype=?)?(np\.)?bool(ean)?s?"
    r"|bool(ean)? (nd)?array)\b"
    r"(?!,? (or|int|float))",
    re.IGNORECASE,
)
"""Types of arrays of truth values alone."""

_SIZED = re.compile(r"[([][^()\[\]]*,[^()\[\]]*[])] (float|int|bool|complex)", re.IGNORECASE)
"""The beginning of a type that is a shape with a kind of numbers: `(n, 3) float`."""

_ALTERNATIVE = re.compile(r"(?<=\w)\s*(\||\bor\b)\s*\d+")
"""Another length of a side, as in `(n, 2 | 3)`."""

_ARRAY_NAMES = {
    *("x", "y", "z", "a", "b", "c", "m", "v", "w", "X", "Y", "A", "B", "x1", "x2", "arr", "array", "values"),
    *("data", "samples", "obs", "y_true", "y_pred", "y_score"),
}
_OF_UFUNCS = {"out", "where", "casting", "order", "dtype", "subok", "signature", "sig"}
"""Options of NumPy's ufuncs, which other libraries do not have."""

_NO_VALUE = re.compile(r"callable|function|dict|object|module|dtype|estimator|scorer", re.IGNORECASE)
"""Types for which no value is guessed."""

_GUESSED = (2, 0.5)
"""The values to try for a parameter of unknown type."""

_AXES = ("axis", "axes", "dim")
_MOST_CHOICES = 3
_SECONDS = 1.0
"""The most processor time in which arguments are looked for, before examples are run."""

_MOST_VARIANTS = 12
_MOST_EXAMPLES = 4
_LENGTHS = (4, 8, 16, 32, 64)
"""The lengths to try for the arrays of an example."""

_FORMS: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
    ("float", ((6,),)),
    ("float", ((4, 3),)),
    ("float", ((3, 3),)),
    ("int", ((6,),)),
    ("bool", ((6,),)),
    ("label", ((6,),)),
    ("label", ((6,), (6, 1))),
    ("float", ((4, 3), (3,))),
    ("float", ((3, 3), (3,))),
    ("float", ((4, 3), (6,))),
    ("complex", ((6,),)),
    ("float", ((2, 3, 4),)),
    ("float", ((2, 4, 6, 2),)),
    ("float", ((),)),
    ("float", ((1,),)),
    ("int", ((),)),
    ("int", ((1,),)),
    ("label", ((4, 3), (4, 3))),
    ("float", ((4, 3), (4,))),
    ("complex", ((3, 3),)),
    ("definite", ((3, 3),)),
    ("float", ((4,),)),
    ("float", ((3,),)),
    ("float", ((4, 4),)),
    ("float", ((6, 2),)),
)
"""What is tried for the required arrays: the kind, and the shape of the first and of the others."""

_SORTED = (0.125, 0.25, 0.375, 0.5625, 0.75, 0.8125, 1.0625, 1.125, 1.3125, 1.5, 1.625, 1.6875)
_NUMBERS = (0.5, 0.25, 0.75, 0.125, 0.625, 0.875, 0.375, 0.1875, 0.6875, 0.8125, 0.4375, 0.3125)


class Slot(NamedTuple):
    """A parameter, and the values to try for it."""

    name: str
    kind: str
    """`array`, with or without a dtype; `arrays`, a list of them; or `other`."""
    required: bool
    keyword: bool
    values: tuple[Any, ...] = ()
    shapes: tuple[tuple[str, ...], ...] = ()
    """The documented sides of an array, as names and numbers: the usual ones, then alternatives."""


class Base(NamedTuple):
    """Arguments with which a function works with NumPy."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: str = ""
    """The optional argument that this base adds, or the example that it is from."""


def read_words(text: str) -> dict[str, str]:
    """Read `x: float, axis: axis`.

    Raises
    ------
    OptionError
        A part is not a name and a kind.
    """
    words = {}
    for part in filter(None, map(str.strip, re.split(r",(?![^(\[]*[)\]])", text))):
        name, colon, word = map(str.strip, part.partition(":"))
        if not colon or not name.isidentifier() or not word:
            raise OptionError.build(
                f"read --args {text!r}", f"{part!r} is not a name and a kind", "'x: float, axis: axis'"
            )
        _asked(word)
        words[name] = word
    return words


def parameter_names(f: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters whose kinds `read_words` can give."""
    signature = None if isinstance(f, np.ufunc) else _signature(f)
    parameters = signature.parameters.values() if signature else ()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]


def slots_of(f: Callable[..., Any], words: dict[str, str]) -> list[Slot] | None:
    """Return the parameters of a function; None if one is required that cannot be guessed."""
    if isinstance(f, np.ufunc):
        return [Slot(f"x{n}", "array", required=True, keyword=False) for n in range(f.nin)]
    signature = _signature(f)
    if signature is None:
        return None
    documented, described = _documented(f), _described(f)
    is_ufunc = {"casting", "subok"} <= {*signature.parameters}
    slots = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD or (is_ufunc and parameter.name in _OF_UFUNCS):
            continue
        variadic = parameter.kind is parameter.VAR_POSITIONAL
        required = parameter.default is parameter.empty
        kind, values = _kind(parameter, documented.get(parameter.name, ""), words.get(parameter.name, ""))
        if variadic and kind != "array":
            continue
        if required and not values and not kind.startswith("array"):
            if kind != "unknown" or _NO_VALUE.search(
                f"{documented.get(parameter.name)} {parameter.annotation}"
            ):
                return None
            kind, values = "other", _GUESSED
        if kind == "unknown" and isinstance(parameter.default, str):
            kind, values = "other", (*dict.fromkeys(_QUOTED.findall(described.get(parameter.name, ""))),)
        values = tuple(
            one for one in values if type(one) is not type(parameter.default) or one != parameter.default
        )
        keyword = parameter.kind is parameter.KEYWORD_ONLY or (not required and not variadic)
        if kind == "array" and required and parameter.name.startswith("labels"):
            kind = "array label"
        shapes = _shapes(described.get(parameter.name, "")) if kind.startswith("array") else ()
        slots += [Slot(parameter.name, kind, required, keyword, values, shapes)] * (2 if variadic else 1)
    return slots if any(slot.required for slot in slots) else None


def _signature(f: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function: its own, or that of torch's operator of its name."""
    found = outcome(partial(inspect.signature, f))
    if found.error is None:
        return cast("inspect.Signature", found.result)
    torch = sys.modules.get("torch")
    name = getattr(f, "__name__", "")
    if torch is None or not isinstance(name, str):
        return None
    read = torch._C._jit_get_schemas_for_operator  # noqa: SLF001 -- torch has no public table of its operators
    schemas = outcome(partial(read, f"aten::{name}")).result or ()
    return next((_of_schema(one) for one in schemas if not any(arg.is_out for arg in one.arguments)), None)


def _of_schema(schema: Any) -> inspect.Signature:
    """Return the signature of an operator of torch, with its types as annotations."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature(
        [
            inspect.Parameter(
                "input" if arg.name == "self" else arg.name,
                kinds[arg.kwarg_only],
                default=arg.default_value if arg.has_default_value() else inspect.Parameter.empty,
                annotation=str(arg.type).replace("number", "float"),
            )
            for arg in schema.arguments
        ]
    )


def _documented(f: Callable[..., Any]) -> dict[str, str]:
    """Return the types that a docstring gives, by the name of the parameter."""
    found: dict[str, str] = {}
    for names, text in re.findall(r"^\s*([\w*][\w*, ]*?)\s*:\s(.+)$", inspect.getdoc(f) or "", re.MULTILINE):
        for name in names.split(","):
            found.setdefault(name.strip().lstrip("*"), text)
    return found


def _described(f: Callable[..., Any]) -> dict[str, str]:
    """Return the lines that a docstring has for a parameter, the first with its type, by its name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (inspect.getdoc(f) or "").splitlines():
        if named := re.match(r"\s*([\w*][\w*, ]*?)\s*:\s", line):
            lines = []
            for name in named[1].split(","):
                found.setdefault(name.strip().lstrip("*"), lines)
        lines.append(line)
    return {name: "\n".join(each).partition("\n\n")[0] for name, each in found.items()}


_SHAPES = (
    re.compile(r"[([]\s*(?:\.\.\.\s*,\s*)?([\w*]+(?:\s*,\s*[\w*]+)*)\s*,?\s*[])]"),
    re.compile(r"\b([A-Z\d](?:x[A-Z\d])+)\b"),
)
"""Shapes in texts: `(n, 3)`; `(..., 3)`, of which the other axes are left out; and `BxCxHxW`."""


def _shapes(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the sides of the documented shapes, the alternatives too, as names and numbers."""
    text = _ALTERNATIVE.sub("", text)
    found = [one for pattern in _SHAPES for one in pattern.finditer(text) if re.search("[,x]", one[0])]
    return tuple(tuple(re.split(r"\s*[,x]\s*", one[1])) for one in found)


_QUOTED = re.compile(r"(?<![\w\"'`])[\"'`]{1,2}([a-z]\w*)[\"'`]{1,2}(?![\w\"'`])")
"""Words in quotation marks: the choices that a text names."""


def _kind(parameter: inspect.Parameter, text: str, word: str) -> tuple[str, tuple[Any, ...]]:
    """Return the kind of a parameter, and values if it is not an array."""
    name, default = parameter.name, parameter.default
    if word:
        return _asked(word)
    hint = "" if parameter.annotation is parameter.empty else str(parameter.annotation)
    hint = "" if hint in ("Any", "typing.Any", "object") else hint
    if name in _AXES:
        return "other", (0, -1)
    if name == "xp" and default is parameter.empty:
        return "other", (np,)
    if name in ("xp", "dtype", "device", "out", "output", "copy") or name.startswith(
        ("overwrite", "inplace", "verbose", "print")
    ):
        return "other", ()
    if isinstance(default, bool):
        return "other", (not default,)
    if choices := re.search(r"\{(.*?)\}", text):
        listed = outcome(lambda: ast.literal_eval(f"[{choices[1]}]"))
        return ("other", tuple(listed.result)) if listed.error is None else ("unknown", ())
    if name == "shape":
        return "other", ((2, 3), (6,))
    if re.match(r"int\b", hint) or re.match(r"int(eger)?\b", text):
        return "other", (8, 2, 5) if name.startswith(("num", "n_")) else (2, 1, 3)
    if _ARRAYS.match(hint):
        return "arrays", ()
    if _BOOLEANS.search(text):
        return "array bool", ()
    if sized := _SIZED.match(text):
        return "array" if sized[1] == "float" else f"array {sized[1].casefold()}", ()
    if _ARRAY.search(hint) or _ARRAY.search(text) or (name in _ARRAY_NAMES and not hint and not text):
        return "array", ()
    if re.search(r"\bint(eger)?\b", text):
        return "other", (2, 1, 3)
    if re.match(r"bool\b", hint):
        return "other", (False, True)
    if re.search(r"\b(list|sequence|iterable)\b.*\bstr", text):
        return "other", (list("abcd"),)
    if re.match(r"float\b", hint) or re.search(r"\b(float|scalar|number)\b", text):
        return "other", (0.5, 2.0)
    if not hint and not text and default is parameter.empty:
        return "array", ()
    return "unknown", ()


def _asked(word: str) -> tuple[str, tuple[Any, ...]]:
    """Return the kind that the caller names: of an array, an axis, a number, or a literal."""
    if word in ("float", "int", "bool", "complex", "label"):
        return f"array {word}", ()
    if word in ("array", "any"):
        return "array", ()
    if word == "axis":
        return "other", (0, -1)
    if word == "number":
        return "other", (0.5, 2.0)
    read = outcome(partial(ast.literal_eval, word))
    if read.error is not None:
        hint = "float, int, bool, complex, label, axis, number, or a literal such as 3 or 'full'"
        raise OptionError.build(f"read --args with {word!r}", "it is not a kind of argument", hint)
    return "other", (read.result,)


def fill(kind: str, shape: tuple[int, ...], turn: int) -> HostArray:
    """Return distinct, plain values of a kind, other ones for each `turn`."""
    size = int(np.prod(shape, dtype=int))
    numbers = np.resize(np.roll(_NUMBERS, -turn) if turn else np.array(_SORTED), size)
    if size > len(_NUMBERS):
        numbers = numbers + np.arange(size) // len(_NUMBERS)
    made: HostArray = numbers
    if kind == "shares":
        made = numbers / numbers.sum()
    elif kind == "int":
        made = np.roll(np.arange(size) % 7, 2 * turn)
    elif kind == "label":
        made = (np.arange(size) * 5 + turn + np.arange(size) // 3) % 2
    elif kind == "bool":
        made = (np.arange(size) + turn) % 3 == 0
    elif kind == "definite":
        square = numbers.reshape(shape)
        made = square @ square.T + np.eye(len(square))
    elif kind == "complex":
        made = numbers + 1j * np.roll(numbers, 1)
    return np.array(made.reshape(shape), order="C")


def bases(
    f: Callable[..., Any], words: dict[str, str], run: Callable[..., Any], place: tuple[str, str] = ("", "")
) -> Iterator[Base]:
    """Yield arguments that work with NumPy: the plainest first, then one optional argument more each.

    Parameters
    ----------
    f : callable
        The function whose signature and docstring are read.
    words : dict
        Kinds of arguments by name.
    run : callable
        The function that is tried.
    place : tuple of str
        The module and the name of the function, whose examples are run if nothing that is guessed works.
    """
    slots = slots_of(f, words) or slots_of(run, words) or []
    end = time.process_time() + _SECONDS
    for kind, shapes in _forms(slots):
        for base in _required(slots, kind, shapes):
            if _works(run, base):
                yield base
                yield from islice(_more(run, slots, base, kind, shapes), _MOST_VARIANTS)
                return
            if time.process_time() > end:
                break
    tried = (next(filter(partial(_works, run), _filled(*example)), None) for example in _examples(f))
    found = [*islice(filter(None, tried), _MOST_EXAMPLES)]
    yield from found or islice(_from_examples(f, run, place), _MOST_EXAMPLES)


def _from_examples(f: Callable[..., Any], run: Callable[..., Any], place: tuple[str, str]) -> Iterator[Base]:
    """Yield the arguments that the examples in a docstring give, with arrays for lists if that works."""
    for args, kwargs in calls_in_examples(f, *place) if place[0] else ():
        given = Base(args, kwargs)
        with_arrays = _mapped(_as_array, given)
        working = next(
            filter(partial(_works, run), (_mapped(_as_float, with_arrays), with_arrays, given)), None
        )
        if working is not None:
            yield _shortened(run, working)


def _mapped(change: Callable[[Any], Any], base: Base) -> Base:
    return base._replace(
        args=tuple(map(change, base.args)), kwargs={k: change(v) for k, v in base.kwargs.items()}
    )


def _as_float(x: Any) -> Any:
    """Return floating numbers for an array of integers: examples are written with short numbers."""
    return x.astype(float) if isinstance(x, np.ndarray) and x.dtype.kind in "iu" else x


def _as_array(x: Any) -> Any:
    """Return an array of a list of numbers, and anything else as it is."""
    if not isinstance(x, list) or not x:
        return x
    made = outcome(partial(np.asarray, x))
    return made.result if made.error is None and made.result.dtype.kind in "biufc" else x


def _shortened(run: Callable[..., Any], base: Base) -> Base:
    """Cut the sides of the arrays that are longer than needed, those of one length together."""
    arrays = [x for x in (*base.args, *base.kwargs.values()) if isinstance(x, np.ndarray)]
    for side in sorted({n for x in arrays for n in x.shape if n > min(_LENGTHS)}, reverse=True):
        for length in filter(side.__gt__, _LENGTHS):
            shorter = _mapped(partial(_cut, side=side, length=length), base)
            if _works(run, shorter):
                base = shorter
                break
    return base


def _cut(x: Any, *, side: int, length: int) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    return np.array(x[tuple(slice(length if n == side else None) for n in x.shape)], order="C")


def _forms(slots: list[Slot]) -> Iterator[tuple[str, tuple[tuple[int, ...], ...]]]:
    """Yield the kinds and shapes to try: the documented ones first, if they differ or have a fixed side."""
    required = [slot for slot in slots if slot.required and slot.kind.startswith("array")]
    if not required:
        yield from _FORMS[: bool(slots)]
        return
    is_fixed = any(word.isdigit() for slot in required for shape in slot.shapes for word in shape)
    for number in range(min(max(len(slot.shapes) for slot in required), _MOST_CHOICES)):
        shapes = [_sized(slot.shapes, number, sides) for sides in [dict[str, int]()] for slot in required]
        if all(shapes) and (is_fixed or len({*shapes}) > 1):
            yield from ((kind, tuple(shapes)) for kind in ("float", "shares"))
        elif is_fixed or max(map(len, shapes)) > 2:
            others = sorted(dict.fromkeys(form[0] for _, form in _FORMS if form[0]), key=len)
            yield from (("float", tuple(each or other for each in shapes)) for other in others)
    labels = any(slot.name.startswith(("y_", "label")) for slot in slots)
    yield from sorted(_FORMS, key=lambda form: labels and form[0] in ("int", "bool"))


def _sized(shapes: tuple[tuple[str, ...], ...], number: int, sides: dict[str, int]) -> tuple[int, ...]:
    """Return the lengths of one of the documented shapes, with two axes for `*` at its end."""
    words = [*shapes[number:], *shapes[-1:], ()][0]
    return tuple(_side(word, sides) for word in (*words, *["**"] * (words[-1:] == ("*",))))


def _side(word: str, sides: dict[str, int]) -> int:
    return int(word) if word.isdigit() else sides.setdefault(word, (4, 3, 5, 2)[len(sides) % 4])


def _examples(f: Callable[..., Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the arguments of the calls in a docstring, with None for what is not a literal."""
    name = getattr(f, "__name__", "")
    parsed = outcome(
        lambda: [ast.parse(one.source) for one in DocTestParser().get_examples(inspect.getdoc(f) or "")]
    )
    for node in (node for tree in parsed.result or () for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            named = {word.arg: _literal(word.value) for word in node.keywords if word.arg}
            args = [_literal(arg) for arg in node.args]
            if None in args:
                yield args, named


def _literal(node: ast.expr) -> Any:
    return outcome(partial(ast.literal_eval, node)).result


def _filled(args: list[Any], kwargs: dict[str, Any]) -> Iterator[Base]:
    """Yield the arguments of an example, with arrays of each form for what is not a literal."""
    literals = [repr(arg) for arg in [*args, *kwargs.values()] if arg is not None]
    label = f"the example {literals[0]}" if literals else ""
    for kind, shapes in _FORMS:
        turns = iter(range(len(args)))
        made = [_array(kind, shapes, next(turns)) if arg is None else arg for arg in args]
        yield Base(tuple(made), kwargs, label)


def _array(kind: str, shapes: tuple[tuple[int, ...], ...], turn: int) -> HostArray:
    """Return the array of a form for one of the arguments."""
    return fill(kind, shapes[min(turn, len(shapes) - 1)], turn)


def _required(slots: list[Slot], kind: str, shapes: tuple[tuple[int, ...], ...]) -> Iterator[Base]:
    """Yield the required arguments; other ones than arrays take their first values together."""
    choices = max((len(slot.values) for slot in slots if slot.required), default=0)
    for choice in range(max(1, min(choices, _MOST_CHOICES))):
        args, kwargs, turn = [], {}, 0
        for slot in slots:
            if not slot.required:
                continue
            if slot.kind.startswith("array"):
                count = 2 if slot.kind == "arrays" else 1
                word = slot.kind.partition(" ")[2] or kind
                made: list[Any] = [_array(word, shapes, turn + n) for n in range(count)]
                value: Any = made if count > 1 else made[0]
                turn += count
            else:
                value = slot.values[min(choice, len(slot.values) - 1)]
            if slot.keyword:
                kwargs[slot.name] = value
            else:
                args.append(value)
        yield Base(tuple(args), kwargs)


def _more(
    f: Callable[..., Any], slots: list[Slot], base: Base, kind: str, shapes: tuple[tuple[int, ...], ...]
) -> Iterator[Base]:
    """Yield the base with one optional argument more: a word with each of its choices."""
    for slot in slots:
        if slot.required:
            continue
        values = slot.values
        if slot.kind.startswith("array"):
            kinds = [slot.kind.partition(" ")[2] or kind, "float", "int", "bool"]
            values = tuple(fill(one, shapes[-1], 3) for one in dict.fromkeys(kinds))
        for value in values:
            grown = base._replace(kwargs={**base.kwargs, slot.name: value}, label=slot.name)
            if _works(f, grown):
                yield grown
                if not isinstance(value, str):
                    break


def _works(f: Callable[..., Any], base: Base) -> bool:
    """Return True if NumPy's call returns something with an array or a number in it."""
    found = call_plainly(f, base)
    return found.error is None and any(
        isinstance(part, int | float | complex) or backend_for(type(part)) is not None
        for _, part in parts(found.result)
    )


def call_plainly(f: Callable[..., Any], base: Base) -> Outcome:
    """Call a function with copies of the arguments of a base."""
    with np.errstate(all="ignore"):
        return outcome(partial(f, *map(_copy, base.args), **{k: _copy(v) for k, v in base.kwargs.items()}))


def _copy(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x
