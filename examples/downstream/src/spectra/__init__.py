"""Three functions on signals, for arrays of any library.

A signal runs along the last axis. Results have the library, the dtype and the device of what was given, and
what was given is never written.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

__all__ = ["lowpass", "softmax", "standardise"]


def standardise(x: Any, /) -> Any:
    """Shift and scale each signal to mean 0 and standard deviation 1; a constant one to zeros."""
    xp = array_namespace(x)
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    spread = xp.std(x, axis=-1, keepdims=True)
    size = xp.max(xp.abs(x), axis=-1, keepdims=True)
    constant = spread <= 4 * xp.finfo(x.dtype).eps * size
    return xp.where(constant, xp.zeros_like(x), centred / xp.where(constant, xp.ones_like(spread), spread))


def softmax(x: Any, /) -> Any:
    """Turn the numbers of each signal into probabilities; the largest may be of any size."""
    xp = array_namespace(x)
    powers = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def lowpass(x: Any, /, *, keep: int) -> Any:
    """Keep the slowest `keep` waves of each signal, of which the first is its mean."""
    xp = array_namespace(x)
    spectrum = xp.fft.rfft(x)
    waves = xp.arange(spectrum.shape[-1], device=device(x))
    kept = xp.where(waves < keep, spectrum, xp.zeros_like(spectrum))
    return xp.fft.irfft(kept, n=x.shape[-1])
