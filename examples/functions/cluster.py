"""A torch model over the chunks of a Dask array, on a cluster of two processes."""

import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster

from xbridge import aligned


def main():
    """Compute the classes of samples that no process holds as a whole."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 3)).eval()

    @aligned(backend="torch", signature="(n)->(k)")
    def model(x):
        with torch.no_grad():
            return net(x)

    samples = np.random.default_rng(0).random((20_000, 16), "f4")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        scores = model(da.from_array(samples, chunks=(5_000, 16)))
        assert scores.numblocks == (4, 1)
        found = scores.argmax(-1).compute()
    with torch.no_grad():
        expected = net(torch.from_numpy(samples)).argmax(-1).numpy()
    assert np.mean(found == expected) > 0.999
    print("classes of 20,000 samples in 4 chunks:", np.bincount(found, minlength=3))


if __name__ == "__main__":
    main()
