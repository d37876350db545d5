"""Check pinned modules of other libraries, and write what was found to found-bugs.md.

The versions are pinned in requirements/find-bugs.txt. `UPSTREAM` has links for findings that are known.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

MODULES = {
    "array_api_extra": "array-api-extra",
    "scipy.special": "scipy",
    "scipy.signal": "scipy",
    "scipy.stats": "scipy",
    "sklearn.metrics": "scikit-learn",
}
"""The modules, and the distribution of each."""

BACKENDS = "numpy,torch,array_api_strict,torch:emu"
UPSTREAM = {"scipy.special.mathieu_": "https://github.com/scipy/scipy/issues/25856"}
"""Links to issues upstream, by the beginning of the title of a finding."""

HEAD = """\
# Bugs found by `check`

`make find-bugs` writes this page. It runs `xbridge-array check MODULE --backends {backends}` with the
versions below, {seconds} seconds for each module. Each finding comes with a program that does not
need xbridge. Not every difference is a bug: the maintainers of a function decide what it promises. {known}

{versions}
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=110, help="the time for each module")
    asked = parser.parse_args()
    parts = [found(module, asked.seconds) for module in MODULES]
    names = dict.fromkeys([*MODULES.values(), "torch", "array-api-strict", "numpy"])
    versions = (
        ", ".join(f"{name} {version(name)}" for name in names) + f", Python {platform.python_version()}"
    )
    known = "A link leads to the issue upstream; findings without one were not looked up, or not found there."
    head = HEAD.format(backends=BACKENDS, seconds=asked.seconds, known=known, versions=versions)
    (Path(__file__).parent / "found-bugs.md").write_text("\n".join([head, *parts]), encoding="utf-8")


def found(module: str, seconds: int) -> str:
    """Return the section on a module."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.md"
        command = [sys.executable, "-m", "xbridge", "check", module, "--backends", BACKENDS]
        subprocess.run(  # noqa: S603 -- our own command
            [*command, "--seconds", str(seconds), "--report", str(report)],
            check=False,
            stdout=subprocess.DEVNULL,
        )
        text = report.read_text(encoding="utf-8")
    text = text.replace("```python\n", "```python no-run\n")
    for title, link in UPSTREAM.items():
        text = re.sub(rf"(### {re.escape(title)}.*\n)", rf"\1\nKnown upstream: <{link}>\n", text)
    return f"## {module}\n\n{text}"


if __name__ == "__main__":
    main()
