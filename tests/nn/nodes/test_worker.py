"""Networks as one vector: parts, workers, and the mean of the aggregated gradient."""

import contextlib
import copy
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mast  # noqa: E402
from mast.distributed import Participation, Server, VectorCapacity, run_in_process, stride_of  # noqa: E402
from mast.errors import ArgumentError  # noqa: E402
from mast.nn.nodes import (  # noqa: E402
    NetworkWorker,
    NodeRows,
    VectorLayout,
    capacity_of,
    cross_entropy,
    mean_squares,
    torch_seeded,
)
from mast.randomness import Key, normal  # noqa: E402


def made(*layers, dtype=torch.float64):
    """A network with weights that depend on nothing but its shapes."""
    model = nn.Sequential(*layers).to(dtype)
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.from_numpy(normal(Key(i), 0, p.numel()) / p.shape[-1] ** 0.5).view(p.shape))
    return model


def small(dtype=torch.float64):
    return made(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), dtype=dtype)


INPUTS = torch.from_numpy(normal(Key(99), 0, 60).reshape(12, 5))
TARGETS = torch.tensor([0, 1, 2] * 4)


def workers_of(model, capacities, batch_size=None, shift=None, loss=cross_entropy, inputs=INPUTS):
    rows = [NodeRows(inputs[i::2], TARGETS[i::2], batch_size) for i in range(2)]
    return [
        NetworkWorker(c, copy.deepcopy(model), loss, rows[i % 2], shift=shift)
        for i, c in enumerate(capacities)
    ]


