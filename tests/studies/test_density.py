"""Accuracy against density: how settings are chosen, what contenders are cut to, what decides the claims."""

# ruff: noqa: E402

import numpy as np
import pandas
import pytest

torch = pytest.importorskip("torch")

from mast.errors import DataError
from mast.experiments.accuracy import accuracy
from mast.experiments.datasets import halves, logistic
from mast.experiments.experiment import Request, Results
from mast.nn import sparsify
from mast.objectives import Logistic
from mast.sketches import PermK
from mast.support.cells import Done
from studies.density import cells as module
from studies.density import linear, situations
from studies.density.cells import CHOOSING, DENSITIES, density_cells, effort, scores_of, tuned
from studies.density.contenders import CONTENDERS, PACKET, pretrained, random_cut, sketch_of, trained
from studies.density.data import FILES, FOLDER, TEXTS, ClassRows, Labelled, Parts, find, text_rows
from studies.density.networks import DESIGNS, Chain, KeyedDropout, Recipe, network, train
from studies.density.search import START, climb, rung
from studies.density.situations import GOALS, LABELS, SITUATIONS, situation_claims
from studies.density.study import Density


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
    means = train_rows.x.double().mean(dim=0)
    torch.testing.assert_close(means, torch.zeros(64).double(), atol=1e-5, rtol=0)
    assert test.x.mean(dim=0).abs().max() > 0.02


def test_images_are_halved_and_bad_files_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("MAST_DATA", raising=False)
    (tmp_path / FOLDER).mkdir()
    file = tmp_path / FOLDER / FILES["images"]
    x = (np.arange(60 * 4 * 4 * 3) % 251).reshape(60, 4, 4, 3).astype(np.uint8)
    arrays = {"x_train": x, "y_train": np.arange(60) % 10, "x_test": x[:20], "y_test": np.arange(20) % 10}
    np.savez(file, **arrays)
    (images,) = find("normal", "images", tmp_path)
    assert [tuple(part.x.shape) for part in images.parts()] == [(n, 3, 2, 2) for n in (48, 12, 20)]
    np.savez(file, **arrays | {"y_train": np.zeros(3)})
    (bad,) = find("normal", "images", tmp_path)
    with pytest.raises(DataError, match="4 dimensions"):
        bad.load()
    with pytest.raises(DataError, match="--data-dir"):
        find("normal", "features", None)


def test_text_is_split_by_documents():
    """No row that is tested on comes from a document that is trained on, and what follows is one further."""
    for name in TEXTS:
        x, y, _ = text_rows(name)
        np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
        (data,) = find("normal", name, None)
        learned, _, tested = ({row.numpy().tobytes() for row in part.x} for part in data.parts())
        assert len(tested & learned) <= 0.02 * len(tested)  # empty lines, and what all files say


