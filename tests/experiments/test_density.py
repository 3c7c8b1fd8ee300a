"""Accuracy against density: the parts agree with slow readable twins, and numbers decide the claims."""

import dataclasses

import numpy as np
import pandas
import pytest

from mast.cells import Cell, Done
from mast.errors import DataError
from mast.experiments.density import finetuning, linear, tables
from mast.experiments.density.claims import claims
from mast.experiments.density.curves import area
from mast.experiments.density.data import FILES, FOLDER, Labelled, find
from mast.experiments.density.sketches import NestedDensities
from mast.experiments.density.study import Density
from mast.experiments.experiment import Request, Results
from mast.randomness import Key, normal

torch = pytest.importorskip("torch")

from mast.experiments.density.networks import (  # noqa: E402
    Chain,
    KeyedDropout,
    Recipe,
    count,
    network,
    random_masks,
    train,
)
from mast.experiments.density.scores import Scorer, keep_largest, keep_largest_units  # noqa: E402
from mast.nn import Neurons, sparsify  # noqa: E402

MLP = Chain(6, (8, 5), classes=3)
CNN = Chain(2, (6, 4), strides=(2, 1), classes=3)


@pytest.fixture(scope="module")
def digits() -> Labelled:
    (dataset,) = find("normal", "digits", None)
    assert isinstance(dataset, Labelled)
    return dataset


def inputs(design, rows=40):
    shape = (rows, design.inputs, 8, 8) if design.strides else (rows, design.inputs)
    return torch.from_numpy(normal(Key(3), 0, int(np.prod(shape))).astype(np.float32)).view(shape)


# ---- data ----------------------------------------------------------------------------------------


def test_parts_do_not_overlap_and_only_training_rows_standardise(digits):
    train_rows, validation, test = digits.parts()
    assert [len(part.y) for part in (train_rows, validation, test)] == [1007, 251, 539]
    rows = [tuple(r) for part in (train_rows, validation, test) for r in part.x.numpy().round(6)]
    assert len(set(rows)) >= len(rows) - 2  # no row twice, but for equal pictures
    used = train_rows.x.std(dim=0) > 0
    x = train_rows.x.double()  # its rounded numbers, summed exactly enough
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(64).double(), atol=1e-5, rtol=0)
    deviations = x.std(dim=0, correction=0)[used]
    torch.testing.assert_close(deviations, torch.ones_like(deviations), atol=1e-4, rtol=0)
    assert test.x.mean(dim=0).abs().max() > 0.02


def write_cifar(folder, **changes):
    (folder / FOLDER).mkdir()
    x = (np.arange(60 * 4 * 4 * 3) % 251).reshape(60, 4, 4, 3).astype(np.uint8)
    arrays = {"x_train": x, "y_train": np.arange(60) % 10, "x_test": x[:20], "y_test": np.arange(20) % 10}
    np.savez(folder / FOLDER / FILES["images"], **(arrays | changes))
    return x


def test_data_are_what_the_folder_has(tmp_path, monkeypatch):
    monkeypatch.delenv("MAST_DATA", raising=False)
    assert [d.name for d in find("normal", None, None)] == ["digits", "a1a"]
    x = write_cifar(tmp_path)
    found = find("normal", None, tmp_path)
    assert [d.name for d in found] == ["digits", "images", "a1a"]
    assert [d.name for d in find("fast", None, tmp_path)] == ["digits", "a1a"]
    assert found[1].load()[0].shape == (80, 48)
    parts = found[1].parts()
    assert [tuple(part.x.shape) for part in parts] == [(48, 3, 2, 2), (12, 3, 2, 2), (20, 3, 2, 2)]
    first, second = parts.test.x[:2, 0, 0, 0].double().tolist()
    means = x[:2, :2, :2, 0].mean(axis=(1, 2)) / 255
    scale = float(
        parts.test.x[:, 0, 0, 0].double().std() / np.std(x[:20, :2, :2, 0].mean((1, 2)) / 255, ddof=1)
    )
    assert (first - second) == pytest.approx(scale * (means[0] - means[1]), rel=1e-4)


