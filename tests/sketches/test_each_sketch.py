"""What is particular to one sketch: its arguments, its law, its behaviour across nodes."""

import math

import numpy as np
import pytest
from scipy import stats

import mast
from mast.errors import ArgumentError, NotDiagonalError

FIVE_SIGMA = 2 * stats.norm.sf(5)


class TestBernoulli:
    def test_scales_by_exactly_the_probability_it_keeps_with(self):
        draw = mast.Bernoulli(0.7).draw(100)
        t = round(0.7 * 2**32)
        assert set(draw.scales) == {1 / (t / 2**32)}
        assert mast.Bernoulli(0.7).keep == t / 2**32
        assert 1 / (t / 2**32) == mast.Bernoulli(0.7).constants(3).L_D

    @pytest.mark.parametrize("keep", [0, -1, 1.1, math.nan, [0.5, 0.0], "half", [], [[0.5]], None, 1e-11])
    def test_refuses(self, keep):
        with pytest.raises(ArgumentError):
            mast.Bernoulli(keep)

    def test_names_the_bad_coordinate(self):
        with pytest.raises(ArgumentError, match="coordinate 2"):
            mast.Bernoulli([0.5, 0.5, 1.5])

    def test_refuses_another_dimension(self):
        with pytest.raises(ArgumentError, match="2 coordinates"):
            mast.Bernoulli([0.5, 0.5]).draw(3)

    def test_unscaled_has_the_same_masks(self):
        scaled, unscaled = mast.Bernoulli(0.4).draw(50, seed=3), mast.UnscaledBernoulli(0.4).draw(50, seed=3)
        assert np.array_equal(scaled.indices, unscaled.indices)
        assert (unscaled.scales == 1).all()


class TestRandK:
    @pytest.mark.parametrize(
        ("k", "d", "count"), [(3, 10, 3), (0.25, 10, 3), (0.24, 10, 2), (1e-9, 10, 1), (1.0, 7, 7)]
    )
    def test_counts(self, k, d, count):
        draw = mast.RandK(k).draw(d, step=5)
        assert draw.indices.size == count
        assert set(draw.scales) == {d / count}

    @pytest.mark.parametrize("k", [0, -2, 0.0, 1.5, True, "3", math.nan])
    def test_refuses(self, k):
        with pytest.raises(ArgumentError):
            mast.RandK(k)

    def test_refuses_to_keep_more_than_there_is(self):
        for ask in ("constants", "draw", "support", "second_moment"):
            with pytest.raises(ArgumentError, match=r"RandK\(4\)"):
                getattr(mast.RandK(4), ask)(3)

    @pytest.mark.parametrize("d", [10**5, 10**8, 10**12])
    def test_in_large_dimensions(self, d):
        draw = mast.RandK(1000).draw(d, step=3)
        assert np.unique(draw.indices).size == 1000
        assert draw.indices[0] >= 0
        assert draw.indices[-1] < d
        assert stats.kstest(draw.indices / d, "uniform").pvalue > FIVE_SIGMA


