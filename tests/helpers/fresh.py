"""Code in a process of its own, which it may bring down: in a new interpreter, or in a fork of a warm one."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from textwrap import dedent


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


_FORKS = """
import gc, os, signal, sys
from contextlib import suppress
from importlib import import_module
import numpy, xbridge
for name in sys.argv[1:]:
    with suppress(ModuleNotFoundError):
        import_module(name)
gc.freeze()
for line in sys.stdin:
    code, shown = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        signal.alarm(120)
        os.dup2(os.open(shown, os.O_WRONLY), 1)
        exec(compile(open(code).read(), code, "exec"), {"__name__": "__main__"})
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@cache
def _warm(*libraries: str) -> subprocess.Popen[str]:
    """An interpreter that has imported NumPy, xbridge and libraries, and runs each program in a fork."""
    server = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _FORKS, *libraries],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server


def forked(code: str, *libraries: str) -> tuple[int, list[str]]:
    """Run code as `run` does, without the time that imports take: these libraries, or torch, are imported.

    After two minutes it is killed, and its exit status is the negative number of the signal.
    """
    if not hasattr(os, "fork"):
        return run(code)
    server = _warm(*(libraries or ("torch",)))
    assert server.stdin
    assert server.stdout
    with tempfile.TemporaryDirectory() as folder:
        program, shown = Path(folder, "program.py"), Path(folder, "shown")
        program.write_text(dedent(code))
        shown.touch()
        server.stdin.write(f"{program}\t{shown}\n")
        server.stdin.flush()
        return int(server.stdout.readline()), shown.read_text().splitlines()
