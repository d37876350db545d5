"""Check pinned modules of other libraries, and write what was found to found-bugs.md.

The versions are pinned in requirements/find-bugs.txt. `UPSTREAM` has links for findings that are known.
A finding is kept if its program, which does not need xbridge, shows it in a process of its own.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from xbridge.testing.check.findings import Finding
from xbridge.testing.check.reports import as_markdown

MODULES = {
    "array_api_extra": "array-api-extra",
    "scipy.linalg": "scipy",
    "scipy.signal": "scipy",
    "scipy.special": "scipy",
    "scipy.stats": "scipy",
    "sklearn.metrics": "scikit-learn",
}
"""The modules, and the distribution of each."""

BACKENDS = ("numpy", "torch", "jax", "dask", "array_api_strict")
UPSTREAM = {"scipy.special.mathieu_": "https://github.com/scipy/scipy/issues/25856"}
"""Links to issues upstream, by the beginning of the title of a finding."""

HEAD = """\
# Bugs found by `check`

`make find-bugs` writes this page. It runs `xbridge-array check MODULE --backends {backends}` with the
versions below, {seconds} seconds for each module. Each finding has a program that does not need xbridge; it
was run in a process of its own, and the findings that it did not show ({dropped}) were left out. Findings of
one cause share a line, and the program names the other functions. Not every difference is a bug: the
maintainers of a function decide what it promises. A link leads to the issue upstream; findings without one
were not looked up, or not found there.

{versions}

"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=75, help="the time for each module")
    seconds = parser.parse_args().seconds
    found = [one for module in MODULES for one in findings_of(module, seconds)]
    shown = [one for one in found if is_shown(one)]
    names = dict.fromkeys([*MODULES.values(), "torch", "jax", "dask", "array-api-strict", "numpy"])
    head = HEAD.format(
        backends=",".join(BACKENDS),
        seconds=seconds,
        dropped=f"{len(found) - len(shown)} of {len(found)}",
        versions=", ".join(
            [*(f"{name} {version(name)}" for name in names), f"Python {platform.python_version()}"]
        ),
    )
    text = as_markdown(shown).replace("```python\n", "```python no-run\n")
    for title, link in UPSTREAM.items():
        text = re.sub(rf"(### {re.escape(title)}.*\n)", rf"\1\nKnown upstream: <{link}>\n", text)
    (Path(__file__).parent / "found-bugs.md").write_text(head + text, encoding="utf-8")


def findings_of(module: str, seconds: int) -> list[Finding]:
    """Return the findings of a module, one for each cause."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "xbridge", "check", module, "--backends", ",".join(BACKENDS)]
        subprocess.run(  # noqa: S603 -- our own command
            [*command, "--seconds", str(seconds), "--report", str(report)],
            check=False,
            stdout=subprocess.DEVNULL,
        )
        rows = json.loads(report.read_text(encoding="utf-8"))
    return [
        Finding(**{name: row[name] for name in Finding._fields})._replace(
            needed=tuple(row["needed"]), also=tuple(row["also"]), backend=", ".join(row["backends"])
        )
        for row in rows
    ]


def is_shown(one: Finding) -> bool:
    """Return True if the program of a finding fails in a new process as the finding says."""
    if "not run here" in one.program:
        return False
    try:
        ran = subprocess.run(  # noqa: S603 -- the program of a finding
            [sys.executable, "-c", one.program], check=False, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return one.problem == "does not end"
    if one.problem == "ends the process":
        return ran.returncode not in (0, 1)
    kind = one.problem.split()[1] if one.problem.startswith(("raises", "warns")) else "AssertionError"
    raised = re.findall(r"^(?:\w+\.)*(\w+)(?=:|$)", ran.stderr, re.MULTILINE)
    return ran.returncode == 1 and kind in raised


if __name__ == "__main__":
    main()
