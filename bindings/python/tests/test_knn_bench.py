"""The bench of k-NN over ranks: its data, its simulation against closed forms, and one small run."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_svmlight_file

from outcore.cli import cli
from outcore.errors import ArgumentError
from outcore.knn_bench import wire, workloads
from outcore.knn_bench.run import hidden
from outcore.knn_bench.simulation import Costs, costs_of, fit, predict, simulate

LISTEN = """
import socket
with socket.create_server(("{host}", 7007)) as server:
    line, _ = server.accept()
    left = 100_000
    while left:
        left -= len(line.recv(left))
    line.sendall(bytes(100_000))
"""
ECHO = """
import socket, time
for _ in range(300):
    try:
        line = socket.create_connection(("{host}", 7007), timeout=10)
        break
    except OSError:
        time.sleep(0.1)
began, left = time.perf_counter(), 100_000
line.sendall(bytes(left))
while left:
    left -= len(line.recv(left))
print(time.perf_counter() - began)
"""


def test_rows_are_libsvm_text_and_the_same_for_a_seed(tmp_path):
    for name in ("a", "b"):
        workloads.write(tmp_path / name, 500, seed=3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    x, y = load_svmlight_file(tmp_path / "a", n_features=workloads.COLUMNS, zero_based=False)
    assert x.shape[0] == 500 and set(y) == {0, 1} and set(x.data) == {1}
    assert 35 < x.nnz / 500 < 38
    assert 260 < (tmp_path / "a").stat().st_size / 500 < 320
    workloads.write(tmp_path / "skewed", 500, seed=3, skew=0.5, stretches=2)
    x, _ = load_svmlight_file(tmp_path / "skewed", n_features=workloads.COLUMNS, zero_based=False)
    first, last = workloads.TOPICS
    for half, topic in ((x[:250], first), (x[250:], last)):
        assert 0.3 < np.mean(abs(half.indices - topic - 50) <= 51) < 0.6
    with pytest.raises(ArgumentError, match="skew"):
        workloads.write(tmp_path / "c", 5, seed=0, skew=2)


@pytest.mark.parametrize(("ranks", "blocks"), [(1, 3), (2, 1), (2, 4), (4, 2), (8, 1)])
def test_equal_rounds_take_what_closed_forms_say(ranks, blocks):
    rounds, exchanges = ranks * blocks, blocks * (ranks - 1)
    for transfer in (0.25, 1.0):
        costs = Costs(np.ones((ranks, blocks)), transfer)
        # Ranks go at one pace: each exchange is one transfer, in and out at once.
        assert simulate("exchange", 2, costs).ring_s == pytest.approx(rounds + exchanges * transfer)
        for slots in (2, 4):
            times = simulate("overlap", slots, costs)
            assert times.ring_s == pytest.approx(rounds)
            assert times.waiting_s.max() == pytest.approx(0)


def test_a_slow_wire_sets_the_pace_of_rounds():
    # Two slots, so that a transfer begins when the slot's last block is over: computed with, and sent on.
    times = simulate("overlap", 2, Costs(np.ones((4, 1)), 3.0))
    assert times.ring_s == pytest.approx(3 * 3 + 1)
    assert simulate("overlap", 4, Costs(np.ones((4, 1)), 3.0)).ring_s == pytest.approx(3 * 3 + 1)


def test_more_slots_wait_less_where_ranks_are_slow_in_turn():
    # Of 16 blocks of either rank, four in turn take the first rank long, then the second.
    slow = np.arange(16) // 4 % 2
    seconds = np.where(np.stack([slow, 1 - slow]), 4.0, 1.0)
    block_s = np.repeat(seconds[:, None], 2, axis=1)
    two, four = (simulate("overlap", slots, Costs(block_s, 0.01)) for slots in (2, 4))
    assert two.ring_s > 100 and four.ring_s < 90 and four.computing_s.max() == pytest.approx(80)
    assert four.waiting_s.sum() < two.waiting_s.sum() / 2


def test_ranks_share_cores_and_transfers_take_some():
    costs = Costs(np.ones((4, 2)), 0.0, cores=2)
    assert simulate("overlap", 2, costs).ring_s == pytest.approx(16)
    dragged = simulate("overlap", 2, Costs(np.ones((2, 1)), 0.5, transfer_core_s=0.1))
    assert dragged.ring_s == pytest.approx(2.2)
    # Ranks 0 and 2 are on one core, where work takes half as long again; rank 1 has the other for itself.
    crowded = simulate("overlap", 2, Costs(np.ones((3, 1)), 0.0, cores=2, crowding=1.5))
    assert crowded.ring_s == pytest.approx(3 * 2 * 1.5)
    with pytest.raises(ArgumentError, match="slots"):
        simulate("exchange", 4, costs)


def run(design="mpi", computing=1.0, exchanging=0.5):
    """A result of two ranks with two blocks each."""
    parts = {"computing_s": [computing] * 4, "waiting_s": [0.0] * 4, "exchanging_s": [exchanging, 0, exchanging, 0]}
    facts = {"design": design, "n_ranks": 2, "rows": 1000, "queries": 100, "rounds": 4, "bytes_sent": 4000}
    sums = {name: float(sum(seconds)) for name, seconds in parts.items()}
    return {**facts, **sums, "ring_s": sum(sums.values()), "ranks": [parts, parts]}


def test_fitted_constants_give_back_what_was_measured():
    measured = [run(), run()]
    fitted = fit("mpi", measured, measured)
    costs = costs_of(fitted, 2)
    assert costs.block_s == pytest.approx(np.ones((2, 2, 2)))
    assert costs.transfer_s == pytest.approx(0.5)
    assert predict("mpi", fitted, 2).ring_s == pytest.approx(measured[0]["ring_s"], rel=1e-3)
    assert predict("mpi", fitted, 1).ring_s == pytest.approx(8)
    # Each of four ranks has half the rows and half the queries: one block, which computes half as long.
    assert predict("mpi", fitted, 4).ring_s == pytest.approx(4 * 0.5 + 3 * 0.5, rel=1e-3)
    crowded = {**run(), "ring_s": 1.25 * predict("mpi", fitted, 2, cores=1).ring_s}
    fitted = fit("mpi", measured, measured, [crowded])
    assert predict("mpi", fitted, 2, cores=1).ring_s == pytest.approx(crowded["ring_s"], rel=1e-2) and fitted.crowding > 1.2
    facts = hidden([*measured, run("osh_oc", exchanging=0.05)])
    assert facts[1]["hidden"] == pytest.approx(0.9) and facts[1]["saved"] == pytest.approx(0.18)


def test_rates_are_those_of_tc():
    assert wire.bytes_per_s("200mbit") == 25e6
    with pytest.raises(ArgumentError, match="rate"):
        wire.bytes_per_s("fast")


@pytest.mark.skipif(not wire.is_possible(), reason="no network namespaces")
@pytest.mark.parametrize("latency_s", [0.0, 0.02])
def test_a_wire_counts_what_passes_and_delays_it(latency_s):
    if latency_s and not os.path.exists("/dev/net/tun"):
        pytest.skip("no TAP devices")
    with wire.Wire(2, "100mbit", latency_s) as made:
        namespace, other = made._names[0], made.hosts[1]
        # 100,000 bytes there, and back once all have come.
        listening = subprocess.Popen(["ip", "netns", "exec", made._names[1], sys.executable, "-c", LISTEN.format(host=other)])
        told = subprocess.run(
            ["ip", "netns", "exec", namespace, sys.executable, "-c", ECHO.format(host=other)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert listening.wait(60) == 0
        sent, received = (one["tx_bytes"] for one in made.counters())
    assert float(told.stdout) >= 2 * latency_s
    assert sent >= 100_000 and received >= 100_000
    assert namespace not in subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_the_command_measures_designs_and_keeps_raw_results(tmp_path):
    words = ["bench-knn", str(tmp_path), "--rows", "400", "--queries", "20", "--design", "mpi", "--design", "mpi_o"]
    words += ["--times", "1", "--results", str(tmp_path / "results"), "--threads", "1", "--memory", "16MiB", "--json"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert [one["design"] for one in told["results"]] == ["mpi", "mpi_o"]
    assert all(one["agrees"] and one["search_s"] > 0 for one in told["results"])
    assert len(list((tmp_path / "results").glob("*.json"))) == 2
    assert {one["design"] for one in told["hidden"]} == {"mpi", "mpi_o"}


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_the_command_scales_simulates_and_draws(tmp_path):
    words = ["bench-knn", str(tmp_path), "--rows", "400", "--queries", "20", "--design", "mpi", "--design", "mpi_rma", "--weak"]
    words += ["--ranks", "2", "--ranks", "3", "--skew", "0.5", "--loopback", "--bind", "--times", "1", "--threads", "1"]
    words += ["--memory", "16MiB", "--simulate", "8", "--figures", str(tmp_path / "figures"), "--json"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    sizes = {(one["n_ranks"], one["rows"], one["queries"]) for one in told["results"]}
    assert sizes == {(2, 800, 40), (3, 1200, 60)} and all(one["agrees"] for one in told["results"])
    # All rows of the others pass the wire to each rank.
    for one in told["results"]:
        passed = [sum(link["tx_bytes"] for link in one[f"counters_{when}"]) for when in ("before", "after")]
        assert passed[1] - passed[0] > one["bytes_sent"] > 0
    predicted = {(one["design"], one["n_ranks"]): one for one in told["predicted"]}
    assert set(predicted) == {(design, count) for design in ("mpi", "mpi_rma") for count in (1, 2, 4, 8)}
    assert abs(predicted["mpi", 2]["error"]) < 0.5 and "error" not in predicted["mpi", 8]
    drawn = {os.path.basename(path) for path in told["figures"]}
    assert drawn == {"designs-2-ranks.png", "designs-3-ranks.png", "scaling-weak.png", "simulated.png"}
    assert all(os.path.getsize(path) > 5000 for path in told["figures"])
