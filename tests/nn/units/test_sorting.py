"""`sort_units`: the function stays, the order is that of the scores, and everything of a unit moves along."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

import mast

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from mast.nn.batches import Batch  # noqa: E402
from mast.nn.importance import Importance  # noqa: E402
from mast.nn.sorting import sort_by_scores  # noqa: E402
from mast.nn.units import find_units  # noqa: E402

F = torch.nn.functional


def outputs(model, x):
    """In eval and in training mode; the model stays as it is."""
    twins = copy.deepcopy(model).eval(), copy.deepcopy(model).train()
    with torch.no_grad():
        return [twin(x) for twin in twins]


def moved(orders):
    return [name for name, order in orders.items() if list(order) != sorted(order)]


def scores(model, batches, score="activation", loss=None, probes=8):
    unit_map = find_units(model, mast.nn.Neurons(mast.RandK(1.0)), example=Batch.of(batches[0]).plain())
    importance = Importance(model, unit_map.groups, score=score, loss=loss, probes=probes, seed=0)
    return importance.of([Batch.of(b) for b in batches], len(batches)), unit_map


def gated(unit_map, group, unit, model, factor=0.0):
    """A copy of the model whose outgoing weights of one unit are multiplied by a factor."""
    twin = copy.deepcopy(model)
    parameters = dict(twin.named_parameters())
    with torch.no_grad():
        for a in group.consumers:
            first = a.offset + unit * a.run
            parameters[a.tensor].narrow(a.dim, first, a.run).mul_(factor)
    return twin


def test_the_function_stays_and_sorting_twice_changes_nothing(zoo, unit_model):
    model, x = zoo.make(unit_model)
    before = outputs(model, x)
    orders = mast.nn.sort_units(model, [x, x + 0.1])
    assert moved(orders)
    for some, others in zip(before, outputs(model, x), strict=True):
        torch.testing.assert_close(some, others, rtol=1e-9, atol=1e-12)
    assert not moved(mast.nn.sort_units(model, [x, x + 0.1]))


# ---- the scores, against a slow reference ----------------------------------------------------------


LAYERS = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)), (7, 4)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, (3, 2), (2, 1), (2, 1), (1, 2)),
        ),
        (3, 2, 8, 7),
    ),
    "same padding": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Conv1d(6, 5, 4, padding="same", padding_mode="circular")
        ),
        (3, 2, 9),
    ),
    "volume": (lambda: nn.Sequential(nn.Conv3d(1, 6, 2), nn.ReLU(), nn.Conv3d(6, 2, 2)), (2, 1, 4, 5, 4)),
    "transposed": (
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 5, 3, 2, 1, 1)),
        (3, 2, 6, 5),
    ),
    "runs": (lambda: nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(42, 5)), (4, 2, 9)),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 12, 3), nn.GroupNorm(4, 12), nn.ReLU(), nn.Conv2d(12, 5, 3)),
        (3, 2, 6, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_activation_is_the_change_of_the_next_layers_output(name):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model, x = make().double(), torch.randn(shape, dtype=torch.float64)
    found, unit_map = scores(model, [x, 2 * x])
    group = unit_map.groups[0]
    for unit in range(group.units):
        without = gated(unit_map, group, unit, model)
        change = sum((model(b) - without(b)).square().sum().item() for b in (x, 2 * x)) / 2
        assert found[group.name][unit] == pytest.approx(change, rel=1e-10, abs=1e-20)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}])
def test_activation_of_heads_that_torch_hides(options):
    """nn.MultiheadAttention never calls its output projection."""
    torch.manual_seed(0)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, **options)[0]

    model, x = Heads().double(), torch.randn(6, 5, 8, dtype=torch.float64)
    found, unit_map = scores(model, [x])
    group = unit_map.groups[0]
    for unit in range(group.units):
        change = (model(x) - gated(unit_map, group, unit, model)(x)).square().sum().item()
        assert found[group.name][unit] == pytest.approx(change, rel=1e-10)


def test_random_signs_belong_to_units_wherever_they_stand():
    """What a recurrent layer adds is estimated from its output, whose units are sorted too."""
    torch.manual_seed(0)

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(4, 8, num_layers=2, batch_first=True)
            self.last = nn.Linear(8, 3)

        def forward(self, x):
            return self.last(self.recurrent(x)[0][:, -1])

    model, x = Words(), torch.randn(5, 6, 4)
    assert moved(mast.nn.sort_units(model, [x]))
    assert not moved(mast.nn.sort_units(model, [x]))


def test_several_consumers_add_up():
    torch.manual_seed(0)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 6), nn.Linear(6, 4), nn.Linear(6, 5)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return self.b(h), self.c(h)

    model, x = Two().double(), torch.randn(9, 3, dtype=torch.float64)
    found, unit_map = scores(model, [x])
    for unit in range(6):
        pairs = zip(model(x), gated(unit_map, unit_map.groups[0], unit, model)(x), strict=True)
        change = sum((a - b).square().sum().item() for a, b in pairs)
        assert found["a.weight"][unit] == pytest.approx(change, rel=1e-10, abs=1e-20)


def test_output_is_the_squared_jacobian():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(8, 3, dtype=torch.float64)
    found, unit_map = scores(model, [x], "output", probes=4000)
    for group in unit_map.groups:
        for unit in range(group.units):
            up, down = (gated(unit_map, group, unit, model, 1 + e)(x) for e in (1e-5, -1e-5))
            slope = ((up - down) / 2e-5).square().sum().item()
            assert found[group.name][unit] == pytest.approx(slope, rel=5 * (2 / 4000) ** 0.5)


def test_taylor_is_the_squared_derivative_of_the_mean_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    batches = [(torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 4) for _ in range(3)]
    found, unit_map = scores(model, batches, "taylor", F.cross_entropy)

    def loss(net):
        return sum(F.cross_entropy(net(x), y).item() for x, y in batches) / 3

    for unit in range(6):
        up, down = (gated(unit_map, unit_map.groups[0], unit, model, 1 + e) for e in (1e-5, -1e-5))
        slope = (loss(up) - loss(down)) / 2e-5
        assert found["0.weight"][unit] == pytest.approx(slope**2, rel=1e-5)


@pytest.mark.parametrize("score", ["activation", "output", "taylor"])
def test_the_order_falls(score):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
    batches = [(torch.randn(8, 3), torch.arange(8) % 4)]
    loss = F.cross_entropy if score == "taylor" else None
    found, _ = scores(model, batches, score, loss)
    orders = mast.nn.sort_units(model, batches, loss, score=score)
    assert (np.diff(found["0.weight"][orders["0.weight"]]) <= 0).all()
    again, _ = scores(model, batches, score, loss)
    np.testing.assert_allclose(again["0.weight"], found["0.weight"][orders["0.weight"]], rtol=1e-4)


def test_equal_units_stay_in_their_order():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:1].abs().expand(5, 3))
        model[0].bias.zero_()
        model[2].weight.copy_(torch.tensor([[1.0, 2, 1, 2, 1]]).expand(2, 5))
    assert mast.nn.sort_units(model, [torch.ones(2, 3)])["0.weight"].tolist() == [1, 3, 0, 2, 4]


@pytest.mark.parametrize(("dtype", "units"), [(torch.bfloat16, 1536), (torch.float32, 1 << 15)])
def test_units_that_become_more_important_little_by_little_are_sorted(dtype, units):
    """Each is only more important than the one before by what could be rounding, but the last much more."""
    model = nn.Sequential(nn.Linear(2, units), nn.ReLU(), nn.Linear(units, 1)).to(dtype)
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[0].bias.zero_()
        model[2].weight.copy_(torch.linspace(5, 10, units)[None])
    order = mast.nn.sort_units(model, [torch.ones(4, 2, dtype=dtype)])["0.weight"]
    weights = torch.linspace(5, 10, units).to(dtype).double()
    assert order.tolist() == torch.argsort(-weights, stable=True).tolist()  # equal ones in their order
    again = mast.nn.sort_units(model, [torch.ones(4, 2, dtype=dtype)])
    assert not moved(again)


# ---- what stays, and what moves along ------------------------------------------------------------------


def test_the_model_stays_as_it_is_but_for_its_order(zoo):
    model, x = zoo.make("resnet")
    model.train()
    model.blocks[1].eval()
    model.stem.weight.requires_grad_(False)
    model.head.weight.requires_grad_(False)
    parameters = dict(model.named_parameters())
    modes = [m.training for m in model.modules()]
    statistics = sorted(model.norm.running_var.tolist())
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    torch.manual_seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    tracked = int(model.norm.num_batches_tracked)
    for score in ("activation", "output"):
        mast.nn.sort_units(model, [(x, None)], score=score)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert all(p.grad is None for p in parameters.values())
    assert [m.training for m in model.modules()] == modes
    assert [n for n, p in parameters.items() if not p.requires_grad] == ["stem.weight", "head.weight"]
    assert sorted(model.norm.running_var.tolist()) == statistics
    assert int(model.norm.num_batches_tracked) == tracked
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_loaders_draw_numbers_and_random_generators_stay():
    rows = torch.utils.data.TensorDataset(torch.randn(12, 3))
    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    for sort in (mast.nn.sort_units, lambda model, batches: mast.nn.elastic(model, [0.5, 1], batches)):
        for batches in (loader, (torch.randn(4, 3) for _ in range(3))):
            model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
            state = torch.get_rng_state()
            sort(model, batches)
            assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "groups", "make"),
    [
        ("resnet", 5, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
        ("resnet", 5, lambda p: torch.optim.AdamW(p, lr=0.01)),
        ("gated", 1, lambda p: torch.optim.Adafactor(p, lr=0.01)),
    ],
)
def test_training_goes_on_as_if_nothing_had_been_sorted(zoo, name, groups, make):
    """Gradients and the optimizer's state move along, also in the middle of an accumulated gradient."""
    model, x = zoo.make(name)
    runs = []
    for sorts in (False, True):
        net = copy.deepcopy(model).train()
        optimizer = make(net.parameters())
        for step in range(6):
            net(x + step).square().mean().backward()
            if step == 3 and sorts:
                assert len(moved(mast.nn.sort_units(net, [x], optimizer=optimizer))) == groups
            if step != 3:
                optimizer.step()
                optimizer.zero_grad()
        runs.append(net.eval()(x))
    torch.testing.assert_close(*runs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_floating_type(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 2)).to(
        dtype
    )
    x = torch.randn(16, 6).to(dtype)
    before = model(x)
    assert len(moved(mast.nn.sort_units(model, [x]))) == 2
    torch.testing.assert_close(model(x), before)
    assert model[0].weight.dtype is dtype


