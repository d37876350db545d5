"""Code in an interpreter of its own, which it may bring down."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def run(code: str, path: Path | None = None, limit: float | None = None) -> tuple[int, list[str]]:
    """The exit status of the code, and the lines that it printed. Warnings are errors there too.

    With a path, modules are found there too. After `limit` seconds it is killed, and the test has failed.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=limit,
    )
    return done.returncode, done.stdout.splitlines()
