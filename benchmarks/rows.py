"""What is measured: a row is a statement, what it must stand beside, and the target.

A row makes its arrays by its own setup. A peer gets the call of its own interface that does the same
work; whether it can is found out by running it, and `No` says why there is nothing to run.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from harness import NS, SPEED, TIME, Scale

__all__ = [
    "BULK",
    "FIRST",
    "FIRST_REFERENCE",
    "IMPORT",
    "LAYOUTS",
    "MID",
    "OPTIONS",
    "PAGES",
    "PEERS",
    "ROWS",
    "STACK",
    "No",
    "RecordRow",
    "Section",
    "huge_pages",
    "names",
    "sections",
]

PEERS = ("autoray", "gymnasium", "scikit-learn")


class No(str):
    """Why a peer has no figure."""

    __slots__ = ()


class RecordRow(NamedTuple):
    """One line of a table."""

    setup: str
    """Makes the arrays; sees the libraries, and `n`."""
    ours: str
    references: tuple[str, ...]
    """The fastest of them counts."""
    target: float | None
    peers: tuple[str, str, str]
    """Statements or `No`, in the order of `PEERS`."""
    why: str = ""
    """Why the target may be missed."""


class Section(NamedTuple):
    """Rows that are measured and read alike."""

    title: str
    reading: str
    scale: Scale
    rows: tuple[RecordRow, ...]
    n: int
    """Items of 8 bytes, or twice as many of 4."""
    trials: int
    """How often the arrays are made anew: their position in memory changes the time of a call."""
    rounds: int
    """How many turns each statement gets in a trial."""
    block: float
    """Seconds of a turn; 0 for a single run."""


def huge_pages() -> str:
    """Return the mode of huge pages: ``always``, ``madvise`` (NumPy but not torch), or ``never``."""
    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return "unknown"
    mode = modes.partition("[")[2].partition("]")[0]
    off = os.environ.get("NUMPY_MADVISE_HUGEPAGE") == "0"
    return "never" if off and mode == "madvise" else mode


TO_NUMPY = ("autoray.to_numpy(t)", "torch_to_numpy(t)", "move_to(t, xp=xnp, device='cpu')")
TO_TORCH = (
    "autoray.do('asarray', a, like='torch')",
    "numpy_to_torch(a)",
    "move_to(a, xp=xtorch, device=cpu)",
)
NO_COPY = No("cannot be asked for a copy")
NO_DTYPE = No("cannot be asked for a dtype")
NO_OPTION = No("is beside the same call without the option, above")
NO_CALL = No("has no such call")
ABORTS = No("hands negative strides to `torch.from_dlpack`, which aborts the process")
NO_FIRST = (No("imports array-api-compat, which is the reference"),) * 2
LISTS = No("converts the items of a list and keeps the list")

CHECKS = (
    "`t.numpy()` alone takes about half of the time of ours. The rest is the look-up and the checks: for a "
    "compiler, a forward derivative, a mode of dispatch, a graph, and memory outside of the storage."
)
COLD = "Beyond the copy, the call looks up its options and the dtype, and looks at the flags."
PAGES = (
    "Most of the time is the first write to new memory. It takes less with huge pages, of which the system "
    "does not always have any."
)

FLOATS = "a = np.arange(0.0, n)"
TENSOR = "t = torch.arange(n).double()"
OURS = "xbridge.to_backend(a, 'torch')"
COPY = f"{OURS[:-1]}, copy=True)"
DETACH = ("t.detach().cpu().numpy()",)
COPIES = ("autoray.do('array', a, like='torch')", NO_COPY, NO_COPY)

CLONE = RecordRow(FLOATS, COPY, ("torch.from_numpy(a).clone()",), None, COPIES)

FROM = "torch.from_numpy(a)"
LEAF = "xbridge.asarray(a, backend='torch'"
BOTH = f"{FLOATS}; {TENSOR}"
GRADED = f"{TENSOR}.requires_grad_()"
SINGLE = f"{FROM}.to(torch.float32)"
NEGATED = "f = xbridge.aligned(backend='torch')(torch.neg)"
NEGATED_IN_SINGLE = "f = xbridge.aligned(backend='torch', dtype='default')(torch.neg)"
NEGATED_BY_NUMPY = "f = xbridge.aligned(backend='numpy')(np.negative)"
TABLE = "a = np.arange(0.0, n).reshape(10, -1)"
OPTIONS = tuple(
    RecordRow(setup, ours, (reference,), target, (NO_OPTION,) * 3)
    for setup, ours, reference, target in (
        (FLOATS, COPY, f"{FROM}.clone()", 1.3),
        (FLOATS, f"{OURS[:-1]}, dtype='float32')", SINGLE, 1.3),
        (FLOATS, f"{OURS[:-1]}, dtype='default')", SINGLE, 1.3),
        (FLOATS, f"{OURS[:-1]}, device='cpu', dtype='float32', copy=True)", SINGLE, 1.3),
        (FLOATS, "xbridge.asarray(a, backend='torch', dtype='float32')", SINGLE, 1.3),
        (FLOATS, f"{OURS[:-1]}, device='cpu')", FROM, 3),
        (FLOATS, f"{OURS[:-1]}, dtype='float64')", FROM, 3),
        (FLOATS, f"{OURS[:-1]}, copy=False)", FROM, 3),
        (FLOATS, "xbridge.asarray(a, backend='torch')", FROM, 3),
        (TENSOR, "xbridge.to_numpy(t, copy=True)", f"{DETACH[0]}.copy()", 2.5),
        (TENSOR, "xbridge.to_numpy(t, dtype='float32')", f"{DETACH[0]}.astype('f4')", 3),
        (TENSOR, "xbridge.to_backend(t, 'torch', dtype='float32')", "t.to(torch.float32)", 2.3),
        (TENSOR, "xbridge.to_backend(t, 'torch', copy=True)", "t.clone()", 2.3),
        (FLOATS, "xbridge.to_numpy(a, dtype='float32')", "a.astype('f4')", None),
        (GRADED, "xbridge.to_backend(t, 'torch', grad='keep', dtype='float32')", "t.to(torch.float32)", 4),
        (GRADED, "xbridge.to_backend(t, 'torch', grad='detach')", "t.detach().clone()", 4),
        (GRADED, "xbridge.to_numpy(t, grad='detach')", DETACH[0], 4),
        (FLOATS, f"{LEAF}, requires_grad=True)", f"{FROM}.requires_grad_()", 4),
        (FLOATS, f"{LEAF}, dtype='float32', requires_grad=True)", f"{SINGLE}.requires_grad_()", 4),
        (GRADED, "xbridge.asarray(t, requires_grad=True)", "t.detach().requires_grad_()", 4),
        (BOTH, "xbridge.asarray(a, like=t)", FROM, None),
        (BOTH, "xbridge.align(t, a)", f"(t, {FROM})", None),
        (BOTH, "xbridge.align(a, t)", f"(a, {DETACH[0]})", None),
        (BOTH, "xbridge.align_back(t, a)", f"(t, {FROM})", None),
        (f"{BOTH}; _, back = xbridge.align_back(a, t, backend='torch')", "back(t)", DETACH[0], 4),
        (f"{FLOATS}; {NEGATED}", "f(a)", f"{FROM}.clone().neg().numpy()", 4),
        (f"{FLOATS}; {NEGATED_IN_SINGLE}", "f(a)", f"{SINGLE}.neg().numpy()", 4),
        (f"{TENSOR}; {NEGATED}", "f(t)", "t.neg()", 4),
        (f"{TENSOR}; {NEGATED_BY_NUMPY}", "f(t)", "torch.from_numpy(np.negative(t.numpy()))", 4),
        ("", "xbridge.asarray(1.5, backend='torch')", "torch.tensor(1.5)", 4),
        ("", "xbridge.asarray([1.5, 2.5], backend='torch')", "torch.tensor([1.5, 2.5])", 4),
        ("", "xbridge.asarray([[1, 2], [3, 4]], backend='torch')", "torch.tensor([[1, 2], [3, 4]])", 4),
        ("x = np.float64(1.5)", "xbridge.to_backend(x, 'torch')", "torch.tensor(x)", 4),
    )
)
"""Calls with an option, beside the idiom."""

_BRAIN = "torch.ones(n, dtype=torch.bfloat16)"
_NUMPY = "xbridge.to_numpy(t)"
_BITS = "t.detach().view(torch.uint16).numpy().view(a.dtype)"
_MAPPED = f"{FLOATS}.view(np.memmap)"
_RECORDS = "np.zeros(1, [('x', 'f8'), ('y', 'i1')])"


def _in_inference(ours: str, by_hand: str) -> tuple[str, str, str]:
    """Return a row of calls in inference mode: a hundred each, beside which to enter it takes little."""
    calls = {name: f"[{call} for _ in range(100)]" for name, call in (("ours", ours), ("by_hand", by_hand))}
    made = "; ".join(f"{name} = torch.inference_mode()(lambda: {call})" for name, call in calls.items())
    return f"{FLOATS}; b = a[1:]; {made}", "ours()", "by_hand()"


_FLAG = (
    "NumPy's own copy is one call of C. Ours looks at the flags of the array first, to see if it needs one."
)
_OUTSIDE = (
    "Ours leaves the mode for each tensor, because autograd refuses one that was made in inference mode, "
    "even later."
)
_WHY_MORE = {"writable=True": _FLAG, "ours()": _OUTSIDE}
LAYOUTS = tuple(
    RecordRow(
        setup,
        ours,
        (reference,),
        4,
        (NO_OPTION,) * 3,
        next((why for word, why in _WHY_MORE.items() if word in ours), ""),
    )
    for setup, ours, reference in (
        (f"{TABLE}.T", OURS, FROM),
        (f"{TABLE}.T", f"{OURS[:-1]}, order='C')", "torch.from_numpy(np.ascontiguousarray(a))"),
        (f"{TABLE}[:, ::2]", OURS, FROM),
        (f"{FLOATS}[::-1]", OURS, "torch.from_numpy(a.copy())"),
        (f"{FLOATS}; a.flags.writeable = False", OURS, "torch.from_numpy(a.copy())"),
        (f"{FLOATS}.astype('>f8')", OURS, "torch.from_numpy(a.astype('=f8'))"),
        (_MAPPED, OURS, FROM),
        (_MAPPED, "xbridge.to_numpy(a)", "np.asarray(a)"),
        (_MAPPED, f"{OURS[:-1]}, dtype='float32')", SINGLE),
        (f"{_MAPPED}; {TENSOR}", "xbridge.asarray(a, like=t)", FROM),
        (f"{FLOATS}.view(np.matrix)", OURS, FROM),
        (f"{FLOATS}.reshape(1, n)[::-1]", OURS, "torch.from_numpy(a.copy())"),
        (f"a = {_RECORDS}['x']", OURS, "torch.from_numpy(a.copy())"),
        (f"{FLOATS}; a.flags.writeable = False", "xbridge.to_numpy(a, writable=True)", "a.copy()"),
        _in_inference(OURS, FROM),
        _in_inference(
            "xbridge.tree.to_torch({'x': a, 'y': b})",
            "{'x': torch.from_numpy(a), 'y': torch.from_numpy(b)}",
        ),
        _in_inference("xbridge.asarray([1.0, 2.0], backend='torch')", "torch.tensor([1.0, 2.0])"),
        ("t = torch.empty(0)", _NUMPY, DETACH[0]),
        (f"{TENSOR}[::2]", _NUMPY, DETACH[0]),
        ("t = torch.ones(1).expand(n)", _NUMPY, DETACH[0]),
        ("t = torch.ones(n, dtype=torch.complex64).conj()", _NUMPY, "t.resolve_conj().numpy()"),
        (f"t = {_BRAIN}; a = {_NUMPY}", _NUMPY, _BITS),
        (f"t = {_BRAIN}.requires_grad_(); a = {_NUMPY}", _NUMPY, _BITS),
        (f"t = {_BRAIN}; a = {_NUMPY}", OURS, "torch.from_numpy(a.view('u2')).view(torch.bfloat16)"),
        (
            f"t = torch.ones(n).to(torch.float8_e5m2); a = {_NUMPY}",
            OURS,
            "torch.from_numpy(a.view('u1')).view(torch.float8_e5m2)",
        ),
    )
)
"""Arrays that are not dense, of a dtype of another package, or in a mode, beside the share or the copy."""

_VIEW = "Ours makes the view of `to_numpy`, with its checks, and lists that. torch lists the tensor itself."
_ASKED = (
    "The error says what the object is, and what to call in place. `is_array(x)` and `backend_of(x, "
    "default=None)`, in the rows above, answer without one."
)
_DATE = "x = __import__('datetime').date(2026, 1, 1)"
_WHY = {"to_list": _VIEW, "refused": _ASKED}
ANSWERS = tuple(
    RecordRow(
        setup,
        ours,
        (reference,),
        4,
        (NO_OPTION,) * 3,
        next((why for word, why in _WHY.items() if word in ours), ""),
    )
    for setup, ours, reference in (
        (TENSOR, "xbridge.dtype_of(t)", "str(t.dtype)"),
        (TENSOR, "xbridge.device_of(t)", "str(t.device)"),
        (TENSOR, "xbridge.to_list(t)", "t.tolist()"),
        (f"t = {_BRAIN}", "xbridge.to_list(t)", "t.tolist()"),
        ("t = torch.tensor(1.5)", "xbridge.to_list(t)", "t.item()"),
        ("t = torch.ones(n, dtype=torch.complex64).conj()", "xbridge.to_list(t)", "t.tolist()"),
        (BOTH, "xbridge.shares_memory(t, a)", "np.shares_memory(t.numpy(), a)"),
        (_DATE, "xbridge.is_array(x)", "isinstance(x, (np.ndarray, torch.Tensor))"),
        (_DATE, "xbridge.backend_of(x, default=None)", "isinstance(x, (np.ndarray, torch.Tensor))"),
        (_DATE, "refused(xbridge.backend_of, x)", "refused(torch.from_numpy, x)"),
        (_DATE, "refused(xbridge.to_numpy, x)", "refused(torch.from_numpy, x)"),
    )
)
"""Questions, beside the library's own answer."""

