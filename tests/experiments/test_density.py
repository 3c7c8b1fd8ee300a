"""Accuracy against density: the parts agree with slow readable twins, and numbers decide the claims."""

# ruff: noqa: E402

import dataclasses

import numpy as np
import pandas
import pytest

torch = pytest.importorskip("torch")

from mast.cells import Cell, Done
from mast.errors import DataError
from mast.experiments.accuracy import accuracy
from mast.experiments.datasets import halves, logistic
from mast.experiments.density import linear, situations
from mast.experiments.density.cells import CHOOSING, cells, effort, scores_of
from mast.experiments.density.contenders import CONTENDERS, PACKET, random_cut, sketch_of, trained
from mast.experiments.density.data import (
    FILES,
    FOLDER,
    LENGTH,
    SYMBOLS,
    TEXTS,
    ClassRows,
    Labelled,
    Parts,
    find,
    text_rows,
)
from mast.experiments.density.networks import (
    DESIGNS,
    Chain,
    KeyedDropout,
    Recipe,
    network,
    train,
)
from mast.experiments.density.search import START, climb, rung
from mast.experiments.density.situations import GOALS, LABELS, SITUATIONS, claims
from mast.experiments.density.study import Density
from mast.experiments.experiment import Request, Results
from mast.nn import Neurons, sparsify
from mast.objectives import Logistic
from mast.sketches import PermK, RandK


@pytest.fixture(scope="module")
def digits() -> Labelled:
    (dataset,) = find("normal", "digits", None)
    assert isinstance(dataset, Labelled)
    return dataset


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
    assert [d.name for d in find("normal", None, tmp_path)] == ["digits", "a1a"]
    (images,) = find("normal", "images", tmp_path)
    assert images.load()[0].shape == (80, 48)
    parts = images.parts()
    assert [tuple(part.x.shape) for part in parts] == [(48, 3, 2, 2), (12, 3, 2, 2), (20, 3, 2, 2)]
    whole = np.concatenate([x, x[:20]]).reshape(80, 2, 2, 2, 2, 3).mean(axis=(2, 4)) / 255
    halved = np.concatenate([part.x.double().numpy()[:, 0] for part in parts])
    before, after = whole[..., 0].ravel(), halved.ravel()
    line = np.polyfit(np.sort(before), np.sort(after), 1)  # standardised: a line of the halved pixels
    np.testing.assert_allclose(np.sort(after), np.polyval(line, np.sort(before)), atol=1e-5)
    np.savez(tmp_path / FOLDER / FILES["features"], nothing=x)
    assert [d.name for d in find("normal", None, tmp_path)] == ["digits", "features", "a1a"]
    assert [d.name for d in find("fast", None, tmp_path)] == ["digits", "a1a"]


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
    layer, x = KeyedDropout(0.7, seed=5, number=1), torch.ones(400, 500)
    first, second = layer(x), layer(x)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    for out in (first, second):
        assert abs(float(out.mean()) - 1) < 5 * np.sqrt(0.3 / 0.7 / x.numel())
    agree = float(((first > 0) == (second > 0)).double().mean())  # independent: .7² + .3²
    assert abs(agree - 0.58) < 5 * np.sqrt(0.58 * 0.42 / x.numel())
    assert torch.equal(KeyedDropout(0.7, seed=5, number=1)(x), first)
    assert not torch.equal(KeyedDropout(0.7, seed=5, number=2)(x), first)
    assert torch.equal(layer.eval()(x), x)


def test_starts_have_their_variance_and_names_do_not_depend_on_dropout():
    design = Chain(200, (300, 100))
    model = network(design, seed=1)
    weight = model.get_submodule("layer1").weight
    assert float(weight.detach().var()) == pytest.approx(2 / 300, rel=5 * np.sqrt(2 / weight.numel()))
    assert set(network(design, 1, dropout_keep=0.5).state_dict()) == set(model.state_dict())
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