def test_bad_data_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("MAST_DATA", raising=False)
    with pytest.raises(DataError, match="no such folder"):
        find("normal", None, tmp_path / "absent")
    with pytest.raises(DataError, match="--data-dir"):
        find("normal", "features", None)
    with pytest.raises(DataError, match="cannot be read"):
        find("normal", "features", tmp_path)
    write_cifar(tmp_path, y_train=np.zeros(3))
    (bad,) = find("normal", "images", tmp_path)
    with pytest.raises(DataError, match="4 dimensions"):
        bad.load()
    (tmp_path / FOLDER / FILES["images"]).write_bytes(b"not a zip file")
    with pytest.raises(DataError, match="changed"):
        bad.load()
    (other,) = find("normal", "images", tmp_path)
    with pytest.raises(DataError, match="x_train"):
        other.load()


# ---- networks and training -----------------------------------------------------------------------


def test_dropout_is_unbiased_and_keyed():
    layer, x = KeyedDropout(0.3, seed=5, number=1), torch.ones(400, 500)
    first, second = layer(x), layer(x)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    for out in (first, second):
        assert abs(float(out.mean()) - 1) < 5 * np.sqrt(0.3 / 0.7 / x.numel())
    agree = float(((first > 0) == (second > 0)).double().mean())  # independent: .7² + .3²
    assert abs(agree - 0.58) < 5 * np.sqrt(0.58 * 0.42 / x.numel())
    assert torch.equal(KeyedDropout(0.3, seed=5, number=1)(x), first)
    assert not torch.equal(KeyedDropout(0.3, seed=5, number=2)(x), first)
    assert torch.equal(layer.eval()(x), x)


def test_starts_have_their_variance_and_names_do_not_depend_on_dropout():
    design = Chain(200, (300, 100))
    model = network(design, seed=1)
    weight = model.get_submodule("layer1").weight
    assert float(weight.detach().var()) == pytest.approx(2 / 300, rel=5 * np.sqrt(2 / weight.numel()))
    assert set(network(design, 1, dropout=0.5).state_dict()) == set(model.state_dict())
    assert not torch.equal(network(design, seed=2).get_submodule("layer1").weight, weight)


def test_training_is_a_function_of_its_recipe(digits):
    rows = digits.parts().train

    def trained(seed, rate=1e-2):
        model = network(Chain(64, (8,)), seed=0)
        train(model, rows, Recipe(1, 64, rate, seed))
        return model.get_submodule("out").weight

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))  # other batches
    assert not torch.equal(trained(0), trained(0, rate=3e-3))


def test_training_a_share_leaves_the_rest(digits):
    model, before = (network(Chain(64, (50,)), seed=0) for _ in range(2))
    masks = random_masks(model, 0.2, seed=0)
    train(model, digits.parts().train, Recipe(1, 64, 1e-2, 0), masks)
    old = dict(before.named_parameters())
    for name, p in model.named_parameters():
        changed = p != old[name]
        if name in masks:
            assert not changed[~masks[name]].any()
            assert changed[masks[name]].double().mean() > 0.8  # pixels that are always 0 have no gradient
        else:
            assert changed.any()
    share = torch.cat([m.flatten() for m in masks.values()]).double()
    assert abs(float(share.mean()) - 0.2) < 5 * np.sqrt(0.2 * 0.8 / len(share))


# ---- cutting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("with_base", [False, True])
def test_the_largest_weights_or_changes_stay(scope, with_base):
    model, base = network(MLP, seed=0), network(MLP, seed=1)
    pruned = dict(keep_largest(model, 0.3, scope, base if with_base else None).named_parameters())
    origin = {name: p if with_base else torch.zeros_like(p) for name, p in base.named_parameters()}
    sizes, kept = {}, {}
    for name, p in model.named_parameters():
        if p.dim() > 1:
            sizes[name] = (p - origin[name]).abs()
            kept[name] = pruned[name] != origin[name]
            assert torch.equal(pruned[name][kept[name]], p[kept[name]])
        else:
            assert torch.equal(pruned[name], p)
    groups = [[name] for name in sizes] if scope == "layer" else [list(sizes)]
    for names in groups:
        size, stays = (torch.cat([table[n].flatten() for n in names]) for table in (sizes, kept))
        assert int(stays.sum()) == count(size.numel(), 0.3)
        assert size[stays].min() > size[~stays].max()