class TestPermK:
    @pytest.mark.parametrize(("k", "d"), [(3, 10), (10, 3), (1, 5), (5, 5), (7, 119), (4, 70_001)])
    def test_the_partition_has_the_sizes_of_array_split(self, k, d):
        blocks = mast.PermK(k, seed=2).partition(d)
        assert [b.size for b in blocks] == [b.size for b in np.array_split(np.arange(d), k)]
        assert np.array_equal(np.sort(np.concatenate(blocks)), np.arange(d))

    def test_the_partition_depends_on_its_own_seed_only(self):
        sketch = mast.PermK(4, seed=1)
        blocks = {tuple(b.tolist()) for b in sketch.partition(12)}
        seen = {tuple(sketch.draw(12, seed=s, step=t).indices.tolist()) for s in range(9) for t in range(9)}
        assert seen == blocks
        assert blocks != {tuple(b.tolist()) for b in mast.PermK(4, seed=2).partition(12)}

    @pytest.mark.parametrize("redraw", [False, True])
    @pytest.mark.parametrize(("k", "d"), [(4, 12), (4, 10), (5, 3)])
    def test_nodes_of_a_group_get_disjoint_blocks(self, k, d, redraw):
        sketch = mast.PermK(k, redraw=redraw)
        for step in range(10):
            for group in range(3):
                kept = [sketch.draw(d, seed=6, step=step, node=group * k + i).indices for i in range(k)]
                assert np.array_equal(np.sort(np.concatenate(kept)), np.arange(d))

    @pytest.mark.parametrize("node", [0, 2, 7])
    def test_each_node_alone_gets_a_uniform_block(self, node):
        sketch = mast.PermK(blocks=[[0], [1, 2, 3], [4, 5]])  # of different sizes
        first = [sketch.draw(6, step=t, node=node).indices[0] for t in range(9000)]
        counts = [first.count(i) for i in (0, 1, 4)]
        assert sum(counts) == 9000
        assert stats.chisquare(counts).pvalue > FIVE_SIGMA

    def test_groups_are_independent(self):
        sketch = mast.PermK(3)
        table = np.zeros((3, 3))
        for t in range(9000):
            a, b = (sketch.draw(3, step=t, node=n).indices[0] for n in (0, 3))
            table[a, b] += 1
        assert stats.chi2_contingency(table).pvalue > FIVE_SIGMA

    def test_redrawn_evenly_it_is_rand_k_in_law(self):
        redrawn, rand = mast.PermK(4, redraw=True), mast.RandK(3)
        np.testing.assert_allclose(redrawn.second_moment(12), rand.second_moment(12), rtol=1e-14)
        assert redrawn.support_size(12) == rand.support_size(12)
        assert np.abs(mast.PermK(4).second_moment(12) - rand.second_moment(12)).max() > 1

    def test_a_part_of_a_huge_redrawn_partition(self):
        sketch = mast.PermK(1000, redraw=True)
        a, b = (sketch.draw(10**8, step=1, node=n) for n in (0, 999))
        assert a.indices.size == b.indices.size == 10**5
        assert np.intersect1d(a.indices, b.indices).size == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"k": 0}, "at least one"),
            ({}, "either"),
            ({"k": 2, "blocks": [[0], [1]]}, "either"),
            ({"k": 2.0}, "whole"),
            ({"blocks": [[0, 1], [1, 2]]}, "overlap: coordinate 1"),
            ({"blocks": [[0], [2]]}, "1 is in none"),
            ({"blocks": [[0], [-1]]}, "negative"),
            ({"blocks": [[0.5], [1]]}, "whole numbers"),
            ({"blocks": []}, "no coordinates"),
            ({"blocks": [[0], [1]], "redraw": True}, "no seed, no redraw"),
            ({"k": 2, "seed": -1}, "seed"),
        ],
    )
    def test_refuses(self, arguments, message):
        with pytest.raises(ArgumentError, match=message):
            mast.PermK(**arguments)

    def test_blocks_fix_the_dimension(self):
        with pytest.raises(ArgumentError, match="3 coordinates"):
            mast.PermK(blocks=[[0], [1, 2]]).draw(4)


class TestGaussian:
    @pytest.mark.parametrize("sigma", [0, -1, math.inf, math.nan])
    def test_refuses(self, sigma):
        with pytest.raises(ArgumentError, match="sigma"):
            mast.Gaussian(sigma)

    def test_scales_are_normal(self):
        c = mast.Gaussian(0.5).draw(100_000, seed=1).scales
        assert stats.kstest((c - 1) / 0.5, "norm").pvalue > FIVE_SIGMA


class TestMatrices:
    @pytest.mark.parametrize(
        ("matrices", "message"),
        [
            ([], "at least one"),
            ([np.eye(2) * 1.01], "mean of the matrices must be I.*0.01"),
            ([np.eye(2), np.eye(3)], "shape"),
            ([[[np.nan]]], "NaN"),
            ([np.ones(3)], "2 dimension"),
        ],
    )
    def test_refuses(self, matrices, message):
        with pytest.raises(ArgumentError, match=message):
            mast.Matrices(matrices)

    def test_weights(self):
        sketch = mast.Matrices([[[60.0]], [[(1 - 1 / 60) / (1 - 1 / 3600)]]], [1 / 3600, 1 - 1 / 3600])
        assert sketch.constants(1).L_max == pytest.approx(3600)
        with pytest.raises(ArgumentError, match="sum to 1"):
            mast.Matrices([[[1.0]], [[1.0]]], [0.5, 0.6])


