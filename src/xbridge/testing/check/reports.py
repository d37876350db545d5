"""Reports of a check for people and for CI: a table with programs, JSON, JUnit, and GitHub's annotations.

A finding has an identity that does not depend on numbers, libraries or lines, so a baseline of known findings
stays valid while the code around them changes.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from xbridge._core.text import printable, table
from xbridge.errors import OptionError
from xbridge.testing.check.findings import grouped
from xbridge.testing.check.triage import CLASSES, OFF, SEVERITIES, rank, severity_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xbridge.testing.check.findings import Checked, Finding

FORMATS = ("text", "json", "junit", "github")

_MOST_NAMES = 4


def identify(finding: Finding) -> str:
    """Return the identity of a finding: of its function, its class, its problem and its properties' group.

    The group tells two faults of a class apart, such as a wrong negative axis from wrong drawn values. The
    properties themselves do not belong to it, because they depend on the seed and the time.
    """
    parts = (finding.function, finding.category, finding.problem, finding.group)
    return sha256("\0".join(parts).encode()).hexdigest()[:12]


def read_baseline(path: Path) -> set[str]:
    """Return the identities in a baseline.

    Raises
    ------
    OptionError
        The file cannot be read.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {one["id"] for one in stored["findings"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise OptionError.build(
            f"read the baseline {path}", reason, "--update-baseline, which writes it"
        ) from error


def write_baseline(path: Path, findings: Iterable[Finding]) -> None:
    """Write the identities of findings, with what is needed to recognize them."""
    rows = {
        identify(one): {
            "id": identify(one),
            "function": one.function,
            "class": one.category,
            "problem": one.problem,
        }
        for one in findings
    }
    text = json.dumps({"findings": [rows[key] for key in sorted(rows)]}, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


def ranked(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return one finding of each cause, in the order of their rank, with the libraries that have it."""
    return sorted(grouped(sorted(findings, key=rank)), key=lambda pair: rank(pair[0]))


def write(findings: Iterable[Finding], path: str) -> None:
    """Write the findings to a file: JSON if it ends in `.json`, else Markdown."""
    text = as_json(findings) if path.endswith(".json") else as_markdown(findings)
    Path(path).write_text(text, encoding="utf-8")


def as_markdown(findings: Iterable[Finding]) -> str:
    """Return a table in Markdown, the most severe causes first, and the program of each."""
    found = sorted(ranked(findings), key=lambda pair: SEVERITIES.index(severity_of(pair[0])))
    head = ["severity", "function", "property", "libraries", "problem"]
    rows = [
        [severity_of(one), one.title, one.property, ", ".join(names), one.problem] for one, names in found
    ]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]
    for one, names in found:
        lines += [
            "",
            f"### {one.title}: {one.property} ({', '.join(names)})",
            "",
            "```python",
            one.program,
            "```",
        ]
    return "\n".join([*lines, ""])


def as_json(findings: Iterable[Finding]) -> str:
    """Return a list of objects, one for each cause."""
    rows = [
        {
            **one._asdict(),
            "cause": one.cause,
            "property": one.property,
            "backends": names,
            "severity": severity_of(one),
        }
        for one, names in grouped(findings)
    ]
    return json.dumps(rows, indent=2)


def as_text(findings: Sequence[Finding]) -> str:
    """Return a table of the causes, a line for each class that is off by default, and programs."""
    usual = [one for one in findings if one.category not in OFF]
    causes = ranked(usual)
    rows = [
        [severity_of(one), one.title, one.property, ", ".join(libraries), one.problem, one.line]
        for one, libraries in causes
    ]
    lines = (
        table([["severity", "function", "property", "libraries", "problem", "line"], *rows]) if rows else []
    )
    for name in OFF:
        functions = [*dict.fromkeys(one.function for one in findings if one.category == name)]
        if functions:
            more = f" and {len(functions) - _MOST_NAMES} more" if len(functions) > _MOST_NAMES else ""
            lines.append(f"{name} ({CLASSES[name]}): {', '.join(functions[:_MOST_NAMES])}{more}")
    programs = [
        f"\n# {one.title} {one.problem}: {one.property} ({', '.join(libraries)})\n{one.program}"
        for one, libraries in causes
    ]
    return "\n".join([line.rstrip() for line in lines] + programs)


def as_dict(
    checked: Iterable[Checked], findings: Iterable[Finding], known: set[str], left_out: dict[str, str]
) -> dict[str, Any]:
    """Return a report as a dict for JSON."""
    rows = [
        {
            **one._asdict(),
            "property": one.property,
            "backends": libraries,
            "severity": severity_of(one),
            "id": identify(one),
            "new": identify(one) not in known,
        }
        for one, libraries in ranked(findings)
    ]
    skipped = {one.function: one.skipped for one in checked if one.skipped}
    return {"findings": rows, "skipped": skipped, "left_out": left_out}


def as_junit(checked: Iterable[Checked], findings: Sequence[Finding], left_out: dict[str, str]) -> str:
    """Return XML with a test for each function, which fails for each new finding of it.

    A library that was left out is a property of the suite.
    """
    listed = [*checked]
    failing = {one.function for one in findings}
    skipped = [one for one in listed if one.skipped]
    counts = {"tests": len(listed), "failures": len(failing), "skipped": len(skipped)}
    suite = ET.Element("testsuite", {"name": "xbridge-array check"} | {k: str(n) for k, n in counts.items()})
    properties = ET.SubElement(suite, "properties")
    for name, reason in left_out.items():
        ET.SubElement(properties, "property", name=f"left out: {name}", value=reason)
    for each in listed:
        module, _, name = each.function.rpartition(".")
        case = ET.SubElement(suite, "testcase", classname=module, name=name)
        if each.skipped:
            ET.SubElement(case, "skipped", message=each.skipped)
        for one in findings:
            if one.function == each.function:
                failure = ET.SubElement(
                    case,
                    "failure",
                    type=one.category,
                    message=f"{one.problem}: {one.property} ({one.backend})",
                )
                failure.text = one.program
    made = ET.tostring(suite, encoding="unicode", xml_declaration=True)
    return "\n".join(map(printable, made.split("\n")))  # XML has no control characters


def as_annotations(checked: Iterable[Checked], findings: Iterable[Finding], left_out: dict[str, str]) -> str:
    """Return commands of GitHub Actions that show the findings beside the code, and what was left out."""
    lines = []
    for one, libraries in ranked(findings):
        level = "notice" if severity_of(one) == "low" else "error"
        place = ",".join([*_place(one.line), f"title={_escape(one.title, ':,')}"])
        message = f"{one.problem}: {one.property} ({', '.join(libraries)})\n{one.program}"
        lines.append(f"::{level} {place}::{_escape(message)}")
    lines += [
        f"::notice title={_escape(name, ':,')} is left out::{_escape(reason)}"
        for name, reason in left_out.items()
    ]
    lines += [
        f"::warning title={_escape(one.function, ':,')}::not checked, because {_escape(one.skipped)}"
        for one in checked
        if one.lacks
    ]
    return "\n".join(lines)


def _place(line: str) -> list[str]:
    """Return the file and line of a finding, if it is a file of the current folder."""
    name, _, number = line.rpartition(":")
    found = next((path for path in (Path(name), Path("src", name)) if name and path.is_file()), None)
    return [] if found is None else [f"file={_escape(found.as_posix(), ':,')}", f"line={number}"]


def _escape(text: str, more: str = "") -> str:
    """Replace the characters that end a command of GitHub Actions."""
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
