"""The programs of `examples/functions` run, and each asserts its result."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import xbridge

PROGRAMS = sorted(Path(__file__).parents[2].joinpath("examples", "functions").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_example_of_functions_runs(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for library in ("jax", "torch", "scipy", "sklearn"):
        pytest.importorskip(library)
    if program.stem == "cluster":
        pytest.importorskip("distributed")
    import jax

    with jax.enable_x64(False):
        wide = jax.config.jax_enable_x64
        try:
            runpy.run_path(str(program), run_name="__main__")
        finally:
            jax.config.update("jax_enable_x64", wide)
    assert capsys.readouterr().out
    assert xbridge.is_available("torch")
