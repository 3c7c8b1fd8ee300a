"""Run by a test: rounds of the engine on two ranks, and the bytes that each of them gave to the kernel."""

import json
import sys

import numpy as np
from forked import fork

import mast
from mast.cluster.engine import NodesRank, ServerRank
from mast.cluster.wire import Wire
from mast.methods.distributed import Roster, Server, VectorCapacity, Worker

DIM, ROUNDS = 40_000, 30


class Echo(Worker):
    def gradients(self, part, values, header):
        return values


def written():
    """Bytes written by this process so far, to files and sockets."""
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])


def main():
    wire = Wire()
    wire.start(60)
    roster, capacity = Roster(0, 1), VectorCapacity(mast.Bernoulli(0.25), DIM)
    counts = [capacity.part(roster.key(t, 0)).count for t in range(ROUNDS)]
    before = written()
    if wire.rank == 0:
        server = Server(np.zeros(DIM, np.float32), [capacity], roster, step_size=1.0)
        ServerRank(wire, server, {}, on_server=False).serve(ROUNDS, lambda row: None)
    else:
        NodesRank(wire, roster, {0: Echo(capacity)}, 4).serve(0, ROUNDS)
    ways = wire.collect({"rank": wire.rank, "written": written() - before, "values": 4 * sum(counts)})
    if wire.rank == 0:
        print(json.dumps(ways), flush=True)
    wire.close()


if __name__ == "__main__":
    sys.exit(any(fork(2, main)))
