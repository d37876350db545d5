"""Command lines that fail, the files that they name, and what their messages advise to type."""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import xbridge
from xbridge.files import main

__all__ = ["COMMANDS", "follow", "hint_of", "pieces_of", "write_files"]

A = np.arange(3.0)

COMMANDS = (
    "convert n.npy there.npy",
    "convert n.npy no/o.npy",
    "convert n.npy o.npz --round",
    "convert n.npy o.npz --cast float64",
    "convert n.npy o.npz --cast float64=float32 --cast float64=float16",
    "convert third.npy o.npz --cast float64=float32",
    "convert raw.npy o.safetensors",
    "convert brain.pt o.npz",
    "convert two.npz m.safetensors",
    "convert two.npz o.npy",
    "convert text.safetensors o.npz",
    "convert deep.pt o.npz",
    "convert mixed.pt o.npz",
    "convert list.pt o.npz",
    "convert numbered.pt o.npz",
    "convert tied.pt o.npz",
    "convert sparse.pt o.npz",
    "convert deep.pt --to npz",
    "show n.npy there.npy",
    "matrix dtypes --to numpy",
)
"""Command lines that fail, each with a message that ends in what to type."""

OTHER_TARGET = re.compile(r"another name|a suffix with names|a \.[\w.]+( or \.\w+)? file")
"""Matches advice to write another file."""


def write_files() -> None:
    """Write the files of the command lines into the working directory."""
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.numpy")
    np.save("n.npy", A)
    np.save("there.npy", A)
    np.save("third.npy", np.array([1 / 3]))
    np.save("raw.npy", xbridge.to_numpy(torch.ones(2, dtype=torch.bfloat16)))
    np.savez("two.npz", a=A, b=A)
    safetensors.save_file({"a": A}, "text.safetensors", {"by": "me"})
    Path("m.safetensors.index.json").write_text("{}", encoding="utf-8")
    t = torch.ones(2)
    contents = {
        "brain": t.bfloat16(),
        "deep": {"model": {"w": t}},
        "mixed": {"w": t, "step": 3},
        "list": [t],
        "numbered": {0: t},
        "tied": {"a": t, "b": t},
        "sparse": {"w": t, "s": torch.eye(2).to_sparse()},
    }
    for name, content in contents.items():
        torch.save(content, f"{name}.pt")


def hint_of(command: str) -> str:
    """What the message of a line that fails advises."""
    said = StringIO()
    with redirect_stderr(said):
        assert main(shlex.split(command)) == 2
    return said.getvalue().strip().partition("; try ")[2]


def pieces_of(hint: str) -> list[str]:
    """The pieces of a hint that can be typed."""
    pieces = re.split(r",? or ", OTHER_TARGET.sub("", hint))
    return [typed for piece in pieces if (typed := re.sub(r"(, which .*| alone| to replace it)$", "", piece))]


def follow(command: str, piece: str) -> int:
    """The exit status of a line with a piece of advice typed into it."""
    words, advised = shlex.split(command), shlex.split(piece)
    if advised[0] == "mkdir":
        Path(advised[-1]).mkdir()
    elif advised[0] == "xbridge-array":
        words = advised[1:]
    else:
        mistaken = [i for i, word in enumerate(words) if word in ("--at", "--skip", "--cast")]
        words = words[: mistaken[0]] if mistaken and advised[0] != "--round" else words
        words += advised
    try:
        return main(words)
    except SystemExit as left:  # after a page of help
        return int(left.code or 0)
