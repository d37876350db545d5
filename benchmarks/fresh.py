"""Measure in new interpreters: the cost of an import, of a first call, and the peak of memory.

An import is timed as a whole process, in turns with one that does nothing, and a first call within a process
that has imported the libraries. Memory is the peak of the
resident set, which Linux keeps for every process and lets it reset: behind the setup, so that the
source does not count, and after a run on a few bytes, which has loaded what the statement needs.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rows import names

__all__ = ["first", "loaded", "peak", "report_peak", "times"]

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


def run(code: str, *arguments: str) -> str:
    """Run code in a new isolated interpreter that finds xbridge, and return what it prints."""
    spec = find_spec("xbridge")
    if spec is None or spec.origin is None:
        sys.exit("xbridge cannot be imported here. Try: make bench")
    home = str(Path(spec.origin).parents[1])  # appended, to be looked into last, as if installed
    command = [sys.executable, "-I", "-W", "ignore", "-c", f"import sys; sys.path.append({home!r})\n{code}"]
    done = subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
    return done.stdout


def times(statements: Sequence[str], *, rounds: int) -> dict[str, list[float]]:
    """Time new processes that run a statement each, in turns.

    Parameters
    ----------
    statements : sequence of str
        Source text. Each is run before anything is timed, which compiles what it imports.
    rounds : int
        How often each gets a turn.

    Returns
    -------
    dict
        For each statement the seconds of its process, one for every round.
    """
    for statement in statements:
        run(statement)
    taken: dict[str, list[float]] = {statement: [] for statement in statements}
    for _ in range(rounds):
        for statement in statements:
            start = time.perf_counter()
            run(statement)
            taken[statement].append(time.perf_counter() - start)
    return taken


def first(setup: str, statement: str) -> float:
    """Measure a statement once in a new process.

    Parameters
    ----------
    setup : str
        Imports the libraries, and makes the arrays.
    statement : str
        What a process runs once: an import and a call, for instance.

    Returns
    -------
    float
        Seconds of processor time. The setup does not count.
    """
    clock = "process_time()"
    code = f"from time import process_time\n{setup}\nbegin = {clock}\n{statement}\nprint({clock} - begin)"
    return float(run(code))


def loaded(statement: str) -> list[str]:
    """Return the packages that a statement loads and that do not come with Python."""
    code = (
        f"before = set(sys.modules)\n{statement}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    return run(code).split()


def peak(setup: str, statement: str, n: int) -> float:
    """Measure in a new process how far a statement raises memory above what was there before.

    Parameters
    ----------
    setup : str
        Makes the arrays.
    statement : str
        An expression that makes a new array.
    n : int
        Items of 8 bytes that they hold.

    Returns
    -------
    float
        The rise, in sizes of the new array.
    """
    code = "sys.path.insert(0, sys.argv[1]); import fresh; fresh.report_peak(*sys.argv[2:])"
    return float(run(code, str(Path(__file__).parent), setup, statement, str(n)))


def report_peak(setup: str, statement: str, n: str) -> None:
    """Print what `peak` returns. This is what runs in the new process."""
    space = names()
    rise = 0.0
    for items in (2**13, int(n)):
        space["n"] = items
        exec(setup, space)  # noqa: S102 -- the statements are ours
        RESET.write_text("5", encoding="ascii")  # the peak is now what is resident
        before = resident("VmRSS:")
        result = eval(statement, space)  # noqa: S307 -- likewise
        rise = (resident("VmHWM:") - before) / result.nbytes
        del result
    print(rise)


def resident(field: str) -> int:
    """Return a line of this process's memory status, in bytes."""
    lines = STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
