"""Compare the lines and libraries that people convert arrays with: which are right, and what they cost.

A line is right if its result has the library, dtype and values that were asked for, and if no write passes
between it and memory that must not change. The right ones are timed in turns:

    make .venv/bench.stamp                        # installs what it stands beside
    .venv/bin/python benchmarks/peers.py          # writes peers.md, in some minutes
    .venv/bin/python benchmarks/peers.py --quick  # only tries whether everything runs
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import report
import rows
import rows_jax
import torch
from harness import TIME, Figure, figure, measure

__all__ = ["CASES", "Case"]

BY_HAND, OURS = "by hand", "xbridge"
PACKAGES = {
    "DLPack": "numpy",
    "autoray": "autoray",
    "array-api-compat": "array-api-compat",
    "EagerPy": "eagerpy",
    "Gymnasium": "gymnasium",
    "scikit-learn": "scikit-learn",
}
"""The peers, and what is installed for each. DLPack's lines are those of NumPy, torch and JAX."""

LINES = {
    "numpy": {
        BY_HAND: ("x.detach().cpu().numpy()", "x.numpy(force=True)", "np.asarray(x)"),
        "DLPack": ("np.from_dlpack(x)",),
        "autoray": ("autoray.to_numpy(x)",),
        "array-api-compat": ("xnp.asarray(x)",),
        "EagerPy": ("eagerpy.astensor(x).numpy()",),
        "Gymnasium": ("array_conversion(x, xnp)",),
        "scikit-learn": ("move_to(x, xp=xnp, device='cpu')",),
    },
    "torch": {
        BY_HAND: ("torch.from_numpy(x)", "torch.as_tensor(x)"),
        "DLPack": ("torch.from_dlpack(x)",),
        "autoray": ("autoray.to(x, 'torch')",),
        "array-api-compat": ("xtorch.asarray(x)",),
        "EagerPy": ("eagerpy.from_numpy(eager, np.asarray(x)).raw",),
        "Gymnasium": ("array_conversion(x, xtorch)",),
        "scikit-learn": ("move_to(x, xp=xtorch, device='cpu')",),
    },
    "jax": {
        BY_HAND: ("jnp.asarray(x)", "jax.device_put(x)"),
        "DLPack": ("jnp.from_dlpack(x)",),
        "autoray": ("autoray.to(x, 'jax')",),
        "Gymnasium": ("array_conversion(x, jnp)",),
        "scikit-learn": ("move_to(x, xp=jnp, device=cpu)",),
    },
}
"""For each library of a result, how it is asked for, without further wishes."""

KINDS = ("raises", "gives", "writes", "ends")
"""The first word of what is wrong: an error (or none), another result, a write that passes, or a crash."""

REVERSED = "NumPy, reversed, to torch"
ENDING = {(REVERSED, "torch.from_dlpack(x)"), (REVERSED, "array_conversion(x, xtorch)")}
"""What is not run. torch up to 2.13 throws a C++ exception through DLPack's callers for a negative stride."""

SMALL, LARGE = "8", "16 MiB"
SIZES = {SMALL: 8, LARGE: 1 << 22}


class Case(NamedTuple):
    """One conversion."""

    title: str
    given: str
    """Makes `x`, and sees `n`, the number of items."""
    ours: str
    expected: str
    """The values and dtype of a right result, as a NumPy array; "" if an error is right."""
    lines: Mapping[str, tuple[str, ...]]
    """What the others run; the fastest that is right counts."""
    sizes: tuple[str, ...] = (SMALL,)
    is_fixed: bool = False
    """Whether no write may pass between `x` and the result."""


def by_hand(*lines: str, **others: str) -> dict[str, tuple[str, ...]]:
    """Return lines for what few of the peers can be asked for."""
    return {BY_HAND: lines, **{name: (line,) for name, line in others.items()}}


def also(target: str, *lines: str) -> dict[str, tuple[str, ...]]:
    """Return the lines for a target, with more of them by hand."""
    return instead(target, *LINES[target][BY_HAND], *lines)


def instead(target: str, *lines: str) -> dict[str, tuple[str, ...]]:
    """Return the lines for a target, with these by hand."""
    return {**LINES[target], BY_HAND: lines}


