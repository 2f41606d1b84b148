"""A rank with its own rows: `team_program.py torch|mpi OUT`, as `test_team.py` has torchrun and mpirun start it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from outcore.cluster import KMeans
from outcore.decomposition import PCA
from outcore.errors import FailedError, NotFiniteError


def check(comm: Any, rank: int, out: Path) -> None:
    x = np.random.default_rng(0).normal(size=(101, 5)) * np.arange(1, 6) + 9
    own = oc.from_numpy(out / f"{rank}.npy", x[:40] if rank == 0 else x[40:])
    pca, one = PCA(2, comm=comm).fit(own), PCA(2).fit(x)
    np.testing.assert_allclose(pca.components_, one.components_, atol=1e-9)
    np.testing.assert_allclose(pca.mean_, one.mean_)
    km, whole = KMeans(3, init=x[:3], comm=comm).fit(own), KMeans(3, init=x[:3]).fit(x)
    np.testing.assert_allclose(km.cluster_centers_, whole.cluster_centers_)
    np.testing.assert_array_equal(km.labels_, whole.labels_[:40] if rank == 0 else whole.labels_[40:])
    np.testing.assert_allclose(oc.linalg.column_statistics(own, comm=comm)["mean"], x.mean(axis=0))
    if rank == 1:
        own[0, 0] = np.nan
    try:
        PCA(2, comm=comm).fit(own)
    except (NotFiniteError, FailedError) as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("a rank with a NaN must fail on all")
    (out / f"{rank}.done").touch()


def check_freed(mpi: Any) -> None:
    """A communicator may have the number of one that was freed."""
    rank, x = mpi.COMM_WORLD.Get_rank(), np.random.default_rng(1).normal(size=(30, 4))
    for size in (1, 2, 1):
        comm = mpi.COMM_WORLD.Split(rank // size)
        assert PCA(2, comm=comm).fit(x).n_samples_ == 30 * size
        comm.Free()


def main() -> None:
    launcher, out = sys.argv[1], Path(sys.argv[2])
    if launcher == "mpi":
        from mpi4py import MPI

        check(MPI.COMM_WORLD, MPI.COMM_WORLD.Get_rank(), out)
        check_freed(MPI)
        return
    from torch import distributed

    distributed.init_process_group("gloo")
    check(True, distributed.get_rank(), out)
    check(distributed.new_group([0, 1]), distributed.get_rank(), out)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
