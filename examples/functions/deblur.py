"""A filter of SciPy in torch's optimizer: the adjoint of a Gaussian filter is the filter itself."""

import numpy as np
import torch
from scipy import ndimage
from sklearn.datasets import load_digits

from xbridge import aligned


def smooth(x):
    """Blur the last two axes."""
    return ndimage.gaussian_filter(x, 0.8, mode="constant", axes=(-2, -1))


blur = aligned(backend="numpy", signature="(h,w)->(h,w)", vjp=lambda g, y, x: smooth(g))(smooth)

image = load_digits().images[0] / 16
target = torch.from_numpy(smooth(image))
guess = torch.zeros(image.shape, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.LBFGS([guess], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)


def loss():
    """Return the distance of the blurred guess from the picture."""
    optimizer.zero_grad()
    distance = (blur(guess) - target).pow(2).sum()
    distance.backward()
    return distance


first = loss().item()
optimizer.step(loss)
last = loss().item()
assert last < 1e-4 * first

batch = torch.vmap(blur)(torch.from_numpy(load_digits().images[:3]))
np.testing.assert_allclose(batch, smooth(load_digits().images[:3]), atol=1e-12)
print("A filter of SciPy in torch's optimizer: which picture, once blurred, gives this one?\n")
print(f"  the squared distance fell from {first:.1f} to {last:.1e}, by the gradient of the filter;")
print(f"  a batch of {len(batch)} pictures was one call")
print("\nRead next: docs/get-started.md on conversions, docs/functions.md on functions such as this filter.")
