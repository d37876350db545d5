"""A solver of differential equations in JAX as a layer of torch: torch's Adam fits its parameters.

Diffrax solves the Lotka-Volterra equations of hares and lynxes. The gradient is that of the solver.
"""

import diffrax
import jax
import jax.numpy as jnp
import torch

from xbridge import aligned

jax.config.update("jax_enable_x64", True)  # noqa: FBT003 -- theirs
STEPS = 120


def slope(_, y, rates):
    """Return the change of the populations, for the rates of birth, hunting, death and growth."""
    hares, lynxes = y
    birth, hunting, death, growth = rates
    return jnp.stack([(birth - hunting * lynxes) * hares, (growth * hares - death) * lynxes])


@aligned(backend="jax")
def solve(rates, start, times):
    """Return the populations at some times."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        diffrax.Tsit5(),
        t0=times[0],
        t1=times[-1],
        dt0=0.05,
        y0=start,
        args=rates,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-8),
    )
    return solution.ys


torch.set_default_dtype(torch.float64)
right, start, times = torch.tensor([1.0, 0.4, 1.2, 0.3]), torch.tensor([3.0, 1.0]), torch.linspace(0, 8, 40)
seen = solve(right, start, times)
rates = torch.nn.Parameter(torch.tensor([0.8, 0.5, 1.0, 0.4]))
optimizer = torch.optim.Adam([rates], lr=0.03)
losses = []
for _ in range(STEPS):
    optimizer.zero_grad()
    loss = (solve(rates, start, times) - seen).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

assert losses[-1] < 1e-3 * losses[0]
torch.testing.assert_close(rates.detach(), right, atol=0.02, rtol=0)
print(f"loss {losses[0]:.2f} -> {losses[-1]:.1e}, rates {[round(rate, 3) for rate in rates.tolist()]}")