CALLS = (
    RecordRow(TENSOR, "xbridge.to_numpy(t)", DETACH, 1.0, TO_NUMPY, CHECKS),
    RecordRow(f"{TENSOR}.requires_grad_()", "xbridge.to_numpy(t)", DETACH, 1.3, TO_NUMPY, CHECKS),
    RecordRow(f"{TENSOR}[10:]", "xbridge.to_numpy(t)", DETACH, 1.1, TO_NUMPY, CHECKS),
    RecordRow(FLOATS, OURS, ("torch.from_numpy(a)",), 1.9, TO_TORCH),
    CLONE,
)

LOOKS = tuple(
    RecordRow(x, "xbridge.backend_of(x)", ("empty(x)",), 60, ("autoray.infer_backend(x)", NO_CALL, NO_CALL))
    for x in (f"x{TENSOR[1:]}", f"x{FLOATS[1:]}")
)

BULK = (
    CLONE._replace(target=3.0 if huge_pages() == "madvise" else 1.0, why=PAGES),
    RecordRow(
        f"{FLOATS}[::-1]",
        OURS,
        ("np.ascontiguousarray(a)", "a.copy()"),
        0.9,
        (TO_TORCH[0], ABORTS, TO_TORCH[2]),
    ),
    RecordRow(
        f"{FLOATS}.astype('>f8')",
        OURS,
        ("a.astype('=f8')", "a.byteswap()"),
        0.9,
        TO_TORCH,
    ),
    RecordRow(
        FLOATS,
        f"{OURS[:-1]}, dtype='float32')",
        ("a.astype('f4')", "torch.from_numpy(a).to(torch.float32)"),
        0.9,
        ("autoray.to(a, 'torch-float32')", NO_DTYPE, NO_DTYPE),
    ),
)

