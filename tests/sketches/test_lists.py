"""Nested orders, rolling windows and lists of draws: sizes, probabilities, keys, and theory."""

import math

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError, BiasedSketchError, NoGuaranteeError, NotDiagonalError
from mast.randomness import Key
from mast.sketches.formats import describe, rebuild
from mast.sketches.lists import member_key, sample_layer


def quadratic(d=6):
    rows = np.random.default_rng(0).standard_normal((9, d))
    return mast.Quadratic(rows.T @ rows / 9 + 0.1 * np.eye(d), np.ones(d))


class TestNested:
    def test_keeps_a_rounded_share_of_one_order(self):
        sketch = mast.Nested([0.25, 0.5, 1.0], order="random", seed=3)
        order = sketch.places(10)
        kept = [set(draw.indices.tolist()) for _, draw in sketch.support(10)]
        assert [len(k) for k in kept] == [round(0.25 * 10), 5, 10]
        assert [k == set(order[: len(k)].tolist()) for k in kept] == [True] * 3

    def test_prefixes_are_the_default(self):
        for share, (_, draw) in zip((3, 5, 10), mast.Nested([0.3, 0.5, 1.0]).support(10), strict=True):
            assert draw.indices.tolist() == list(range(share))
        with pytest.raises(ArgumentError, match="order"):
            mast.Nested([0.5, 1.0], order="last")

    def test_unscaled_what_is_kept_stays_as_it_is(self):
        sketch = mast.Nested([0.25, 0.5, 1.0], [0.5, 0.2, 0.3], scaled=False)
        q = np.array([1.0, 1.0, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3])
        np.testing.assert_allclose(sketch.mean(8), q, rtol=1e-15)
        np.testing.assert_allclose(sketch.second_moment(8), np.minimum.outer(q, q), rtol=1e-15)
        c = sketch.constants(8)
        assert (c.L_D, c.mu_D, c.L_max, c.unbiased) == (1.0, pytest.approx(0.3, rel=1e-15), 1.0, False)
        assert mast.Nested([0.25, 0.5], scaled=False).constants(8).mu_D == 0
        for scaled in (True, False):  # S = I
            assert mast.Nested([1.0], scaled=scaled).constants(8) == mast.sketches.Constants(1.0, 1.0, 1.0)
        assert "unbiased=False" in repr(c)

    def test_one_problem_in_other_coordinates(self):
        """f_D of the scaled sketch at x is that of the unscaled one at y = x/q, and so are the minimisers."""
        f, shares = quadratic(), [0.3, 0.5, 1.0]
        scaled, unscaled = (mast.Problem(f, mast.Nested(shares, scaled=s)) for s in (True, False))
        q, x = mast.Nested(shares).keep(6), np.linspace(-1, 1, 6)
        assert scaled.value(x) == pytest.approx(unscaled.value(x / q), rel=1e-13)
        np.testing.assert_allclose(scaled.minimizer() / q, unscaled.minimizer(), rtol=1e-9)

    def test_the_bound_of_the_unscaled_sketch_holds_for_runs(self):
        problem = mast.Problem(quadratic(), mast.Nested([0.3, 0.5, 1.0], scaled=False))
        x, g = problem.minimizer(), mast.guarantee(problem)
        assert g.max_step_size() == pytest.approx(1 / problem.objective.smoothness)
        ends = [mast.minimize(problem, "dsgd", steps=200, seed=seed).x for seed in range(20)]
        bound = g.bound(g.max_step_size(), 200, r0sq=float(x @ x))
        assert np.mean([np.sum((end - x) ** 2) for end in ends]) < bound < math.inf

    def test_constants_and_moments(self):
        sketch = mast.Nested([0.5, 1.0], [0.25, 0.75])
        c = sketch.constants(4)
        assert (c.L_D, c.mu_D, c.L_max) == (1 / 0.75, 1.0, 1 / 0.75**2)
        keep = sketch.keep(4)
        assert sorted(keep.tolist()) == [0.75, 0.75, 1.0, 1.0]
        assert np.array_equal(sketch.second_moment(4), 1 / np.maximum.outer(keep, keep))
        assert sketch.share(4) == 0.25 * 0.5 + 0.75

    def test_the_whole_model_keeps_the_scales_of_its_coordinates(self):
        sketch = mast.Nested([0.5, 1.0])
        assert np.array_equal(sketch.support(4)[1][1].diagonal(), 1 / sketch.keep(4))
        assert np.array_equal(sketch.at(1.0).draw(4).diagonal(), 1 / sketch.keep(4))
        assert np.array_equal(sketch.at(0.5).draw(4).diagonal(), sketch.support(4)[0][1].diagonal())

    def test_shares_are_drawn_with_their_weights(self):
        sketch = mast.Nested([0.5, 1.0], [0.2, 0.8])
        whole = [sketch.draw(4, step=step).count == 4 for step in range(4000)]
        assert abs(np.mean(whole) - 0.8) < 5 * math.sqrt(0.8 * 0.2 / 4000)

    def test_in_other_coordinates_it_is_ordered_dropout(self):
        """f_D(x) = E f(m * y) with y = x / q, for the masks m of the shares."""
        f, sketch = quadratic(), mast.Nested([1 / 3, 1.0])
        x = np.linspace(-1, 1, 6)
        y = x / sketch.keep(6)
        masks = [draw.diagonal() != 0 for _, draw in sketch.support(6)]
        expected = np.mean([f.value(mask * y) for mask in masks])
        assert mast.Problem(f, sketch).value(x) == pytest.approx(expected, rel=1e-13)

    @pytest.mark.parametrize(
        "arguments",
        [([],), ([0.0, 1.0],), ([0.5, 1.5],), ([1.0, 0.5],), ([0.5, 0.5],), ([0.5, 1.0], [0.5]),
         ([0.5, 1.0], [0.5, 0.6]), ([0.5, 1.0], [0.0, 1.0]), ([0.5, math.nan],), ("half",), (None,)],
    )  # fmt: skip
    def test_refuses(self, arguments):
        with pytest.raises(ArgumentError):
            mast.Nested(*arguments)


