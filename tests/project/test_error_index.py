"""docs/errors.md: every message has a row, and every row is a form of message or of a text of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import xbridge

ROOT = Path(__file__).parents[2]
MESSAGE = re.compile(r"^    (\w+): (?:at .*?: )?cannot .*?: (.*); try ", re.MULTILINE)


def rows() -> dict[str, list[str]]:
    """The reasons of the page, by class of error."""
    _, *sections = (ROOT / "docs" / "errors.md").read_text("utf-8").split("\n## ")
    return {part.partition("\n")[0]: re.findall(r"^\| `(.+?)` \|", part, re.MULTILINE) for part in sections}


def reasons() -> set[tuple[str, str]]:
    """The class and the reason of every message in the file that holds them word for word."""
    text = (ROOT / "tests" / "api" / "messages.txt").read_text("utf-8")
    found = MESSAGE.findall(text)
    assert len(found) == len(re.findall(r"^    \w+: ", text, re.MULTILINE))
    return {(name if hasattr(xbridge, name) else "UnsupportedArrayError", reason) for name, reason in found}


def written() -> Iterator[str]:
    """The texts in the source, with a sign in place of each value."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def matches(row: str, reason: str) -> bool:
    """Whether a reason has the form of a row."""
    return bool(re.fullmatch(".+".join(map(re.escape, row.split("…"))), reason))


def test_every_error_has_a_section() -> None:
    assert rows().keys() == {
        *(name for name in xbridge.__all__ if name.endswith("Error")),
        "Warnings",
    }


def test_every_message_has_a_row_in_the_section_of_its_class() -> None:
    found = {
        (name, reason): [row for row in rows()[name] if matches(row, reason)] for name, reason in reasons()
    }
    assert {key for key, having in found.items() if not having} == set()


def test_every_row_is_the_form_of_a_message_or_of_a_text_of_the_code() -> None:
    known, texts = reasons(), {*written()}
    unused = [
        (name, row)
        for name, forms in rows().items()
        for row in forms
        if row not in texts and not any(matches(row, reason) for kind, reason in known if kind == name)
    ]
    assert unused == []
