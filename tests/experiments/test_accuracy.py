"""The accuracy figure: optima and accuracies against a computation that shares no code with it."""

import numpy as np
import pytest
import scipy.optimize

from mast.errors import ArgumentError
from mast.experiments import accuracy
from mast.experiments.datasets import halves, locate, split_rows
from mast.experiments.experiment import Results, standard_error
from mast.sketches import PermK
from mast.support.cells import Cell, Done

DATA = locate("a1a")


def block_optimum(A, b, l2, block):
    """argmin of the logistic loss over the weights of one block, by l-BFGS on dense arrays."""
    part = A.toarray()[:, block]

    def loss(y):
        z = b * (part @ y)
        slope = -b / (1 + np.exp(z))
        return np.logaddexp(0, -z).mean() + l2 / 2 * y @ y, part.T @ slope / b.size + l2 * y

    return scipy.optimize.minimize(loss, np.zeros(len(block)), jac=True, options={"gtol": 1e-10}).x


def config(K, permutation=0):
    return {"K": K, "permutation": permutation, "kappa": 100.0, "test_share": 0.25, "split_seed": 0}


@pytest.mark.parametrize("K", [2, 5])
def test_cell_equals_brute_force(small, K):
    cell = accuracy.sparsified(config(K, permutation=3), small)
    (A, b), (A_test, b_test) = halves(small, 0, 0.25)
    L0 = np.linalg.eigvalsh((A.T @ A).toarray())[-1] / (4 * b.size)
    l2 = L0 / 99
    whole = block_optimum(A, b, l2, np.arange(12))
    for k, block in enumerate(PermK(K, seed=3).partition(12)):
        # f_D splits by blocks: K times the block of x_D* minimises f over the weights of that block
        mast = block_optimum(A, b, l2, block)
        for model, weights in (("mast", mast), ("erm", whole[block])):
            margins = A_test.toarray()[:, block] @ weights
            assert abs(margins).min() > 1e-4 or np.isclose(margins, 0).any()
            right = np.where(margins > 0, 1, -1) == b_test
            assert cell[f"accuracy_{model}"][k] == right.mean()
            assert cell[f"ties_{model}"][k] == np.mean(margins == 0)
    assert cell["dense_erm"] == np.mean(np.where(A_test @ whole > 0, 1, -1) == b_test)
    assert max(cell["gradient_erm"], cell["gradient_mast"]) < 1e-12


def test_zero_margin_is_minus_one():
    assert accuracy.predicted_labels(np.array([1e-300, 0.0, -0.0, -1.0])).tolist() == [1, -1, -1, -1]


def test_empty_blocks_answer_minus_one(small):
    cell = accuracy.sparsified(config(K=20), small)  # 12 weights: eight blocks are empty
    empty = cell["kept"] == 0
    assert empty.sum() == 8
    assert (cell["ties_mast"][empty] == 1).all()
    assert (cell["accuracy_mast"][empty] == cell["negative"]).all()
    assert (cell["accuracy_erm"][empty] == cell["negative"]).all()


def test_split_is_a_partition_of_the_rows():
    train, test = split_rows(103, seed=4, test_share=0.25)
    assert (train.size, test.size) == (78, 25)
    assert sorted([*train, *test]) == list(range(103))
    assert not np.array_equal(test, split_rows(103, seed=5, test_share=0.25)[1])
    with pytest.raises(ArgumentError, match="3 rows cannot be split"):
        split_rows(3, seed=0, test_share=0.25)


def test_errors_are_those_of_other_rows_and_other_partitions():
    rng = np.random.default_rng(0)
    rows, partitions = rng.normal(size=(4000, 1, 60)), 0.2 * rng.normal(size=(4000, 8, 1))
    differences = rows + partitions
    stated = np.mean([standard_error(each) ** 2 for each in differences])
    assert stated == pytest.approx(differences.mean(axis=(1, 2)).var(), rel=5 * (2 / 4000) ** 0.5)


@pytest.mark.parametrize(("worse", "noise"), [(1, True), (9, False)])
def test_a_claim_that_fails_by_a_row_is_not_refuted(worse, noise):
    """Of ten test rows, the plain model is right more often on one, or on nine."""
    cells = []
    for K in accuracy.BLOCKS:
        share = np.where(np.arange(10) < worse, 0.5, 1.0)
        values = {
            "right_erm": np.full(10, K),
            "right_mast": K * share,
            "right_dense": np.ones(10, dtype=bool),
        }
        for model, mean in (("erm", 1.0), ("mast", share.mean())):
            values |= {f"accuracy_{model}": np.full(K, mean), f"ties_{model}": np.zeros(K)}
            values |= {f"dense_{model}": 1.0, f"gradient_{model}": 0.0}
        values["kept"] = np.ones(K)
        cells.append(Done(Cell("accuracy", 2, accuracy.sparsified, config(K), DATA), values, 0.0))
    claim = next(accuracy.accuracy_claims(Results(cells)))
    assert (claim.holds, claim.noise) == (False, noise)