MID = tuple(
    RecordRow(f"a = np.arange(0.0, {size} // 8)", ours, (reference,), 0.95, (NO_OPTION,) * 3, COLD)
    for ours, reference in (
        (COPY, f"{FROM[:-1]}.copy())"),
        (f"{OURS[:-1]}, dtype='float32')", f"{FROM[:-1]}.astype('f4'))"),
    )
    for size in ("2**16", "2**18", "2**20", "2**22", "2**24", "2**25")
)
"""Sizes at which the call itself is small but is not nothing. `mid_sizes.py` compares more ways."""

STACK = RecordRow(
    "a = [np.full(n // 128, i, 'f4') for i in range(256)]",
    "xbridge.asarray(a, backend='torch')",
    ("torch.tensor(a)",),
    20,
    (TO_TORCH[0], LISTS, TO_TORCH[2]),
)

IMPORT = RecordRow(
    "",
    "import xbridge",
    ("pass",),
    15,
    (
        "import autoray",
        "import gymnasium.wrappers.array_conversion",
        "import sklearn.utils._array_api",
    ),
)

_TORCH = "import numpy as np, torch; a, t = np.ones(8), torch.ones(8)"
_JAX = "import numpy as np, jax.numpy as jnp; x = jnp.ones(8).block_until_ready()"
_LISTED = "xbridge.asarray([1.0, 2.0], backend='torch')"
FIRST_REFERENCE = (_TORCH, "import array_api_compat.torch")
FIRST = tuple(
    RecordRow(setup, ours, FIRST_REFERENCE[1:], target, peers)
    for setup, ours, target, peers in (
        (
            _TORCH,
            "import xbridge; xbridge.to_numpy(t)",
            1.6,
            ("import autoray; autoray.to_numpy(t)", *NO_FIRST),
        ),
        (
            _TORCH,
            "import xbridge; xbridge.to_torch(a)",
            1.6,
            ("import autoray; autoray.do('asarray', a, like='torch')", *NO_FIRST),
        ),
        (
            _JAX,
            "import xbridge; xbridge.to_numpy(x)",
            2.7,
            ("import autoray; autoray.to_numpy(x)", *NO_FIRST),
        ),
        (f"{_TORCH}; {_JAX}", "import xbridge; xbridge.to_torch(x)", 3, (NO_CALL, *NO_FIRST)),
        (_TORCH, f"import xbridge; {_LISTED}", 1.9, (NO_CALL, *NO_FIRST)),
        (f"{_TORCH}; import xbridge; {_LISTED}", _LISTED, None, (NO_CALL, *NO_FIRST)),
        (f"{_TORCH}; import xbridge; {_LISTED}; {_LISTED}", _LISTED, None, (NO_CALL, *NO_FIRST)),
    )
)
"""The first call of a process that has the libraries, the import of xbridge included; then the next calls."""

