"""Lists of draws in networks: one member, share or window for all layers; submodels and files by number."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mast  # noqa: E402
from mast.errors import ArgumentError  # noqa: E402

LISTS = {
    "masks": mast.Sampled(mast.Bernoulli(0.4), 5, seed=2),
    "three masks": mast.Sampled(mast.Bernoulli(0.8), 3, seed=2),
    "masks, corrected": mast.Sampled(mast.Bernoulli(0.4), 5, seed=2, corrected=True),
    "masks, balanced": mast.Sampled(mast.Bernoulli(0.4), 5, seed=2, balanced=True),
    "subsets": mast.Sampled(mast.RandK(0.3), 4),
    "blocks": mast.PermK(3, seed=1),
    "partitions": mast.Sampled(mast.PermK(2, redraw=True), 6),
    "nested": mast.Nested([0.25, 0.5, 1.0]),
    "units": mast.nn.Neurons(mast.Sampled(mast.RandK(0.5), 4)),
    "units, corrected": mast.nn.Neurons(mast.Sampled(mast.Bernoulli(0.5), 6, corrected=True)),
    "units, balanced": mast.nn.Neurons(mast.Sampled(mast.RandK(0.25), 8, balanced=True)),
    "units, blocks": mast.nn.Neurons(mast.PermK(4)),
    "units, nested": mast.nn.Neurons(mast.Nested([0.25, 1.0])),
}
each_list = pytest.mark.parametrize("sketch", LISTS.values(), ids=LISTS)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def diagonals(sk, keys):
    """Of S over each weight, for several keys."""
    return [{name: kept.diagonal() for name, kept in sk.kept(key).items()} for key in keys]


@pytest.mark.parametrize("sketch", [LISTS[name] for name in LISTS if name != "units, blocks"], ids=repr)
def test_training_draws_members_and_nothing_else(sketch):
    model = mlp()
    sk = mast.nn.sparsify(model, sketch, seed=5)
    members = diagonals(sk, [sk.member_key(i) for i in range(sk.members)])
    seen = set()
    for step in range(40):
        (drawn,) = diagonals(sk, [mast.randomness.Key(5, step)])
        same = [i for i, m in enumerate(members) if all(np.array_equal(m[n], drawn[n]) for n in drawn)]
        assert same  # one member for all layers
        seen |= set(same)
    assert len(seen) == sk.members


@each_list
def test_a_submodel_by_its_number(sketch):
    model = mlp()
    sk = mast.nn.sparsify(model, sketch)
    x = torch.randn(4, 6, dtype=torch.float64)
    for i in range(sk.members):
        key = sk.member_key(i)
        with torch.no_grad(), sk.at(key):
            model.train()
            expected = model(x)
        torch.testing.assert_close(sk.submodel(member=i)(x), expected)
    with pytest.raises(ArgumentError, match="member"):
        sk.submodel(member=sk.members)
    with pytest.raises(ArgumentError, match="not by both"):
        sk.submodel(7, member=0)


@each_list
def test_a_file_by_its_number(sketch, tmp_path):
    sk = mast.nn.sparsify(mlp(), sketch)
    x = torch.randn(4, 6, dtype=torch.float64)
    for i in range(sk.members):
        path = sk.save_submodel(tmp_path / f"{i}.safetensors", member=i)
        assert torch.equal(mast.nn.load_submodel(path, mlp())(x), sk.submodel(member=i)(x))
    with pytest.raises(ArgumentError, match="not by both"):
        sk.save_submodel(tmp_path / "x.safetensors", 7, member=0)


@each_list
def test_a_delta_by_its_number(sketch, tmp_path):
    base = mlp()
    model = copy.deepcopy(base)
    sk = mast.nn.sparsify(model, sketch, shift="init")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    path = sk.save_delta(tmp_path / "1.delta", member=1)
    assert mast.nn.read_delta(path).about["member"] == 1
    with sk.at(sk.member_key(1)), torch.no_grad():
        x = torch.randn(4, 6, dtype=torch.float64)
        torch.testing.assert_close(mast.nn.apply_delta(base, path)(x), model.train()(x))
    with pytest.raises(ArgumentError, match="not by both"):
        sk.save_delta(tmp_path / "2.delta", member=1, seed=2)


@pytest.mark.parametrize("size", [{"density": 0.5}, {"budget": "50% params"}])
def test_a_member_has_its_own_size(size):
    sk = mast.nn.sparsify(mlp(), LISTS["units, nested"])
    with pytest.raises(ArgumentError, match="its own size"):
        sk.submodel(member=0, **size)


def test_a_removed_handle_has_no_members():
    sk = mast.nn.sparsify(mlp(), LISTS["units, nested"])
    sk.optimizer(torch.optim.SGD, lr=0.1)
    sk.remove()
    with pytest.raises(mast.MastError, match=r"sk\.small.*after sk\.remove"), sk.small():
        pass
    with pytest.raises(mast.MastError, match=r"sk\.member.*after sk\.remove"), sk.member(0):
        pass
    with pytest.raises(mast.MastError, match=r"after sk\.remove"), sk.at(sk.member_key(0)):
        pass


def test_sizes_of_nested_units_are_rounded_shares_of_each_layer():
    sk = mast.nn.sparsify(mlp(), mast.nn.Neurons(mast.Nested([0.3, 1.0])))
    small = sk.submodel(member=0)
    assert [m.out_features for m in small if isinstance(m, nn.Linear)] == [round(0.3 * 16)] * 2 + [3]


def test_nested_weights_are_rounded_shares_of_each_layer():
    sk = mast.nn.sparsify(mlp(), mast.Nested([0.3, 1.0]))
    kept = sk.kept(sk.member_key(0))
    assert {name: k.count for name, k in kept.items()} == {
        name: round(0.3 * p.numel()) for name, p in sk.model.named_parameters() if p.ndim > 1
    }


@pytest.mark.parametrize("structured", [False, True])
def test_rolling_windows_move_in_every_layer_by_its_own_size(structured):
    sketch = mast.Rolling(0.25)
    sk = mast.nn.sparsify(mlp(), mast.nn.Neurons(sketch) if structured else sketch, seed=3)
    for step in range(3):
        for name, kept in sk.kept(mast.randomness.Key(3, step)).items():
            p = sk.model.get_parameter(name)
            d = p.shape[1] if structured else p.numel()
            start = sketch.start(d, mast.randomness.Key(3, step))
            window = set(((start + np.arange(round(0.25 * d))) % d).tolist())
            columns = np.flatnonzero(
                kept.diagonal().reshape(p.shape).any(axis=0) if structured else kept.diagonal()
            )
            assert set(columns.tolist()) == window
    assert sk.members is None


def test_a_list_is_as_its_sketch_draws_it():
    """Member i is the draw of the sketch with the seed of the list and step i."""
    sk = mast.nn.sparsify(mlp(), mast.Sampled(mast.Bernoulli(0.4), 5, seed=2))
    plain = mast.nn.sparsify(mlp(), mast.Bernoulli(0.4), seed=2)
    for i in range(5):
        (ours,) = diagonals(sk, [sk.member_key(i)])
        (theirs,) = diagonals(plain, [mast.randomness.Key(2, i)])
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_corrected_list_has_mean_one_where_something_is_kept():
    sk = mast.nn.sparsify(mlp(), LISTS["masks, corrected"])
    members = diagonals(sk, [sk.member_key(i) for i in range(5)])
    for name in members[0]:
        mean = np.mean([m[name] for m in members], axis=0)
        np.testing.assert_allclose(mean[mean > 0], 1, rtol=1e-12)


@pytest.mark.parametrize("name", ["masks, balanced", "units, balanced"])
def test_a_balanced_list_keeps_every_weight_equally_often(name):
    sk = mast.nn.sparsify(mlp(), LISTS[name])
    members = diagonals(sk, [sk.member_key(i) for i in range(sk.members)])
    for weight in members[0]:
        np.testing.assert_allclose(np.mean([m[weight] for m in members], axis=0), 1, rtol=1e-12)


def test_a_balanced_list_has_one_share_for_all_weights():
    with pytest.raises(ArgumentError, match="equally often"):
        mast.nn.sparsify(mlp(), LISTS["masks, balanced"], keep={"0.weight": 0.6})


def test_the_blocks_of_units_partition_every_layer():
    sk = mast.nn.sparsify(mlp(), mast.nn.Neurons(mast.PermK(4)))
    draws = [sk.draw(sk.member_key(i)) for i in range(4)]
    for group in draws[0]:
        assert sorted(np.concatenate([draw[group].indices for draw in draws]).tolist()) == list(range(16))


def test_the_order_of_wrappers_is_said():
    with pytest.raises(ArgumentError, match=r"Neurons\(Sampled"):
        mast.nn.sparsify(mlp(), mast.Sampled(mast.nn.Neurons(mast.RandK(2)), 3))


def test_a_report_of_nested_units_shows_the_trained_sizes():
    sk = mast.nn.sparsify(mlp(), mast.nn.Neurons(mast.Nested([0.25, 1.0])))
    report = sk.report(lambda m: float(m[0].out_features), densities=[1.0, 0.25], draws=2)
    assert report["mean"].tolist() == [16, 4]
    assert report.chance_of_worse == {1.0: 1 / 3, 0.25: 1 / 3}
    whole = {}
    sk.report(
        lambda m: whole.setdefault("weight", m[2].weight.detach().clone()).norm().item(), [1.0], draws=1
    )
    torch.testing.assert_close(whole["weight"], sk.submodel(member=1)[2].weight)


@each_list
def test_advice_knows_the_constants(sketch):
    sk = mast.nn.sparsify(mlp(), sketch)
    known = {"gradient clipping", "the start", "evaluation"}
    assert {finding.where for finding in mast.nn.validate(sk.model)} <= known
    assert 0 < sk.density <= 1
    assert "keeps" in str(sk)


@pytest.mark.parametrize("name", [name for name in LISTS if name not in ("blocks", "units, blocks")])
def test_constants_are_those_of_the_members_in_this_network(name):
    """Each layer has draws of its own, so its list is another one than that of a vector of its size."""
    small = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    sk = mast.nn.sparsify(small.double(), LISTS[name])
    units = name.startswith("units")
    keys = [sk.member_key(i) for i in range(sk.members)]
    draws = [{n: kept.diagonal() for n, kept in sk.draw(key).items()} if units else d
             for key, d in zip(keys, diagonals(sk, keys), strict=True)]  # fmt: skip
    means = [np.mean([d[n] for d in draws], axis=0) for n in draws[0]]
    squares = [np.mean([d[n] ** 2 for d in draws], axis=0) for n in draws[0]]
    c = sk.bound.constants()
    assert c.unbiased == all(np.allclose(mean, 1) for mean in means)
    assert c.L_D == pytest.approx(max(square.max() for square in squares))
    assert c.mu_D == pytest.approx(min(square.min() for square in squares))
    assert c.L_max == pytest.approx(max((d[n] ** 2).max() for d in draws for n in d))


def test_fresh_weights_are_scaled_by_the_corrections_of_their_own_list():
    model, sketch = mlp(), mast.nn.Neurons(mast.Sampled(mast.Bernoulli(0.5), 6, corrected=True))
    before = model[2].weight.detach().clone()
    mast.nn.scale_start(model, sketch)
    sk = mast.nn.sparsify(model, sketch)
    square = sum(sk.draw(sk.member_key(i))["0.weight"].diagonal() ** 2 / 6 for i in range(6))
    torch.testing.assert_close(
        model[2].weight.detach(), before / torch.from_numpy(np.where(square > 0, square, 1)).sqrt()
    )


@pytest.mark.parametrize(("make", "power"), [(torch.optim.Adam, 1), (torch.optim.SGD, 2)])
def test_one_mask_takes_the_steps_of_a_plain_network_at_a_smaller_rate(make, power):
    """y = x/k on what is kept: Adam's rate times k, SGD's times k squared."""
    torch.manual_seed(0)
    k, rate = 0.25, 0.01
    inputs, targets = torch.randn(32, 8).double(), torch.randn(32, 2).double()
    plain, model = nn.Linear(8, 2, bias=False).double(), nn.Linear(8, 2, bias=False).double()
    sk = mast.nn.sparsify(model, mast.Sampled(mast.Bernoulli(k), 1))
    mask = torch.from_numpy(sk.kept()["weight"].diagonal()) > 0
    with torch.no_grad():
        plain.weight.mul_(mask)
        model.weight.copy_(k * plain.weight)
    own, other = make(plain.parameters(), lr=rate), make(model.parameters(), lr=rate * k**power)
    for _ in range(20):
        for net, optimizer in ((plain, own), (model, other)):
            optimizer.zero_grad()
            (net(inputs) - targets).square().mean().backward()
            if net is plain:
                net.weight.grad.mul_(mask)
            optimizer.step()
    difference = sk.submodel(member=0).weight - plain.weight
    assert difference.abs().max() < 1e-6 * plain.weight.abs().max()  # Adam adds 1e-8 to its denominator
    assert mask.any()


def test_layers_of_one_size_share_a_random_order():
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(12, 2))
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Nested([0.25, 1.0], order="random", seed=3)))
    quarter = sk.draw(sk.member_key(0))
    first, second = (set(quarter[name].indices) for name in ("0.weight", "2.weight"))
    assert first == second != set(range(4))
    assert len(quarter["4.weight"].indices) == 3
