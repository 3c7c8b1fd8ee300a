"""The generator: published answers, the pinned layout, kernels against the reference, and uniformity."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import EXACT_SHUFFLE, LAYOUT, Key, Purpose, threshold
from mast.support import philox as compiled
from randomness import reference

KEY = Key(seed=0x123456789ABCDEF0, step=0x1234567890AB, node=7, index=9)

keys = st.builds(
    Key,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)


class TestKnownAnswers:
    """philox4x32-10 of the file kat_vectors that Random123 publishes."""

    VECTORS = (
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    )

    @pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
    def test_reference(self, counter, key, expected):
        words = reference.philox(np.array(counter, np.uint32), np.array(key, np.uint32))
        assert tuple(words.tolist()) == expected

    @pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
    def test_kernel(self, counter, key, expected):
        # stage 1 of the kernels is Philox of the six words of a key: two of key, four of counter
        words = compiled.stream_words(np.array([*key, *counter], np.uint32))
        assert tuple(words.tolist()) == expected


class TestLayout:
    """These numbers are in people's checkpoints. If one changes, raise LAYOUT and say so in the CHANGELOG."""

    def test_version(self):
        assert LAYOUT == 1

    def test_purposes_keep_their_numbers(self):
        first = "MASK NORMAL SUBSET PARTITION BLOCK CHOICE CHILD ESTIMATE BATCH COIN"
        assert " ".join(p.name for p in Purpose) == f"{first} PARTICIPATION START SUPPORT SPLIT"
        assert [p.value for p in Purpose] == list(range(1, 15))

    def test_key_words(self):
        words = KEY.words(Purpose.MASK).tolist()
        assert words == [0x9ABCDEF0, 0x12345678, 0x567890AB, 0x1234 | 1 << 16, 7, 9]

    def test_words(self):
        expected = [0xE1EC768D, 0x2833DE04, 0x2C6A7D0E, 0x9B2B93C3, 0x9884E511, 0x42013E69]
        assert randomness.words(KEY, Purpose.MASK, 0, 6).tolist() == expected
        assert randomness.words(KEY, Purpose.MASK, 2**34 + 1, 2**34 + 3).tolist() == [555513470, 2504350243]

    def test_what_is_made_of_words(self):
        assert randomness.permutation(KEY, Purpose.SUBSET, 10).tolist() == [9, 0, 6, 2, 8, 1, 4, 3, 5, 7]
        large = randomness.permutation(KEY, Purpose.SUBSET, 10**6, 0, 4)
        assert large.tolist() == [994517, 610523, 415567, 371794]
        assert KEY.child(3).seed == 13707875865949342939
        assert randomness.uniform(KEY, Purpose.COIN) == 0.6526630592367095
        assert randomness.below(KEY, Purpose.BATCH, 1000) == 366
        normals = [0.3642821039211373, -2.2000592325097763, 0.10848654645827127]
        np.testing.assert_allclose(randomness.normal(KEY, 0, 3), normals, rtol=1e-14)


class TestKernelsEqualTheReference:
    @settings(max_examples=60, deadline=None)
    @given(keys, st.sampled_from(Purpose), st.integers(0, 2**36), st.integers(0, 40))
    def test_words(self, key, purpose, start, count):
        fast = randomness.words(key, purpose, start, start + count)
        assert np.array_equal(fast, reference.words(key, purpose, start, start + count))

    @settings(max_examples=60, deadline=None)
    @given(keys, st.integers(1, 2**32), st.integers(0, 2**36), st.integers(0, 40))
    def test_masks(self, key, t, start, count):
        expected = reference.bernoulli(key, t, start, start + count)
        assert np.array_equal(randomness.bernoulli(key, t, start, start + count), expected)
        each = np.full(count, t, dtype=np.uint64)
        assert np.array_equal(randomness.bernoulli(key, each, start, start + count), expected)

    def test_long_masks_with_one_threshold_each(self):
        thresholds = np.linspace(1, 2**32, 10_001).astype(np.uint64)  # more than one cached piece
        fast = randomness.bernoulli(KEY, thresholds, 3, 10_004)
        assert np.array_equal(fast, reference.bernoulli(KEY, thresholds, 3, 10_004))

    @settings(max_examples=40, deadline=None)
    @given(keys, st.integers(1, 60))
    def test_shuffles(self, key, n):
        expected = reference.permutation(key, Purpose.SUBSET, n)
        assert randomness.permutation(key, Purpose.SUBSET, n).tolist() == expected
        assert [randomness.permuted(key, Purpose.SUBSET, n, i) for i in range(n)] == expected

    @settings(max_examples=25, deadline=None)
    @given(keys, st.integers(EXACT_SHUFFLE + 1, 2**60), st.data())
    def test_feistel(self, key, n, data):
        start = data.draw(st.integers(0, n - 3))
        stream = reference.stream(key, Purpose.PARTITION)
        expected = [reference.feistel(stream, n, i) for i in range(start, start + 3)]
        part = randomness.permutation(key, Purpose.PARTITION, n, start, start + 3)
        assert part.tolist() == expected
        assert randomness.permuted(key, Purpose.PARTITION, n, start) == expected[0]

    def test_feistel_with_tables(self):
        n = EXACT_SHUFFLE + 5
        whole = randomness.permutation(KEY, Purpose.SUBSET, n)
        stream = reference.stream(KEY, Purpose.SUBSET)
        for i in (0, 1, 777, n - 1):
            assert whole[i] == reference.feistel(stream, n, i)
        assert np.array_equal(np.sort(whole), np.arange(n))

    @settings(max_examples=40, deadline=None)
    @given(keys, st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))
    def test_integers(self, key, address, n):
        expected = reference.below(reference.stream(key, Purpose.BATCH), address, 0, n)
        assert randomness.below(key, Purpose.BATCH, n, address) == expected

    def test_normals(self):
        # the same formula through two libraries' log, cos and sin: a few units in the last place
        np.testing.assert_allclose(
            randomness.normal(KEY, 1, 5000), reference.normal(KEY, 1, 5000), rtol=1e-12, atol=1e-14
        )


