"""Which findings are shown, and in which order: classes of findings, and how severe a finding is.

A class is what makes a function fail. Classes in which most findings are faults come first. Those in which
most are not, because no function promises what they ask for, are off unless they are asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from xbridge.backends import HOST
from xbridge.errors import OptionError
from xbridge.testing.check.relations import ROUNDED

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from xbridge.testing.check.findings import Checked, Finding

CLASSES = {
    "crash": "it ends its process, does not end, or its Rust extension panics",
    "input": "it changes an argument",
    "state": "a call changes what later calls or other threads get, or a setting of the process",
    "device": "it fails on another device",
    "layout": "it fails for a memory layout, or a pending bit of torch",
    "values": "it is wrong for ordinary values",
    "overflow": "small integers wrap around, or large ones are rounded",
    "plain": "it fails for plain arrays of a library that other functions of the module take",
    "shape": "it fails for a number of axes or elements",
    "gradient": "its result is cut off from torch's graph",
    "derivatives": "its derivative is not that of its values",
    "special-values": "NaN, infinity, zeros, negative numbers, no elements",
    "dtypes": "another dtype is refused, or gives another dtype than with NumPy",
    "options": "an optional argument fails",
    "lazy": "a lazy array is computed, or a traced one is read",
}
"""The classes of findings, in the order of how many of their findings are real bugs."""

OFF = ("derivatives", "special-values", "dtypes", "options", "lazy")
"""Classes that are shown only if they are asked for."""

PANIC = "raises PanicException"
"""The problem of a function whose Rust extension fails. It is no `Exception`, so callers do not expect it."""

DEFAULT = tuple(name for name in CLASSES if name not in OFF)

_OF_GROUPS = {
    "values": "special-values",
    "NumPy's function": "special-values",
    "dtype": "dtypes",
    "axis": "values",
    "precision": "values",
    "ufunc": "values",
}


def read_classes(text: str) -> tuple[str, ...]:
    """Return the classes that are shown: the usual ones, and those that a text names.

    Raises
    ------
    OptionError
        There is no such class.
    """
    asked = [word.strip() for word in text.split(",") if word.strip()]
    asked = [*CLASSES] if "all" in asked else asked
    for word in asked:
        if word not in CLASSES:
            raise OptionError.build(
                f"include {word!r}", "it is no class of findings", f"{', '.join(OFF)} or all"
            )
    return tuple(name for name in CLASSES if name not in OFF or name in asked)


def class_of_stage(group: str, label: str, *, is_optional: bool = False) -> str:
    """Return the class of what a stage finds."""
    if label.endswith("wrap-around") or (group, label) == ("precision", ROUNDED):
        return "overflow"
    if group == "derived":
        return {"requires_grad": "gradient", "a derivative": "derivatives"}.get(label, "lazy")
    if label == "no elements":
        return "special-values"
    if group in ("plain", "shape") and is_optional:
        return "options"
    return "values" if group == "draws" else _OF_GROUPS.get(group, group)


def classify(finding: Finding, *, is_optional: bool) -> Finding:
    """Return a finding with its class."""
    return finding._replace(category=_class_of(finding, is_optional=is_optional))


def _class_of(finding: Finding, *, is_optional: bool) -> str:
    if finding.problem == PANIC:
        return "crash"
    if finding.problem == "changes its input":
        return "input"
    label = finding.needed[0] if finding.needed else ""
    if finding.problem == "dtype" or finding.problem.startswith("warns"):
        return "dtypes"
    if any(word in ("NaN", "infinity", "negative infinity") for word in finding.needed):
        return "special-values"
    return class_of_stage(finding.group, label, is_optional=is_optional)


def severity_of(finding: Finding) -> str:
    """Return how severe a finding is: critical, high if wrong numbers are not noticed, medium, or low."""
    kind = finding.category
    if kind == "crash":
        return "critical"
    if kind in OFF:
        return "low"
    return "medium" if finding.problem.startswith(("raises", "does not raise")) else "high"


SEVERITIES = ("critical", "high", "medium", "low")
"""How severe a finding is, the most severe first."""


def rank(finding: Finding) -> tuple[int, int, str]:
    """Return a key that sorts findings: by class, by severity, by name."""
    order = ["", *CLASSES].index(finding.category)  # a finding of a test has no class
    return order, SEVERITIES.index(severity_of(finding)), finding.function


_IN_NUMPY = re.compile("can't (convert .* to (a )?numpy|call numpy[(][)])", re.IGNORECASE)
"""How torch and array_api_strict refuse to give an array to NumPy."""


def unsupported(checked: Iterable[Checked]) -> dict[str, str]:
    """Return the libraries that a module does not take: most of its functions refuse them or use another one.

    A function that computes in NumPy takes a plain tensor by accident, and none on another device. One that
    takes the arrays of a single library is no evidence for the others. One that returns numbers alone says
    nothing.

    Parameters
    ----------
    checked : iterable of Checked
        The results for its functions.

    Returns
    -------
    dict
        By library, how many functions failed, of how many.
    """
    counts: dict[str, list[bool]] = {}
    listed = [*checked]
    used = {name for each in listed for name in each.backends}
    for each in listed:
        if len(each.backends) == 1 and HOST not in each.backends:
            for name in used.difference(each.backends):
                counts.setdefault(name, []).append(True)
        failed = {
            one.backend for one in each.findings if one.category == "plain" or _IN_NUMPY.search(one.message)
        }
        for name in each.backends:
            if name in failed or name in each.returned:
                counts.setdefault(name, []).append(name in failed)
    return {
        name: f"{sum(failed)} of {len(failed)} functions refuse its arrays or compute in another library"
        for name, failed in counts.items()
        if len(failed) > 1 and 2 * sum(failed) > len(failed)
    }


def shown(checked: Iterable[Checked], refused: Container[str]) -> list[Finding]:
    """Return the findings with libraries that the module takes, or that the function is written for."""
    return [
        one
        for each in checked
        for one in each.findings
        if one.backend not in refused or one.backend in each.meant
    ]
