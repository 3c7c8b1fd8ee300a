"""The mean over those who held a coordinate, and the schemes that people know by name."""

import copy
from dataclasses import replace

import numpy as np
import pytest

import mast
from mast.distributed import (
    Participation,
    ProblemWorker,
    Server,
    VectorCapacity,
    run_in_process,
    scheme_of,
    stride_of,
)
from mast.distributed.schemes import SCHEMES
from mast.errors import ArgumentError, CheckpointError, NoGuaranteeError
from mast.randomness import Key, normal

SHARES = [1.0, 0.5, 0.25, 0.25]
D = 8


def problems(sketches):
    return [
        mast.Problem(mast.Quadratic(np.diag(1.0 + np.arange(D)), normal(Key(i), 0, D)), sketch)
        for i, sketch in enumerate(sketches)
    ]


def server_of(nodes, scheme, **options):
    capacities = [VectorCapacity(p.sketch, D) for p in nodes]
    participation = Participation(3, len(nodes), stride_of(capacities), scheme.coupling)
    return Server(
        np.ones(D), capacities, participation, step_size=0.05, aggregation=scheme.aggregation, **options
    )


def test_the_mean_is_over_those_who_held_a_coordinate():
    """HeteroFL by hand: local steps on the prefix, then the mean of the weights; local steps are two."""
    nodes = problems(scheme_of("heterofl").sketches(SHARES))
    server = server_of(nodes, scheme_of("heterofl"), local_steps=2)
    run_in_process(server, [ProblemWorker(p) for p in nodes], 1)
    ends, held = np.zeros(D), np.zeros(D)
    for p in nodes:
        mask = p.sketch.draw(D).diagonal()
        y = mask.copy()
        for _ in range(2):
            y -= 0.05 * mask * p.objective.gradient(y)
        ends, held = ends + mask * y, held + mask
    assert set(held) == {1.0, 2.0, 4.0}
    np.testing.assert_allclose(server.x, ends / held, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_coordinate_that_nobody_held_stays(optimizer):
    """Also what an optimizer remembers of it; the others move as if there were no more."""
    nodes = problems([mast.Nested([0.5])] * 2)
    server = server_of(nodes, scheme_of("heterofl"), optimizer=optimizer)
    run_in_process(server, [ProblemWorker(p) for p in nodes], 3)
    held = nodes[0].sketch.draw(D).diagonal() > 0
    assert (server.x[~held] == 1.0).all()
    assert (server.x[held] != 1.0).all()
    assert all((array[~held] == 0).all() for array in server.optimizer.arrays.values())


def test_heterofl_is_covered_in_other_coordinates():
    """With z_j = x_j sqrt(n_j / M) its mean is the unbiased sum, as the table of schemes says."""
    nodes = problems(scheme_of("heterofl").sketches(SHARES))
    server = server_of(nodes, scheme_of("heterofl"))
    run_in_process(server, [ProblemWorker(p) for p in nodes], 5)
    masks = np.array([p.sketch.draw(D).diagonal() for p in nodes])
    scale = 1 / np.sqrt(masks.mean(axis=0))  # x = scale * z
    z = 1 / scale
    for _ in range(5):
        z = z - 0.05 * np.mean(
            [scale * m * p.objective.gradient(m * scale * z) for m, p in zip(masks, nodes, strict=True)],
            axis=0,
        )
    np.testing.assert_allclose(server.x, scale * z, rtol=1e-10, atol=1e-12)


def test_no_statement_covers_the_mean():
    nodes = mast.Nodes(problems([mast.RandK(2)] * 3))
    with pytest.raises(NoGuaranteeError, match="biased"):
        mast.guarantee(nodes, "distributed", aggregation="mean")
    assert mast.guarantee(nodes, "distributed").max_step_size() > 0
    common = mast.guarantee(nodes, "distributed", coupling="common").max_step_size()
    assert common < mast.guarantee(nodes, "distributed").max_step_size()


def test_what_clients_hold():
    def kept(name, t):
        scheme = scheme_of(name)
        nodes = problems(scheme.sketches(SHARES))
        server = server_of(nodes, scheme)
        server.state.t = t
        return [set(server.part(i).draw.indices.tolist()) for i in range(len(nodes))]

    assert [len(held) for held in kept("federated_dropout", 0)] == [8, 4, 2, 2]
    assert kept("heterofl", 0) == kept("heterofl", 1)
    first, second = kept("fedrolex", 0), kept("fedrolex", 1)
    assert first[2] == first[3] < first[1]  # one window for all
    assert {(i + 1) % D for i in first[2]} == second[2]
    assert len(kept("fedavg", 0)) == 1
    assert set.union(*kept("ist", 0)) == set(range(D))
    assert [len(held) for held in kept("ist", 0)] == [2, 2, 2, 2]
    sizes = np.array([[len(held) for held in kept("fjord", t)] for t in range(40)])
    assert sizes.max(axis=0).tolist() == [8, 4, 2, 2]
    assert set(sizes[:, 0]) == {2, 4, 8}
    balanced = scheme_of("mast_balanced").sketch(1, [0.25, 0.5, 1])
    assert balanced.weights.tolist() == [4 / 7, 2 / 7, 1 / 7]  # every size sends the same number of values
    own = kept("mast_rolling", 0)
    assert own[2] != own[3] or own[2] != kept("mast_rolling", 5)[2]


def test_prefixes_have_the_chances_of_their_clients():
    """Over many rounds, each unit is held as often as the nested sketch says."""
    for name in ("heterofl", "fjord", "mast_balanced"):
        scheme = scheme_of(name)
        nodes = problems(scheme.sketches(SHARES))
        server = server_of(nodes, scheme)
        held, rounds = np.zeros((len(nodes), D)), 2000
        for server.state.t in range(rounds):
            for i in range(len(nodes)):
                held[i, server.part(i).draw.indices] += 1
        q = 1 / scheme.prefixes(SHARES).expected_square(D)
        error = 5 * 0.5 / (rounds * len(nodes)) ** 0.5
        np.testing.assert_allclose(held.sum(axis=0) / (rounds * len(nodes)), q, atol=error)
    with pytest.raises(ArgumentError, match="no prefixes"):
        scheme_of("fedrolex").prefixes(SHARES)


def test_units_that_few_hold_begin_small():
    """What a unit gives is multiplied by its chance, in the order in which clients hold units."""
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import VectorLayout, capacities_of, scale_prefixes

    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    before = copy.deepcopy(model)
    scale_prefixes(model, "mast_balanced", SHARES)
    factor = (model[2].weight / before[2].weight).detach()
    torch.testing.assert_close(factor[0], factor[1])
    assert torch.equal(model[0].weight, before[0].weight)
    whole, half, quarter = 1 / 7 / 4, (2 / 7 + 1 / 3) / 4, (4 / 7 + 2 / 3 + 2) / 4
    expected = sorted([whole] * 4 + [whole + half] * 2 + [whole + half + quarter] * 2)
    np.testing.assert_allclose(sorted(factor[0].numpy()), expected, rtol=1e-6)
    part = capacities_of(model, "mast_balanced", SHARES)[2].part(Key(0))
    small = part.draw.module(torch.from_numpy(part.gather(VectorLayout(model).read(model))))
    most = factor[0] > 0.9  # what the weakest clients hold are the units that all hold
    torch.testing.assert_close(small[2].weight[0].sort().values, model[2].weight[0, most].sort().values)


def test_units_that_nobody_holds_begin_with_nothing():
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import scale_prefixes, submodel_of

    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    assert scale_prefixes(model, "heterofl", [0.5, 0.5, 0.25]) == "1 weight was multiplied by 0 to 1"
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(submodel_of(model, "heterofl", 0.5)(x), model(x))  # the largest prefix is all


@pytest.mark.parametrize("name", ["heterofl", "fjord", "mast_balanced", "mast_nested"])
def test_what_a_client_runs_in_the_end_is_its_largest_prefix(name):
    """Prefixes lie in one another, and in training the client never holds more."""
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import VectorLayout, capacities_of, submodel_of

    model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    model[1].running_mean += torch.arange(16.0)
    held = [{tuple(row) for row in submodel_of(model, name, s)[0].weight.tolist()} for s in (0.25, 0.5, 1)]
    assert [len(rows) for rows in held] == [4, 8, 16]
    assert held[0] < held[1] < held[2]
    half = submodel_of(model, name, 0.5)
    assert not half.training
    numbers = {tuple(row): i for i, row in enumerate(model[0].weight.tolist())}
    where = [numbers[tuple(row)] for row in half[0].weight.tolist()]
    torch.testing.assert_close(half[1].running_mean, model[1].running_mean[where])
    capacity, x = capacities_of(model, name, [1, 0.5, 0.25])[1], VectorLayout(model).read(model)
    counts = {capacity.part(Key(0, step)).count for step in range(50)}
    assert max(counts) == capacity.largest_part(Key(0)).count
    assert set(capacity.part(Key(0)).gather(x)) <= set(capacity.largest_part(Key(1)).gather(x))


@pytest.mark.parametrize("name", SCHEMES)
def test_networks_train_by_every_scheme(name):
    """Units of a small network: the loss falls, and a step of a node has one length for every capacity."""
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import NetworkWorker, NodeRows, VectorLayout, capacities_of, mean_squares

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    inputs = torch.from_numpy(normal(Key(9), 0, 60).reshape(12, 5))
    rows, scheme = NodeRows(inputs, inputs[:, :1] + inputs[:, 1:2]), scheme_of(name)
    capacities, layout = capacities_of(model, scheme, SHARES), VectorLayout(model)
    participation = Participation(1, len(capacities), stride_of(capacities), scheme.coupling)
    options = {"step_size": 0.05 if scheme.aggregation == "mean" else 0.01, "local_steps": 3}
    server = Server(layout.read(model), capacities, participation, aggregation=scheme.aggregation, **options)
    workers = [NetworkWorker(c, copy.deepcopy(model), mean_squares, rows) for c in capacities]

    def loss():
        layout.write(server.x, model)
        with torch.no_grad():
            return float(mean_squares(model, (rows.inputs, rows.targets)))

    before = loss()
    run_in_process(server, workers, 40)
    assert loss() < 0.6 * before


@pytest.mark.parametrize("name", [name for name in SCHEMES if scheme_of(name).aggregation == "mean"])
def test_the_mean_is_that_of_the_weights_after_local_steps(name):
    """Of those who hold a coordinate, each brought to the coordinates of x, and all count alike."""
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import NetworkWorker, NodeRows, VectorLayout, capacities_of, mean_squares

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    inputs = torch.from_numpy(normal(Key(9), 0, 60).reshape(12, 5))
    scheme = scheme_of(name)
    capacities = capacities_of(model, scheme, SHARES)
    participation = Participation(1, len(capacities), stride_of(capacities), scheme.coupling)
    server = Server(
        VectorLayout(model).read(model),
        capacities,
        participation,
        step_size=0.1,
        local_steps=3,
        aggregation="mean",
    )
    x, total, holders = server.x.copy(), np.zeros_like(server.x), np.zeros_like(server.x)
    for message in list(server.messages()):
        node = message.header.node
        rows = NodeRows(inputs[node::4], inputs[node::4, :1])
        answer = NetworkWorker(capacities[node], copy.deepcopy(model), mean_squares, rows).answer(message)
        part = server.part(node)
        scales = part.gather(np.ones_like(x))
        places = np.rint(part.gather(np.arange(1.0, x.size + 1)) / scales).astype(int) - 1
        total[places] += (part.gather(x) - 0.1 * answer.values) / scales
        holders[places] += 1
        server.aggregate(answer)
    server.finish_round()
    expected = np.where(holders > 0, total / np.maximum(holders, 1), x)
    np.testing.assert_allclose(server.x, expected, rtol=1e-10, atol=1e-12)


def test_a_node_that_trains_its_own_weights():
    """It is sent S x; what it answers comes back with the scale undone."""
    torch = pytest.importorskip("torch")
    from mast.nn import Neurons
    from mast.nn.nodes import UnitCapacity

    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    sketch = Neurons(mast.RandK(0.25))
    plain, own = UnitCapacity(model, sketch), UnitCapacity(model, sketch, own_weights=True)
    key, x = Key(4), np.arange(1.0, plain.dim + 1)
    a, b = plain.part(key), own.part(key)
    assert own.fingerprint() != plain.fingerprint()
    sent = b.gather(x)
    models = a.draw.module(torch.from_numpy(a.gather(x))), b.draw.module(torch.from_numpy(sent))
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        assert (p == q).all()  # the same small model either way
    assert sent.max() > a.gather(x).max()
    back = np.zeros_like(x)
    b.add(back, sent, 1.0)
    kept = np.zeros_like(x)
    a.add(kept, a.gather(x), 1.0)
    np.testing.assert_allclose(back, kept, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in SCHEMES if name not in ("ist", "mast_parts")])