ROWS = (*CALLS, *OPTIONS, *LAYOUTS, *ANSWERS, *LOOKS, *BULK, *MID, STACK, *FIRST, IMPORT)


def names() -> dict[str, Any]:
    """Return what the statements see: the libraries, and the peers' converters."""
    os.environ["SCIPY_ARRAY_API"] = "1"  # scikit-learn dispatches only if SciPy was set so before
    libraries: dict[str, Any] = {
        name: import_module(path)
        for name, path in {
            "xbridge": "xbridge",
            "np": "numpy",
            "torch": "torch",
            "autoray": "autoray",
            "xnp": "array_api_compat.numpy",
            "xtorch": "array_api_compat.torch",
        }.items()
    }
    gymnasium = import_module("gymnasium.wrappers.numpy_to_torch")
    import_module("sklearn").set_config(array_api_dispatch=True)
    return libraries | {
        "numpy_to_torch": gymnasium.numpy_to_torch,
        "torch_to_numpy": gymnasium.torch_to_numpy,
        "move_to": import_module("sklearn.utils._array_api").move_to,
        "cpu": libraries["torch"].device("cpu"),
        "empty": lambda _: None,
        "refused": _refused,
    }


def _refused(fn: Any, x: Any) -> type:
    """Return the class of the error with which a function refuses an object."""
    try:
        fn(x)
    except TypeError as error:
        return type(error)
    raise AssertionError(f"{fn.__name__} takes {x!r}")