BOTH = (SMALL, LARGE)
BLOCK = 1e-3
"""Seconds of a turn."""
PLAIN = "x = torch.arange(float(n))"
ARRAY = "x = np.arange(n, dtype='f4')"
JAX = "x = jnp.arange(n, dtype='f4').block_until_ready()"
FLOATS = "np.arange(n, dtype='f4')"
ALIGNED = "x = aligned(n)"

CASES = (
    Case("torch to NumPy", PLAIN, "xbridge.to_numpy(x)", FLOATS, LINES["numpy"], BOTH),
    Case(
        "torch, requires grad, to NumPy",
        f"{PLAIN}.requires_grad_()",
        "xbridge.to_numpy(x)",
        FLOATS,
        also("numpy", "x.detach().numpy().copy()"),
        BOTH,
        is_fixed=True,
    ),
    Case(
        "torch bfloat16 to NumPy",
        f"{PLAIN}.bfloat16()",
        "xbridge.to_numpy(x)",
        f"{FLOATS}.astype(ml_dtypes.bfloat16)",
        also("numpy", "x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)"),
    ),
    Case(
        "torch, conjugated, to NumPy",
        "x = torch.complex(torch.arange(float(n)), torch.ones(n)).conj()",
        "xbridge.to_numpy(x)",
        f"({FLOATS} - 1j).astype('c8')",
        also("numpy", "x.resolve_conj().numpy()"),
    ),
    Case(
        "torch, transposed, to NumPy",
        "x = torch.arange(float(n)).reshape(2, -1).T",
        "xbridge.to_numpy(x)",
        f"{FLOATS}.reshape(2, -1).T",
        LINES["numpy"],
        BOTH,
    ),
    Case(
        "torch to NumPy, a copy",
        PLAIN,
        "xbridge.to_numpy(x, copy=True)",
        FLOATS,
        by_hand("x.numpy().copy()", "np.array(x)", DLPack="np.from_dlpack(x, copy=True)"),
        BOTH,
        is_fixed=True,
    ),
    Case(
        "torch to NumPy float64",
        PLAIN,
        "xbridge.to_numpy(x, dtype='float64')",
        f"{FLOATS}.astype('f8')",
        by_hand("np.asarray(x, 'f8')", "x.numpy().astype('f8')", "x.double().numpy()"),
        BOTH,
    ),
    Case("NumPy to torch", ARRAY, "xbridge.to_torch(x)", FLOATS, LINES["torch"], BOTH),
    Case(
        REVERSED,
        f"{ARRAY}[::-1]",
        "xbridge.to_torch(x)",
        f"{FLOATS}[::-1]",
        also("torch", "torch.from_numpy(x.copy())"),
        BOTH,
    ),
    Case(
        "NumPy float64 to torch float32",
        "x = np.arange(float(n))",
        "xbridge.to_torch(x, dtype='float32')",
        FLOATS,
        by_hand(
            "torch.from_numpy(x).float()",
            "torch.from_numpy(x.astype('f4'))",
            "torch.tensor(x, dtype=torch.float32)",
            autoray="autoray.to(x, 'torch-float32')",
        ),
        BOTH,
    ),
    Case(
        "NumPy to torch, a copy",
        ARRAY,
        "xbridge.to_torch(x, copy=True)",
        FLOATS,
        by_hand("torch.from_numpy(x).clone()", "torch.tensor(x)", "torch.from_numpy(x.copy())"),
        BOTH,
        is_fixed=True,
    ),
    Case(
        "NumPy, read-only, to torch",
        f"{ARRAY}; x.flags.writeable = False",
        "xbridge.to_torch(x)",
        FLOATS,
        also("torch", "torch.from_numpy(x.copy())", "torch.tensor(x)"),
        is_fixed=True,
    ),
    Case(
        "NumPy, big-endian, to torch",
        "x = np.arange(n, dtype='>f4')",
        "xbridge.to_torch(x)",
        FLOATS,
        also("torch", "torch.from_numpy(x.astype('f4'))"),
    ),
    Case(
        "NumPy, like a tensor",
        ARRAY,
        "xbridge.asarray(x, like=tensor)",
        FLOATS,
        by_hand("torch.as_tensor(x, device=tensor.device)", "torch.from_numpy(x).to(tensor.device)"),
    ),
    Case(
        "NumPy with a masked item to torch: an error",
        "x = np.ma.masked_array(np.arange(n, dtype='f4'), mask=[True] + [False] * (n - 1))",
        "xbridge.to_torch(x)",
        "",
        LINES["torch"],
    ),
    Case(
        "torch to JAX",
        PLAIN,
        "xbridge.to_jax(x)",
        FLOATS,
        instead("jax", "jnp.asarray(x.detach().numpy())", "jnp.array(x.detach().numpy())"),
        BOTH,
        is_fixed=True,
    ),
    Case(
        "torch, requires grad, to JAX",
        f"{PLAIN}.requires_grad_()",
        "xbridge.to_jax(x)",
        FLOATS,
        instead("jax", "jnp.asarray(x.detach().numpy())", "jnp.array(x.detach().numpy())"),
        is_fixed=True,
    ),
    Case(
        "JAX to torch",
        JAX,
        "xbridge.to_torch(x)",
        FLOATS,
        instead(
            "torch",
            "torch.from_numpy(np.asarray(x))",
            "torch.tensor(np.asarray(x))",
            "torch.from_dlpack(x).clone()",
        ),
        BOTH,
        is_fixed=True,
    ),
    Case(
        "JAX to NumPy",
        JAX,
        "xbridge.to_numpy(x)",
        FLOATS,
        instead("numpy", "np.asarray(x)", "np.array(x)"),
        BOTH,
        is_fixed=True,
    ),
    Case("NumPy to JAX", ALIGNED, "xbridge.to_jax(x)", FLOATS, LINES["jax"], BOTH, is_fixed=True),
    Case(
        "NumPy float64 to JAX float32",
        "x = np.arange(float(n))",
        "xbridge.to_jax(x, dtype='float32')",
        FLOATS,
        by_hand("jnp.asarray(x, 'float32')", "jnp.asarray(x.astype('f4'))"),
        BOTH,
    ),
    Case(
        "a list of 3 floats to torch",
        "x = [1.0, 2.0, 3.0]",
        "xbridge.asarray(x, backend='torch')",
        "np.array([1, 2, 3], 'f4')",
        by_hand("torch.tensor(x)", "torch.as_tensor(x)"),
    ),
    Case(
        "a list of 3 floats to NumPy",
        "x = [1.0, 2.0, 3.0]",
        "xbridge.asarray(x, backend='numpy')",
        "np.array([1.0, 2.0, 3.0])",
        by_hand("np.asarray(x)", "np.array(x)"),
    ),
    Case(
        "a float to torch",
        "x = 2.5",
        "xbridge.asarray(x, backend='torch')",
        "np.float32(2.5)",
        by_hand("torch.tensor(x)", "torch.as_tensor(x)"),
    ),
    Case(
        "a list of 2 tensors to one",
        "x = [torch.arange(float(n)), torch.arange(float(n))]",
        "xbridge.asarray(x, backend='torch')",
        f"np.stack([{FLOATS}] * 2)",
        by_hand("torch.stack(x)"),
    ),
    Case(
        "a list of 64 arrays to one tensor",
        "x = [np.arange(n // 8, dtype='f4') for _ in range(64)]",
        "xbridge.asarray(x, backend='torch')",
        "np.stack([np.arange(n // 8, dtype='f4')] * 64)",
        by_hand(
            "torch.from_numpy(np.array(x))", "torch.from_numpy(np.stack(x))", "torch.tensor(np.array(x))"
        ),
    ),
    Case(
        "torch float16 to float32",
        f"{PLAIN}.half()",
        "xbridge.to_torch(x, dtype='float32')",
        FLOATS,
        by_hand("x.float()", "x.to(torch.float32)"),
    ),
    Case(
        "NumPy int64 above 2**40 to JAX of 32 bits: an error",
        "x = np.arange(n) + 2**40",
        "xbridge.to_jax(x)",
        "",
        LINES["jax"],
    ),
)