def test_units_that_are_told_apart_are_put_back():
    class Told(nn.Module):
        """Its second layer tells its units apart by their number, once it is told to."""

        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 2)
            self.tells = False

        def forward(self, x):
            h = self.b(torch.relu(self.a(x)))
            return self.c(h.cumsum(-1) if self.tells else h)

    torch.manual_seed(0)
    model, x = Told(), torch.randn(4, 3)
    found, unit_map = scores(model, [x])
    model.tells = True
    model.a.weight.grad = torch.ones_like(model.a.weight)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(mast.MastError, match=r"units of 'b.weight' cannot be sorted: the output differs by"):
        sort_by_scores(model, unit_map, found)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_refusals():
    torch.manual_seed(0)  # where all units are dead, LBFGS has no state
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    x = torch.ones(2, 3)
    with pytest.raises(mast.MastError, match="meta device"):
        mast.nn.sort_units(copy.deepcopy(model).to("meta"), [x])
    with pytest.raises(mast.MastError, match="score"):
        mast.nn.sort_units(model, [x], score="size")
    with pytest.raises(mast.MastError, match="a loss is needed"):
        mast.nn.sort_units(model, [x], score="taylor")
    with pytest.raises(mast.MastError, match="a loss is a function of outputs and targets, got 'taylor'"):
        mast.nn.sort_units(model, [x], "taylor")
    with pytest.raises(mast.MastError, match="not finite"):
        mast.nn.sort_units(model, [x * torch.nan])
    with pytest.raises(mast.MastError, match="torch optimizer"):
        mast.nn.sort_units(model, [x, -x], optimizer="adam")
    others = torch.optim.Adam(copy.deepcopy(model).parameters())
    with pytest.raises(mast.MastError, match="this Adam holds no parameter of the model"):
        mast.nn.sort_units(model, [x, -x], optimizer=others)
    for seed in (-1, None):
        with pytest.raises(mast.MastError, match="seed"):
            mast.nn.sort_units(model, [x], seed=seed)
    with pytest.raises(mast.MastError, match="the first one has none"):
        mast.nn.sort_units(model, [x[:0]])
    with pytest.raises(mast.MastError, match="no units that could be dropped"):
        mast.nn.sort_units(nn.ReLU(), [x])
    labels = torch.tensor([0, 1])
    for loss, message in (
        ("ce", "a function of outputs and targets"),
        (lambda y, t: F.cross_entropy(y, t, reduction="none"), "one number for the whole batch"),
        (lambda y, t: F.cross_entropy(y, t).item(), "as a tensor; got float"),
        (lambda y, t: F.cross_entropy(y, t).detach(), "the loss has no gradient"),
    ):
        with pytest.raises(mast.MastError, match=message):
            mast.nn.sort_units(model, [(x, labels)], loss, score="taylor")
    with torch.inference_mode(), pytest.raises(mast.MastError, match="inference_mode"):
        mast.nn.sort_units(model, [x], score="output")

    class Detached(nn.Sequential):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(mast.MastError, match="the model's output has no gradient"):
        mast.nn.sort_units(Detached(*model), [x], score="output")
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss.detach()  # LBFGS of PyTorch 2.8 warns of one that is not

    optimizer.step(closure)
    with pytest.raises(mast.MastError, match="does not have the shape"):
        mast.nn.sort_units(model, [x], optimizer=optimizer)
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    with pytest.raises(mast.MastError, match="already sparsified"):
        mast.nn.sort_units(model, [x])


def test_ranks_average_their_scores(tmp_path):
    """Two processes with different rows sort alike, by the mean of their scores."""
    import subprocess
    import sys

    script = tmp_path / "rank.py"
    script.write_text(
        """
import sys, torch, mast
from torch import nn
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
wrapped = nn.parallel.DistributedDataParallel(model)
rows = torch.randn(2, 8, 3)[rank]
torch.save(mast.nn.sort_units(wrapped, [rows])["0.weight"].tolist(), f"{folder}/{rank}.pt")
torch.distributed.destroy_process_group()
"""
    )
    ranks = [subprocess.Popen([sys.executable, str(script), str(i), str(tmp_path)]) for i in (0, 1)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
    rows = torch.randn(2, 8, 3)
    alone = [copy.deepcopy(model), copy.deepcopy(model)]
    orders = [mast.nn.sort_units(net, [x])["0.weight"].tolist() for net, x in zip(alone, rows, strict=True)]
    together = mast.nn.sort_units(model, list(rows))["0.weight"].tolist()
    assert together not in orders
    assert torch.load(tmp_path / "0.pt") == torch.load(tmp_path / "1.pt") == together