def test_layout_there_and_back():
    model = small()
    layout = VectorLayout(model)
    x = layout.read(model)
    assert x.size == layout.dim == sum(p.numel() for p in model.parameters())
    other = small()
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    layout.write(x, other)
    assert all((a == b).all() for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert layout.dtype == np.float64
    assert VectorLayout(small(torch.float32)).dtype == np.float32
    assert VectorLayout(small(torch.bfloat16)).dtype == np.float32
    with pytest.raises(ArgumentError, match="no trainable"):
        VectorLayout(nn.ReLU())
    with pytest.raises(ArgumentError, match="no parameter"):
        layout.read(nn.Linear(2, 2))


@pytest.mark.parametrize("text", ["bernoulli:.5", "randk:9", "permk:3", "gaussian:.3", "identity"])
@pytest.mark.parametrize("shifted", [False, True])
def test_single_weights_are_those_of_sparsify(text, shifted):
    """One local step of a node gives the gradients that sk.sample gives."""
    model = small()
    capacity = capacity_of(model, text)
    layout = VectorLayout(model)
    x = layout.read(model)
    shift = normal(Key(7), 0, layout.dim) if shifted else None
    server = Server(x, [capacity], Participation(3, 1), step_size=1.0)
    worker = workers_of(model, [capacity], shift=shift)[0]
    answer = worker.answer(server.message(0))
    placed = np.zeros(layout.dim)
    capacity.part(Key(3)).add(placed, answer.values, 1.0)

    theirs = small()
    v = None
    if shifted:
        v = {name: t.clone() for name, t in layout.tensors(shift).items()}
    sk = mast.nn.sparsify(theirs, capacity.sketch, shift=v, seed=3)
    with sk.sample(0):
        cross_entropy(theirs, (INPUTS[::2], TARGETS[::2])).backward()
    expected = np.concatenate([p.grad.numpy().reshape(-1) for p in theirs.parameters()])
    np.testing.assert_allclose(placed, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("text", ["neurons:.5", "neurons:bernoulli:.5", "neurons:permk:2"])
def test_whole_units_are_the_masked_model(text):
    """The gradient of the small model is that of the full one with outgoing weights scaled or dropped."""
    model = made(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    capacity = capacity_of(model, text)
    layout = VectorLayout(model)
    x = layout.read(model)
    worker = workers_of(model, [capacity])[0]
    for seed in range(5):
        server = Server(x, [capacity], Participation(seed, 1), step_size=1.0)
        answer = worker.answer(server.message(0))
        placed = np.zeros(layout.dim)
        capacity.part(Key(seed)).add(placed, answer.values, 1.0)
        masked = copy.deepcopy(model)
        draw = capacity.bound.draw(Key(seed))
        diagonals = {}
        for consumer, group in (("2.weight", "0.weight"), ("4.weight", "2.weight")):
            c = torch.zeros(dict(model.named_parameters())[consumer].shape[1], dtype=torch.float64)
            c[torch.tensor(draw[group].indices)] = torch.tensor(draw[group].scales)
            diagonals[consumer] = c
        full = {n: p * diagonals[n] if n in diagonals else p for n, p in masked.named_parameters()}
        outputs = torch.func.functional_call(masked, full, INPUTS[::2])
        nn.functional.cross_entropy(outputs, TARGETS[::2]).backward()
        expected = np.concatenate([p.grad.numpy().reshape(-1) for p in masked.parameters()])
        np.testing.assert_allclose(placed, expected, rtol=1e-12, atol=1e-14)


def test_local_steps():
    """Three local steps: the sum of the gradients along the node's own path."""
    model = small()
    capacity = capacity_of(model, "bernoulli:.6")
    x = VectorLayout(model).read(model)
    key = Key(5)
    part = capacity.part(key)
    kept = part.gather(x)
    worker = workers_of(model, [capacity], batch_size=2)[0]
    total = np.zeros(part.count)
    at = kept.copy()
    for step in range(3):
        filled = small()
        with torch.no_grad():
            for name, p in filled.named_parameters():
                p.zero_()
                values = part.kept.of(at, name).copy()
                part.kept[name].scale(values)
                p[part.kept[name].entries] = torch.from_numpy(values)
        cross_entropy(filled, worker.batches(Key(5, 0, 0, step))).backward()
        gradient = part.gather(np.concatenate([p.grad.numpy().reshape(-1) for p in filled.parameters()]))
        part.kept.scale(gradient)
        total += gradient
        at -= 0.3 * gradient
    server = Server(x, [capacity], Participation(5, 1), step_size=1.0, local_steps=3, local_step_size=0.3)
    np.testing.assert_allclose(worker.answer(server.message(0)).values, total, rtol=1e-12)


def test_mean_of_the_aggregated_gradient():
    """Single weights, whole units and everything, with partial participation: grad f_D by enumeration."""
    model = made(nn.Linear(3, 2, bias=False), nn.Tanh(), nn.Linear(2, 2))
    inputs = torch.from_numpy(normal(Key(98), 0, 36).reshape(12, 3))
    targets = torch.tensor([0, 1] * 6)
    rows = [NodeRows(inputs[i::3], targets[i::3]) for i in range(3)]
    capacities = [capacity_of(model, text) for text in ("bernoulli:.6", "neurons:bernoulli:.5", "identity")]
    workers = [
        NetworkWorker(c, copy.deepcopy(model), cross_entropy, rows[i]) for i, c in enumerate(capacities)
    ]
    layout = VectorLayout(model)
    x = layout.read(model)

    def gradient(diagonals, batch):
        leaf = copy.deepcopy(model)
        full = {n: p * diagonals[n] if n in diagonals else p for n, p in leaf.named_parameters()}
        nn.functional.cross_entropy(torch.func.functional_call(leaf, full, batch[0]), batch[1]).backward()
        return np.concatenate([p.grad.numpy().reshape(-1) for p in leaf.parameters()])

    keep = float(mast.Bernoulli(0.6).keep)
    exact = [np.zeros(layout.dim) for _ in range(3)]
    for mask in itertools.product((0.0, 1.0), repeat=10):
        chance = np.prod([keep if bit else 1 - keep for bit in mask])
        c = torch.tensor(mask, dtype=torch.float64) / keep
        diagonals = {"0.weight": c[:6].view(2, 3), "2.weight": c[6:].view(2, 2)}
        exact[0] += chance * gradient(diagonals, rows[0](Key(0)))
    for mask in itertools.product((0.0, 2.0), repeat=2):
        exact[1] += gradient({"2.weight": torch.tensor(mask, dtype=torch.float64)}, rows[1](Key(0))) / 4
    exact[2] = gradient({}, rows[2](Key(0)))
    drawn = []
    for seed in range(2000):
        server = Server(
            x, capacities, Participation(seed, 3, 1, "independent", [1.0, 0.5, 0.75]), step_size=1.0
        )
        run_in_process(server, workers, 1)
        drawn.append(x - server.x)
    drawn = np.array(drawn)
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - np.mean(exact, axis=0)) <= 5 * error + 1e-12).all()


def test_dropout_inside_the_model_is_keyed():
    model = made(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    capacity = capacity_of(model, "neurons:.5")
    x = VectorLayout(model).read(model)
    ends = []
    for _ in range(2):
        server = Server(x, [capacity] * 2, Participation(0, 2), step_size=0.1, local_steps=2)
        run_in_process(server, workers_of(model, [capacity] * 2, batch_size=3), 5)
        ends.append(server.x)
        torch.randn(3)  # torch's own generator has moved on
    assert (ends[0] == ends[1]).all()
    with torch_seeded(Key(1)):
        first = torch.randn(2)
    before = torch.get_rng_state()
    with torch_seeded(Key(1)):
        assert (torch.randn(2) == first).all()
    assert (torch.get_rng_state() == before).all()


def test_the_generators_of_the_model_s_devices_are_keyed(monkeypatch):
    """A device of another kind, as far as a machine without one can show it."""

    class Generators:
        def __init__(self):
            self.seed = "before"

        def get_rng_state(self, device):
            return self.seed

        def set_rng_state(self, state, device):
            self.seed = state

        def device(self, device):
            return contextlib.nullcontext()

        def manual_seed(self, seed):
            self.seed = seed

    elsewhere = Generators()
    monkeypatch.setattr(torch, "get_device_module", lambda device: elsewhere)
    with torch_seeded(Key(3), [torch.device("cpu"), torch.device("cuda", 1)]):
        assert elsewhere.seed == torch.initial_seed()
    assert elsewhere.seed == "before"


def test_frozen_parameters_stay_on_the_node():
    model = small()
    model[0].bias.requires_grad_(False)
    for text in ("bernoulli:.5", "neurons:.5"):
        capacity = capacity_of(model, text)
        assert capacity.dim == 5 * 4 + 4 * 3 + 3
        layout = VectorLayout(model)
        server = Server(layout.read(model), [capacity], Participation(2, 1), step_size=0.1)
        worker = workers_of(model, [capacity])[0]
        answer = worker.answer(server.message(0))
        # the same with a bias that is trained: the other values agree
        free = small()
        wide = capacity_of(free, text)
        theirs = Server(VectorLayout(free).read(free), [wide], Participation(2, 1), step_size=0.1)
        other = workers_of(free, [wide])[0].answer(theirs.message(0))
        mine, whole = np.zeros(capacity.dim), np.zeros(wide.dim)
        capacity.part(Key(2)).add(mine, answer.values, 1.0)
        wide.part(Key(2)).add(whole, other.values, 1.0)
        np.testing.assert_allclose(mine, np.delete(whole, np.arange(20, 24)), rtol=1e-12, atol=1e-15)


def test_a_skeleton_is_enough_for_whole_units():
    model = small()
    with torch.device("meta"):
        bare = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    full, light = capacity_of(model, "neurons:.5"), capacity_of(bare, "neurons:.5")
    server = Server(VectorLayout(model).read(model), [full], Participation(0, 1), step_size=0.1)
    message = server.message(0)
    one = NetworkWorker(full, model, cross_entropy, NodeRows(INPUTS, TARGETS)).answer(message)
    other = NetworkWorker(light, bare, cross_entropy, NodeRows(INPUTS, TARGETS)).answer(message)
    assert (one.values == other.values).all()
    assert full.fingerprint() == light.fingerprint()


def test_batches():
    rows = NodeRows(INPUTS, TARGETS, 5)
    inputs, targets = rows(Key(1, 2, 3, 4))
    assert len(targets) == 5
    again, _ = rows(Key(1, 2, 3, 4))
    other, _ = rows(Key(1, 2, 3, 5))
    assert (inputs == again).all()
    assert (inputs != other).any()
    assert len({tuple(row) for row in inputs.tolist()}) == 5
    assert len(NodeRows(INPUTS, TARGETS, 50)(Key(0))[1]) == 12
    with pytest.raises(ArgumentError, match="12 inputs and 3 targets"):
        NodeRows(INPUTS, TARGETS[:3])
    with pytest.raises(ArgumentError, match="batch_size"):
        NodeRows(INPUTS, TARGETS, 0)


def test_mean_squares():
    model = made(nn.Linear(5, 1)).requires_grad_(False)
    targets = torch.ones(12, 1, dtype=torch.float64)
    assert float(mean_squares(model, (INPUTS, targets))) == pytest.approx(
        float(((model(INPUTS) - 1) ** 2).mean()), rel=1e-14
    )


def test_arguments():
    model = small()
    units = capacity_of(model, "neurons:.5")
    with pytest.raises(ArgumentError, match="take no shift"):
        NetworkWorker(units, model, cross_entropy, NodeRows(INPUTS, TARGETS), shift=np.zeros(units.dim))
    with pytest.raises(ArgumentError, match="contiguous"):
        VectorLayout(model).tensors(np.zeros(3))
    vectors = VectorCapacity(mast.RandK(2), 5)
    with pytest.raises(ArgumentError, match="no nodes with the capacity"):
        NetworkWorker(vectors, model, cross_entropy, NodeRows(INPUTS, TARGETS))
    assert stride_of([units, capacity_of(model, "permk:4")]) == 4


def doubled(model, batch):
    return 2 * cross_entropy(model, batch)


OTHERS = {
    "sketch": {"capacity": "neurons:.25"},
    "loss": {"loss": doubled},
    "data": {"batches": NodeRows(INPUTS + 1, TARGETS)},
    "data, labels": {"batches": NodeRows(INPUTS, (TARGETS + 1) % 3)},
    "data, batch size": {"batches": NodeRows(INPUTS, TARGETS, 5)},
    "data, a function": {"batches": lambda key: (INPUTS, TARGETS)},
    "model": {"model": made(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))},
    "batch_norm": {"batch_norm": "local"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_identity_names_what_is_another(name):
    """The same things made again are the same; values of what is trained do not count."""
    same = {"capacity": "neurons:.5", "loss": cross_entropy, "batches": NodeRows(INPUTS, TARGETS)}
    once, other = (
        NetworkWorker(**{"model": small()} | same | changes).identity() for changes in ({}, OTHERS[name])
    )
    again = small()
    torch.nn.init.zeros_(again[0].weight)
    assert NetworkWorker(model=again, **same).identity() == once
    differing = {field for field in once if once[field] != other[field]}
    # the sketch of another model keeps other things
    assert differing == {name.partition(",")[0]} | ({"sketch"} if name == "model" else set())


def test_identity_has_what_is_not_trained():
    """Frozen parameters, buffers and the shift count; statistics of norms are each node's own."""

    def identity(change=lambda model: None, shift=None):
        model = made(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        model[2].bias.requires_grad_(False)
        model[0].register_buffer("scale", torch.ones(4, dtype=torch.bfloat16))
        change(model)
        rows = NodeRows(INPUTS, TARGETS)
        return NetworkWorker("bernoulli:.5", model, cross_entropy, rows, shift=shift).identity()

    same, frozen = identity(), "frozen parameters and buffers"
    assert identity(lambda model: model[1].running_mean.fill_(3.0)) == same
    assert identity(lambda model: model[0].scale.fill_(3.0))[frozen] != same[frozen]
    assert identity(lambda model: model[2].bias.data.fill_(3.0))[frozen] != same[frozen]
    assert identity(shift=np.ones(44))["shift"] != same["shift"]


@pytest.mark.parametrize("kind", ["static", "local"])
def test_statistics_of_batch_norm(kind):
    """Local ones are those of the units that the node trained, round by round; static ones are not kept."""
    model = made(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    capacity = capacity_of(model, mast.nn.Neurons(mast.Nested([0.5])))
    worker = NetworkWorker(capacity, model, cross_entropy, NodeRows(INPUTS, TARGETS), batch_norm=kind)
    server = Server(
        VectorLayout(model).read(model), [capacity], Participation(0, nodes=1), step_size=0.1, local_steps=3
    )
    run_in_process(server, [worker], 4)
    part = capacity.part(Key(0))
    norm = worker.submodel(part, part.gather(server.x))[1]
    assert norm.running_mean.shape == (2,)
    assert bool((norm.running_mean == 0).all()) == (kind == "static")
    if kind == "local":
        kept = next(iter(part.draw.draw.values())).indices
        assert (worker.local_model.buffers["1.running_mean"][kept] == norm.running_mean).all()
        assert int((worker.local_model.buffers["1.running_mean"] == 0).sum()) == 2
    with pytest.raises(ArgumentError, match="batch_norm"):
        NetworkWorker(capacity, model, cross_entropy, NodeRows(INPUTS, TARGETS), batch_norm="global")
