"""`check` uses the emulated accelerator as another device of torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from xbridge.testing.check import worker

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_worker__finds_a_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten device is found, and its program shows it on the emulated accelerator."""
    monkeypatch.setattr(worker, "_limit_memory", lambda: None)
    path = tmp_path / "results"
    worker.main(str(path), "planted:missing_device", "0", "torch", "60")
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    found = next(line["finding"] for line in lines if "finding" in line)
    assert (found["backend"], found["needed"]) == ("torch", ["another device"])
    assert "emulated.install()\n" in found["program"]
    assert "device='emu:0'" in found["program"]
    assert "does not fail" not in found["program"]