def test_where_everybody_holds_everything_all_schemes_are_fedavg(name):
    """The same numbers but for the last digits: only what clients hold and who counts tell schemes apart."""
    ends = []
    for scheme in (scheme_of("fedavg"), scheme_of(name)):
        nodes = problems(scheme.sketches([1.0] * 4))
        server = server_of(nodes, scheme, local_steps=3)
        run_in_process(server, [ProblemWorker(p) for p in nodes], 5)
        ends.append(server.x)
    np.testing.assert_allclose(*ends, rtol=1e-10, atol=1e-12)


def test_wrong_schemes():
    with pytest.raises(ArgumentError, match="scheme must be one of 'fedavg'"):
        scheme_of("fedprox")
    with pytest.raises(ArgumentError, match="share"):
        scheme_of("fjord").sketches([0.5, 2])
    with pytest.raises(ArgumentError, match="FedAvg needs a client"):
        scheme_of("fedavg").sketches([0.5])
    with pytest.raises(ArgumentError, match="at least one client's share"):
        scheme_of("fjord").sketches([])


@pytest.mark.parametrize("name", ["ist", "mast_parts"])
@pytest.mark.parametrize(
    ("share", "parts"), [(1, 1), (0.7, 2), (0.5, 2), (0.4, 3), (1 / 3, 3), (0.3, 4), (0.1, 10)]
)
def test_a_part_is_never_more_than_the_smallest_client_holds(name, share, parts):
    held = [VectorCapacity(sketch, 120) for sketch in scheme_of(name).sketches([1, share])]
    assert [capacity.part(Key(0)).count for capacity in held] == [120 // parts] * 2
    assert 1 / parts <= share + 1e-9


def test_checkpoints_of_the_first_titles_are_read(tmp_path):
    """Prefixes were called fronts once, and a title is part of what a checkpoint must agree in."""
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import capacities_of

    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    scheme = scheme_of("mast_nested")
    assert scheme.title == "MAST, nested prefixes"

    def server(scheme):
        capacities = capacities_of(model, scheme, [1, 0.5])
        return Server(np.zeros(74), capacities, Participation(0, 2, stride_of(capacities)), step_size=0.1)

    server(replace(scheme, title="MAST, nested fronts")).save(tmp_path / "old", {"kept": True})
    assert server(scheme).load(tmp_path / "old") == {"kept": True}
    with pytest.raises(CheckpointError, match="sketches"):
        server(replace(scheme, title="MAST, fixed fronts")).load(tmp_path / "old")
