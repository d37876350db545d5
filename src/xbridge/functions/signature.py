"""Signatures of generalized universal functions, such as ``(m,n),(n)->(m)``."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

import numpy as np

from xbridge.errors import OptionError, shown

_SIDE = r"\((?:\w+(?:,\w+)*)?\)"
_SIGNATURE = re.compile(rf"({_SIDE}(?:,{_SIDE})*)->({_SIDE}(?:,{_SIDE})*)")


class Signature(NamedTuple):
    """The core axes of each input and each output. All axes before them broadcast."""

    text: str
    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]

    def loops(self, name: str, shapes: list[tuple[int, ...]]) -> tuple[tuple[int, ...], dict[str, int]]:
        """Return the shape of the broadcast axes, and the lengths of the core axes by name."""
        if len(shapes) != len(self.inputs):
            self._refuse(name, f"it has {len(self.inputs)} inputs, and the call {len(shapes)} arrays")
        loop: tuple[int, ...] = ()
        sizes: dict[str, int] = {}
        for shape, core in zip(shapes, self.inputs, strict=True):
            outer = len(shape) - len(core)
            if outer < 0:
                self._refuse(name, f"an array of shape {shape} has fewer axes than ({','.join(core)})")
            try:
                if shape[:outer] != loop:
                    loop = np.broadcast_shapes(loop, shape[:outer]) if loop else shape[:outer]
            except ValueError:
                self._refuse(name, f"{shape[:outer]} does not broadcast with {loop}")
            for axis, size in zip(core, shape[outer:], strict=True):
                if sizes.setdefault(axis, size) != size:
                    self._refuse(name, f"axis {axis} has length {sizes[axis]} and length {size}")
        return loop, sizes

    def check(
        self, name: str, loop: tuple[int, ...], sizes: dict[str, int], shapes: list[tuple[int, ...]]
    ) -> None:
        """Raise if results have other axes than declared. Add the lengths of axes of outputs to `sizes`."""
        for shape, core in zip(shapes, self.outputs, strict=False):
            lengths = [sizes.setdefault(axis, n) for axis, n in zip(core, shape[len(loop) :], strict=False)]
            if shape != (*loop, *lengths) or len(lengths) != len(core):
                break
        else:
            if len(shapes) == len(self.outputs):
                return
        raise OptionError.build(
            f"use the result of {name}",
            f"signature={self.text!r} announces other axes than those of {shapes}",
            "a function that computes with the last axes alone, or no signature",
        )

    def _refuse(self, name: str, reason: str) -> NoReturn:
        hint = "arrays of the shapes in the signature, or another signature"
        raise OptionError.build(f"call {name} with signature={self.text!r}", reason, hint) from None


def parse_signature(text: object) -> Signature:
    """Parse a signature; raise if it is none."""
    plain = text.replace(" ", "") if isinstance(text, str) else ""
    found = _SIGNATURE.fullmatch(plain)
    if found is None:
        reason = "it is not the signature of a generalized universal function"
        raise OptionError.build(f"read signature={shown(text)}", reason, "signature='(n),(n)->()'")
    inputs, outputs = (
        tuple(tuple(filter(None, core[1:-1].split(","))) for core in re.findall(_SIDE, side))
        for side in found.groups()
    )
    return Signature(plain, inputs, outputs)
