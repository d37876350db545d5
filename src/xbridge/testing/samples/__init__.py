"""What the test kit knows of each library: one module per backend, with the words of `Samples`."""

from xbridge.testing._samples import LayoutCase, Samples

__all__ = ["LayoutCase", "Samples"]