def test_batch_norm_statistics_are_taken_from_rows_of_all_classes():
    """Files of images are in order of their classes: their first 512 rows would all be of one."""
    rows = ClassRows(torch.arange(1000.0)[:, None], torch.arange(1000) // 100)
    seen = Parts(rows, rows, rows).some(50).flatten().long() // 100
    assert torch.bincount(seen).tolist() == [5] * 10


# ---- training and search -------------------------------------------------------------------------


def test_dropout_is_unbiased_and_keyed():
    layer, x = KeyedDropout(0.7, seed=5, number=1), torch.ones(400, 500)
    first, second = layer(x), layer(x)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    assert abs(float(first.mean()) - 1) < 5 * np.sqrt(0.3 / 0.7 / x.numel())
    agree = float(((first > 0) == (second > 0)).double().mean())  # independent: .7² + .3²
    assert abs(agree - 0.58) < 5 * np.sqrt(0.58 * 0.42 / x.numel())
    assert torch.equal(KeyedDropout(0.7, seed=5, number=1)(x), first)
    assert torch.equal(layer.eval()(x), x)


def test_training_is_a_function_of_its_recipe(digits):
    def end(seed, decay=0.0):
        model = network(Chain(64, (8,)), seed=0)
        train(model, digits.parts().train, Recipe(1, 64, 1e-2, seed, decay))
        return model.get_submodule("layer0").weight.detach()

    assert torch.equal(end(0), end(0))
    assert not torch.equal(end(0), end(1))  # other batches
    assert end(0, decay=10.0).norm() < 0.9 * end(0).norm()


def test_parts_of_a_batch_add_up_to_it(digits):
    """Without randomness (keep 1) they train as the whole batch does; with it, parts have other draws."""
    config = {"kind": "mast", "structure": "units", "batch": 64, "epochs": 1}

    def weights(keep, parts):
        model = trained(config, digits, 3, {"rate": 1e-3, "keep": keep, "parts": parts})
        return model.layer0.weight.detach()

    same, other = ((weights(keep, 1.0) - weights(keep, 4.0)).abs().median() for keep in (1.0, 0.5))
    assert same < 1e-5  # the median: Adam makes a step of full length out of a gradient that is only rounding
    assert other > 1e-3


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
    near = {"rate": [rung("rate", -5), rung("rate", -3)], "keep": [0.7, 1.0]}
    for axis, values in near.items():
        assert all(peak | {axis: value} in asked for value in values)


def test_a_search_begins_with_what_is_trained_or_scanned():
    """A local peak in the middle is left where a trained network, or a scan, stands on a higher one."""
    rates, decays = {3e-3: 0.5, 1e-1: 0.8, 3e-1: 0.9}, {0.3: 0.5, 10.0: 0.8}
    by_rate = lambda s: rates.get(s["rate"], 0.1)  # noqa: E731
    by_decay = lambda s: decays.get(s["decay"], 0.1)  # noqa: E731
    assert climb(by_rate, ["rate"], [{"rate": 1e-1}])[0] == {"rate": 3e-1}
    assert climb(by_rate, ["rate"])[0] == {"rate": 3e-3}
    assert climb(by_decay, ["rate", "decay"])[0]["decay"] == 0.3
    assert climb(by_decay, ["rate", "decay"], scanned=["decay"])[0]["decay"] == 10.0
    assert climb(lambda s: s["keep"], ["keep"])[0] == {"keep": 1.0}
    assert climb(lambda s: 0.5, ["rate"])[0] == {"rate": rung("rate", START["rate"])}


# ---- contenders ----------------------------------------------------------------------------------


def config_of(kind, **given):
    found = [c for c in CONTENDERS if c["kind"] == kind and given.items() <= c.items()]
    return {"epochs": 3, "adapting": 2, "batch": 64, "draws": 2, **found[0]}


def test_packets_are_lost_whole():
    sk = sparsify(network(DESIGNS["digits"], 0), random_cut("packets", 0.25, DESIGNS["digits"]))
    for draw in sk.draw(3).values():
        assert draw.count == 2 * PACKET
        assert np.unique(draw.indices // PACKET).size == 2


def test_chosen_cuts_have_their_share(digits):
    model = trained(config_of("top share"), digits, 0, {"rate": 3e-3, "decay": 0.0})
    for name, p in model.named_parameters():
        if p.dim() > 1:
            assert int((p != 0).sum()) == round(0.2 * p.numel()), name


def test_deltas_change_each_weight_in_one_member_only(digits):
    config = config_of("deltas")
    v = dict(pretrained(digits, 3, 64, 0).named_parameters())
    model = trained(config, digits, 0, {"rate": 3e-3})
    shift = {name: p.detach() for name, p in v.items() if p.dim() > 1}
    sk = sparsify(model, sketch_of(config, {}, 0, DESIGNS["digits"]), shift=shift)
    members = [sk.submodel(member=i).get_submodule("layer1").weight for i in range(20)]
    changed = sum((weight != v["layer1.weight"]).int() for weight in members)
    assert sk.members == 20
    assert int(changed.max()) == 1
    assert float((changed == 1).double().mean()) > 0.7


def test_only_validation_rows_and_seeds_of_their_own_choose(digits, monkeypatch):
    """The judged seeds and the test rows are met after the choice, with the chosen setting only."""
    met = []

    def spy(config, dataset, part, use, seed, setting, model):
        met.append((part, seed, tuple(setting.items())))
        return np.array([0.5 - abs(setting["rate"] - 0.01)])

    monkeypatch.setattr(module, "scores_of", spy)
    monkeypatch.setattr(module, "trained", lambda *_: None)
    config = effort(Request((digits,), "normal"), "digits") | config_of("full")
    config["seeds"], config["choosing"] = [0, 1], list(CHOOSING)
    result = tuned(config, digits)
    tested = [(seed, setting) for part, seed, setting in met if part == "test"]
    assert result["whole: rate"] == 0.01
    assert tested == [(0, (("rate", 0.01),)), (1, (("rate", 0.01),))]
    assert {seed for part, seed, _ in met if part == "validation"} == set(CHOOSING)
    for cell in density_cells(Density(), Request((digits,), "full")):
        assert not set(cell.config["choosing"]) & set(cell.config["seeds"])


def test_scores_are_those_of_submodels(digits):
    config, model, rows = config_of("plain"), network(DESIGNS["digits"], seed=0).eval(), digits.parts().test
    with torch.no_grad():
        by_hand = float((model(rows.x).argmax(1) == rows.y).double().mean())
    assert scores_of(config, digits, "test", "whole", 0, {}, model).tolist() == [by_hand]
    assert scores_of(config, digits, "test", "weights 1.0", 0, {}, model).tolist() == [by_hand] * 2
    nested = config_of("nested")
    members = scores_of(nested, digits, "test", "members", 0, {}, model)
    assert members.shape == (len(nested["shares"]),)


@pytest.mark.parametrize("kind", ["noise", "chances", "list"])
def test_a_contender_is_trained_tuned_and_judged(digits, kind, monkeypatch):
    """One setting, one epoch: from the configuration to scores of every use."""
    middle = {"rate": 3e-3, "keep": 0.5, "decay": 0.1, "parts": 4.0}

    def one(score, axes, *_):
        setting = {axis: middle[axis] for axis in axes}
        return setting, [(setting, score(setting))]

    monkeypatch.setattr(module, "climb", one)
    config = config_of(kind) | {"epochs": 1, "adapting": 1, "longer": 1, "seeds": [0], "choosing": [100]}
    result = tuned(config, digits)
    for use in config["uses"]:
        assert result[f"{use}: scores"].shape[0] == 1
        assert ((result[f"{use}: scores"] > 0) & (result[f"{use}: scores"] < 1)).all()


# ---- tables, findings and claims -----------------------------------------------------------------


def made_up(cell) -> Done:
    """A cell whose scores are known: 0.5 and 0.7 for two submodels, 0.1 more with the second seed."""
    if cell.compute is not tuned:
        return Done(cell, cell.compute(cell.config, cell.dataset), 0.0)
    result = {}
    for use in cell.config["uses"]:
        sizes = len(cell.config.get("shares", (1, 2)))
        scores = np.linspace(0.5, 0.7, sizes) + np.array([[0.0], [0.1]])
        result |= {f"{use}: {axis}": 1.0 for axis in cell.config["axes"]}
        result |= {f"{use}: tried": np.ones((1, len(cell.config["axes"]) + 1)), f"{use}: scores": scores}
        if use.partition(" ")[0] in ("weights", "units"):
            result[f"{use}: curves"] = np.repeat(scores[:, None], len(DENSITIES), axis=1)
    return Done(cell, result, 0.0)


@pytest.fixture(scope="module")
def done(digits, small):
    request = Request((digits, small), "fast")
    return request, Results(map(made_up, Density().cells(request)))


def test_every_goal_is_decided(done):
    request, results = done
    table = situations.situation_table(results)
    assert list(dict.fromkeys(table["situation"])) == list(SITUATIONS)
    assert set(table["contender"]) == set(LABELS)
    assert not table.duplicated(["dataset", "situation", "contender", "seed"]).any()
    half = table[(table["situation"] == "weights 0.5") & (table["contender"] == "mast")]
    np.testing.assert_allclose(half["mean"], [0.6, 0.7])
    np.testing.assert_allclose(half["worst"], [0.5, 0.6])
    smallest = table[(table["situation"] == "size 0.1") & (table["contender"] == "nested")]
    np.testing.assert_allclose(smallest["mean"], [0.5, 0.6])  # the first of the four sizes
    found = Density().findings(request, results)
    assert len(found.claims) == len(GOALS) + 1
    assert {goal.situation for goal in GOALS} == set(SITUATIONS)
    assert len(found.tables["density_settings"]) == sum(len(c["uses"]) for c in CONTENDERS)
    pytest.importorskip("matplotlib")
    assert [f.name for f in found.figures] == [
        *("density_situations", "density_weights", "density_units", "density_linear"),
    ]
    for figure in found.figures:
        figure.draw().draw_without_rendering()


def test_text_has_no_curves_and_a_linear_file_no_situations(done):
    request, results = done
    lists = Results(d for d in results if d.cell.config.get("uses") == ["members"])
    assert [f.name for f in Density().findings(request, lists).figures] == ["density_situations"]
    alone = Request(request.datasets[1:], "fast")
    blocks = Results(d for d in results if d.cell.compute is linear.blocks)
    assert [f.name for f in Density().findings(alone, blocks).figures] == ["density_linear"]


def test_other_data_have_fewer_questions():
    def kinds(name):
        return {
            c.config["kind"] for c in density_cells(Density(), Request((Labelled(name, "", ""),), "normal"))
        }

    assert {"plain", "dropout", "mast", "list", "nested", "deltas", "full"} <= kinds("features")
    assert kinds("features") - kinds("images") == {"deltas", "one delta", "full"}


def test_blocks_of_a_fixed_partition_are_trained_alone(small):
    """f_D is separable: MAST's optimum, cut to a block, is that of the block's features by themselves."""
    (A, b), (A_test, b_test) = halves(small, 0, 0.25)
    l2 = logistic(small, 100.0, 0, 0.25).l2
    for cell in linear.linear_cells(Density(), Request((small,), "fast"))[:6]:
        result = cell.compute(cell.config, small)
        alone = []
        for _, draw in PermK(cell.config["K"], seed=cell.config["permutation"]).support(12):
            block = draw.indices  # with more blocks than weights, some are empty
            x = Logistic(A[:, block], b, l2=l2).minimizer() if block.size else np.zeros(0)
            alone.append(accuracy(A_test[:, block], b_test, x))
        np.testing.assert_array_equal(result["matched"], alone)
        if cell.config["K"] == 1:
            assert result["plain"] == result["matched"] == result["magnitude"]


def held(goal, ours, rival, dataset="made"):
    """Whether a goal's claim holds with these accuracies; the other rivals are far behind."""
    levels = dict.fromkeys(goal.rivals, 0.1) | {goal.ours: ours, goal.rivals[-1]: rival}
    where = {"dataset": dataset, "situation": goal.situation}
    rows = [
        where | {"contender": name, "seed": seed, "mean": level + 0.02 * seed}
        for name, level in levels.items()
        for seed in (-1, 1)
    ]
    (claim,) = situation_claims(pandas.DataFrame(rows))
    return claim.holds


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.situation)
def test_claims_are_decided_by_the_best_rival_and_the_goals_own_margin(goal):
    assert held(goal, 0.6 + goal.lead + 1e-6, 0.6)
    assert not held(goal, 0.6 + goal.lead - 1e-6, 0.6)
    for dataset, least in goal.least.items():
        assert held(goal, least + 1e-6, 0.2, dataset)
        assert not held(goal, least - 1e-6, 0.2, dataset)
