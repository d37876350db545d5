"""Fill in what no hand can keep true: the reference from docstrings, what is supported by converting.

A page holds a part between `<!-- generated: NAME -->` and `<!-- end -->`, and this script writes it. A
cell of the tables is one real conversion; whether it shared memory is asked of NumPy, about the bytes
that both sides lie in. With `--check` nothing is written, and a page that is stale is a failure.
"""

import argparse
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes  # noqa: F401 -- it teaches NumPy the names of its dtypes
import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

import xbridge
from xbridge import testing
from xbridge._dtypes import DTYPES
from xbridge.backends import INDEX
from xbridge.testing import strategies

PART = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
FIELD = re.compile(r"\n*^(Parameters|Returns|Raises|Examples)\n-+\n", re.MULTILINE)
ELSEWHERE = ("cupy",)  # it needs a GPU, and these pages are the same on every machine
ROOMS = [import_module(str(entry.module)) for name, entry in INDEX.items() if name not in ELSEWHERE]
FACTS = ("readonly", "immutable", "autograd", "host_only")

tensors = {name: torch.zeros(3, dtype=getattr(torch, name)) for name in DTYPES if hasattr(torch, name)}
NAMES = (*DTYPES, "longdouble", "object", "str", "datetime64[s]")
NUMBERS = {f"`{name}`": (np.zeros(3, name), tensors.get(name)) for name in NAMES}
host = np.arange(24, dtype="float32").reshape(4, 6)
read_only = host[:]
read_only.flags.writeable = False
tensor, leaf = torch.arange(24.0).reshape(4, 6), torch.ones(4, requires_grad=True)
LAYOUTS: dict[str, Any] = {
    "in one piece": (host, tensor),
    "0-d": (np.zeros(()), torch.zeros(())),
    "transposed": (host.T, tensor.T),
    "a view that begins later": (host[1:], tensor[1:]),
    "every second element": (host[:, ::2], tensor[:, ::2]),
    "channels last": (None, torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last)),
    "reversed": (host[::-1], None),
    "with strides that are no multiple of the item": (np.zeros(4, "f4,i1")["f0"], None),
    "not aligned": (np.frombuffer(bytearray(17), "float32", offset=1), None),
    "in foreign byte order": (host.astype(host.dtype.newbyteorder()), None),
    "read-only": (read_only, None),
    "one element repeated": (np.broadcast_to(host[0, :1], 3), tensor[0, :1].expand(3)),
    "windows that overlap": (as_strided(host, (3, 2), (4, 4)), tensor.flatten()[:4].unfold(0, 2, 1)),
    "a leaf that requires grad": (None, leaf),
    "a result with a graph": (None, leaf * 2),
    "with a conjugate pending": (None, torch.ones(3, dtype=torch.complex64).conj()),
}


def main() -> None:
    """Fill in every page of a folder; with --check, fail at the first that is stale."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    asked = parser.parse_args()
    written = parts()
    for page in sorted(asked.folder.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = PART.sub(lambda part: written[part[1]], old)
        if new != old and asked.check:
            sys.exit(f"{page} is stale; try python docs/generate.py")
        page.write_text(new, encoding="utf-8")


def parts() -> dict[str, str]:
    """What the script writes, by the name of the part."""
    facts = [[room.name, *(str(getattr(room, fact)) for fact in FACTS)] for room in ROOMS]
    gaps = [[room.name, gap, *why.split(": ", 1)] for room in ROOMS for gap, why in room.gaps.items()]
    texts = {
        "verbs": reference(xbridge),
        "errors": errors(),
        "dtypes": crossings("dtype", NUMBERS),
        "layouts": crossings("array", LAYOUTS),
        "facts": table(["backend", *FACTS], facts),
        "gaps": table(["backend", "what", "until", "why"], gaps),
        "assertions": reference(testing),
        "strategies": reference(strategies),
    }
    return {name: f"<!-- generated: {name} -->\n\n{text}\n\n<!-- end -->" for name, text in texts.items()}


def reference(module: ModuleType) -> str:
    """Every public name of a module that is no error, a section each."""
    names = [name for name in module.__all__ if not name.endswith("Error")]
    return "\n\n".join(section(name, getattr(module, name)) for name in names)


def section(name: str, thing: Any) -> str:
    """A public name: its signature without types, which the docstring says in words, and its docstring."""
    signature = inspect.signature(thing)
    untyped = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    call = signature.replace(parameters=untyped, return_annotation=signature.empty)
    summary, *fields = FIELD.split(inspect.getdoc(thing) or "")
    parts = [f"## {name}", f"```\n{name}{call}\n```", summary]
    for field, text in zip(fields[::2], fields[1::2], strict=True):
        parts += [f"**{field}**", f"```pycon\n{text}\n```" if field == "Examples" else entries(text)]
    return "\n\n".join(parts)


def entries(text: str) -> str:
    """The entries `term : type` of a docstring, with their indented descriptions, as a list."""
    found = re.findall(r"^(\S.*?)( : .*)?$((?:\n .*)*)", text, re.MULTILINE)
    return "\n".join(f"- `{term}`{kind}. {' '.join(what.split())}" for term, kind, what in found)


def errors() -> str:
    """Every error, the built-in that it also is, and when it is raised."""
    kinds = {name: getattr(xbridge, name) for name in xbridge.__all__ if name.endswith("Error")}
    rows = [[f"`{name}`", f"`{kind.__bases__[-1].__name__}`", kind.__doc__] for name, kind in kinds.items()]
    return table(["error", "also a", "when"], rows)


def crossings(what: str, samples: dict[str, Any]) -> str:
    """What became of each pair of samples, the first on its way to torch, the second to NumPy."""
    rows = [[name, *map(crossing, pair, ("torch", "numpy"))] for name, pair in samples.items()]
    return table([what, "NumPy to torch", "torch to NumPy"], rows)


def crossing(x: object, target: str) -> str:
    """What one conversion did; nothing where there is no such array."""
    if x is None:
        return ""
    try:
        y = xbridge.to_backend(x, target)
    except xbridge.XBridgeError as error:
        return f"refused: `{type(error).__name__}`"
    if not np.shares_memory(memory(x), memory(y)):
        return "copied"
    return "shared, read-only" if isinstance(y, np.ndarray) and not y.flags.writeable else "shared"


def memory(x: Any) -> Any:
    """The memory of an array; of a tensor all of its storage, as bytes."""
    whole = torch.empty(0, dtype=torch.uint8)
    return x if isinstance(x, np.ndarray) else whole.set_(x.untyped_storage()).numpy()


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    main()
