"""The command line, called as a shell would call it, and arrays for its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import DTYPES, native_dtype

from xbridge.files import main

__all__ = ["Cli", "bits", "cli", "every_dtype", "listing", "main"]

if TYPE_CHECKING:
    from pathlib import Path

    from xbridge.protocol import HostArray


class Cli:
    """The command line, and what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: object, status: int = 0) -> str:
        """What a call prints that succeeds, or ends in another status. It complains of nothing."""
        assert main([*map(str, words)]) == status, self._capsys.readouterr().err
        out, err = self._capsys.readouterr()
        assert err == ""
        return out

    def refused(self, *words: object, status: int = 2) -> str:
        """What a call that fails says: one line, the exit status, and nothing for programs to misread."""
        assert main([*map(str, words)]) == status
        out, err = self._capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert status == 130 or err.startswith("xbridge-array: cannot ")
        return err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, called as a shell would call it."""
    return Cli(capsys)


IN_NO_FILE = frozenset(
    {
        *("int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"),
    }
)
"""The dtypes that no format of files has."""


def every_dtype(*without: str) -> dict[str, HostArray]:
    """An array of random bits in each dtype that files have, and two without axes or elements."""
    arrays: dict[str, HostArray] = {}
    for name, meaning in DTYPES.items():
        if name not in without and name not in IN_NO_FILE:
            top = 2 if name == "bool" else 256
            raw = np.random.default_rng(7).integers(0, top, 6 * meaning.bits // 8, np.uint8)
            arrays[name] = raw.view(native_dtype(name)).reshape(2, 3)
    return {**arrays, "no axes": np.array(2.5), "no elements": np.zeros((0, 3), np.int16)}


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """A host array down to its bits."""
    return str(array.dtype), array.shape, array.tobytes()


def listing(folder: Path) -> set[str]:
    """What is in a folder, hidden files too."""
    return {path.name for path in folder.iterdir()}
