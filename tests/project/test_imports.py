"""What a first use of the package loads: each call imports only what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded(before: str, use: str) -> list[str]:
    """The modules that a new interpreter loads for a use of the package, in order."""
    code = f"import sys\n{before}\nknown = {{*sys.modules}}\n{use}\n"
    code += "print(*[name for name in sys.modules if name not in known])"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


PLAIN = "import numpy as np, torch; a, t = np.ones(3), torch.ones(3)"
JAX = "import numpy as np, jax; a, j = np.ones(3, 'f'), jax.numpy.ones(3)"
BOTH = "import torch, jax; t, j = torch.ones(3), jax.numpy.ones(3)"
CALLS = [
    ("", "import xbridge", 14),
    (PLAIN, "import xbridge; xbridge.to_numpy(t)", 25),
    (JAX, "import xbridge; xbridge.to_numpy(j); xbridge.to_jax(a)", 25),
    (BOTH, "import xbridge; xbridge.to_torch(j); xbridge.to_jax(t)", 30),
]
"""What is loaded before, the first use of the package, and the most modules that it may load."""


@pytest.mark.parametrize(("before", "use", "most"), CALLS)
def test_first_use__loads_few_modules(before: str, use: str, most: int) -> None:
    """The first use loads the modules of the package that it needs, and few of other packages."""
    for library in ("torch", "jax"):
        if library in before:
            pytest.importorskip(library)
    names = loaded(before, use)
    standard = [name for name in names if name.partition(".")[0] in sys.stdlib_module_names]
    assert len(names) - len(standard) <= most, names


def test_first_conversion__needs_no_engine() -> None:
    """The first conversions of ordinary arrays without options load two backends, and plan nothing."""
    pytest.importorskip("torch")
    calls = "xbridge.to_torch(np.ones(3)); xbridge.to_backend(torch.ones(3), 'numpy')"
    names = loaded("import numpy as np, torch", f"import xbridge; {calls}")
    heavy = ("_engine", "_plan", "_observe", "_transfer", "_inspect", "functions", "tree")
    assert [name for name in names if name.startswith(tuple(f"xbridge.{part}" for part in heavy))] == []
