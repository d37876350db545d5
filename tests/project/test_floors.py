"""The oldest versions that the metadata allows: they are those that are tested, and what they get right."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import xbridge

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
UNTESTED = {"cupy-cuda12x"}
"""What needs a GPU to be imported."""


def floors() -> set[tuple[str, tuple[int, ...]]]:
    """Each package that the metadata names, with the oldest version that it allows."""
    project = PROJECT["project"]
    wanted = chain(
        PROJECT["build-system"]["requires"],
        project["dependencies"],
        *project["optional-dependencies"].values(),
    )
    found = [re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", line) for line in wanted]
    assert all(found), "a requirement has a floor and nothing else"
    return {(m[1], release(m[2])) for m in found if m}


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version; 2.0 and 2.0.0 are one."""
    numbers = [int(number) for number in version.split(".")]
    while numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def pins(name: str) -> dict[str, tuple[int, ...]]:
    """The versions that a file of constraints gives."""
    lines = (ROOT / "requirements" / name).read_text("utf-8").splitlines()
    return {name: release(version) for name, version in (line.split("==") for line in lines if "==" in line)}


def test_requirements__oldest_versions_are_tested() -> None:
    """The lower bounds in the metadata are the versions pinned for the oldest tests."""
    tested = pins("oldest.txt")
    assert {(name, tested.get(name)) for name, _ in floors() if name not in UNTESTED} == {
        (name, floor) for name, floor in floors() if name not in UNTESTED
    }


def test_readme__names_the_oldest_versions() -> None:
    """The README states the lower bounds of the libraries."""
    readme = (ROOT / "README.md").read_text("utf-8")
    said = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "dask": "Dask", "cupy-cuda12x": "CuPy"}
    told = dict(re.findall(r"(NumPy|PyTorch|JAX|Dask|CuPy)(?: from)? ([\d.]*\d)", readme))
    assert {(name, release(told[word])) for name, word in said.items()} == {
        (name, floor) for name, floor in floors() if name in said
    }


@pytest.mark.parametrize("kind", ["int8", "uint8", "int64", "float16", "float32", "float64", "bfloat16"])
def test_float8_e8m0fnu__rounds_to_the_nearest_power(kind: str) -> None:
    """A number becomes the nearest power of two, and the larger of two that are equally near."""
    pytest.importorskip("ml_dtypes")
    numbers = xbridge.asarray([1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 48, 96], dtype=kind)
    bits = xbridge.to_numpy(numbers, dtype="float8_e8m0fnu").view("u1")
    assert (bits.astype(int) - 127).tolist() == [0, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7]
