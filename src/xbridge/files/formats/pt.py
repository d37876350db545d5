"""`.pt`, `.pth`: a tensor, or a dict of tensors, by torch's own reader and writer.

A file of torch is a pickle, so it is loaded with `weights_only=True`, which runs no code from the file. What
the file names beside tensors and NumPy's arrays becomes an inert placeholder, which can be left out.
Tensors are mapped if torch can map the file. torch writes from memory, so other values are mapped first. It
does not check the checksums of an archive, so they are checked before.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Self

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from xbridge import Device, dtype_of, shares_memory, to_numpy, unsafe_share
from xbridge.errors import Chained, XBridgeError, with_article
from xbridge.extend import DTYPES, get_backend, native_dtype
from xbridge.files.errors import RefusedError, chain_read_errors, format_list, unreadable_error
from xbridge.files.formats import Content, Reading, Refused
from xbridge.files.formats.archive import open_archive
from xbridge.files.formats.nested import describe, flatten_content, is_container, pick
from xbridge.files.formats.stored import ArrayInfo, InMemory, map_values, name_of

names = True
unnamed = True
metadata = False
orders: tuple[str, ...] = ("C", "F", "")
swaps = False
nested = True

ARRAYS = torch.Tensor | np.ndarray
"""The arrays of a file, among which NumPy's are data as torch's are."""


def lacks(dtype: np.dtype[Any]) -> str:
    name = name_of(dtype)
    if name not in DTYPES:
        return "torch has no such dtype"
    unsupported = get_backend("torch").unsupported_dtype(name, Device("cpu"))
    return unsupported.reason if unsupported else ""


def read(path: Path, how: Reading) -> Content:
    found = pick(_load(path, checksums=how.checksums), how.at, path)
    if isinstance(found, ARRAYS):
        return _read_content(path, [(None, found)], [], how)
    if not isinstance(found, dict) and not (how.flatten and is_container(found)):
        hint = "--flatten" if is_container(found) else ""
        if isinstance(found, _Placeholder):  # such as a module
            hint = "torch.save(model.state_dict(), path) where it was saved"
        what = repr(how.at[-1]) if how.at else "its content"
        raise unreadable_error(path, f"{what} is {describe(found)}", hint)
    values = list(flatten_content(found, path, how.at, flatten=how.flatten))
    others = [(name, describe(value)) for name, value in values if not isinstance(value, ARRAYS)]
    kept = [(name, what) for name, what in others if name not in how.skip]
    if kept and not how.skip_other:
        (name, what), *more = kept
        reason = f"{format_list(name for name, _ in kept)} are not tensors"
        classes = {name: type(x).__name__ for name, x in values if isinstance(x, _Placeholder)}
        asked = next((classes[name] for name, _ in kept if name in classes), "")
        hint = f"--skip-other, which leaves {'them' if more else 'it'} out"
        if asked:
            reason = f"it asks for {asked}, which is not a tensor and could run code"
        raise unreadable_error(path, reason if more or asked else f"{name!r} is {what}, not a tensor", hint)
    tensors = [(name, value) for name, value in values if isinstance(value, ARRAYS)]
    return _read_content(path, tensors, others, how)


def write(path: Path, content: Content) -> None:
    values = map_values(content.arrays, path.parent)
    tensors = {
        x.name: unsafe_share(np.require(value, requirements="A"), "torch")
        for x, value in zip(content.arrays, values, strict=True)
    }
    try:
        torch.save(tensors.get(None, tensors), path)
    except RuntimeError as error:  # by which torch says that a disk is full
        raise OSError(str(error).partition("\n")[0]) from error


def reread(path: Path) -> Iterator[ArrayInfo]:
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    for name, tensor in ({None: loaded} if isinstance(loaded, torch.Tensor) else loaded).items():
        yield name, native_dtype(dtype_of(tensor)), tuple(tensor.shape)


def _load(path: Path, *, checksums: bool) -> Any:
    """Load a file without running code from it."""

    def ours(error: Exception) -> RefusedError:
        reason: object = error
        asked = re.search(r"GLOBAL (\S+)", str(error))
        if asked:
            reason = f"it asks for {asked[1]}, which is not a tensor and could run code"
        elif "Can only" in str(error):
            reason = "it has an object that only code of its class can make"
        elif "TorchScript" in str(error):
            reason = "it is a TorchScript program, whose weights are torch.jit.load(path).state_dict()"
        return unreadable_error(path, reason)

    mapped = _check_archive(path, checksums=checksums)
    known = dict(_DATA)
    with warnings.catch_warnings(), Chained(ours):
        warnings.simplefilter("ignore")  # warnings of torch are for programmers
        while True:
            try:
                with torch.serialization.safe_globals([(made, name) for name, made in known.items()]):
                    return _load_safely(path, mapped=mapped)
            except UnpicklingError as error:
                name = "".join(_GLOBAL.findall(str(error))[:1])
                full = name if "." in name else f"builtins.{name}"  # of which torch names the last part
                filled = _FILLED.search(str(error))
                if name and full not in known and len(known) <= _MOST_CLASSES:
                    known[full] = type(name, (_Placeholder,), {})
                elif filled:  # its objects become plain lists or dicts
                    make = _NEW[filled[1] == "lists"]
                    known[filled[2]] = type(filled[2], (), {"__new__": make})
                elif not name and known["numpy.dtype"] is np.dtype:  # of text, dates, objects or records
                    known |= {word: type(word, (_Placeholder,), {}) for word in _DATA if "numpy" in word}
                else:
                    raise


_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_FILLED = re.compile(rf"Can only .* (lists|collections.Counter), but got <class '{__name__}\.(.+)'>")
_NEW: tuple[Callable[..., object], ...] = (lambda *_, **__: {}, lambda *_, **__: [])
_MOST_CLASSES = 200
_DATA: dict[str, Callable[..., object]] = {
    "builtins.getattr": lambda cls, _: cls,  # a class inside of another one is named by it
    "collections.defaultdict": lambda *_: {},
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    **{f"numpy.dtypes.{cls.__name__}": cls for cls in map(type, map(np.dtype, "?bBhHiIlLqQefdgFDG"))},
}
"""What is data and no code: a container, and what NumPy's arrays and scalars name in a pickle."""
for _word in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _DATA[f"{_word}.scalar"] = np.float64(0).__reduce__()[0]  # type: ignore[assignment] # it is a function
    _DATA[f"{_word}._reconstruct"] = np.zeros(0).__reduce__()[0]  # type: ignore[assignment] # as above


