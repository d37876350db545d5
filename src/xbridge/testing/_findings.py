"""Findings: what fails, with which library, because of which property; as a table, Markdown or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge.extend import table

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN = "plain arrays"
"""The cause of a failure that needs no property."""


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

    @property
    def cause(self) -> str:
        """The property that makes the function fail, as words."""
        return f"passes {PLAIN}, fails for {self.property}" if self.needed else f"fails for {PLAIN}"

    @property
    def property(self) -> str:
        """The necessary properties as one word or a few."""
        return " and ".join(self.needed) or PLAIN


def read(stored: Iterable[dict[str, Any]]) -> list[Finding]:
    """Return the findings that were sent as dicts."""
    return [Finding(**{**one, "needed": tuple(one["needed"])}) for one in stored]


def grouped(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return the first finding of each function, problem and cause, with all libraries that have it."""
    groups: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for one in findings:
        _, libraries = groups.setdefault((one.function, one.problem, one.needed), (one, []))
        if one.backend not in libraries:
            libraries.append(one.backend)
    return [*groups.values()]


def as_text(findings: Iterable[Finding]) -> str:
    """Return a table with a line for each cause."""
    return "\n".join(table([_HEAD, *_rows(findings)]))


def as_rows(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return an object for each cause, for JSON."""
    return [
        {**one._asdict(), "cause": one.cause, "property": one.property, "backends": libraries}
        for one, libraries in grouped(findings)
    ]


def as_markdown(findings: Iterable[Finding]) -> str:
    """Return a table in Markdown, and the program of each finding."""
    listed = [*findings]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in _rows(listed)]
    lines = [f"| {' | '.join(row)} |" for row in (_HEAD, ["---"] * len(_HEAD), *cells)]
    for one, libraries in grouped(listed):
        title = f"### {one.function}: {one.property} ({', '.join(libraries)})"
        lines += ["", title, "", "```python", one.program, "```"]
    return "\n".join([*lines, ""])


def write(findings: Iterable[Finding], path: str) -> None:
    """Write the findings to a file: JSON if it ends in `.json`, else Markdown."""
    text = json.dumps(as_rows(findings), indent=2) if path.endswith(".json") else as_markdown(findings)
    Path(path).write_text(text, encoding="utf-8")


_HEAD = ["function", "property", "libraries", "problem"]


def _rows(findings: Iterable[Finding]) -> list[list[str]]:
    return [
        [one.function, one.property, ", ".join(libraries), one.problem]
        for one, libraries in grouped(findings)
    ]
