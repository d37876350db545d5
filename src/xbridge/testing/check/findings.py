"""Findings: what fails, with which library, because of which property; grouped by cause.

Failures of one function with one problem and one cause are one line, with all libraries that have it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge._core.text import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PLAIN = "plain arrays"
"""The cause of a failure that needs no property."""

_WRAPS_AROUND = "large integers"


_NUMBER = re.compile(r"[0-9.]+|'[^']*'|[(][^)]*[)]|argument '?[a-z]+'?|^[a-z_0-9]+[(][)]")
"""Parts of a message that differ between failures with one cause."""


_MEMBER = re.compile(r"(?<!\w)([A-Z]\w*[.])?\w+$")


def member(function: str) -> str:
    """Return the name of a function in its module: that of a method with its class."""
    found = _MEMBER.search(function)
    return found[0] if found else function


class Finding(NamedTuple):
    """A failure of a function."""

    function: str
    backend: str
    problem: str
    """What is wrong, such as `raises RuntimeError`, `values` or `changes its input`."""
    needed: tuple[str, ...]
    """The properties of the arrays without which the call does not fail."""
    message: str
    program: str
    group: str = ""
    """What the properties have in common: `dtype`, `values`, `shape`, `layout` or `device`."""
    line: str = ""
    """The line of the library that raises, or at which the function is defined, as a file and a number."""
    category: str = ""
    """The class of the finding, by which a check ranks it."""
    also: tuple[str, ...] = ()
    """Other functions that fail for the same cause."""

    @property
    def title(self) -> str:
        """The function, and how many others fail for the same cause."""
        return f"{self.function} and {len(self.also)} more" if self.also else self.function

    @property
    def cause(self) -> str:
        """The property that makes the function fail, as words."""
        if not self.needed:
            return f"fails for {PLAIN}"
        return f"passes {PLAIN}, fails for {self.property}"

    @property
    def property(self) -> str:
        """The necessary properties as one word or a few."""
        return " and ".join(self.needed) or PLAIN


class Checked(NamedTuple):
    """The result for one function."""

    function: str
    findings: list[Finding]
    skipped: str
    """Why it was not checked; "" if it was."""
    is_complete: bool = True
    """False if the time was over before all calls of it."""
    backends: tuple[str, ...] = ()
    """The libraries whose arrays it was called with."""
    returned: tuple[str, ...] = ()
    """Those of them whose arrays it returned."""
    meant: tuple[str, ...] = ()
    """Those of these that it is written for: its code names the library, or asks for a namespace."""
    test: str = ""
    """The source code of a test that makes such calls."""
    lacks: bool = False
    """True if it was skipped because an array library cannot be imported."""


def needs(libraries: Iterable[str]) -> str:
    """Return why a function or a module is skipped whose array libraries cannot be imported."""
    return f"it needs {' and '.join(libraries)}, which cannot be imported"


def read(stored: Iterable[dict[str, Any]]) -> list[Finding]:
    """Return the findings that reports of tests have as dicts."""
    return [
        Finding(**{**one, "needed": tuple(one["needed"]), "also": tuple(one.get("also", ()))})
        for one in stored
    ]


def name_of(f: Callable[..., Any]) -> str:
    """Return the name of a function for a report."""
    name: str = getattr(f, "__name__", type(f).__name__)
    return name


def grouped(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return one finding of each cause: with all its properties and functions, and the backends that have it.

    What one line of a library raises is one cause, whichever functions, properties and libraries reach it. So
    are exceptions with the same message if the line is not known, or the array library refuses a layout; a
    layout or a negative axis with which several functions of a file are wrong, because they share a helper;
    a method with which several ufuncs of a module are wrong;
    and small integers that wrap around in several functions of a module, which computes in the dtype of its
    arguments. So is one problem of a function with several properties of one group, such as dtypes, or with
    one property and several libraries, whose messages and lines differ.
    """
    by_line: dict[tuple[object, ...], _Group] = {}
    for one in findings:
        same = (one.function, one.problem.partition(" ")[0], one.group or one.needed, one.category)
        by_line.setdefault((*same, one.line), _Group(one)).add(one)
    by_function: dict[tuple[object, ...], _Group] = {}
    for at_line, group in by_line.items():
        by_function.setdefault((*at_line[:-1], group.properties), group).merge(group)
    causes: dict[object, _Group] = {}
    for group in by_function.values():
        keys = [*_causes(group.finding, group.properties)] or [group]
        home = next((causes[key] for key in keys if key in causes), group)
        home.merge(group)
        for key in keys:
            causes.setdefault(key, home)
    return [group.result() for group in dict.fromkeys(causes.values())]


def _causes(one: Finding, properties: tuple[str, ...]) -> Iterator[object]:
    """Yield what findings of one cause share, whichever functions they are of."""
    if one.problem.partition(" ")[0] in ("raises", "cuts", "computes"):
        is_at_line = one.problem.startswith("raises") and one.line
        if is_at_line:
            yield one.line
        if not is_at_line or one.category == "layout":
            yield one.problem, _NUMBER.sub("", one.message), one.group, one.category
    elif one.category == "overflow":
        yield one.problem, one.function.removesuffix(member(one.function)), one.group
    elif one.category == "layout" or one.group in ("axis", "ufunc"):
        place = one.line.rpartition(":")[0] or one.function.removesuffix(member(one.function))
        yield one.problem, properties, place, one.category


_THE_SAME = "\n# the same in "


class _Group:
    """Findings with one cause."""

    def __init__(self, first: Finding) -> None:
        self.finding = first
        self._functions: dict[str, None] = {}
        self._backends: dict[str, None] = {}
        self._words: dict[str, None] = {}

    def add(self, one: Finding) -> None:
        """Add a finding."""
        self._functions |= dict.fromkeys((one.function, *one.also))
        self._backends |= dict.fromkeys(one.backend.split(", "))
        self._words[one.property] = None

    @property
    def properties(self) -> tuple[str, ...]:
        """The properties, without those that only add an argument to another one."""
        return _plainest(self._words)

    def merge(self, other: _Group) -> None:
        """Add all findings of another group."""
        self._functions |= other._functions
        self._backends |= other._backends
        self._words |= other._words

    def result(self) -> tuple[Finding, list[str]]:
        """Return a finding for all, and their backends."""
        _, *also = self._functions
        whole = self.finding._replace(needed=self.properties, also=tuple(also))
        if also:
            program = whole.program.partition(_THE_SAME)[0]
            others = ", ".join(map(member, also))
            whole = whole._replace(program=f"{program}{_THE_SAME}{others}".lstrip())
        return whole, list(self._backends)


def _plainest(words: Iterable[str]) -> tuple[str, ...]:
    """Return the properties as one phrase, without those that only add an argument to another one."""
    listed = list(words)
    return (", ".join(word for word in listed if word.rpartition(" and ")[0] not in listed),)


def as_text(findings: Iterable[Finding]) -> str:
    """Return a table with a line for each cause."""
    rows = [[one.title, one.property, ", ".join(names), one.problem] for one, names in grouped(findings)]
    return "\n".join(table([["function", "property", "libraries", "problem"], *rows]))
