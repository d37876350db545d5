"""The check for retired words: each place where one can stand, and the ways to keep one."""

import subprocess
import sys
from pathlib import Path

import pytest
import vocabulary

PLANTED = {
    "module docstring": ('"""What lies in memory."""', "1: 'lies': write is stored"),
    "docstring of an attribute": ('x = 1\n"""Of whom it is."""', "2: 'whom': write the actor"),
    "second line of a docstring": ('"""A cast.\n\nNobody sees it.\n"""', "3: 'nobody': write the actor"),
    "comment": ("x = 1  # whoever asks", "1: 'whoever': write the actor"),
    "message": ('raise ValueError("it is no dtype")', "1: 'is no': write is not a"),
    "message with a value": ('f"{x} is no dtype"', "1: 'is no': write is not a"),
    "message in two parts": ('f("it"\n  f" is {n} and is"\n  " no dtype")', "1: 'is no': write is not a"),
    "function": ("def thaw_it(): ...", "1: 'thaw': write make writable"),
    "class": ("class GuestArray: ...", "1: 'guest': write source"),
    "parameter": ("def f(*, room): ...", "1: 'room': write backend"),
    "variable": ("for lane in x: ...", "1: 'lane': write pool, buffer"),
    "attribute": ("self.was_told = 1", "1: 'told': write show"),
    "imported name": ("import numpy as guest", "1: 'guest': write source"),
    "function without a verb": ('def f():\n    """Whether it is."""', "2: 'Whether': write a verb"),
}
GOOD = '''
"""An array, and the ring that it is in.

There is no copy, it is no longer here, and the strides lay out its rows. See `room` in the code:

>>> room = 1
"""
hot = file.tell()  # vocabulary: hot -- a name of the protocol
"""The shape."""


class Source:
    """A source."""

    @property
    def shape(self):
        """The shape."""

    def size(self):
        """Return the size."""
        return room
'''


@pytest.mark.parametrize("place", PLANTED)
def test_a_retired_word_is_refused_with_its_line_and_what_to_write(place: str, tmp_path: Path) -> None:
    source, shown = PLANTED[place]
    path = tmp_path / "planted.py"
    path.write_text(source, "utf-8")
    (fault,) = vocabulary.faults(path)
    assert fault.startswith(f"planted.py:{shown}")


def test_good_code_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "good.py"
    path.write_text(GOOD, "utf-8")
    assert vocabulary.faults(path) == []


def test_in_tests_only_the_names_of_tests_are_read(tmp_path: Path) -> None:
    path = tmp_path / "test_planted.py"
    path.write_text('def test_nobody_has_a_hot_history(): "It is no array."\ndef told(): ...', "utf-8")
    (fault,) = vocabulary.faults(path)
    assert fault.startswith("test_planted.py:1: 'nobody'")


def test_of_a_page_only_its_prose_is_read(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# A page\n\n```\nroom\n```\n\n`room` and\nroom for it, <!-- room -->\n", "utf-8")
    (fault,) = vocabulary.faults(path)
    assert fault.startswith("page.md:8: 'room'")


@pytest.mark.parametrize("suffix", ["py", "md"])
def test_an_exception_excuses_one_word_of_one_line(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"planted.{suffix}"
    head, tail = ("# ", "") if suffix == "py" else ("<!-- ", " -->")
    said = "x = room = told = 1" if suffix == "py" else "A room is told."
    path.write_text(f"{said}  {head}vocabulary: room -- the name of the file{tail}\n", "utf-8")
    (fault,) = vocabulary.faults(path)
    assert fault.startswith(f"planted.{suffix}:1: 'told'")


def test_an_exception_on_the_last_line_of_a_docstring_is_for_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text('"""A door.\n\nA second.\n"""  # vocabulary: door -- a thing of wood\n', "utf-8")
    assert vocabulary.faults(path) == []


@pytest.mark.parametrize(
    ("comment", "shown"),
    [
        ("# vocabulary: room", "an exception without a reason"),
        ("# vocabulary: room, door -- the name of the file", "an exception for 'door' has no use"),
    ],
)
def test_an_exception_needs_a_reason_and_a_use(comment: str, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(f"room = 1  {comment}\n", "utf-8")
    (fault,) = vocabulary.faults(path)
    assert shown in fault


def test_the_command_fails_and_counts_the_faults(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("room = door = 1\n", "utf-8")
    command = [sys.executable, vocabulary.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 3
    assert done.stderr.endswith("2 faults; the table of words is in CONTRIBUTING.md\n")


def test_every_path_that_is_read_by_default_exists() -> None:
    assert [name for name in vocabulary.PATHS if not (vocabulary.ROOT / name).exists()] == []