def sections(*, quick: bool) -> tuple[Section, ...]:
    """Return what is timed in this process; if quick, just enough to see that it works."""
    many, few = ((1, 40), (1, 5)) if quick else ((10, 60), (3, 7))
    more = (1, 5) if quick else (5, 21)
    large, listed = (2**19, 2**17) if quick else (2**25, 2**19)
    time = "Time, as a multiple of the reference's; 100 items of float64."
    look = "Time beyond an empty call's; 100 items of float64."
    speed = "Speed, as a multiple of the reference's"
    return (
        Section("Small arrays", time, TIME, CALLS, 100, *many, 5e-4),
        Section("Small arrays with options", time, TIME, OPTIONS, 100, *many, 5e-4),
        Section("Small arrays of other layouts", time, TIME, LAYOUTS, 100, *many, 5e-4),
        Section("Answers", time, TIME, ANSWERS, 100, *many, 5e-4),
        Section("Looking", look, NS, LOOKS, 100, *many, 5e-4),
        Section("Large arrays", f"{speed}; {large >> 17} MB.", SPEED, BULK, large, *few, 0),
        Section("Mid sizes", f"{speed}; 64 KB to 32 MB.", SPEED, MID[:1] if quick else MID, 0, *more, 2e-3),
        Section("A list of 256 arrays", f"{speed}; {listed >> 17} MB.", SPEED, (STACK,), listed, *few, 0),
    )
