"""A forest of scikit-learn in compiled JAX: it runs, and its gradient is refused with a sentence."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.ensemble import RandomForestRegressor

import xbridge

rng = np.random.default_rng(0)
x = rng.normal(size=(200, 3))
forest = RandomForestRegressor(20, random_state=0).fit(x, x[:, 0] ** 2)


@xbridge.aligned(backend="numpy", result=lambda x: np.empty(x.shape[:-1], x.dtype))
def predict(x):
    """Return the predictions, in the dtype of the samples."""
    return forest.predict(x).astype(x.dtype)


samples = jnp.asarray(x[:4], "float32")
np.testing.assert_allclose(jax.jit(predict)(samples), forest.predict(np.asarray(samples)), rtol=1e-6)
try:
    jax.grad(lambda x: predict(x).sum())(samples)
except xbridge.GradientError as error:
    print(error)
else:
    raise AssertionError("a forest has no gradient")
