"""A root finder of SciPy in torch and in compiled JAX: the implicit function theorem is its vjp."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from scipy.optimize import root

from xbridge import aligned

jax.config.update("jax_enable_x64", True)  # noqa: FBT003 -- theirs


def jacobian(z, a):
    """Return the derivative of the equation z + z**3 + a z = b."""
    return np.diag(1 + 3 * z**2) + a


def vjp(g, z, a, b):  # noqa: ARG001 -- as xbridge calls it
    """Return the gradients by a and b at the solution z."""
    w = np.linalg.solve(jacobian(z, a).T, g)
    return -np.outer(w, z), w


@aligned(backend="numpy", vjp=vjp, result=lambda a, b: np.empty_like(b))
def equilibrium(a, b):
    """Solve z + z**3 + a z = b."""
    found = root(lambda z: z + z**3 + a @ z - b, np.zeros_like(b), jac=lambda z: jacobian(z, a), tol=1e-13)
    return found.x


rng = np.random.default_rng(0)
a, b = 0.1 * rng.normal(size=(5, 5)), rng.normal(size=5)
leaves = [torch.from_numpy(x).requires_grad_() for x in (a, b)]
assert torch.autograd.gradcheck(equilibrium, leaves)

in_torch = torch.autograd.grad(equilibrium(*leaves).sum(), leaves[1])[0]
in_jax = jax.jit(jax.grad(lambda b: equilibrium(a, b).sum()))(jnp.asarray(b))
np.testing.assert_allclose(in_torch, in_jax, rtol=1e-10)

batch = torch.vmap(equilibrium, (None, 0))(torch.from_numpy(a), torch.from_numpy(rng.normal(size=(4, 5))))
assert batch.shape == (4, 5)
print("gradcheck passed; the gradient by b in jax.jit:", np.round(np.asarray(in_jax), 3))