class TestRolling:
    def test_moves_with_the_step_around_the_end(self):
        sketch = mast.Rolling(3)
        first = sketch.draw(7, seed=5, node=2)
        start = sketch.start(7, Key(5, 0, 2))
        assert set(first.indices.tolist()) == {start, (start + 1) % 7, (start + 2) % 7}
        for step in range(20):
            kept = set(sketch.draw(7, seed=5, node=2, step=step).indices.tolist())
            assert kept == {(start + step + i) % 7 for i in range(3)}

    def test_offsets_are_uniform(self):
        starts = [mast.Rolling(1).start(5, Key(seed)) for seed in range(5000)]
        counts = np.bincount(starts, minlength=5)
        assert np.abs(counts - 1000).max() < 5 * math.sqrt(5000 * 0.2 * 0.8)

    def test_constants(self):
        c = mast.Rolling(0.25).constants(10)
        assert (c.L_D, c.mu_D, c.L_max) == (5.0, 5.0, 25.0)  # round(2.5) is 2

    @pytest.mark.parametrize("k", [0, -1, 0.0, 1.5, True, "3", math.nan])
    def test_refuses(self, k):
        with pytest.raises(ArgumentError):
            mast.Rolling(k)

    def test_refuses_to_keep_more_than_there_is(self):
        with pytest.raises(ArgumentError, match=r"Rolling\(4\)"):
            mast.Rolling(4).draw(3)

    def test_no_statement_covers_a_run(self):
        problem = mast.Problem(quadratic(), mast.Rolling(2))
        for method in ("dsgd", "dsgd_sampled", "distributed"):
            with pytest.raises(NoGuaranteeError, match="Rolling"):
                mast.guarantee(problem, method)
        result = mast.minimize(problem, "dsgd", steps=3, step_size=1e-3)
        assert result.guarantee is None
        assert "Rolling" in result.note
        mast.guarantee(problem, "l_svrdsg")  # which draws its windows independently

    def test_inside_others_it_stays_dependent(self):
        assert not mast.Grouped(mast.Rolling(1), [0, 1, 0]).independent
        assert not mast.Mixture([mast.Rolling(1), mast.Identity()]).independent


