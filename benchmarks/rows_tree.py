"""What is measured of trees and lists: a thousand small arrays, beside what one would write for them.

The bare comprehension knows that all are arrays and where they are; a tree has to find that out. The other
walks find it out too: torch's, Gymnasium's, and what MONAI's `convert_to_tensor` does, written down here so
that MONAI need not be installed.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from harness import SPEED, TIME
from rows import No, RecordRow, Section

__all__ = [
    "LISTS",
    "OPTIONS",
    "ROWS_AND_SCALARS",
    "SMALL",
    "TREES",
    "WALKS",
    "names_of_trees",
    "sections_of_trees",
]

_ELSEWHERE = (No("has a row of its own, or has no such call"),) * 3
_ARRAYS = "a = [np.arange(8.0) + i for i in range(n)]"
_TENSORS = "a = [torch.arange(1024.0) + i for i in range(n)]"
_DICT = f"{_ARRAYS}; t = {{f'k{{i}}': x for i, x in enumerate(a)}}"
_NESTED = f"{_ARRAYS}; t = {{f'k{{i}}': a[i : i + 10] for i in range(0, n, 10)}}"
_SAMPLES = f"{_ARRAYS}; t = [{{'image': a[i], 'label': a[i + 1]}} for i in range(0, n, 2)]"
_INNER = f"{_ARRAYS}; t = [{{'x': a[i], 'more': {{'y': a[i + 1], 'n': 1}}}} for i in range(0, n, 2)]"
_OURS = "xbridge.tree.to_backend(t, 'torch')"

TREES = tuple(
    RecordRow(setup, _OURS, ("[torch.from_numpy(x) for x in a]",), target, _ELSEWHERE)
    for setup, target in (
        (f"{_ARRAYS}; t = a", 2),
        (_DICT, 2),
        (_NESTED, 2),
        (_SAMPLES, 2),
        (_INNER, 4),
    )
)

_FEW_SAMPLES = f"{_ARRAYS}; t = [{{'image': x, 'label': i}} for i, x in enumerate(a)]"
_BY_HAND = "[{'image': torch.from_numpy(x['image']), 'label': x['label']} for x in t]"
_MAPPED = "a = np.ones((n, 100)).view(np.memmap)"

_IDENTITY = (
    "The reference copies a dict. Ours looks up the call in 1 us, and the type of each tensor in 60 ns, so "
    "trees of a few tensors take longer."
)
_OWN_BY_HAND = "{key: x for key, x in t.items()}"
_OWN = "t = {i: torch.ones(8) for i in range(n)}"

SMALL = tuple(
    RecordRow(setup, _OURS, (reference,), 4, _ELSEWHERE, _IDENTITY if reference == _OWN_BY_HAND else "")
    for setup, reference in (
        (f"{_ARRAYS}; t = {{'x': a[0], 'y': a[1]}}", "{key: torch.from_numpy(x) for key, x in t.items()}"),
        (_OWN, _OWN_BY_HAND),
        (_OWN.replace("range(n)", "range(2)"), _OWN_BY_HAND),
        (f"{_MAPPED}; t = {{'x': a[0], 'y': a[1]}}", "{key: torch.from_numpy(x) for key, x in t.items()}"),
        (f"{_FEW_SAMPLES}; t = t[:7]", _BY_HAND),
        (f"{_FEW_SAMPLES}; t = t[:8]", _BY_HAND),
        (f"{_FEW_SAMPLES}; t = t[:100]", _BY_HAND),
    )
)
"""Trees of a few arrays: below and above the size from which arrays are converted together."""

_HUNDREDS = "a = [np.arange(100.0) + i for i in range(n)]"
_PAIR = "a = {'x': np.arange(100.0), 'y': np.arange(10)}"
_SINGLE = f"{_OURS[:-1].replace('(t', '(a')}, dtype='float32')"

OPTIONS = (
    RecordRow(_HUNDREDS, _SINGLE, ("[torch.from_numpy(x).to(torch.float32) for x in a]",), 1.1, _ELSEWHERE),
    RecordRow(
        _HUNDREDS,
        _SINGLE.replace("dtype='float32'", "copy=True"),
        ("[torch.from_numpy(x).clone() for x in a]",),
        1.4,
        _ELSEWHERE,
    ),
    RecordRow(
        f"{_HUNDREDS}; a = [torch.from_numpy(x) for x in a]",
        "xbridge.tree.to_numpy(a, copy=True)",
        ("[x.detach().cpu().numpy().copy() for x in a]",),
        None,
        _ELSEWHERE,
    ),
    RecordRow(
        _PAIR,
        _SINGLE,
        ("{k: torch.from_numpy(x).to(torch.float32) for k, x in a.items()}",),
        None,
        _ELSEWHERE,
    ),
)
"""Trees with an option, beside a comprehension."""

WALKS = tuple(
    RecordRow(setup, ours, (other,), 3, _ELSEWHERE)
    for setup in (_NESTED, _SAMPLES)
    for ours, other in (
        ("xbridge.tree.map(id, t)", "pytree.tree_map(id, t)"),
        (_OURS, "numpy_to_torch(t)"),
        (_OURS, "convert_to_tensor(t)"),
    )
)

_QUESTIONS = (
    "Ours asks each tensor for its dtype, order, offset and storage. torch answers each in about 35 ns, so "
    "all answers take as long as `torch.stack`, which would promote dtypes and read freed memory in silence."
)
_FEW = (
    "`float` reads one number. Ours looks at the types of the items, asks a tensor for its dtype, graph and "
    "memory, and checks that no number becomes infinite in its dtype."
)
_SMALL = "np.array(a)"
_SHORT = "NumPy makes the array in 0.3 us. Ours looks at the type of each item and looks up the call."
_LOSSES = "a = [torch.tensor(1.0), 0.5] * (n // 2)"
_TWO_DTYPES = "a = [torch.ones(100), torch.ones(100).double()] * (n // 2)"
_SERIES = "a = [pd.Series(np.arange(8.0)) for _ in range(n)]"
_SERIES_BY_HAND = "torch.from_numpy(np.stack([x.to_numpy() for x in a]))"
_MIXED = "a = pd.DataFrame({'x': np.arange(n), 'y': np.arange(float(n))})"
_NULLABLE = "a = pd.DataFrame({'x': [1, None] * (n // 2), 'y': [None, 0.5] * (n // 2)}).convert_dtypes()"
_FRAME = "torch.from_numpy(a.to_numpy('f4', na_value=np.nan))"
_GAPS = "[None, *range(n - 1)]"
_COUNTS = "a = pd.DataFrame({'x': np.arange(n), 'y': np.arange(n)}).convert_dtypes()"
_ARRAY = "torch.from_numpy(np.array(a))"
_TABLE = "a = pd.DataFrame({'x': np.arange(float(n)), 'y': np.ones(n)})"
_STACK = "torch.stack([torch.as_tensor(x) for x in a])"
_ROUNDED_ONCE = (
    "pyarrow's cast takes most of the time, and rounds each integer once. The reference rounds it to float64 "
    "and then to float32."
)
_FLOATS = "np.array([float(x) for x in a], 'f4')"
_CAST_TWICE = "torch.from_numpy(np.asarray(a).astype('f4'))"
_REASONS = {_FLOATS: _FEW, _SMALL: _SHORT, _CAST_TWICE: _ROUNDED_ONCE}
"""Why a row may take more than its target beside a reference."""


LISTS = (
    RecordRow(
        f"{_ARRAYS.replace('8.0', '1024.0')}",
        "xbridge.asarray(a, backend='torch')",
        ("torch.tensor(a)",),
        20,
        _ELSEWHERE,
    ),
    RecordRow(_TENSORS, "xbridge.asarray(a, backend='numpy')", ("np.array(a)",), 5, _ELSEWHERE, _QUESTIONS),
    RecordRow(_TENSORS, "xbridge.asarray(a)", ("torch.stack(a)",), 0.65, _ELSEWHERE, _QUESTIONS),
)

ROWS_AND_SCALARS = tuple(
    RecordRow(setup, ours, (reference,), target, _ELSEWHERE, _REASONS.get(reference, ""))
    for setup, ours, reference, target in (
        ("a = list(torch.ones(n, 100))", "xbridge.asarray(a)", "torch.stack(a)", 5),
        ("a = list(torch.ones(100, n).T)", "xbridge.asarray(a)", "torch.stack(a)", 5),
        ("a = list(np.arange(float(n)))", "xbridge.asarray(a, backend='torch')", _ARRAY, 4),
        ("a = [*np.arange(float(n)), 1.0]", "xbridge.asarray(a, backend='torch')", _ARRAY, None),
        ("a = [torch.ones(100), np.ones(100, 'f4')] * (n // 2)", "xbridge.asarray(a)", _STACK, 4),
        (_LOSSES, "xbridge.asarray(a, backend='torch')", "torch.tensor(a)", 4),
        (f"{_LOSSES}; a = a[:2]", "xbridge.asarray(a, backend='torch')", "torch.tensor(a)", 4),
        (
            f"{_LOSSES}; a = a[:2]",
            "xbridge.asarray(a, backend='numpy')",
            _FLOATS,
            4,
        ),
        ("a = list(torch.ones(n))", "xbridge.asarray(a)", "torch.stack(a)", 4),
        (_TWO_DTYPES, "xbridge.asarray(a)", "torch.stack([x.double() for x in a])", 4),
        ("a = [1, np.int64(2)]", "xbridge.asarray(a, backend='torch')", "torch.tensor(a)", 4),
        (
            f"{_MAPPED}; a = list(a)",
            "xbridge.asarray(a, backend='torch')",
            "torch.from_numpy(np.stack(a))",
            4,
        ),
        (_SERIES, "xbridge.asarray(a, backend='torch')", _SERIES_BY_HAND, 4),
        (f"{_SERIES}; a = a[0]", "xbridge.to_torch(a)", "torch.from_numpy(a.to_numpy(copy=True))", 4),
        (_TABLE, "xbridge.to_torch(a)", "torch.from_numpy(a.to_numpy(copy=True))", 4),
        (_MIXED, "xbridge.to_torch(a, dtype='float32')", "torch.from_numpy(a.to_numpy('f4'))", 4),
        (_NULLABLE, "xbridge.to_torch(a, dtype='float32')", _FRAME, 4),
        (_COUNTS, "xbridge.to_torch(a, dtype='int32')", "torch.from_numpy(a.to_numpy('i4'))", 4),
        (
            f"a = pd.Series({_GAPS}, dtype='Float64')",
            "xbridge.to_torch(a)",
            "torch.from_numpy(a.to_numpy('f8', na_value=np.nan))",
            4,
        ),
        (
            f"a = pl.Series({_GAPS})",
            "xbridge.to_torch(a, dtype='float32')",
            "torch.from_numpy(a.cast(pl.Float32).to_numpy(writable=True))",
            4,
        ),
        (
            f"a = pa.array({_GAPS})",
            "xbridge.to_torch(a, dtype='float32')",
            _CAST_TWICE,
            4,
        ),
        ("a = [1.0, 2.0, 3.0]", "xbridge.asarray(a, backend='numpy')", _SMALL, 4),
    )
)
"""Lists of rows, of scalars, of Series and of arrays of two libraries, and tables, beside the idiom."""


def names_of_trees() -> dict[str, Any]:
    """Return what the statements see."""
    import_module("xbridge.tree")
    return {
        "pd": import_module("pandas"),
        "pl": import_module("polars"),
        "pa": import_module("pyarrow"),
        "pytree": import_module("torch.utils._pytree"),
        "convert_to_tensor": _converter(),
    }


def sections_of_trees(*, quick: bool) -> tuple[Section, ...]:
    """Return what is timed in this process; if quick, just enough to see that it works."""
    n, trials, rounds = (100, 1, 5) if quick else (1000, 5, 20)
    time, speed = (f"{what}, as a multiple of the reference's" for what in ("Time", "Speed"))
    return (
        Section("Trees", f"{time}; {n} arrays of 64 bytes.", TIME, TREES, n, trials, rounds, 5e-3),
        Section("Small trees", f"{time}; 2 to 100 arrays.", TIME, SMALL, 100, trials, rounds, 5e-4),
        Section(
            "Trees with options",
            f"{time}; 100 arrays of 100 items.",
            TIME,
            OPTIONS,
            100,
            trials,
            rounds,
            5e-3,
        ),
        Section("Other walks", f"{speed}; {n} arrays of 64 bytes.", SPEED, WALKS, n, trials, rounds, 5e-3),
        Section(
            "Other lists and tables", f"{time}; 100 items.", TIME, ROWS_AND_SCALARS, 100, trials, rounds, 5e-3
        ),
        Section("Long lists", f"{speed}; {n} arrays of 1,024 items.", SPEED, LISTS, n, trials, rounds, 5e-3),
    )


def _converter() -> Callable[[Any], Any]:
    """Return what MONAI 1.5 does with the arrays of a tree in `convert_to_tensor`."""
    np, torch, re = (import_module(name) for name in ("numpy", "torch", "re"))

    def convert_to_tensor(data: Any) -> Any:
        if isinstance(data, torch.Tensor):
            return data.to(dtype=None, device=None, memory_format=torch.contiguous_format)
        if isinstance(data, np.ndarray):
            if re.search(r"[SaUO]", data.dtype.str) is None:
                if data.ndim > 0:
                    data = np.ascontiguousarray(data)
                return torch.as_tensor(data, dtype=None, device=None)
        elif isinstance(data, (float, int, bool)):
            return torch.as_tensor(data)
        elif isinstance(data, list):
            return [convert_to_tensor(x) for x in data]
        elif isinstance(data, tuple):
            return tuple(convert_to_tensor(x) for x in data)
        elif isinstance(data, dict):
            return {key: convert_to_tensor(x) for key, x in data.items()}
        return data

    return convert_to_tensor