@pytest.mark.parametrize("kind", ["noise", "mast"])
def test_parts_of_a_batch_add_up_to_it(digits, kind):
    """Without randomness (keep 1) they train as the whole batch does; with it, parts have other draws."""
    config = {"kind": kind, "structure": "weights", "batch": 64, "epochs": 1}

    def weights(keep, parts):
        model = trained(config, digits, 3, {"rate": 1e-3, "keep": keep, "parts": parts})
        return model.layer0.weight.detach()

    same, other = ((weights(keep, 1.0) - weights(keep, 4.0)).abs().median() for keep in (1.0, 0.5))
    assert same < 1e-5  # the median: Adam makes a step of full length out of a gradient that is only rounding
    assert other > 1e-3


def test_weights_decay(digits):
    sizes = []
    for decay in (0.0, 10.0):
        model = network(Chain(64, (8,)), seed=0)
        train(model, digits.parts().train, Recipe(1, 64, 1e-2, 0, decay))
        sizes.append(float(model.get_submodule("layer0").weight.detach().norm()))
    assert sizes[1] < 0.9 * sizes[0]


# ---- the search ----------------------------------------------------------------------------------


def test_ladders_are_followed_until_their_best_lies_inside():
    """A peak far from the start, on three axes at once: found, with both neighbours of each axis tried."""
    peak = {"rate": rung("rate", -4), "keep": 0.85, "decay": rung("decay", 7)}
    asked = []

    def score(setting):
        asked.append(setting)
        return 1 / (1 + sum(abs(np.log10(0.01 + setting[a]) - np.log10(0.01 + peak[a])) for a in peak))

    best, tried = climb(score, ["rate", "keep", "decay"])
    assert best == peak
    assert [setting for setting, _ in tried] == asked
    assert len({tuple(s.values()) for s in asked}) == len(asked)  # none twice
    for axis, near in {
        "rate": [rung("rate", -5), rung("rate", -3)],
        "keep": [0.7, 1.0],
        "decay": [rung("decay", 6), rung("decay", 8)],
    }.items():
        for value in near:
            assert peak | {axis: value} in asked


def test_a_search_begins_with_what_is_trained():
    """A local peak in the middle is left, because a trained network stands on a higher one."""
    heights = {3e-3: 0.5, 1e-1: 0.8, 3e-1: 0.9}
    best, tried = climb(lambda s: heights.get(s["rate"], 0.1), ["rate"], [{"rate": 1e-1}])
    assert best == {"rate": 3e-1}
    assert len(tried) == 5  # the middle, the trained one, and the neighbours of the way up
    assert climb(lambda s: heights.get(s["rate"], 0.1), ["rate"])[0] == {"rate": 3e-3}


def test_a_scanned_axis_has_no_hidden_hill():
    heights = {0.3: 0.5, 10.0: 0.8}
    score = lambda s: heights.get(s["decay"], 0.1)  # noqa: E731
    assert climb(score, ["rate", "decay"])[0]["decay"] == 0.3
    assert climb(score, ["rate", "decay"], scanned=["decay"])[0]["decay"] == 10.0


def test_ladders_have_no_ends_but_natural_ones():
    assert climb(lambda s: s["keep"], ["keep"])[0] == {"keep": 1.0}
    assert climb(lambda s: -s["decay"], ["decay"])[0] == {"decay": 0.0}
    assert climb(lambda s: 0.5, ["rate", "keep"])[0] == {
        "rate": rung("rate", START["rate"]),
        "keep": rung("keep", START["keep"]),
    }


# ---- contenders ----------------------------------------------------------------------------------


