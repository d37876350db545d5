"""Code in an interpreter of its own, which it may bring down."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent


def run(code: str) -> tuple[int, list[str]]:
    """The exit status of the code, and the lines that it printed. Warnings are errors there too."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()