class TestSampled:
    def test_its_constants_are_those_of_its_draws(self):
        sketch = mast.Sampled(mast.Bernoulli(0.5), 5, seed=3)
        draws = [draw for _, draw in sketch.support(6)]
        assert len(draws) == sketch.members == sketch.support_size(6) == 5
        c, squares = sketch.constants(6), np.mean([draw.diagonal() ** 2 for draw in draws], axis=0)
        assert (c.L_D, c.mu_D) == (pytest.approx(squares.max()), pytest.approx(squares.min()))
        assert c.L_max == max(draw.scales.max() ** 2 for draw in draws)

    def test_its_draws_are_those_of_the_sketch(self):
        inner = mast.RandK(2)
        for i, (_, draw) in enumerate(mast.Sampled(inner, 4, seed=9).support(6)):
            assert np.array_equal(draw.diagonal(), inner.draw(6, seed=9, index=i).diagonal())

    @pytest.mark.parametrize("redraw", [False, True])
    def test_whole_partitions_are_balanced(self, redraw):
        sketch = mast.Sampled(mast.PermK(3, redraw=redraw), 6)
        assert sketch.unbiased
        np.testing.assert_allclose(sketch.mean(7), np.ones(7), rtol=1e-15)
        assert not mast.Sampled(mast.PermK(3, redraw=redraw), 7).unbiased

    @pytest.mark.parametrize(
        ("inner", "n"),
        [
            (mast.Bernoulli(0.2), 20),
            (mast.Bernoulli([0.5, 0.25, 1.0] * 4), 4),
            (mast.RandK(3), 8),
            (mast.RandK(0.5), 6),
        ],
        ids=repr,
    )
    def test_balanced_every_coordinate_is_kept_equally_often(self, inner, n):
        sketch = mast.Sampled(inner, n, seed=5, balanced=True)
        assert sketch.unbiased
        np.testing.assert_allclose(sketch.mean(12), np.ones(12), rtol=1e-14)
        times = sum((draw.diagonal() > 0).astype(int) for _, draw in sketch.support(12))
        share = np.broadcast_to(inner.law(12).per_coordinate(inner.law(12).keep), 12)
        np.testing.assert_allclose(times, n * share, atol=1e-6)
        if isinstance(inner, mast.RandK):
            assert {draw.count for _, draw in sketch.support(12)} == {inner.count(12)}
        ours, law = sketch.constants(12), inner.constants(12)
        assert (ours.L_D, ours.mu_D, ours.L_max) == pytest.approx((law.L_D, law.mu_D, law.L_max), rel=1e-8)

    def test_a_draw_of_a_balanced_list_has_the_law_of_its_sketch(self):
        """Alone, a member is a Bernoulli mask: shares and pairs of coordinates agree, within five errors."""
        d, lists = 40, 500
        sketches = [mast.Sampled(mast.Bernoulli(0.25), 8, seed=s, balanced=True) for s in range(lists)]
        masks = np.array([sketch.member(d, 3).diagonal() > 0 for sketch in sketches])
        count = masks.size
        assert abs(masks.mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / count)
        both = (masks[:, ::2] & masks[:, 1::2]).mean()
        assert abs(both - 0.0625) < 5 * math.sqrt(0.0625 * 0.9375 / (count / 2))
        other = np.array([sketch.member(d, 4).diagonal() > 0 for sketch in sketches])
        shared = 2 / 8 * 1 / 7  # two of eight draws keep a coordinate
        assert abs((masks & other).mean() - shared) < 5 * math.sqrt(shared * (1 - shared) / count)

    def test_balanced_where_it_is_possible_it_changes_little(self):
        """The words that decide are the same: most coordinates of a long list stay with their draws."""
        plain, even = (mast.Sampled(mast.Bernoulli(0.5), 100, seed=2, balanced=b) for b in (False, True))
        same = [
            np.mean((a.diagonal() > 0) == (b.diagonal() > 0))
            for (_, a), (_, b) in zip(plain.support(50), even.support(50), strict=True)
        ]
        assert np.mean(same) > 0.9

    def test_theorem_1_covers_balanced_lists(self):
        f = quadratic()
        problem = mast.Problem(f, mast.Sampled(mast.Bernoulli(0.5), 4, balanced=True))
        g = mast.guarantee(problem)
        assert not any("off I" in note for note in g.assumptions)
        uneven = mast.guarantee(mast.Problem(f, mast.Sampled(mast.Bernoulli(0.5), 4, seed=1)))
        assert any("off I" in note for note in uneven.assumptions)
        assert problem.infimum() >= f.infimum()

    @pytest.mark.parametrize(
        ("inner", "n", "words"),
        [
            (mast.Bernoulli(0.2), 7, "whole number"),
            (mast.Bernoulli([0.5, 0.3]), 4, "0.3"),
            (mast.UnscaledBernoulli(0.5), 4, "Bernoulli and RandK"),
            (mast.PermK(2), 4, "balanced by themselves"),
        ],
        ids=repr,
    )
    def test_what_cannot_be_balanced_is_refused(self, inner, n, words):
        with pytest.raises(ArgumentError, match=words):
            mast.Sampled(inner, n, balanced=True)

    def test_subsets_are_balanced_in_whole_partitions_only(self):
        for k, n in ((5, 12), (3, 6)):
            with pytest.raises(ArgumentError, match="k must divide d"):
                mast.Sampled(mast.RandK(k), n, balanced=True).draw(12)
        assert mast.Sampled(mast.Bernoulli(0.5), 4, balanced=True).at(0.3).corrected

    def test_corrected_its_mean_is_one_wherever_something_is_kept(self):
        plain = mast.Sampled(mast.Bernoulli(0.3), 4, seed=1)
        corrected = mast.Sampled(mast.Bernoulli(0.3), 4, seed=1, corrected=True)
        ever = plain.mean(30) > 0
        assert 0 < ever.sum() < 30
        np.testing.assert_allclose(corrected.mean(30), ever.astype(float), rtol=1e-14)
        masks = [
            np.array_equal(a.indices, b.indices)
            for (_, a), (_, b) in zip(plain.support(30), corrected.support(30), strict=True)
        ]
        assert all(masks)

    def test_theory_uses_its_constants(self):
        f, sketch = quadratic(), mast.Sampled(mast.Bernoulli(0.5), 5, seed=4)
        c = sketch.constants(6)
        step = mast.guarantee(mast.Problem(f, sketch)).max_step_size()
        assert step == pytest.approx(1 / (f.smoothness * c.L_max))
        assert c.mu_D < 1
        with pytest.raises(BiasedSketchError):  # Theorem 1 needs E[S] = I
            mast.theory.problem_bounds(L_f=f.smoothness, mu_f=0.1, L_D=c.L_D, mu_D=c.mu_D)

    def test_the_bound_of_a_list_holds_for_a_run(self):
        f, sketch = quadratic(), mast.Sampled(mast.Bernoulli(0.7), 6, seed=2)
        problem = mast.Problem(f, sketch)
        x, g = problem.minimizer(), mast.guarantee(problem)
        ends = [mast.minimize(problem, "dsgd", steps=300, seed=seed).x for seed in range(20)]
        bound = g.bound(g.max_step_size(), 300, r0sq=float(x @ x))
        assert np.mean([np.sum((end - x) ** 2) for end in ends]) < bound < math.inf

    def test_long_lists_are_not_remembered(self):
        sketch = mast.Sampled(mast.RandK(3), 50)
        assert sketch.draw(10**9, seed=2).count == 3
        assert not sketch.draws.__self__._made[1]

    def test_refuses(self):
        with pytest.raises(ArgumentError):
            mast.Sampled(mast.Bernoulli(0.5), 0)
        with pytest.raises(ArgumentError):
            mast.Sampled(0.5, 3)
        with pytest.raises(NotDiagonalError):
            mast.Sampled(mast.Matrices([[[0.0, 1], [1, 0]], [[2.0, -1], [-1, 2]]]), 3)


