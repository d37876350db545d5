"""Tests of the functions that were checked, as source code to keep. Hypothesis draws their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xbridge.testing._call import program

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from xbridge.testing._call import Call
    from xbridge.testing._source import Recipe
    from xbridge.testing.check.findings import Checked, Finding
    from xbridge.testing.check.targets import Target

HEAD = '''\
"""Tests that `xbridge-array check` wrote: each function gives with every library what it gives with NumPy."""

import pytest
import xbridge
from hypothesis import given, settings
from hypothesis import strategies as st
from xbridge.testing import assert_matches_numpy
from xbridge.testing.strategies import arrays_together

'''

_BACKENDS = "{backends}"
"""What stands for the libraries of a test until those are known that its module does not take."""

_TEST = """\
{imports}@pytest.mark.parametrize("backend", {backends})
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_{name}(backend, data):
{arrays}    assert_matches_numpy({call}{promise})
"""


def write_test(target: Target, call: Call) -> str:
    """Return a test with the arguments of a call; "" for a function of one library, or without arrays."""
    recipes = call.recipes()
    if target.backend or not recipes or call.path is None:
        return ""
    written = program(call)
    module, name = call.path
    arguments = written.call[len(name) + 1 : -1]
    arrays = _arrays(recipes, written.arrays)
    exact = all(one.values.dtype.kind in "fc" for one in recipes)
    return _TEST.format(
        imports="".join(f"{line}\n" for line in (*target.setup, f"from {module} import {name}")) + "\n\n",
        backends=_BACKENDS,
        name=target.name.replace(".", "_"),
        arrays=arrays,
        call=", ".join(filter(None, (name, arguments))),
        promise="" if exact else ', dtype="kind"',
    )


def _arrays(recipes: Sequence[Recipe], names: Sequence[str]) -> str:
    """Return the statements that make the arrays: floating ones are drawn, others are as they were."""
    drawn = [n for n, one in enumerate(recipes) if one.values.dtype.kind == "f" and one.values.size]
    lines = []
    if drawn:
        shapes = [recipes[n].values.shape for n in drawn]
        least = min(float(np.float32(recipes[n].values.min())) for n in drawn)
        most = max(float(np.float32(recipes[n].values.max())) for n in drawn)
        targets = "".join(f"{names[n]}, " for n in drawn).rstrip()
        options = f'shapes={shapes}, dtypes="float32", elements=({least}, {most})'
        lines.append(f"{targets} = data.draw(arrays_together(backend, {options}))")
    like = f"like={names[drawn[0]]}" if drawn else "backend=backend"
    for number, one in enumerate(recipes):
        if number not in drawn:
            values = f"{one.values.tolist()}, dtype={one.values.dtype.name!r}"
            lines.append(f"{names[number]} = xbridge.asarray({values}, {like})")
    return "".join(f"    {line}\n" for line in lines)


def write_tests(checked: Iterable[Checked], findings: Iterable[Finding], refused: Container[str] = ()) -> str:
    """Return a module of the tests. Those of functions with findings may fail.

    A test runs with the libraries with which its function was called, except for refused ones that it is not
    written for.
    """
    problems = {one.function: one.problem for one in findings}
    parts = [HEAD]
    for each in filter(lambda one: one.test, checked):
        backends = [name for name in each.backends if name not in refused or name in each.meant]
        test = each.test.replace(_BACKENDS, str(backends))
        if each.function in problems:
            mark = f"@pytest.mark.xfail(strict=False, reason={problems[each.function]!r})\n"
            test = test.replace("@pytest.mark.parametrize", f"{mark}@pytest.mark.parametrize", 1)
        parts.append(test)
    return "\n\n".join(parts)