PAGE = """\
# Beside other lines and libraries

{right} `make .venv/bench.stamp` installs what they stand beside, and `{command}` makes the page; this one was
made on {date}.

**What is right.** A line is right if its result has the library, dtype and values that were asked for, and if
it cannot be written where its source must not change: a JAX array, a read-only array, a tensor that requires
grad. A copy and a JAX array must not follow writes to their source. Where an error is right, any error is.

**What it costs.** The right lines of a row run in turns, in blocks of {block:g} ms. The multiple is our
median time over that of the fastest other right line, with the range of the middle half of the rounds. Less
is better. torch uses one thread.

{costs}

{tally}

## What is not right

{wrong}

## The lines

{lines}

## The machine

{machine}
"""


RIGHT = (
    "xbridge is right in all of {all} conversions. In {within} of the {timed} whose time can be compared, it "
    "takes at most 1.5 times as long as the fastest other line that is right."
)


def main() -> None:
    """Compare all lines, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="just enough to see that it works")
    quick: bool = parser.parse_args().quick
    warnings.simplefilter("ignore")  # the peers'; ours have none
    space = names()
    torch.set_num_threads(1)
    rows_ = [compare(case, size, space, quick=quick) for case in CASES for size in case.sizes]
    text = page(rows_)
    print(text)
    if not quick:
        (Path(__file__).parent / "peers.md").write_text(text, encoding="utf-8")


class Compared(NamedTuple):
    """What was found out about one conversion."""

    case: Case
    size: str
    faults: dict[str, dict[str, str]]
    """For each peer the lines that are not right, and why."""
    seconds: float
    best: str
    """The fastest other line that is right; "" if none is."""
    figure: Figure | None


def names() -> dict[str, Any]:
    """Return what the lines see."""
    modules = {name: import_module(name) for name in ("eagerpy", "ml_dtypes")}
    conversion = import_module("gymnasium.wrappers.array_conversion").array_conversion
    return {
        **rows.names(),
        **rows_jax.names(),
        **modules,
        "array_conversion": conversion,
        "aligned": aligned,
        "tensor": torch.zeros(3),
        "eager": modules["eagerpy"].astensor(torch.zeros(3)),
    }


def aligned(n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return an array whose memory JAX can share."""
    memory = np.empty(n * 4 + 64, "u1")
    start = -memory.ctypes.data % 64
    array = memory[start : start + n * 4].view("f4")
    array[:] = np.arange(n)
    return array


