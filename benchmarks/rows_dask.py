"""What is measured with Dask: making a graph, and computing one, beside Dask's own ways.

Nothing is computed to make an array from one of the host's, so that bulk row is a copy; to take one back is
to compute it, and both sides use Dask's threads. The rows are to be read as those of `rows.py`.
"""

from importlib import import_module
from typing import Any

from harness import SPEED, TIME
from rows import NO_CALL, RecordRow, Section

__all__ = ["ROWS", "names", "sections"]

FLOATS = "a = np.arange(0.0, n)"
ONE = f"{FLOATS}; x = da.from_array(a)"
EIGHT = f"{FLOATS}; x = da.from_array(a, chunks=n // 8) + 1"
OURS = "xbridge.to_backend(a, 'dask')"
OUT = "xbridge.to_numpy(x)"
TO_TORCH = "xbridge.to_backend(x, 'torch')"

# By default Dask reads the whole array for a name that depends on its values; name=False spares that.
FROM_ARRAY = ("da.from_array(a, name=False)", "da.from_array(a)")
TO_DASK = ("autoray.do('asarray', a, like='dask')", NO_CALL, NO_CALL)
FROM_DASK = ("autoray.to_numpy(x)", NO_CALL, NO_CALL)
NONE = (NO_CALL,) * 3

CALLS = (
    RecordRow(FLOATS, OURS, FROM_ARRAY, 1.0, TO_DASK),
    RecordRow(ONE, OUT, ("x.compute()", "np.asarray(x)"), 1.2, FROM_DASK),
    RecordRow(ONE, TO_TORCH, ("torch.from_numpy(x.compute())",), 1.2, NONE),
)

BULK = (
    RecordRow(FLOATS, OURS, FROM_ARRAY, 1.0, TO_DASK),
    RecordRow(EIGHT, OUT, ("x.compute()", "np.asarray(x)"), 0.9, FROM_DASK),
    RecordRow(EIGHT, TO_TORCH, ("torch.from_numpy(x.compute())",), 0.9, NONE),
)

ROWS = (*CALLS, *BULK)


def names() -> dict[str, Any]:
    """Return what the statements see besides the others' libraries."""
    return {"da": import_module("dask.array")}


def sections(*, quick: bool) -> tuple[Section, ...]:
    """Return what is timed with Dask; if quick, just enough to see that it works."""
    many, few = ((1, 10), (1, 5)) if quick else ((5, 20), (3, 7))
    large = 2**18 if quick else 2**25
    time = "Time, as a multiple of the reference's; 100 items of float64."
    speed = f"Speed, as a multiple of the reference's; {large >> 17} MB."
    return (
        Section("Small arrays of Dask", time, TIME, CALLS, 100, *many, 5e-3),
        Section("Large arrays of Dask", speed, SPEED, BULK, large, *few, 0),
    )