LISTS = {
    "balanced": mast.Sampled(mast.Bernoulli(0.5), 4, seed=1, balanced=True),
    "nested": mast.Nested([0.2, 0.5, 1.0], [0.5, 0.3, 0.2], seed=4),
    "sampled": mast.Sampled(mast.Bernoulli(0.5), 7, seed=1, corrected=True),
    "blocks": mast.PermK(5, seed=2),
    "grouped": mast.Grouped(mast.PermK(3), [0, 1, 2, 0, 1, 2, 0, 1, 2, 2]),
}


@pytest.mark.parametrize("sketch", LISTS.values(), ids=LISTS)
def test_every_member_has_a_key(sketch):
    support = sketch.support(10)
    assert sketch.members == len(support)
    for i, (_, draw) in enumerate(support):
        drawn = sketch.sample(10, member_key(sketch, i))
        assert np.array_equal(drawn.diagonal(), draw.diagonal())
    with pytest.raises(ArgumentError, match="member"):
        member_key(sketch, len(support))


def test_what_is_no_list_has_no_members():
    for sketch in (mast.Bernoulli(0.5), mast.PermK(3, redraw=True), mast.RandK(2), mast.Rolling(2)):
        assert sketch.members is None
        with pytest.raises(ArgumentError, match="no list"):
            member_key(sketch, 0)


@pytest.mark.parametrize("sketch", [*LISTS.values(), mast.Rolling(0.3), mast.Nested([0.5, 1.0])], ids=repr)
def test_files_give_them_back(sketch):
    arrays = {}
    again = rebuild(describe(sketch, arrays), arrays)
    for step in range(5):
        drawn = again.draw(10, step=step).diagonal()
        assert np.array_equal(drawn, sketch.draw(10, step=step).diagonal())


def test_nested_orders_in_files_of_0_2_are_random():
    arrays = {}
    description = describe(mast.Nested([0.5, 1.0], order="random", seed=4), arrays)
    del description["order"], description["scaled"]
    old = rebuild(description, arrays)
    assert old.places(10).tolist() == mast.Nested([0.5, 1.0], order="random", seed=4).places(10).tolist()