@pytest.mark.parametrize("design", [MLP, CNN], ids=["mlp", "cnn"])
def test_pruned_units_are_gone(design):
    """The pruned network computes what the network of the units that stay computes."""
    model = network(design, seed=0).eval()
    for i in range(len(design.widths)):
        if design.strides:
            norm = model.get_submodule(f"norm{i}")
            norm.weight.data = torch.linspace(-1, 2, len(norm.weight))
            norm.bias.data = torch.linspace(0.5, -0.5, len(norm.weight))
    small = network(design.share(0.5), seed=1).eval()
    last = slice(None)
    for i, consumer in enumerate(design.consumers):
        outgoing = model.get_submodule(consumer).weight.detach()
        incoming = model.get_submodule(f"layer{i}").weight.detach()
        size = [float(outgoing[:, u].norm()) for u in range(design.widths[i])]
        for u in range(design.widths[i]):
            norms = dict(model.named_parameters()).get(f"norm{i}.weight")
            size[u] *= float(incoming[u].norm()) if norms is None else abs(float(norms[u].detach()))
        stay = sorted(sorted(range(len(size)), key=lambda u: -size[u])[: small_width(small, i)])
        for name, value in model.get_submodule(f"layer{i}").named_parameters():
            part = value[stay][:, last] if value.dim() > 1 else value[stay]
            getattr(small.get_submodule(f"layer{i}"), name).data = part.detach().clone()
        if design.strides:
            for name, value in model.get_submodule(f"norm{i}").state_dict().items():
                if value.dim():
                    small.get_submodule(f"norm{i}").state_dict()[name].copy_(value[stay])
        last = stay
    small.get_submodule("out").weight.data = model.get_submodule("out").weight.detach()[:, last]
    small.get_submodule("out").bias.data = model.get_submodule("out").bias.detach()
    x = inputs(design)
    torch.testing.assert_close(keep_largest_units(model, design, 0.5)(x), small(x))


def small_width(small, i):
    return small.get_submodule(f"layer{i}").weight.shape[0]


def test_nested_subsets_lie_in_each_other_and_parts_agree_on_the_density():
    sketch = NestedDensities([1.0, 0.5, 0.2], order=4)
    for part in (0, 7):
        kept = [set(sketch.at(p).draw(50, index=part).indices.tolist()) for p in (0.2, 0.5, 1.0)]
        assert [len(k) for k in kept] == [10, 25, 50]
        assert kept[0] < kept[1] < kept[2]
    assert (
        sketch.at(0.5).draw(50, index=0).indices.tolist() != sketch.at(0.5).draw(50, index=7).indices.tolist()
    )
    sizes = [[sketch.draw(50, step=t, index=part).indices.size for part in (0, 7)] for t in range(300)]
    assert all(a == b for a, b in sizes)
    for size in (10, 25, 50):  # each density a third of the time
        share = np.mean([a == size for a, _ in sizes])
        assert abs(share - 1 / 3) < 5 * np.sqrt(2 / 9 / 300)
    np.testing.assert_allclose(sketch.mean(50), sum(draw.diagonal() / 3 for _, draw in sketch.support(50)))
    model = network(MLP, seed=0)
    small = [sparsify(network(MLP, 0), Neurons(sketch.at(p))).submodel(seed=3) for p in (0.5, 1.0)]
    rows = [{tuple(r) for r in m.get_submodule("layer0").weight.tolist()} for m in small]
    assert len(rows[0]) == 4
    assert rows[0] < rows[1]
    assert rows[1] == {tuple(r) for r in model.get_submodule("layer0").weight.tolist()}


def test_scores_are_those_of_submodels_and_the_scale_can_be_taken_off(digits):
    design, rows = Chain(64, (30, 20)), digits.parts().test
    model = network(design, seed=0).eval()
    scorer = Scorer(rows, digits.parts().train.x[:100], design, seed=0)
    scores = scorer.curve(model, "neurons", "random", [1.0, 0.5], draws=3)
    with torch.no_grad():
        whole = float((model(rows.x).argmax(1) == rows.y).double().mean())
    assert scores.shape == (2, 3)
    assert scores[0].tolist() == [whole] * 3
    sk = sparsify(network(design, seed=0), Neurons(density_cells_half()))
    small = sk.submodel(seed=1)
    bare = sk.submodel(seed=1)
    scorer._unscale(bare)
    for name in ("layer1", "out"):
        scaled, unscaled = small.get_submodule(name).weight, bare.get_submodule(name).weight
        torch.testing.assert_close(scaled, 2 * unscaled)
        own = set(model.get_submodule(name).weight.detach().flatten().tolist())
        assert np.isin(unscaled.detach().flatten().numpy(), np.float32(sorted(own))).all()
    unscaled = scorer.curve(model, "weights", "unscaled", [0.5], draws=2)
    assert unscaled.shape == (1, 2)
    for way in ("magnitude_layer", "magnitude_global", "nested"):
        assert scorer.curve(model, "weights", way, [1.0, 0.3], draws=3).shape == (2, 1)


