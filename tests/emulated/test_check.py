"""The search for faults uses the emulated accelerator as another device of torch."""

from __future__ import annotations

from xbridge.testing.check import targets
from xbridge.testing.check.search import check


def test_check__finds_a_missing_device() -> None:
    """The search for faults finds a lost device, and says that its program needs an accelerator."""
    (only,) = check(targets.find_targets("planted:missing_device"), ["torch"], {}, 60.0)
    found = only.findings[0]
    assert (found.backend, found.needed) == ("torch", ("another device",))
    assert "device='cuda'" in found.program
    assert found.program.splitlines()[-1] == "# not run here: it needs an accelerator"
