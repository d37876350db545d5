"""What the test kit knows of each library: one module per backend, with the words of `Samples`."""

from xbridge.testing._samples import Samples, Way

__all__ = ["Samples", "Way"]
