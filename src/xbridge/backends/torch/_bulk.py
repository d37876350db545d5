"""What is asked once for many arrays, where asking for each takes as long as the conversion."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from xbridge._protocol import HostArray

_is_dense = attrgetter("flags.carray")
"""Whether an array has C order, is aligned and may be written: less than `adopt` takes, and sooner asked."""


def adopt_all(hosts: list[HostArray], /) -> list[torch.Tensor] | None:
    """`adopt` for each of these arrays; None when in doubt about one."""
    if torch.compiler.is_dynamo_compiling() or torch.is_inference_mode_enabled():
        return None
    if not all(map(_is_dense, hosts)):
        return None
    try:
        return list(map(torch.from_numpy, hosts))
    except (TypeError, ValueError):
        return None