def density_cells_half():
    from mast.sketches import RandK

    return RandK(0.5)


# ---- cells ---------------------------------------------------------------------------------------

TINY = {
    "epochs": 2,
    "batch": 64,
    "rates": [1e-3, 1e-2],
    "seeds": [0, 1],
    "draws": 2,
    "validation_draws": 1,
    "densities": [1.0, 0.5, 0.2, 0.1],
    "adapting": 1,
}


def tiny(cell: Cell) -> Cell:
    own = {name: value for name, value in TINY.items() if name in cell.config}
    return dataclasses.replace(cell, config={**cell.config, **own})


@pytest.fixture(scope="module")
def done(digits, small):
    """All cells of digits and of a small linear problem, computed with very little effort."""
    request = Request((digits, small), "fast")
    kept = []
    for cell in Density().cells(request):
        config = cell.config
        if (
            config.get("K") in (4, 5)
            or config.get("density") == 0.2
            or 0.05 in config.get("changed", [0])[:1]
        ):
            continue  # enough without them
        kept.append(tiny(cell))
    return request, Results(Done(cell, cell.compute(cell.config, cell.dataset), 0.0) for cell in kept)


def test_rates_are_chosen_on_validation_rows(done):
    seen = 0
    for d in done[1]:
        for name in [n for n in d.result if n.startswith("rate")]:
            scores = d.result[name.replace("rate", "validation")]
            assert d[name] == d["rates"][int(np.argmax(scores))]
            seen += 1
    assert seen > 20


def test_a_cell_is_a_function_of_its_configuration(done):
    cell = next(d for d in done[1] if d.cell.config.get("contender") == "mixture")
    again = cell.cell.compute(cell.cell.config, cell.cell.dataset)
    for name, value in cell.result.items():
        np.testing.assert_array_equal(again[name], value)


def test_tables_hold_every_contender(done):
    table = tables.curve_table(done[1])
    on_digits = table[table["dataset"] == "digits"]
    for structure in ("weights", "neurons"):
        there = set(on_digits[on_digits["structure"] == structure]["contender"])
        assert there == set(tables.LABELS) - set(tables.ONLY_LINEAR)
    assert (table["worst"] <= table["mean"]).all()
    assert table["mean"].between(0, 1).all()
    assert not table.duplicated(["dataset", "structure", "contender", "density", "seed"]).any()
    areas = tables.area_table(table)
    one = areas[(areas["structure"] == "neurons") & (areas["contender"] == "fixed_random")].iloc[0]
    curve = on_digits[
        (on_digits["structure"] == "neurons")
        & (on_digits["contender"] == "fixed_random")
        & (on_digits["seed"] == one["seed"])
    ].sort_values("density")
    a, b, c, d = curve["mean"]
    by_hand = (0.5 * (a + b + c + d) * np.log(2) + 0.5 * (b + c) * np.log(2.5)) / np.log(10)
    assert one["area"] == pytest.approx(by_hand, rel=1e-12)


def test_findings_are_whole(done):
    request, cells = done
    found = Density().findings(request, cells)
    assert [f.name for f in found.figures] == [
        "density_weights", "density_neurons", "density_areas", "density_pruning",
        "density_finetuning", "density_linear",
    ]  # fmt: skip
    for figure in found.figures:
        figure.draw().draw_without_rendering()
    assert len(found.claims) == 2 * 10 + 4 + 1
    assert {c.source for c in found.claims} == {"beyond"}
    assert any("Left out" in choice and "images" in choice for choice in found.choices)
    assert set(found.tables) == {
        "density_curves", "density_areas", "density_areas_by_seed", "density_rates", "density_finetuning",
    }  # fmt: skip


def test_a_linear_file_alone_is_enough(small):
    request = Request((small,), "fast")
    cells = Results(Done(c, c.compute(c.config, c.dataset), 0.0) for c in Density().cells(request))
    found = Density().findings(request, cells)
    assert [f.name for f in found.figures] == ["density_linear"]
    assert len(found.claims) == 1