@pytest.mark.parametrize(
    ("text", "sketch"),
    [
        ("nested:.25,.5,1", mast.Nested([0.25, 0.5, 1.0])),
        ("nested:25%,100%", mast.Nested([0.25, 1.0])),
        ("rolling:3", mast.Rolling(3)),
        ("rolling:30%", mast.Rolling(0.3)),
        ("sampled:4:permk:2:redraw", mast.Sampled(mast.PermK(2, redraw=True), 4)),
    ],
)
def test_texts(text, sketch):
    assert repr(mast.sketches.parse(text)) == repr(sketch)


@pytest.mark.parametrize(
    "text", ["nested", "nested:a", "rolling", "sampled:4", "sampled:x:permk:2", "sampled:4:x"]
)
def test_bad_texts(text):
    with pytest.raises(ArgumentError):
        mast.sketches.parse(text)


def test_nodes_train_on_nested_and_rolling_parts():
    parts = [mast.Nested([0.5, 1.0]), mast.Rolling(3), mast.Sampled(mast.RandK(2), 3, corrected=True)]
    nodes = mast.Nodes([mast.Problem(quadratic(), sketch) for sketch in parts])
    result = mast.minimize(nodes, "distributed", steps=2000, step_size=2e-3, seed=3)
    assert nodes.value(result.x) < nodes.value(np.zeros(6))
    assert nodes.value(result.x) - nodes.infimum() < 0.1 * (nodes.value(np.zeros(6)) - nodes.infimum())


@pytest.mark.parametrize("nodes", [False, True])
def test_coordinates_that_no_member_keeps_stay_at_the_shift(nodes):
    f = quadratic()
    sketch, v = mast.Sampled(mast.Bernoulli(0.3), 5, seed=0), np.full(6, 3.0)
    never = sketch.mean(6) == 0
    problem = mast.Problem(f, sketch, shift=v)
    problem = mast.Nodes([problem, problem]) if nodes else problem
    assert never.any()
    x = problem.minimizer()
    assert (x[never] == v[never]).all()
    assert np.abs(problem.gradient(x)).max() < 1e-10
    if not nodes:
        assert mast.minimize(problem, "gd", steps=20_000).trace["dist_sq"].iloc[-1] < 1e-12


def test_s_page_says_how_far_the_mean_of_a_list_is_from_I():
    f = quadratic()
    problem = mast.Problem(f, mast.Sampled(mast.Bernoulli(0.4), 7, seed=2))
    off = np.abs(problem.sketch.mean(6) - 1).max()
    for method in ("dsgd", "l_svrdsg", "s_page"):
        assert f"off I by up to {off:.3g}" in str(mast.guarantee(problem, method))
    balanced = mast.Problem(f, mast.Sampled(mast.Bernoulli(0.5), 4, balanced=True))
    assert "off I" not in str(mast.guarantee(balanced, "s_page"))


def test_nested_without_the_whole_says_what_is_missing():
    with pytest.raises(BiasedSketchError, match="share 1"):
        mast.guarantee(mast.Problem(quadratic(), mast.Nested([0.3, 0.5])))


def test_a_list_of_groups_has_the_constants_of_the_list():
    groups, listed = np.arange(6) % 3, mast.Sampled(mast.Bernoulli(0.4), 7)
    assert mast.Grouped(listed, groups).constants(6) == listed.constants(3)
    assert not listed.constants(3).unbiased
    assert mast.Sampled(mast.Bernoulli(0.4), 7, corrected=True).constants(3).unbiased


def test_a_mixture_of_lists_draws_what_its_support_has():
    mixture = mast.Mixture([mast.Sampled(mast.Bernoulli(0.5), 3), mast.Nested([0.5, 1.0])])
    support = {tuple(draw.diagonal()) for _, draw in mixture.support(8)}
    assert {tuple(mixture.draw(8, step=t).diagonal()) for t in range(40)} == support


def test_the_layers_of_a_network_share_a_component_and_a_member():
    lists = [mast.Sampled(mast.RandK(3), 4), mast.Sampled(mast.RandK(4), 4, seed=1)]
    mixture = mast.Mixture(lists)
    for step in range(10):
        counts = {sample_layer(mixture, 8, Key(0, step), layer).indices.size for layer in (1, 2, 3)}
        assert len(counts) == 1
    member = lists[0].member_of(Key(0, 5))
    drawn = sample_layer(lists[0], 8, Key(0, 5), 7)
    assert drawn.indices.tolist() == lists[0].member(8, member, 7).indices.tolist()
