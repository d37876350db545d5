"""Every row of docs/how-to/migrate.md without a memory, run: the line before and after, on equal sources.

The results are compared by routes that pass xbridge by.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xbridge
from xbridge import tree

torch = pytest.importorskip("torch")
array_api_compat = pytest.importorskip("array_api_compat")
xp = pytest.importorskip("array_api_compat.torch")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate.md"
TEXT = PAGE.read_text("utf-8").partition("## Longer lines, to NumPy")[2].partition("## The traps")[0]
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| \S.* \|$", re.MULTILINE)
ROWS = ROW.findall(TEXT)


def sources() -> dict[str, Any]:
    """What the cells may name."""
    t = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)
    w = t.clone().requires_grad_()
    return {
        "a": np.linspace(-1.0, 1.0, 6).reshape(2, 3),
        "t": t,
        "w": w,
        "b": t.bfloat16(),
        "z": torch.complex(t, -t),
        "state": {"w": t.clone().requires_grad_(), "n": torch.tensor([3, 4])},
        "losses": [w.sum() * i for i in range(3)],
        "batch": {"x": np.ones(2), "y": np.arange(3)},
        "xp": xp,
    }


def run(cell: str) -> Any:
    """The value of a cell, with fresh sources."""
    public = {name: getattr(xbridge, name) for name in xbridge.__all__}
    names = {"np": np, "torch": torch, "array_api_compat": array_api_compat, "tree": tree}
    return eval(cell, {**names, **public, **sources()})


def described(x: Any) -> Any:
    """All of a result: its containers, types, dtypes, devices, shapes and bytes."""
    if isinstance(x, dict):
        return {key: described(value) for key, value in x.items()}
    if isinstance(x, torch.Tensor):
        host = x.detach().cpu().numpy()
        return (torch.Tensor, x.dtype, x.device, x.shape, x.requires_grad, host.tobytes())
    if isinstance(x, np.ndarray):
        return (np.ndarray, x.dtype, x.shape, x.tobytes())
    return (type(x), x)


def test_migrate__every_row_is_run() -> None:
    """Each line of the tables is a row that is tested."""
    lines = [line for line in TEXT.splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(lines) == 22


@pytest.mark.parametrize(("before", "after"), ROWS)
def test_migrate__old_and_new_lines_agree(before: str, after: str) -> None:
    """The line to write now gives what the line before gave."""
    assert described(run(after)) == described(run(before))
