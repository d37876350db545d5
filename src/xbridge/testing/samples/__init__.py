"""What the test kit knows of each library: one module per backend, with the words of `Samples`."""

from xbridge.testing.samples.model import LayoutCase, Samples

__all__ = ["LayoutCase", "Samples"]