def compare(case: Case, size: str, space: Mapping[str, Any], *, quick: bool) -> Compared:
    """Run each line of a case, and time those that are right."""
    print(f"... {case.title}, {size}", file=sys.stderr)
    n = SIZES[SMALL if quick else size]
    fault = partial(fault_of, case, space, n)
    if found := fault(case.ours):
        raise AssertionError(f"{case.title}: {case.ours} {found}")
    faults = {
        name: {line: found for line in lines if (found := fault(line))} for name, lines in case.lines.items()
    }
    right = [line for name, lines in case.lines.items() for line in lines if line not in faults[name]]
    if not case.expected:
        return Compared(case, size, faults, 0.0, "", None)
    times = measure(
        [case.ours, *right],
        partial(made, case, space, n),
        trials=1 if quick else 5,
        rounds=5 if quick else 21,
        block=BLOCK,
    )
    best = min(right, key=lambda line: median(times[line]), default="")
    found = figure(times[case.ours], times[best], TIME) if best else None
    return Compared(case, size, faults, median(times[case.ours]), best, found)


def made(case: Case, space: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return what the lines of a case see, with a new `x`."""
    own = {**space, "n": n}
    exec(case.given, own)  # noqa: S102 -- the statements are ours
    return own


def fault_of(case: Case, space: Mapping[str, Any], n: int, line: str) -> str:
    """Return what is wrong with a line; "" if nothing is."""
    if (case.title, line) in ENDING:
        return "ends the process"
    own = made(case, space, n)
    x = own["x"]
    try:
        result = eval(line, own)  # noqa: S307 -- the statements are ours
    except Exception as error:  # noqa: BLE001 -- whatever it raises is the answer
        return f"raises {type(error).__name__}" if case.expected else ""
    if not case.expected:
        return "raises no error"
    wanted = type(eval(case.ours, made(case, space, n)))  # noqa: S307 -- as above
    if not isinstance(result, wanted):
        return f"gives {type(result).__name__}"
    expected = np.asarray(eval(case.expected, own))  # noqa: S307 -- as above
    values = values_of(result)
    if values.dtype != expected.dtype:
        return f"gives {values.dtype}"
    if not np.array_equal(values, expected):
        return "gives other values"
    if not case.is_fixed:
        return ""
    if write(result) and not np.array_equal(values_of(x), expected):
        return "writes reach `x`"
    if "copy=True" not in case.ours and "to_jax" not in case.ours:
        return ""  # a read-only view may follow what its source does
    before = values_of(result).copy()
    write(x)
    return "" if np.array_equal(values_of(result), before) else "writes to `x` reach it"


def values_of(x: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array, by the usual lines for each library."""
    if not isinstance(x, torch.Tensor):
        return np.asarray(x)
    x = x.detach().resolve_conj()
    return x.view(torch.uint16).numpy().view("bfloat16") if x.dtype == torch.bfloat16 else x.numpy()


def write(x: Any) -> bool:
    """Write to an array if it can be written, and return whether."""
    if isinstance(x, torch.Tensor):
        x.detach().fill_(99)
    elif isinstance(x, np.ndarray) and x.flags.writeable:
        x[...] = 99
    else:
        return False
    return True


def page(compared: list[Compared]) -> str:
    """Return the page."""
    timed = [one for one in compared if one.figure]
    within = sum(one.figure.value <= 1.5 for one in timed if one.figure)
    return PAGE.format(
        right=RIGHT.format(all=len(compared), within=within, timed=len(timed)),
        command=".venv/bin/python benchmarks/peers.py",
        date=report.dated(),
        block=BLOCK * 1000,
        costs=report.grid([["conversion", "items", "takes", "beside", "multiple"], *map(cost, timed)]),
        tally=report.grid([["", "conversions", "right", *KINDS], *tally(compared)]),
        wrong=report.grid([["conversion", "what happens", "lines"], *wrong(compared)]),
        lines="\n".join(
            f"- {one.case.title}: `{one.case.given}`, `{one.case.ours}`" for one in distinct(compared)
        ),
        machine="\n".join(
            f"- {line}"
            for line in report.machine(dict.fromkeys(("xbridge-array", "torch", "jax", *PACKAGES.values())))
        ),
    )


def cost(one: Compared) -> list[str]:
    """Return a row of the table of times."""
    value, low, high = one.figure or Figure(0, 0, 0)
    return [
        one.case.title,
        one.size,
        report.duration(one.seconds),
        f"`{one.best}`",
        f"{value:.2f}x ({low:.2f} to {high:.2f})",
    ]


def tally(compared: list[Compared]) -> Iterator[list[str]]:
    """Yield for each peer how many conversions it has, and how many of its results are right."""
    one_size = distinct(compared)
    for name in (BY_HAND, *PACKAGES):
        asked = [one for one in one_size if name in one.case.lines]
        # By hand, what most programs have counts: the first line.
        firsts = [one.faults[name].get(one.case.lines[name][0], "") for one in asked]
        counts = Counter(fault.split()[0] for fault in firsts if fault)
        label = "by hand, the first line" if name == BY_HAND else name
        yield [label, str(len(asked)), str(firsts.count("")), *(str(counts[kind]) for kind in KINDS)]


def wrong(compared: list[Compared]) -> Iterator[list[str]]:
    """Yield for each conversion what the lines do that are not right, those together that do the same."""
    for one in distinct(compared):
        alike: dict[str, list[str]] = {}
        for line, fault in chain.from_iterable(lines.items() for lines in one.faults.values()):
            alike.setdefault(fault, []).append(f"`{line}`")
        for fault, lines in alike.items():
            yield [one.case.title, fault, ", ".join(lines)]


def distinct(compared: list[Compared]) -> list[Compared]:
    """Return each case once, at its first size."""
    return [one for one in compared if one.size == one.case.sizes[0]]


if __name__ == "__main__":
    main()
