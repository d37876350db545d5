"""Compare what a release says about its version: the tag, the package and the changelog."""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Print each disagreement, and return how many there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="the tag to release, such as v0.1.0; by default that of the version")
    tag = parser.parse_args().tag
    version = version_in((ROOT / "src/xbridge/_core/__init__.py").read_text("utf-8"))
    found = disagreements(tag or f"v{version}", version, (ROOT / "CHANGELOG.md").read_text("utf-8"))
    print(*found or [f"The tag, the package and the changelog have version {version}"], sep="\n")
    return len(found)


def version_in(source: str) -> str:
    """Return the version that a module assigns to `__version__`, without importing it."""
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert found, "the module has no __version__"
    return found[1]


def disagreements(tag: str, version: str, changelog: str) -> list[str]:
    """Return one line for each place that names another version than the package."""
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    found = []
    if tag != f"v{version}":
        found.append(f"The tag is {tag}, and the package has version {version}: tag it v{version}")
    if newest is None or newest[1] != version:
        section = newest[1] if newest else "missing"
        found.append(f"The first section of CHANGELOG.md is {section}, and the package has version {version}")
    return found


if __name__ == "__main__":
    sys.exit(main())
