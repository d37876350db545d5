"""Inputs that bring an interpreter down when they are believed: each is refused, in a process of its own.

A list of cases shares one process, and each prints what became of it: where a process dies, the last line
says after which case.
"""

from __future__ import annotations

import fresh
import pytest

pytest.importorskip("torch")

PRELUDE = """
import warnings
import numpy as np, torch, xbridge
from exporters import dlpack_only, interface_only

torch.set_warn_always(True)

def attempt(name, call):
    try:
        call()
    except xbridge.XBridgeError as error:
        print(name, type(error).__name__, str(error).startswith("cannot "), flush=True)
    else:
        print(name, "passed", flush=True)

OUT = {
    "to_numpy": xbridge.to_numpy,
    "copied": lambda x: xbridge.to_numpy(x, copy=True),
    "cast": lambda x: xbridge.to_numpy(x, dtype="complex128", grad="detach"),
    "listed": xbridge.to_list,
    "stacked": lambda x: xbridge.asarray([np.ones(x.shape), x]),
    "compared": lambda x: xbridge.shares_memory(x, x),
}
WITHIN = {
    "cloned": lambda x: xbridge.asarray(x, copy=True),
    "widened": lambda x: xbridge.asarray(x, dtype="complex128"),
    "joined": lambda x: xbridge.asarray([x, x]),
}
"""

VIEWS = """
views = {
    "whole": lambda b: b,
    "view": lambda b: b[2:],
    "strided": lambda b: b[1::2],
    "one": lambda b: b[-1],
    "columns": lambda b: b.view(2, -1).T,
    "a part of each row": lambda b: b.view(10, -1)[:, 1:],
    "expanded": lambda b: b[-1].expand(5),
    "unfolded": lambda b: b.unfold(0, 3, 1),
    "bfloat16": lambda b: b.view(torch.bfloat16)[4:],
    "conjugate": lambda b: b.view(torch.complex64)[1:].conj(),
    "negative": lambda b: b.view(torch.complex64)[1:].conj().imag,
    "parameter": lambda b: torch.nn.Parameter(b[2:]),
    "tracked": lambda b: b.requires_grad_()[2:],
}
sizes = {
    "freed": lambda base: 0,
    "shrunk": lambda base: 16,
    "shrunk by a byte": lambda base: base.nbytes - 1,
    "shrunk to the size of the view": lambda base: base.nbytes - 8,
}
"""


REFUSED = "UnsupportedArrayError True"


def test_to_numpy__memory_that_is_gone_is_not_read() -> None:
    """Memory that is gone is not read."""
    code = f"""
{PRELUDE}{VIEWS}
for size, resized in sizes.items():
    for name, view in views.items():
        base = torch.arange(1000.0)
        x = view(base)
        base.untyped_storage().resize_(resized(base))
        assert xbridge.asarray(x) is x
        for verb, call in (OUT | WITHIN).items():
            attempt(f"{{size}}, {{name}}, {{verb}}:", lambda: call(x))
"""
    status, lines = fresh.forked(code)
    assert [line for line in lines if not line.endswith(f" {REFUSED}")] == []
    assert (status, len(lines)) == (0, 4 * 13 * 9)


def test_to_numpy__read_only_memory_is_not_written_through_torch() -> None:
    """Read-only memory is not written through torch."""
    code = f"""
{PRELUDE}
import tempfile
from exporters import array_only, capsule
with tempfile.TemporaryDirectory() as folder:
    path = folder + "/numbers"
    np.ones(4).tofile(path)
    a = np.memmap(path, mode="r", dtype="f8")
    plain = a.view(np.ndarray)
    sources = [a, a[1:], a[::2], a.reshape(2, 2).T, plain, dlpack_only(a), array_only(plain)]
    sources += [interface_only(a), memoryview(a), capsule(a, flags=1), memoryview(bytes(8)), a[0]]
    changes = [{{}}, {{"copy": True}}, {{"dtype": "float32"}}, {{"grad": "detach"}}, {{"device": "cpu"}}]
    for x in sources:
        for options in changes:
            xbridge.to_backend(x, "torch", **options).fill_(5)
        xbridge.asarray([x, x], backend="torch").fill_(5)
        xbridge.align(torch.ones(1), x)[1].fill_(5)
        made = xbridge.to_numpy(x)
        print(made.flags.writeable)
    print(np.fromfile(path).tolist())
"""
    status, lines = fresh.forked(code)
    assert (status, lines) == (0, ["False"] * 11 + ["True", "[1.0, 1.0, 1.0, 1.0]"])


def test_to_numpy__result_outlives_the_source() -> None:
    """The result outlives the source."""
    code = f"""
{PRELUDE}
import array, gc
make = {{
    "tensor": lambda: torch.arange(1e5),
    "tracked": lambda: torch.arange(1e5).requires_grad_(),
    "bfloat16": lambda: torch.arange(1e5).bfloat16(),
    "expanded": lambda: torch.arange(1e5).expand(2, -1)[0],
    "array": lambda: np.arange(1e5),
    "read-only": lambda: np.broadcast_to(np.arange(1e5), (1, 100000))[0],
    "exporter": lambda: dlpack_only(torch.arange(1e5)),
    "interface": lambda: interface_only(np.arange(1e5)),
    "buffer": lambda: array.array("d", range(100000)),
}}
for name, source in make.items():
    made = [xbridge.to_numpy(source()), xbridge.to_backend(xbridge.to_numpy(source()), "torch")]
    gc.collect()
    filler = [np.full(100000, 7.0) for _ in range(4)]
    print(name, [float(x[:16].sum()) for x in made])
"""
    status, lines = fresh.forked(code)
    assert {line.split(" ", 1)[1] for line in lines} == {"[120.0, 120.0]"}
    assert (status, len(lines)) == (0, 9)
