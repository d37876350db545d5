"""A torch module in compiled JAX: its parameters are a tree of JAX, with per-sample gradients by vmap."""

import jax
import jax.numpy as jnp
import torch

from xbridge import aligned, to_backend

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
forward = aligned(backend="torch")(lambda p, x: torch.func.functional_call(net, p, (x,)))

parameters = {name: to_backend(p, "jax", grad="detach") for name, p in net.named_parameters()}
x = jnp.linspace(-3, 3, 64)[:, None]
y = jnp.sin(x)


def loss(p, x, y):
    """Return the mean of the squared errors."""
    return jnp.mean((forward(p, x) - y) ** 2)


@jax.jit
def step(p, momentum):
    """Return the loss, and the parameters after one step."""
    value, gradient = jax.value_and_grad(loss)(p, x, y)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return value, jax.tree.map(lambda a, m: a - 0.05 * m, p, momentum), momentum


first = float(loss(parameters, x, y))
momentum = jax.tree.map(jnp.zeros_like, parameters)
for _ in range(300):
    value, parameters, momentum = step(parameters, momentum)
assert float(value) < 0.05 * first

each = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(parameters, x, y)
assert each["0.weight"].shape == (64, 16, 1)
whole = jax.grad(loss)(parameters, x, y)
assert jnp.allclose(each["0.weight"].mean(0), whole["0.weight"], atol=1e-5)

ones = jax.tree.map(jnp.ones_like, parameters)
product = jax.jvp(lambda p: jax.grad(loss)(p, x, y), (parameters,), (ones,))[1]
assert all(bool(jnp.isfinite(v).all()) for v in product.values())
print(f"the loss fell from {first:.3f} to {float(value):.4f}; 64 gradients of one sample each")