class TestGrouped:
    def test_members_live_or_die_together(self):
        sketch = mast.Grouped(mast.Bernoulli(0.5), ["a", "b", "a", "c", "b"])
        for step in range(50):
            c = sketch.draw(5, step=step).diagonal()
            assert c[0] == c[2]
            assert c[1] == c[4]

    def test_lists_of_members_and_labels_say_the_same(self):
        labels = mast.Grouped(mast.RandK(1), [0, 1, 0, 2])
        members = mast.Grouped(mast.RandK(1), [[0, 2], [1], [3]])
        for step in range(20):
            assert np.array_equal(labels.draw(4, step=step).diagonal(), members.draw(4, step=step).diagonal())

    @pytest.mark.parametrize("groups", [[], [[0], [0]], [[0], []], [[0], [2]]])
    def test_refuses(self, groups):
        with pytest.raises(ArgumentError):
            mast.Grouped(mast.RandK(1), groups)

    def test_refuses_a_sketch_that_does_not_fit(self):
        with pytest.raises(ArgumentError, match="2 coordinates"):
            mast.Grouped(mast.Bernoulli([0.5, 0.5]), [0, 1, 2])
        with pytest.raises(NotDiagonalError):
            mast.Grouped(mast.Matrices([[[0.0, 1], [1, 0]], [[2.0, -1], [-1, 2]]]), [0, 1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: mast.Gaussian("a"),
        lambda: mast.Gaussian(None),
        lambda: mast.PermK(blocks=3),
        lambda: mast.Matrices(3),
        lambda: mast.Grouped(mast.Identity(), 5),
        lambda: mast.Grouped(mast.Identity(), [0, [1]]),
        lambda: mast.Mixture(mast.Identity()),
        lambda: mast.Nodes(3),
        lambda: mast.guarantee(3),
        lambda: mast.sketches.parse(3),
        lambda: mast.Problem(mast.Quadratic([[1.0]], [1.0]), mast.RandK(2)),
    ],
)
def test_nonsense_gets_an_error_of_ours(make):
    with pytest.raises(mast.MastError):
        make()


def test_many_blocks_and_many_probabilities_take_no_time():
    assert len(mast.PermK(20_000).partition(20_000)) == 20_000
    assert mast.Bernoulli(np.full(10**6, 0.5)).draw(10**6).indices.size > 0


class TestMixture:
    def test_components_are_independent_of_the_choice(self):
        # were the choice and the component's mask made of the same words, they would be correlated
        sketch = mast.Mixture([mast.Bernoulli(0.5), mast.Bernoulli(0.25)])
        rows = [sketch.draw(1, step=t).diagonal()[0] for t in range(20_000)]
        counts = [rows.count(2.0), rows.count(4.0), rows.count(0.0)]
        assert stats.chisquare(counts, [5000, 2500, 12500]).pvalue > FIVE_SIGMA

    def test_a_component_of_weight_zero_does_not_count(self):
        assert mast.Mixture([mast.Identity(), mast.Gaussian(1.0)], [1, 0]).constants(2).L_max == 1

    def test_at_another_density_it_has_scales_if_its_components_have_any(self):
        plain = mast.Mixture([mast.UnscaledBernoulli(0.3), mast.Nested([0.5, 1.0], scaled=False)])
        assert plain.at(0.5).constants(4) == mast.UnscaledBernoulli(0.5).constants(4)
        scaled = mast.Mixture([mast.Bernoulli(0.3), mast.Nested([0.5, 1.0])])
        assert scaled.at(0.5).constants(4) == mast.RandK(0.5).constants(4)

    @pytest.mark.parametrize(("sketches", "weights"), [([], None), ([1], None), ([mast.Identity()], [0.5])])
    def test_refuses(self, sketches, weights):
        with pytest.raises(ArgumentError):
            mast.Mixture(sketches, weights)


class TestExcept:
    @pytest.mark.parametrize("kept", [[], [0.5], [[1]], "a"])
    def test_refuses_what_is_no_list_of_coordinates(self, kept):
        with pytest.raises(ArgumentError, match="kept"):
            mast.Except(mast.Identity(), kept)

    def test_refuses_what_does_not_fit(self):
        with pytest.raises(ArgumentError, match="coordinate 4"):
            mast.Except(mast.Identity(), [4]).draw(4)
        with pytest.raises(ArgumentError, match="every coordinate"):
            mast.Except(mast.Identity(), [0, -1]).draw(2)
        with pytest.raises(ArgumentError, match="takes a sketch"):
            mast.Except("permk", [0])
