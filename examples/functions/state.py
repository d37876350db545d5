"""Batch norm and dropout of torch in compiled JAX: buffers and a seed are arguments, buffers are results."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xbridge import aligned, to_backend, to_numpy

torch.manual_seed(0)
layers = torch.nn.Linear(2, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2)
net = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
twin = copy.deepcopy(net)


def seeded(call, seed):
    """Call a function with the random numbers of a seed, and leave those of others alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed))
        return call()


# The seed is a value, so the function cannot be traced: `result` gives the shapes.
@aligned(backend="torch", result=lambda p, buffers, x, seed: (np.empty((len(x), 1), "f4"), buffers))
def forward(p, buffers, x, seed):
    """Return the prediction, and the statistics that batch norm updated."""
    y = seeded(lambda: torch.func.functional_call(net, (p, buffers), (x,)), seed)
    return y, buffers


def loss(p, buffers, x, y, seed):
    """Return the mean of the squared errors, and the buffers."""
    made, buffers = forward(p, buffers, x, seed)
    return jnp.mean((made - y) ** 2), buffers


@jax.jit
def step(p, buffers, x, y, seed):
    """Return the loss, and the state after one step."""
    (value, buffers), gradient = jax.value_and_grad(loss, has_aux=True)(p, buffers, x, y, seed)
    return value, jax.tree.map(lambda a, g: a - 0.05 * g, p, gradient), buffers


p = {name: to_backend(v, "jax", grad="detach") for name, v in net.named_parameters()}
buffers = {name: to_backend(v, "jax", dtype="nearest") for name, v in net.named_buffers()}
x = jax.random.normal(jax.random.key(0), (64, 2))
y = x[:, :1] * x[:, 1:]
seeds = jax.random.randint(jax.random.key(1), (50,), 0, 2**31 - 1)

optimizer = torch.optim.SGD(twin.parameters(), 0.05)
tx, ty = to_backend(x, "torch"), to_backend(y, "torch")
losses = []
for seed in seeds:
    value, p, buffers = step(p, buffers, x, y, seed)
    losses.append(float(value))

    optimizer.zero_grad()
    own = seeded(lambda: torch.mean((twin(tx) - ty) ** 2), seed)
    own.backward()
    optimizer.step()

assert np.isclose(losses[-1], own.item(), rtol=1e-3)
assert losses[-1] < losses[0]
for name, v in twin.named_parameters():
    assert np.allclose(p[name], to_numpy(v, grad="detach"), atol=1e-3), name
for name, v in twin.named_buffers():
    assert np.allclose(buffers[name], to_numpy(v), atol=1e-3), name
assert net[1].num_batches_tracked == 0
print(f"the loss fell from {losses[0]:.3f} to {losses[-1]:.3f}, as in torch")