class TestSlices:
    """Any slice can be made without the rest."""

    @settings(max_examples=50, deadline=None)
    @given(keys, st.integers(0, 100), st.integers(0, 100))
    def test_of_normals(self, key, start, count):
        """Those of words and masks are compared with the reference above."""
        numbers = randomness.normal(key, 0, 200)
        assert np.array_equal(randomness.normal(key, start, start + count), numbers[start : start + count])

    @pytest.mark.parametrize("n", [17, EXACT_SHUFFLE, EXACT_SHUFFLE + 1])
    def test_of_permutations(self, n):
        whole = randomness.permutation(KEY, Purpose.SUBSET, n)
        assert np.array_equal(np.sort(whole), np.arange(n))
        for start, stop in ((0, 1), (5, 17), (n - 1, n), (n, n)):
            part = randomness.permutation(KEY, Purpose.SUBSET, n, start, stop)
            assert np.array_equal(part, whole[start:stop])


class TestIndependence:
    def test_every_part_of_the_key_matters(self):
        streams = {
            tuple(randomness.words(key, purpose, 0, 4).tolist())
            for key in (Key(), Key(1), Key(2**32), Key(0, 1), Key(0, 2**32), Key(0, 0, 1), Key(0, 0, 0, 1))
            for purpose in Purpose
        }
        assert len(streams) == 7 * len(Purpose)

    def test_neighbouring_masks_are_not_shifted_copies(self):
        a = randomness.bernoulli(Key(0), threshold(0.5), 0, 4096)
        for seed in (1, 2, 3):
            b = randomness.bernoulli(Key(seed), threshold(0.5), 0, 4096)
            for shift in range(-8, 9):
                agree = (a[8:-8] == np.roll(b, shift)[8:-8]).mean()
                assert abs(agree - 0.5) < 5 * 0.5 / math.sqrt(4080)

    def test_children_differ(self):
        seeds = {Key(5).child(i).seed for i in range(1000)} | {Key(6).child(i).seed for i in range(1000)}
        assert len(seeds) == 2000


class TestRefusals:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("seed", -1),
            ("seed", 2**64),
            ("step", 2**48),
            ("node", 2**32),
            ("index", -3),
            ("step", 1.5),
            ("seed", True),
        ],
    )
    def test_bad_keys(self, field, value):
        with pytest.raises(ArgumentError, match=field):
            Key(**{field: value})

    @pytest.mark.parametrize("keep", [0.0, -0.1, 1.0001, math.nan, math.inf, 1e-12])
    def test_bad_probabilities(self, keep):
        with pytest.raises(ArgumentError, match="keep"):
            threshold(keep)

    def test_positions_outside_of_a_permutation(self):
        with pytest.raises(ArgumentError, match="permutation of 5"):
            randomness.permutation(KEY, Purpose.SUBSET, 5, 0, 6)


def test_uniform_numbers_of_many_nodes_are_those_of_each():
    key = Key(seed=3, step=2**40 + 5)
    each = [randomness.uniform(Key(seed=3, step=2**40 + 5, node=i), Purpose.PARTICIPATION) for i in range(50)]
    np.testing.assert_array_equal(randomness.uniforms(key, Purpose.PARTICIPATION, 50), each)