def test_blocks_of_a_fixed_partition_are_trained_alone(small):
    """f_D is separable: MAST's optimum, cut to a block, is that of the block's features by themselves."""
    for cell in linear.cells(Density(), Request((small,), "fast"))[:6]:
        result = cell.compute(cell.config, small)
        np.testing.assert_array_equal(result["matched"], result["scratch"])
        if cell.config["K"] == 1:
            assert result["plain"] == result["matched"] == result["magnitude"]
        if cell.config["K"] == cell.config["one"]:
            np.testing.assert_array_equal(result["matched"], result["fixed"])


def test_fine_tuning_starts_from_half_of_the_classes(digits):
    v = finetuning.pretrained(digits, 10, 64, 0)
    rows = digits.parts().test
    with torch.no_grad():
        said = v(rows.x).argmax(1)
    assert int(said.max()) < 5  # it has never seen the others
    assert float((said == rows.y)[rows.y < 5].double().mean()) > 0.9
    config = TINY | {"epochs": 10}
    share = finetuning.adapted(config, digits, "chosen", 0.1, seed=0, rate=1e-2)
    old = dict(v.named_parameters())
    changed = torch.cat([(p != old[n]).flatten() for n, p in share.named_parameters() if p.dim() > 1])
    assert 0.05 < float(changed.double().mean()) < 0.1 + 5 * np.sqrt(0.09 / len(changed))


# ---- claims --------------------------------------------------------------------------------------


def table_of(levels):
    """Two seeds and four densities; a level for each contender that falls with the density."""
    rows = [
        {
            "dataset": "made", "structure": "weights", "contender": contender, "density": p, "seed": seed,
            "draws": 2, "mean": level * p**0.1 + 0.001 * seed, "worst": level * p**0.2,
        }
        for contender, level in levels.items() for p in (1.0, 0.5, 0.2, 0.1) for seed in (0, 1)
    ]  # fmt: skip
    return pandas.DataFrame(rows)


def verdicts(**levels):
    base = dict.fromkeys(tables.LABELS, 0.5) | levels
    table = table_of({name: level for name, level in base.items() if name not in tables.ONLY_LINEAR})
    found = claims(table, tables.area_table(table), pandas.DataFrame())
    return {claim.claim: claim.holds for claim in found}


def test_claims_are_decided_by_numbers():
    words = {
        "at every density": ("fixed_random", "plain_random"),
        "Training with the keep that is run": ("sparser_random", "fixed_random"),
        "One mixture": ("mixture_random", "fixed_random"),
        "better than one trained with dropout": ("fixed_random", "dropout_random"),
        "worst random submodel": ("fixed_random", "dropout_random"),
        "as good as a plain network pruned": ("mixture_random", "plain_magnitude"),
        "can be pruned by magnitude further": ("fixed_magnitude", "plain_magnitude"),
        "Nested": ("nested", "mixture_random"),
    }
    for text, (first, second) in words.items():
        for high, low, expected in ((first, second, True), (second, first, False)):
            found = verdicts(**{high: 0.7, low: 0.6})
            (held,) = [value for claim, value in found.items() if text in claim]
            assert held is expected, (text, high)
    assert not any(verdicts()[c] for c in verdicts() if "better" in c)  # equal is not better
    for gap, expected in ((0.04, True), (0.08, False)):
        found = verdicts(scratch=0.5 + gap)
        (close,) = [value for claim, value in found.items() if "come close" in claim]
        assert close is expected
    for loss, expected in ((0.01, True), (0.03, False)):
        (little,) = [v for c, v in verdicts(scratch=0.5 + loss).items() if "costs little" in c]
        assert little is expected


def test_area_of_a_constant_is_the_constant():
    assert area([0.05, 0.3, 1.0], [0.7, 0.7, 0.7]) == pytest.approx(0.7, rel=1e-15)
    straight = np.log([0.05, 0.2, 1.0])  # linear in log p: the mean of the ends
    assert area([0.05, 0.2, 1.0], straight) == pytest.approx(np.log(0.05) / 2, rel=1e-14)


@pytest.mark.slow
def test_the_fast_run_ends_in_a_report(tmp_path):
    from mast.experiments.reproduce import reproduce

    page = reproduce("density", tmp_path, effort="fast", jobs=1)
    assert "Accuracy against density" in page.read_text()
    assert (tmp_path / "numbers" / "density_areas.csv").exists()