def test_packets_are_lost_whole():
    sk = sparsify(network(DESIGNS["digits"], 0), random_cut("packets", 0.25, DESIGNS["digits"]))
    for draw in sk.draw(3).values():
        assert draw.count == 2 * PACKET
        assert np.unique(draw.indices // PACKET).size == 2


def config_of(kind, **given):
    found = [c for c in CONTENDERS if c["kind"] == kind and given.items() <= c.items()]
    return {"epochs": 3, "adapting": 2, "batch": 64, "draws": 2, **found[0]}


@pytest.mark.parametrize(("kind", "share"), [("top share", 0.2), ("pruned once", 0.2)])
def test_chosen_cuts_have_their_share(digits, kind, share):
    config = config_of(kind, share=share)
    model = trained(config, digits, 0, {"rate": 3e-3, "decay": 0.0})
    for name, p in model.named_parameters():
        if p.dim() > 1:
            assert int((p != 0).sum()) == round(share * p.numel()), name


def test_deltas_change_each_weight_in_one_member_only(digits):
    config = config_of("deltas")
    from mast.experiments.density.contenders import pretrained

    v = dict(pretrained(digits, 3, 64, 0).named_parameters())
    model = trained(config, digits, 0, {"rate": 3e-3})
    sk = sparsify(
        model,
        sketch_of(config, {}, 0, DESIGNS["digits"]),
        shift={n: p.detach() for n, p in v.items() if p.dim() > 1},
    )
    changed = sum(
        (sk.submodel(member=i).get_submodule("layer1").weight != v["layer1.weight"]).int() for i in range(20)
    )
    assert sk.members == 20
    assert int(changed.max()) == 1
    assert float((changed == 1).double().mean()) > 0.7


def test_only_validation_rows_and_seeds_of_their_own_choose(digits, monkeypatch):
    """The judged seeds and the test rows are met after the choice, with the chosen setting only."""
    from mast.experiments.density import cells as module

    met = []

    def spy(config, dataset, part, use, seed, setting, model):
        met.append((part, seed, tuple(setting.items())))
        return np.array([0.5 - abs(setting["rate"] - 0.01)])

    monkeypatch.setattr(module, "scores_of", spy)
    monkeypatch.setattr(module, "trained", lambda *_: None)
    config = effort(Request((digits,), "normal"), "digits") | config_of("full")
    config["seeds"], config["choosing"] = [0, 1], list(CHOOSING)
    result = module.tuned(config, digits)
    tested = [(seed, setting) for part, seed, setting in met if part == "test"]
    assert result["whole: rate"] == 0.01
    assert tested == [(0, (("rate", 0.01),)), (1, (("rate", 0.01),))]
    assert {seed for part, seed, _ in met if part == "validation"} == set(CHOOSING)
    assert not set(CHOOSING) & set(effort(Request((digits,), "full"), "digits")["seeds"])


def test_scores_are_those_of_submodels(digits):
    config, design = config_of("plain"), DESIGNS["digits"]
    model = network(design, seed=0).eval()
    rows = digits.parts().test
    with torch.no_grad():
        by_hand = float((model(rows.x).argmax(1) == rows.y).double().mean())
    assert scores_of(config, digits, "test", "whole", 0, {}, model).tolist() == [by_hand]
    assert scores_of(config, digits, "test", "weights 1.0", 0, {}, model).tolist() == [by_hand] * 2
    first, again = (scores_of(config, digits, "test", "units 0.5", 4, {}, model) for _ in range(2))
    assert first.shape == (2,)
    assert first.tolist() == again.tolist()
    nested = config_of("nested")
    members = scores_of(nested, digits, "test", "members", 0, {}, model)
    assert members.shape == (len(nested["shares"]),)


# ---- cells, tables, findings ---------------------------------------------------------------------


def tiny(cell: Cell) -> Cell:
    little = {"epochs": 1, "adapting": 1, "draws": 2, "seeds": [0, 1]}
    own = {name: value for name, value in little.items() if name in cell.config}
    return dataclasses.replace(cell, config={**cell.config, **own})


def one(score, setting):
    """A search that tries one setting."""
    return setting, [(setting, score(setting))]


@pytest.fixture(scope="module")
def done(digits, small):
    """All cells of digits and of a small linear problem, with very little effort and one setting each."""
    request = Request((digits, small), "fast")
    with pytest.MonkeyPatch.context() as patch:
        from mast.experiments.density import cells as module

        middle = {"rate": 3e-3, "keep": 0.5, "decay": 0.1, "parts": 4.0}
        patch.setattr(
            module, "climb", lambda score, axes, *_: one(score, {axis: middle[axis] for axis in axes})
        )
        found = [
            Done(cell, cell.compute(cell.config, cell.dataset), 0.0)
            for cell in map(tiny, Density().cells(request))
            if cell.config.get("K") not in (4, 5)  # enough without them
        ]
    return request, Results(found)


def test_a_cell_is_a_function_of_its_configuration(done):
    cell = next(d for d in done[1] if d.cell.config.get("kind") == "usual start").cell
    first, again = (cell.compute({**cell.config, "seeds": [0]}, cell.dataset) for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(again[name], value)


def test_every_goal_is_decided(done):
    table = situations.situation_table(done[1])
    assert list(dict.fromkeys(table["situation"])) == list(SITUATIONS)
    assert set(table["contender"]) == set(LABELS)
    assert (table["worst"] <= table["mean"]).all()
    assert table["mean"].between(0, 1).all()
    assert not table.duplicated(["dataset", "situation", "contender", "seed"]).any()
    found = list(claims(table))
    assert len(found) == len(GOALS)
    assert {goal.situation for goal in GOALS} == set(SITUATIONS)
    curves = situations.curve_table(done[1])
    there = table[(table["situation"] == "units 0.2") & (table["contender"] == "mast")].set_index("seed")[
        "mean"
    ]
    same = curves[
        (curves["chosen_for"] == "units 0.2") & (curves["contender"] == "mast") & (curves["density"] == 0.2)
    ]
    assert there.to_dict() == same.set_index("seed")["mean"].to_dict()


def test_text_has_no_curves(done):
    """Where nothing is cut at random, as on text, the tables and figures of the other situations stand."""
    request, results = done
    lists = Results(d for d in results if d.cell.config.get("uses") == ["members"])
    found = Density().findings(request, lists)
    assert [figure.name for figure in found.figures] == ["density_situations"]
    assert len(found.tables["density_curves"]) == 0
    assert len(found.claims) > 0


def test_findings_are_whole(done):
    request, results = done
    found = Density().findings(request, results)
    assert [f.name for f in found.figures] == [
        "density_situations", "density_weights", "density_units", "density_linear",
    ]  # fmt: skip
    for figure in found.figures:
        figure.draw().draw_without_rendering()
    assert len(found.claims) == len(GOALS) + 1
    assert {c.source for c in found.claims} == {"beyond"}
    assert any("Left out" in choice and "images" in choice for choice in found.choices)
    settings = found.tables["density_settings"]
    assert len(settings) == sum(len(c["uses"]) for c in CONTENDERS)


def test_other_data_have_fewer_questions():
    features, images = Labelled("features", "", ""), Labelled("images", "", "")
    asked = cells(Density(), Request((features,), "normal"))
    assert not any("packets" in use or "units" in use for cell in asked for use in cell.config["uses"])
    alone = {c.config["share"] for c in asked if c.config["kind"] == "alone"}
    assert alone == {0.1, 0.2, 0.5}  # the ceilings of the nested sizes are there
    kinds = {c.config["kind"] for c in asked}
    assert {"plain", "dropout", "mast", "list", "nested", "deltas", "full"} <= kinds
    without = {c.config["kind"] for c in cells(Density(), Request((images,), "normal"))}
    assert kinds - without == {"deltas", "one delta", "full"}


def test_scores_of_single_networks_are_not_chosen_by_one_seed(digits):
    """One network on the validation rows of digits would choose by chance."""
    steady = {"alone", "list", "nested", "top share", "pruned once"}
    for cell in cells(Density(), Request((digits,), "normal")):
        assert len(cell.config["choosing"]) == (5 if cell.config["kind"] in steady else 1)
        assert not set(cell.config["choosing"]) & set(cell.config["seeds"])


def test_a_linear_file_alone_is_enough(small):
    request = Request((small,), "fast")
    results = Results(Done(c, c.compute(c.config, c.dataset), 0.0) for c in Density().cells(request))
    found = Density().findings(request, results)
    assert [f.name for f in found.figures] == ["density_linear"]
    assert len(found.claims) == 1


def test_blocks_of_a_fixed_partition_are_trained_alone(small):
    """f_D is separable: MAST's optimum, cut to a block, is that of the block's features by themselves."""
    (A, b), (A_test, b_test) = halves(small, 0, 0.25)
    l2 = logistic(small, 100.0, 0, 0.25).l2
    for cell in linear.cells(Density(), Request((small,), "fast"))[:6]:
        result = cell.compute(cell.config, small)
        alone = []
        for _, draw in PermK(cell.config["K"], seed=cell.config["permutation"]).support(12):
            block = draw.indices  # with more blocks than weights, some are empty
            x = Logistic(A[:, block], b, l2=l2).minimizer() if block.size else np.zeros(0)
            alone.append(accuracy(A_test[:, block], b_test, x))
        np.testing.assert_array_equal(result["matched"], alone)
        if cell.config["K"] == 1:
            assert result["plain"] == result["matched"] == result["magnitude"]
        if cell.config["K"] == cell.config["one"]:
            np.testing.assert_array_equal(result["matched"], result["one_model"])


# ---- claims --------------------------------------------------------------------------------------


def held(goal, ours, rival, dataset="made"):
    """Whether a goal's claim holds with these accuracies; the other rivals are far behind."""
    levels = dict.fromkeys(goal.rivals, 0.1) | {goal.ours: ours, goal.rivals[-1]: rival}
    rows = [
        {
            "dataset": dataset,
            "situation": goal.situation,
            "contender": name,
            "seed": seed,
            "mean": level + 0.02 * seed,
        }
        for name, level in levels.items()
        for seed in (-1, 1)
    ]
    (claim,) = claims(pandas.DataFrame(rows))
    return claim.holds


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.situation)
def test_claims_are_decided_by_the_best_rival_and_the_goals_own_margin(goal):
    assert held(goal, 0.6 + goal.lead + 1e-6, 0.6)
    assert not held(goal, 0.6 + goal.lead - 1e-6, 0.6)
    for dataset, least in goal.least.items():
        assert held(goal, least + 1e-6, 0.2, dataset)
        assert not held(goal, least - 1e-6, 0.2, dataset)


@pytest.mark.slow
def test_the_fast_run_ends_in_a_report(tmp_path):
    from mast.experiments.reproduce import reproduce

    page = reproduce("density", tmp_path, effort="fast", jobs=1)
    assert "Accuracy against density" in page.read_text()
    assert (tmp_path / "numbers" / "density_situations.csv").exists()


def test_batch_norm_statistics_are_taken_from_rows_of_all_classes():
    """Files of images are in order of their classes: their first 512 rows would all be of one."""
    rows = ClassRows(torch.arange(1000.0)[:, None], torch.arange(1000) // 100)
    seen = Parts(rows, rows, rows).some(50).flatten().long() // 100
    assert torch.bincount(seen).tolist() == [5] * 10


def test_text_is_split_by_documents():
    """No row that is tested on comes from a document that is trained on, and what follows is one further."""
    for name in TEXTS:
        x, y, owner = text_rows(name)
        assert x.shape == y.shape == (len(owner), LENGTH)
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        assert x.min() >= 0
        assert x.max() < SYMBOLS
        (data,) = find("normal", name, None)
        learned, _, tested = ({row.numpy().tobytes() for row in part.x} for part in data.parts())
        assert len(tested & learned) <= 0.02 * len(tested)  # empty lines, and what all files say


def test_a_transformer_reads_text():
    """A million weights; what follows a character does not depend on later ones; half of it runs alone."""
    (data,) = find("normal", "code", None)
    model, rows = network(DESIGNS["code"], seed=0), data.parts().test.x[:2]
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 1.1e6
    changed = rows.clone()
    changed[:, 40:] = 0
    torch.testing.assert_close(model(changed)[:, :40], model(rows)[:, :40])
    small = sparsify(model, Neurons(RandK(0.5)), example=rows).submodel(0)
    assert sum(p.numel() for p in small.parameters()) < 0.6e6
    assert small(rows).shape == (2, LENGTH, SYMBOLS)
