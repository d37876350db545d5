"""Samples of each library: one module per backend, with the names of `Samples`."""

from xbridge.testing.samples.model import LayoutCase, Samples

__all__ = ["LayoutCase", "Samples"]
