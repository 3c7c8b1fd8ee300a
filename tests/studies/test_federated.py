"""The federations of all schemes: how rows are dealt, what a run counts, what decides the claims."""

import numpy as np
import pandas
import pytest

pytest.importorskip("torch")

from mast.distributed import scheme_of
from mast.errors import ArgumentError
from mast.experiments.experiment import Request, Results
from mast.randomness import Key
from mast.support.cells import Done
from studies.federated import page
from studies.federated.cells import (
    ALONE,
    CAPACITIES,
    LEFT_OUT,
    OURS,
    RIVALS,
    SHARED,
    Scored,
    deal,
    effort,
    federated,
    runs_on,
    shares,
)
from studies.federated.study import OUR_SCHEME, FederatedSchemes, scheme_claims


@pytest.fixture(scope="module")
def digits():
    (dataset,) = FederatedSchemes().find("normal", "digits", None)
    return dataset


def test_rows_are_dealt_once_and_unevenly():
    labels = np.repeat(np.arange(10), 100)
    for split in ("iid", "dirichlet"):
        rows = deal(labels, 20, split, Key(3))
        assert sorted(np.concatenate(rows)) == list(range(1000))
        counts = np.array([np.bincount(labels[own], minlength=10) for own in rows])
        most = counts.max(axis=0) / 100
        assert (most == 0.05).all() if split == "iid" else (most > 0.15).all()
    assert np.mean(shares(40)) == np.mean(CAPACITIES)


@pytest.mark.parametrize("scheme", ["fedavg", "mast_nested"])
def test_a_run_spends_its_bytes(digits, scheme):
    """Operations are three times those of a forward pass, per local step and client."""
    request = Request((digits,), "fast")
    config = effort(request, "digits") | {"scheme": scheme, "split": "dirichlet", "megabytes": 0.8}
    run = federated(config, digits, 1, 0.1, "validation")
    assert isinstance(run, Scored)
    assert run.accuracy.shape == (4, 5, 10)
    assert (np.diff(run.bytes) >= 0).all()
    assert 0.8e6 <= run.bytes[-1] <= 0.8e6 + 10 * 2 * 4 * 26_122 + 10_000
    if scheme == "fedavg":  # bytes are values to and fro, and headers; products have no biases
        clients = run.bytes[-1] / (2 * (4 * 26_122 + 64))
        assert run.operations[-1] == round(clients) * 5 * 3 * 16 * 2 * (64 * 128 + 128 * 128 + 128 * 10)
    again = federated(config, digits, 1, 0.1, "validation")
    assert (again.accuracy == run.accuracy).all()


def test_a_model_of_one_size_is_trained_by_all_who_can_hold_it(digits):
    """One of 1/8 has 16 hidden units per layer, and four of five clients; then all of it is scored."""
    common = effort(Request((digits,), "fast"), "digits") | {"scheme": "fedavg", "split": "iid"}
    run = federated(common | {"size": 0.125, "megabytes": 0.2}, digits, 1, 0.3, "validation")
    weights = 64 * 16 + 16 + 16 * 16 + 16 + 16 * 10 + 10
    rounds = run.bytes[-1] / (8 * 2 * (4 * weights + 64))
    assert rounds == round(rounds)
    assert run.accuracy.shape == (4, 1, 10)
    whole = federated(common | {"size": 1.0, "megabytes": 0.8}, digits, 1, 0.3, "validation")
    plain = federated(common | {"megabytes": 0.8}, digits, 1, 0.3, "validation")
    assert (whole.accuracy[:, 0] == plain.accuracy[:, 0]).all()  # the whole model is one of the sizes


def test_what_runs_in_the_end():
    assert runs_on(scheme_of("fjord"), 0.25).shares.tolist() == [0.25]
    assert runs_on(scheme_of("fedavg"), 0.5).shares.tolist() == [0.5]
    assert runs_on(scheme_of("fedrolex"), 0.5).share(8) == 0.5


def test_cells_and_data(digits):
    made = FederatedSchemes().cells(Request((digits,), "normal"))
    assert len(made) == 2 * (len({*RIVALS, *OURS}) + 5 + 4)
    assert OUR_SCHEME in OURS
    (images,) = FederatedSchemes().find("normal", "digit-images", None)
    assert images.parts().train.x.shape[1:] == (1, 8, 8)
    few = FederatedSchemes().cells(Request((images,), "normal"))
    assert len(few) == 2 * (len({*RIVALS, *OURS} - {*LEFT_OUT}) + 5)
    with pytest.raises(ArgumentError, match="digits, digit-images, features, images"):
        FederatedSchemes().find("normal", "a1a", None)


