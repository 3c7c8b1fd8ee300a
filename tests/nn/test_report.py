"""Reports: scores, costs and the plain network beside them; as table, text and picture."""

from __future__ import annotations

import copy

import pandas as pd
import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.nn.costs import flops, latencies, measure, sizes  # noqa: E402
from mast.randomness import Key, Purpose  # noqa: E402


def keys(sk, draws):
    """The draws that reports score: part of what a seed decides."""
    root = Key(sk.seed).child(0, Purpose.ESTIMATE).seed
    return [Key(root, step=i) for i in range(draws)]


def total(model):
    """A score that every weight moves."""
    return float(sum(p.detach().double().abs().sum() for p in model.parameters()))


@pytest.mark.parametrize("shift", [None, "init"])
def test_scores_and_costs_of_single_weights(models, shift):
    model, _ = models.mlp()
    plain = copy.deepcopy(model)
    sk = mast.nn.sparsify(model, mast.RandK(0.5), shift=shift, seed=4)
    for p in model.parameters():
        p.data.add_(0.25)
    report = sk.report(total, densities=[1.0, 0.25], draws=5, plain=plain)
    at = mast.nn.sparsify(copy.deepcopy(model), sk.sketch.at(0.25), shift=sk.shift)
    scores = pd.Series([total(at.submodel(key)) for key in keys(sk, 5)])
    whole, quarter = report.to_dict("records")
    for name, value in {
        "mean": scores.mean(), "lowest": scores.min(), "highest": scores.max(), "median": scores.median(),
        "quartile_1": scores.quantile(0.25), "quartile_3": scores.quantile(0.75),
    }.items():  # fmt: skip
        assert quarter[name] == pytest.approx(value, rel=1e-12)
    assert whole["mean"] == total(model)
    assert whole["plain_mean"] == total(plain)
    theirs = mast.nn.sparsify(plain, sk.sketch.at(0.25), shift=sk.shift)
    expected = pd.Series([total(theirs.submodel(key)) for key in keys(sk, 5)])
    assert quarter["plain_mean"] == pytest.approx(expected.mean(), rel=1e-12)
    others = sum(p.numel() for p in model.parameters()) - sk.dim
    kept = mast.RandK(0.25).count(sk.dim)
    assert quarter["parameters"] == others + (kept if shift is None else sk.dim)
    assert quarter["bytes"] == 4 * quarter["parameters"]
    assert whole["parameters"] == others + sk.dim
    if shift is None:
        assert "delta" not in report
    else:
        assert (report["delta"].tolist(), report["delta_bytes"].tolist()) == (
            [sk.dim, kept],
            [4 * sk.dim, 4 * kept],
        )
        assert f"{kept} numbers" in str(report)


def test_with_a_shift_all_parameters_count(tmp_path):
    """Where nothing is kept the model has v, which is not 0."""
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 100, bias=False)
    sk = mast.nn.sparsify(model, mast.RandK(89), shift="init")
    model.weight.data.add_(0.25)
    (row,) = sk.report(total, densities=[0.0089], draws=2).to_dict("records")
    assert row["parameters"] == int(sk.submodel(0).weight.count_nonzero()) == 10_000
    assert (row["bytes"], row["delta"], row["delta_bytes"]) == (40_000, 89, 356)
    path = sk.save_delta(tmp_path / "a.delta")
    assert mast.nn.read_delta(path).about["kept"] == row["delta"]


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_structured_sketches_are_scored_as_smaller_models(models, name):
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=inputs[0])
    report = sk.report(
        total, densities=[1.0, 0.5], draws=3, example=inputs[0], plain=model,
        calibrate=list(inputs) if name == "cnn" else None,
    )  # fmt: skip
    full, half = report.to_dict("records")
    subs = [sk.submodel(key) for key in keys(sk, 3)]
    assert half["mean"] == pytest.approx(sum(map(total, subs)) / 3, rel=1e-12)
    assert half["parameters"] == round(sum(measure(sub).parameters for sub in subs) / 3)
    assert half["flops"] == flops(subs[0], inputs[0])
    assert half["flops"] < full["flops"] == flops(model, inputs[0])
    assert half["seconds"] > 0
    assert half["plain_mean"] == half["mean"]  # the same weights


