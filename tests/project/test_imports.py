"""What a first use of the package loads: each call imports only what it needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from project.test_architecture import LIBRARIES

PROGRAM = """
import os, sys
import {warm}
for before, use in {uses}:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        exec(before)
        known = {{*sys.modules}}
        exec(use)
        print(*[name for name in sys.modules if name not in known])
        break
    assert os.waitpid(child, 0)[1] == 0, use
"""


def loaded(warm: str, *uses: tuple[str, str]) -> list[list[str]]:
    """The modules that forks of an interpreter load for each use of the package, after other code."""
    if not hasattr(os, "fork"):
        pytest.skip("there is no fork here")
    code = PROGRAM.format(warm=warm, uses=uses)
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split() for line in shown.splitlines()]


def outside(names: list[str]) -> list[str]:
    """The modules that are not of the standard library."""
    return [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]


NAMES = "xbridge.known_backends; xbridge.Device('cuda:1'); xbridge.CopyError('x'); xbridge.release_buffers()"


def test_import_xbridge__imports_no_array_library() -> None:
    """Importing xbridge loads few modules, and using its names none that is heavy."""
    heavy = LIBRARIES | {"array_api_compat", "dataclasses", "inspect", "importlib.metadata", "ctypes"}
    alone, named, by_hand = loaded(
        "sys", ("", "import xbridge"), ("", f"import xbridge; {NAMES}"), ("", "import xbridge, numpy")
    )
    assert len(outside(alone)) <= 14
    assert not heavy.intersection(named)
    assert "numpy" in heavy.intersection(by_hand)


BEFORE = "import numpy as np, torch, jax; a, t = np.ones(3, 'f'), torch.ones(3)"
JAX = "xbridge.to_numpy(j); xbridge.to_jax(a); xbridge.to_torch(j); xbridge.to_jax(t)"
USES = (
    (BEFORE, "import xbridge; xbridge.to_numpy(t)", 25),
    (f"{BEFORE}; j = jax.device_put(a)", f"import xbridge; {JAX}", 30),
    (BEFORE, "import xbridge; xbridge.asarray([1.5, 2.5], backend='torch')", 30),
    (BEFORE, "import xbridge; xbridge.to_torch(a); xbridge.to_backend(t, 'numpy')", 25),
)
"""What is done before, the first use of the package, and the most modules that it may load."""

ENGINE = ("_engine", "_plan", "_observe", "_transfer", "_inspect", "functions", "tree")
"""What the first conversions of ordinary arrays without options do not need."""


@pytest.mark.slow  # an interpreter that imports torch and JAX
def test_first_use__loads_few_modules() -> None:
    """The first use loads the modules of the package that it needs, and few of other packages."""
    for library in ("torch", "jax"):
        pytest.importorskip(library)
    found = loaded("torch, jax.numpy", *[(before, use) for before, use, _ in USES])
    for names, (_, use, most) in zip(found, USES, strict=True):
        assert len(outside(names)) <= most, (use, len(outside(names)), names)
    moves = [f"xbridge.backends.torch._{part}" for part in ("transfer", "threads")]
    assert not set(moves) & set(found[-1])
    rest = {"xbridge._engine.verbs", "xbridge._engine.convert", "xbridge._plan"}
    assert not rest & set(found[-2])  # a list of numbers needs one module of the engine
    heavy = tuple(f"xbridge.{part}" for part in ENGINE)
    assert [name for name in found[-1] if name.startswith(heavy)] == []