def made_up(cell):
    """A cell whose accuracies are known: 0.5 for a scheme, and its size for a model of one size."""
    size, seeds, clients = cell.config.get("size"), len(cell.config["seeds"]), cell.config["clients"]
    capacities = 5 if size is None else 1
    result = {}
    for use in ("whole", "sizes") if size is None else ("whole",):
        result |= {
            f"{use}: rate": 0.1,
            f"{use}: tried": np.array([[0.1, 0.5]]),
            f"{use}: bytes": np.full((seeds, 4), 1e6),
            f"{use}: operations": np.full((seeds, 4), 7.0),
            f"{use}: accuracy": np.full((seeds, 4, capacities), 0.5 if size is None else size),
            f"{use}: clients": np.full((seeds, clients), 0.5 if size is None else size),
        }
    return Done(cell, result, 1.0)


def test_models_of_one_size_stand_beside_the_schemes(digits):
    """Five of them are one rival: each client runs that of its capacity, and their bytes are added."""
    study, request = FederatedSchemes(), Request((digits,), "normal")
    found = study.findings(request, Results(made_up(cell) for cell in study.cells(request)))
    table = found.tables["federated"].set_index(["split", "scheme", "capacity"]).sort_index()
    assert [table.accuracy["iid", SHARED, c] for c in CAPACITIES] == list(CAPACITIES)
    assert table.worst_client["iid", SHARED, 1.0] == min(CAPACITIES)
    assert table.spread_over_clients["iid", SHARED, 1.0] == pytest.approx(np.std(CAPACITIES))
    curves = (
        found.tables["federated_curves"].set_index(["split", "scheme", "capacity"]).megabytes.sort_index()
    )
    assert set(curves["iid", SHARED]) == {5.0}
    assert set(curves["iid", ALONE]) == {1.0}
    rivals = [claim for claim in found.claims if "every rival" in claim.claim]
    assert ["of FedAvg, a model for each size" in claim.measured for claim in rivals[:2]] == [True, False]
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra `plots` is not installed")
    for figure in found.figures:
        lines = figure.draw().axes[0].get_legend_handles_labels()[1]
        assert "FedAvg, a model for each size" in lines
    pyplot.close("all")


def test_numbers_decide_the_claims():
    def table(ours, heterofl, seeds=(1, 2, 3)):
        rows = [
            {"dataset": "digits", "split": "iid", "capacity": c, "scheme": name, "seed": seed}
            | {"accuracy": {OUR_SCHEME: ours, "heterofl": heterofl}.get(name, 0.5) + 0.01 * seed}
            for c in CAPACITIES
            for name in (*RIVALS, SHARED, *OURS)
            for seed in seeds
        ]
        return list(scheme_claims(pandas.DataFrame(rows)))

    found = table(0.8, 0.7)
    assert len(found) == len(CAPACITIES) + 1
    assert all(claim.holds for claim in found[:-1])
    assert "outside" in found[0].measured
    assert not found[-1].holds  # FedRolex is not above HeteroFL
    close = table(0.8, 0.81)
    assert not any(claim.holds for claim in close[:-1])
    assert all(claim.noise for claim in close[:-1])
    assert not any(claim.noise for claim in table(0.7, 0.8)[:-1])
    alone = table(0.7, 0.8, seeds=(1,))[0]
    assert alone.noise  # one seed has no spread to be outside of
    assert "one seed" in alone.measured


def test_the_page_and_the_guide_show_what_the_numbers_say():
    results = pandas.read_csv(page.NUMBERS)
    assert page.page(results) == page.NUMBERS.parent.with_suffix(".md").read_text(encoding="utf-8")
    assert page.guide(results) in (page.DOCS / "federated.md").read_text(encoding="utf-8")


def test_the_best_of_a_column_is_bold_unless_it_has_all_the_bytes():
    rows = [("fedavg", 0.7), ("mast_nested", 0.8), (page.NOT_COMPARED, 0.9)]
    results = pandas.DataFrame(
        {"dataset": "digits", "megabytes": 1, "split": split, "capacity": size, "scheme": name}
        | {"accuracy": value, "lowest_seed": 0.6, "highest_seed": 0.625, "worst_client": 0.1}
        for split in page.SPLITS
        for name, value in rows
        for size in page.CAPACITIES
    )
    table = page.schemes(results, "digits", 1)
    assert "| FedAvg | .700 | .700 | .700 | .700 | .700 | .10 | .025 |" in table
    assert "| MAST, nested prefixes | **.800** |" in table
    assert "only* | .900 |" in table