def test_operations_are_those_of_a_typical_draw():
    """Draws of Bernoulli keep more or fewer units: the first may be far from what is usual."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
    example = torch.ones(1, 8)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.3)))
    report = sk.report(total, densities=[0.3], draws=9, example=example)
    counts = [sum(p.numel() for p in sk.submodel(key).parameters()) for key in keys(sk, 9)]
    mean = sum(counts) / 9
    typical = min(range(9), key=lambda i: abs(counts[i] - mean))
    assert counts[typical] != counts[0]
    assert report["flops"][0] == flops(sk.submodel(keys(sk, 9)[typical]), example)
    assert "whole model" not in str(report)
    sk.remove()
    single = mast.nn.sparsify(model, mast.Bernoulli(0.3)).report(
        total, densities=[0.3], draws=1, example=example
    )
    assert "operations and times are those of the whole model" in str(single)


def test_with_a_shift_units_are_masked_instead(models):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), shift="init")
    report = sk.report(total, densities=[0.5], draws=2, example=inputs[0])
    assert report["mean"][0] == total(model)  # x = v
    assert report["flops"][0] == flops(model, inputs[0])


def test_a_report_is_a_table_that_prints_and_draws(models):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))

    def accuracy(sub):
        return 0.5

    report = sk.report(accuracy, densities=[1.0, 0.5], draws=2, example=inputs[0], plain=model)
    assert isinstance(report, pd.DataFrame)
    assert type(report[["density"]]) is pd.DataFrame
    assert "<table" in report._repr_html_()
    text = str(report)
    assert "density  accuracy" in text
    assert "50%" in text
    assert "MFLOP" in text
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ax = report.plot()
    assert [line.get_text() for line in ax.get_legend().get_texts()] == ["trained sparse", "trained plainly"]
    assert len(ax.figure.axes) == 2
    assert report.plot(ax) is ax
    plt.close("all")


def test_scores_that_are_no_numbers_are_not_left_out(models):
    sk = mast.nn.sparsify(models.mlp()[0], mast.RandK(0.5))
    scores = iter([0.5, float("nan"), 0.25])
    (row,) = sk.report(lambda _: next(scores), densities=[0.5], draws=3).to_dict("records")
    assert pd.isna([row["mean"], row["median"], row["lowest"]]).all()


@pytest.mark.parametrize(("sketch", "chance"), [(mast.RandK(0.5), {0.5: 0.25}), (mast.Rolling(0.5), {})])
def test_the_chance_of_a_worse_draw_is_that_of_independent_ones(models, sketch, chance):
    sk = mast.nn.sparsify(models.mlp()[0], mast.nn.Neurons(sketch))
    assert sk.report(total, densities=[0.5], draws=3).chance_of_worse == chance


def test_another_network_is_refused(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    other = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 9))
    with pytest.raises(mast.MastError, match=r"(?s)not the same network.*size mismatch for 2\.weight"):
        sk.report(total, plain=other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluate": None}, "evaluate is a function"),
        ({"evaluate": lambda model: "good"}, "evaluate returns one number for a model, got 'good'"),
        ({"evaluate": lambda model: torch.ones(2)}, "evaluate returns one number"),
        ({"densities": 0.5}, "densities must be a list, got 0.5"),
        ({"densities": []}, "densities has no entries"),
        ({"plain": "model"}, "plain is the same network, trained plainly, got str"),
    ],
)
def test_what_is_not_understood_is_refused(models, options, message):
    sk = mast.nn.sparsify(models.mlp()[0], mast.Bernoulli(0.5))
    with pytest.raises(mast.MastError, match=message):
        sk.report(**{"evaluate": total, "draws": 2, **options})


# ---- what models cost --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (nn.Linear(5, 6), (4, 5), 2 * 4 * 5 * 6),
        (nn.Conv2d(3, 6, 3), (4, 3, 8, 8), 2 * 4 * 6 * 36 * 27),
        (nn.LSTM(5, 6), (4, 2, 5), 2 * 4 * 2 * 24 * (5 + 6)),
        (nn.GRU(5, 6), (4, 2, 5), 2 * 4 * 2 * 18 * (5 + 6)),
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            (2, 4, 8),
            # projections, scores and their use, output, two layers
            2 * (8 * 8 * 24 + 2 * 2 * 4 * 4 * 4 * 2 + 8 * 8 * 8 + 2 * 8 * 8 * 16),
        ),
    ],
    ids=["linear", "conv", "lstm", "gru", "transformer"],
)
def test_operations(module, shape, expected):
    module.train()
    assert flops(module, torch.randn(shape)) == expected
    assert module.training


def test_bilinear_operations():
    assert flops(nn.Bilinear(3, 4, 2), (torch.randn(5, 3), torch.randn(5, 4))) == 2 * 5 * 24


def test_times_leave_models_as_they_are():
    norm = nn.BatchNorm1d(3)
    before = copy.deepcopy(norm.state_dict())
    times = latencies([norm, nn.Identity()], torch.randn(4, 3))
    assert all(t > 0 for t in times)
    assert norm.training
    assert all(torch.equal(t, before[k]) for k, t in norm.state_dict().items())
    with pytest.raises(mast.MastError, match="example"):
        measure(norm, 3)


def test_an_example_may_be_a_dict(models):
    model, inputs = models.lstm()
    named = {"x": inputs[0]}
    assert flops(model, named) == flops(model, inputs[0]) == measure(model, named).flops
    report = mast.nn.sparsify(model, mast.Bernoulli(0.5)).report(lambda m: 0.0, [0.5], draws=1, example=named)
    assert report["flops"][0] == flops(model, inputs[0])


def test_sizes_of_models_and_files(models, tmp_path):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.RandK(0.1), shift="init")
    delta = sk.save_delta(tmp_path / "a.delta")
    sub = sk.submodel(0)
    file = mast.nn.save_submodel(sub, tmp_path / "a.safetensors")
    table = sizes({"whole": sub, "file": file, "delta": delta}, inputs[0]).set_index("name")
    assert table["kind"].tolist() == ["module", "submodel", "delta"]
    count = sum(p.numel() for p in sub.parameters())
    assert table["parameters"].tolist() == [count, count, count - sk.dim + mast.RandK(0.1).count(sk.dim)]
    assert table.loc["file", "bytes"] == file.stat().st_size
    assert table.loc["whole", "flops"] == flops(sub, inputs[0])
    assert table.loc["whole", "seconds"] > 0
    assert (
        table.loc[["file", "delta"], ["flops", "seconds"]].isna().all(axis=None)
    )  # they need a class to run
    with pytest.raises(mast.errors.DataError, match="cannot be read"):
        sizes({"absent": tmp_path / "absent"})


def test_the_plain_network_brings_its_own_statistics(models):
    """Buffers too are those of the plain network, not of the sparsified one."""
    model, _ = models.cnn()
    plain = copy.deepcopy(model)
    plain[1].running_mean.add_(1.0)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))

    def mean_of_means(sub):
        return float(sub[1].running_mean.mean())

    row = sk.report(mean_of_means, densities=[0.5], draws=3, plain=plain).iloc[0]
    assert (row["mean"], row["plain_mean"]) == (0.0, 1.0)
