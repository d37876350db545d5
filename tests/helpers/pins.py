"""The versions of our own environments."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

PINS = dict(
    line.split("==")
    for line in (Path(__file__).parents[2] / "requirements" / "constraints.txt")
    .read_text("utf-8")
    .splitlines()
    if "==" in line
)


def is_pinned(name: str) -> bool:
    """Return True if a library is installed in the version of our own environments."""
    return bool(find_spec(name)) and version(name).partition("+")[0] == PINS[name.replace("_", "-")]