class _Placeholder:
    """Stands for an object of a class that a file names. It keeps nothing, and runs no code of the file."""

    def __new__(cls, *_: object, **__: object) -> Self:
        return object.__new__(cls)

    def __setitem__(self, key: object, value: object) -> None:
        """Forget an item."""

    def __setstate__(self, state: object) -> None:
        """Forget the state."""


def _load_safely(path: Path, *, mapped: bool | None) -> Any:
    if mapped is not None:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    with path.open("rb") as file:
        found = torch.load(file, map_location="cpu", weights_only=True)
        if file.read(1):  # without a checksum, the size is all that shows damage
            raise unreadable_error(path, "more bytes follow its last value")
        return found


def _check_archive(path: Path, *, checksums: bool) -> bool | None:
    """Return True if torch can map the file, False if it is compressed, None for one of torch before 1.6."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\3\4":
            return None
    with open_archive(path) as archive, chain_read_errors(path):
        damaged = archive.testzip() if checksums else None
        if damaged is not None:
            raise unreadable_error(path, f"the checksum of its record {damaged!r} differs")
        return all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())


def _refuse_overlaps(path: Path, arrays: Sequence[InMemory]) -> None:
    """Raise if two tensors share memory. They are sorted by address, so that few pairs are compared."""
    spans = sorted((*byte_bounds(x.array), at) for at, x in enumerate(arrays) if x.nbytes)
    before: list[tuple[int, int]] = []
    for low, high, at in spans:
        before = [(end, other) for end, other in before if end > low]
        for _, other in before:
            if shares_memory(arrays[at].array, arrays[other].array):
                both = f"{arrays[other].name!r} and {arrays[at].name!r}"
                reason = f"{both} share memory, and would be two arrays"
                raise unreadable_error(path, reason, "--untie, which writes the values of both")
        before.append((high, at))


def _read_content(
    path: Path,
    tensors: Sequence[tuple[str | None, Any]],
    others: Sequence[tuple[str, str]],
    how: Reading,
) -> Content:
    """Return the arrays. Those that cannot be converted are refused when they are asked for."""
    arrays, refused, shown = [], [], list(others)
    for name, tensor in tensors:
        try:
            array = tensor if isinstance(tensor, np.ndarray) else to_numpy(tensor)
        except XBridgeError as error:
            label = "the array" if name is None else repr(name)
            reason = f"{label}: cannot {error.action}: {error.reason}"
            refused.append(Refused(name, tensor, unreadable_error(path, reason)))
            what = f"{with_article(dtype_of(tensor))} tensor of shape {tuple(tensor.shape)}: {error.reason}"
            shown.append((name or "", what))
            continue
        order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else ""
        arrays.append(InMemory(name, array.dtype, array.shape, order, array, tensor))
    if not how.untie:
        _refuse_overlaps(path, [x for x in arrays if x.name not in how.skip])
    return Content(arrays, others=shown, refused=refused)
