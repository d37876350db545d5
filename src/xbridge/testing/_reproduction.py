"""Programs without xbridge that show a failure: they raise as long as the function fails.

A program ends with the call and what a right result fulfils. It is run before it is printed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from xbridge.testing._call import program
from xbridge.testing._outcome import outcome
from xbridge.testing._settings import Settings
from xbridge.testing._source import definition_of, is_described, read_expression

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from xbridge.testing._call import Call, Program
    from xbridge.testing._outcome import Difference
    from xbridge.testing._source import Recipe


_MOST_WRITTEN = 1000
"""The most numbers of an array in a program."""

_LONGEST = 20_000
"""The most characters of what a difference adds to a program, such as the arrays of another call."""


def reproduction(call: Call, found: Difference) -> str:
    """Return a program without xbridge that shows a difference. It was run, or a comment says why not."""
    if not all(is_described(one.backend) for one in call.recipes()):
        return f"# no program: the kit has no source code for arrays of {call.promise.backend}"
    sizes = [one.values.size for one in call.recipes()]
    if max(sizes, default=0) > _MOST_WRITTEN or sum(map(len, found.program)) > _LONGEST:
        return "# no program: its arrays would be too long to read"
    text = "\n".join(_lines(call, program(call), found))
    raised = _run(text, call.f)
    if raised is None or (
        found.kind.startswith("raises ") and type(raised).__name__ != found.kind.split()[1]
    ):
        return text + "\n# this program does not fail: the failure needs the arrays of the kit"
    return text if call.path or definition_of(call.f) else text + "\n# f is the function of the test"


def _run(text: str, f: Callable[..., Any]) -> BaseException | None:
    """Run a program, and return what it raises. Settings are put back."""
    settings = Settings()
    try:
        return outcome(partial(exec, text, {"f": f})).error
    finally:
        settings.restore()


def _lines(call: Call, made: Program, found: Difference) -> list[str]:
    """Return the lines of a program: the call with the message, and what fails."""
    said = f"  # {found.message.splitlines()[0]}"
    if found.program:
        return [*made.lines, *found.program]
    if call.by is not None and call.written != ((), "{}"):
        return [*made.lines, made.expression + said]
    numpy = [] if "import numpy as np" in made.lines else ["import numpy as np"]
    if found.kind == "changes its input":
        copies = "".join(
            f"np.array({read_expression(one.backend, name)}), " for name, one in _arrays(call, made)
        )
        now = "".join(f"{read_expression(one.backend, name)}, " for name, one in _arrays(call, made))
        return [
            *numpy,
            *made.lines,
            f"before = ({copies.rstrip()})",
            made.call + said,
            f"for now, then in zip(({now.rstrip()}), before):",
            "    np.testing.assert_array_equal(now, then)",
        ]
    if found.kind == "does not raise":
        tail = ["except Exception:", "    pass", "else:", "    raise AssertionError('it does not raise')"]
        return [*made.lines, "try:", f"    {made.call}{said}", *tail]
    if found.kind.startswith(("raises", "warns")):
        is_lazy = call.promise.backend == "dask"
        warns = ["import warnings", "warnings.simplefilter('error')"] if found.kind[0] == "w" else []
        whole = f"dask.compute({made.call})" if is_lazy else made.call
        return [*["import dask"] * is_lazy, *made.lines, *warns, whole + said]
    first = next(n for n, one in _arrays(call, made) if one.backend == call.promise.backend)
    check = found.check.replace("{part}", f"result{found.path}").replace("{array}", first)
    shown = [f"result = {made.call}{said}", check] if check else [made.call + said]
    return [*(numpy if "np." in check else []), *made.lines, *shown]


def _arrays(call: Call, made: Program) -> list[tuple[str, Recipe]]:
    return [*zip(made.arrays, call.recipes(), strict=True)]
