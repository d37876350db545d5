"""Run random programs of both libraries until one is wrong, or the time is over.

python tests/functions/fuzz.py --minutes 10
python tests/functions/fuzz.py --seed 1234       repeats a round
"""

from __future__ import annotations

import argparse
import secrets
import sys
import warnings
from pathlib import Path
from time import monotonic

import jax
from hypothesis import HealthCheck, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from random_programs import cases, check, check_compiled, check_gradients

ROUND = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=False,  # which Hypothesis is where CI is set
    suppress_health_check=[*HealthCheck],
)


def run(number: int) -> None:
    """Run one round: programs of both callers, and a few that are compiled."""
    for caller in ("torch", "jax"):
        seed(number)(ROUND(given(cases(caller))(check)))()
        seed(number)(settings(ROUND, max_examples=12)(given(cases(caller))(check_gradients)))()
    seed(number)(settings(ROUND, max_examples=4)(given(cases("torch"))(check_compiled)))()


def main() -> None:
    """Run rounds with random seeds, or the one that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int)
    given_ = parser.parse_args()
    # In the threads of `pmap`, JAX has 64 bits only if all threads have.
    for name, value in (("jax_num_cpu_devices", 4), ("jax_enable_x64", True)):
        jax.config.update(name, value)  # type: ignore[no-untyped-call] # JAX leaves it untyped
    warnings.filterwarnings("ignore", "Attempted to insert a get_attr Node")
    end = monotonic() + 60 * given_.minutes
    while True:
        number = secrets.randbelow(10**6) if given_.seed is None else given_.seed
        print(f"make fuzz SEED={number}", flush=True)  # noqa: T201 -- a failure is repeated by it
        run(number)
        if given_.seed is not None or monotonic() > end:
            break


if __name__ == "__main__":
    main()
