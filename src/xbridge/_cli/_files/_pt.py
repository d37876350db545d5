"""`.pt`, `.pth`: a tensor, or a flat dict of tensors, by torch's own reader and writer.

A file of torch is a pickle, so it is loaded with `weights_only=True`, which runs no code of the file's.
Tensors are mapped where torch can; it writes from memory, so what is in no map yet is mapped first.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from typing import IO, TYPE_CHECKING, Any, cast

import torch
from numpy.lib.array_utils import byte_bounds

import xbridge
from xbridge._cli._files import Content
from xbridge._cli._files._stored import InMemory, name_of
from xbridge._cli._refused import unreadable
from xbridge._devices import CPU
from xbridge._dtypes import DTYPES
from xbridge._registry import get
from xbridge.errors import Chained, XBridgeError

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    import numpy as np

    from xbridge._cli._files._sink import Sink
    from xbridge._cli._refused import RefusedError

names = True
unnamed = True
metadata = False
orders = ("C", "F", "")
swaps = False


def lacks(dtype: np.dtype[Any]) -> str:
    name = name_of(dtype)
    refusal = get("torch").lacks(name, CPU) if name in DTYPES else None
    return refusal.why if refusal else "" if name in DTYPES else "torch has no such dtype"


def read(path: Path, stack: ExitStack) -> Content:
    loaded = _load(path)
    if isinstance(loaded, torch.Tensor):
        return Content([_stored(path, None, loaded)], {})
    if not isinstance(loaded, dict):
        raise unreadable(path, f"it holds a {type(loaded).__name__}", "saving a tensor, or a dict of tensors")
    for name, tensor in loaded.items():
        if not isinstance(name, str):
            raise unreadable(path, f"the name {name!r} is no string", "saving the dict with strings as keys")
        if not isinstance(tensor, torch.Tensor):
            why = f"{name!r} is of type {type(tensor).__name__}, and no tensor"
            raise unreadable(path, why, "saving a flat dict of tensors alone")
    arrays = [_stored(path, name, tensor) for name, tensor in loaded.items()]
    _refuse_overlaps(path, arrays)
    return Content(arrays, {})


def write(file: Sink, content: Content, scratch: Path) -> None:
    tensors = {x.name: xbridge.to_backend(x.mapped(scratch), "torch") for x in content.arrays}
    torch.save(tensors.get(None, tensors), cast("IO[bytes]", file))


def _load(path: Path) -> Any:
    """Whatever is in the file, if that is no code."""

    def ours(error: Exception) -> RefusedError:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        if asked:
            why = f"it asks for {asked[1]}, which is no tensor and could run code"
            return unreadable(path, why, "saving a flat dict of tensors alone, such as a state_dict")
        return unreadable(path, error)

    with warnings.catch_warnings(), Chained(ours):
        warnings.simplefilter("ignore")  # they speak to programs
        return torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))


def _can_be_mapped(path: Path) -> bool:
    """Whether it is an archive without compression."""
    try:
        with zipfile.ZipFile(path) as archive:
            return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
    except (zipfile.BadZipFile, OSError):
        return False  # of an older torch, or damaged: torch will say


def _refuse_overlaps(path: Path, arrays: list[InMemory]) -> None:
    """Two names of one memory would become two arrays. By address, so that few pairs are compared."""
    spans = sorted((*byte_bounds(x.array), at) for at, x in enumerate(arrays) if x.nbytes)
    before: list[tuple[int, int]] = []
    for low, high, at in spans:
        before = [(end, other) for end, other in before if end > low]
        for _, other in before:
            if xbridge.shares_memory(arrays[at].array, arrays[other].array):
                why = f"{arrays[other].name!r} and {arrays[at].name!r} share memory, and would be two arrays"
                raise unreadable(path, why, "saving .clone() of one of them, or one of them alone")
        before.append((high, at))


def _stored(path: Path, name: str | None, tensor: torch.Tensor) -> InMemory:
    try:
        array = xbridge.to_numpy(tensor)
    except XBridgeError as error:
        why, _, do = str(error).rpartition("; try ")
        raise unreadable(path, f"{name!r}: {why}", do) from error
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else ""
    return InMemory(name, array.dtype, array.shape, order, array, tensor)
