"""What happens between ranks: each scenario is run by `ranks` processes, forked from one that is warm.

`python scenarios.py` prints one line of JSON: for each scenario what each rank ended with. The ranks find
each other as torchrun's do where TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: rank 0 has the store.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import script
import torch
from torch import nn

import mast
import mast.cluster
from mast.distributed import Participation, Server, VectorCapacity, Worker
from mast.nn.nodes import NetworkWorker, NodeRows, cross_entropy

TIMEOUT = 60.0
DIM, PAYLOAD_ROUNDS = 40_000, 30
SCENARIOS = {}


def scenario(ranks):
    def add(work):
        SCENARIOS[work.__name__] = (ranks, work)
        return work

    return add


def rank():
    return int(os.environ["RANK"])


def run(server, workers, rounds=40, timeout=TIMEOUT):
    return mast.cluster.run(server, workers, rounds, timeout=timeout)


def linear(**options):
    return script.made(script.mine(), **options)


@scenario(3)
def bits():
    result = run(*linear())
    found = {"x": result.x.tolist(), "nodes": len(result.nodes), "steps": result.steps}
    return found | {"rows": len(result.rows)}


@scenario(4)
def more_ranks_than_nodes():
    own = {node: script.problem(node) for node in mast.cluster.my_nodes(2)}
    nodes = [own.get(node) or mast.sketches.parse(script.SKETCHES[node]) for node in range(2)]
    server = mast.cluster.server_for(nodes, step_size=0.01)
    workers = {node: mast.cluster.ProblemWorker(problem) for node, problem in own.items()}
    return run(server, workers).x.tolist()


@scenario(2)
def theory():
    result = run(*linear(step_size="theory"), rounds=3)
    return [result.step_size, result.note, result.guarantee is not None]


@scenario(2)
def divergence():
    own = {rank(): mast.Problem(mast.Quadratic([[2.0]], [1.0]), mast.Identity())}
    server = mast.cluster.server_for([own.get(i) or mast.Identity() for i in range(2)], step_size=1e30)
    result = run(server, {i: mast.cluster.ProblemWorker(p) for i, p in own.items()}, 1000)
    return [result.status, result.steps]


@scenario(2)
def a_group_of_the_scripts_own():
    """The script has made torch's default group already, and keeps it."""
    torch.distributed.init_process_group("gloo")
    run(*linear(), rounds=5)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
    return float(total)


# ---- ranks that do not fit together ------------------------------------------------------------------


@scenario(2)
def another_step_size():
    run(*linear(step_size=0.05 + 0.01 * rank()))


@scenario(2)
def other_rounds():
    run(*linear(), rounds=5 + rank())


@scenario(2)
def a_node_twice():
    server, workers = linear()
    run(server, workers | {2: mast.cluster.ProblemWorker(script.problem(2))})


@scenario(2)
def a_node_without_worker():
    server, workers = linear()
    run(server, {node: worker for node, worker in workers.items() if node != 4})


@scenario(2)
def another_sketch():
    server, workers = linear()
    if 4 in workers:
        own = workers[4].problem
        workers[4] = mast.cluster.ProblemWorker(mast.Problem(own.objective, mast.PermK(2), own.shift))
    run(server, workers)


@scenario(2)
def another_shift():
    own = script.mine()
    if 4 in own:
        own[4] = mast.Problem(own[4].objective, own[4].sketch)
    script.made(own)


def other_loss(model, batch):
    return cross_entropy(model, (batch[0], 1 - batch[1]))


def network(loss=cross_entropy, width=4, activation=nn.ReLU):
    model = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 2))
    server = mast.cluster.server_for(model, ["neurons:.5", "neurons:.5"], step_size=0.1)
    rows = NodeRows(torch.ones(8, width), torch.arange(8) % 2)
    run(server, {node: NetworkWorker("neurons:.5", model, loss, rows) for node in mast.cluster.my_nodes(2)})


@scenario(2)
def another_loss():
    network(loss=other_loss if rank() else cross_entropy)


@scenario(2)
def another_model():
    network(activation=nn.Tanh if rank() else nn.ReLU)


# ---- ranks that fail ---------------------------------------------------------------------------------


@scenario(2)
def rows_that_do_not_fit():
    network(width=4 + rank())


class Disturbed(mast.cluster.ProblemWorker):
    """Does something else in round 3."""

    def __init__(self, problem, disturb):
        super().__init__(problem)
        self.disturb = disturb

    def gradients(self, part, values, header):
        if header.round == 3:
            self.disturb()
        return super().gradients(part, values, header)


def disturbed(node, disturb, timeout=TIMEOUT):
    server, workers = linear(participation=1.0)
    if node in workers:
        workers[node] = Disturbed(workers[node].problem, disturb)
    run(server, workers, timeout=timeout)


@scenario(3)
def an_error_on_the_servers_rank():
    disturbed(0, lambda: 1 / 0)


@scenario(3)
def a_dead_rank():
    disturbed(2, lambda: os._exit(9))


@scenario(2)
def a_dead_server():
    disturbed(0, lambda: os._exit(9))


@scenario(3)
def a_rank_that_hangs():
    disturbed(4, lambda: time.sleep(8), timeout=2.0)


# ---- bytes -------------------------------------------------------------------------------------------


class Echo(Worker):
    def gradients(self, part, values, header):
        return values


def written():
    """Bytes written by this process so far, to files and sockets."""
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])


@scenario(2)
def payload():
    """All bytes that server and node write: headers, gloo's framing and control messages included."""
    participation, capacity = Participation(0, 1), VectorCapacity(mast.Bernoulli(0.25), DIM)
    values = 4 * sum(capacity.part(participation.key(t, 0)).count for t in range(PAYLOAD_ROUNDS))
    server = Server(np.zeros(DIM, np.float32), [capacity], participation, step_size=1.0)
    workers = {0: Echo(capacity)} if rank() == 1 else {}  # elsewhere than `my_nodes` says
    counts = []
    for rounds in (0, PAYLOAD_ROUNDS):
        before = written()
        run(server, workers, rounds)
        counts.append(written() - before)
    return [counts[1] - counts[0], values]


# ---- processes ---------------------------------------------------------------------------------------


def fork(ranks, work, folder):
    """Call `work` in `ranks` processes that find each other; what each returned or raised, None: it died."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for number in range(ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(number), "WORLD_SIZE": str(ranks)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            try:
                end = {"returned": work()}
            except Exception as error:
                end = {"raised": f"{type(error).__name__}: {error}"}
            Path(folder, str(number)).write_text(json.dumps(end))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    ends = []
    for number in range(ranks):
        ends.append(None)
        with contextlib.suppress(OSError):
            ends[-1] = json.loads(Path(folder, str(number)).read_text())
    return ends


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    bits(), network()  # what is compiled and read once is there for all
    ended = {}
    for name in sys.argv[1:] or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            ended[name] = fork(*SCENARIOS[name], folder)
    sys.stdout.write(json.dumps(ended))
