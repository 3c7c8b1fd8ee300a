"""The list that every sketch joins: one line here, and all tests of the suite run on it."""

import numpy as np

import mast

D = 6  # the dimension of the samples

_angle = 0.7
_rotation = np.eye(D)
_rotation[:2, :2] = [[np.cos(_angle), -np.sin(_angle)], [np.sin(_angle), np.cos(_angle)]]
_masks = [np.diag([2.0, 2, 2, 0, 0, 0]), np.diag([0.0, 0, 0, 2, 2, 2])]

SKETCHES = {
    "identity": mast.Identity(),
    "bernoulli": mast.Bernoulli(0.7),
    "bernoulli, certain": mast.Bernoulli(1.0),
    "bernoulli each": mast.Bernoulli([0.5, 0.25, 0.9, 1.0, 0.1, 0.33]),
    "unscaled": mast.UnscaledBernoulli(0.6),
    "rand-1": mast.RandK(1),
    "rand-4": mast.RandK(4),
    "rand-6": mast.RandK(6),
    "rand half": mast.RandK(0.5),
    "perm-2": mast.PermK(2, seed=3),
    "perm-4, uneven": mast.PermK(4, seed=3),
    "perm-6": mast.PermK(6),
    "perm-9, some empty": mast.PermK(9),
    "perm blocks": mast.PermK(blocks=[[5, 0], [2, 3, 1], [4]]),
    "perm-3 redrawn": mast.PermK(3, redraw=True),
    "perm-4 redrawn, uneven": mast.PermK(4, redraw=True),
    "perm-8 redrawn, some empty": mast.PermK(8, redraw=True),
    "gaussian": mast.Gaussian(0.5),
    "matrices": mast.Matrices([_rotation, 2 * np.eye(D) - _rotation]),
    "matrices, weighted": mast.Matrices([3 * np.eye(D), np.eye(D) / 3], [0.25, 0.75]),
    "matrices, diagonal": mast.Matrices(_masks),
    "grouped": mast.Grouped(mast.Bernoulli(0.5), [0, 1, 0, 2, 1, 0]),
    "grouped perm": mast.Grouped(mast.PermK(2), [[0, 5], [1, 2, 3], [4]]),
    "grouped gaussian": mast.Grouped(mast.Gaussian(0.3), [0, 0, 0, 1, 1, 1]),
    "except": mast.Except(mast.Bernoulli(0.6), [-1]),
    "except two, grouped": mast.Except(mast.Grouped(mast.RandK(1), [0, 1, 0, 1]), [2, 4]),
    "except, perm": mast.Except(mast.PermK(2), [0]),
    "except, perm redrawn": mast.Except(mast.PermK(2, redraw=True), [3]),
    "except, gaussian": mast.Except(mast.Gaussian(0.4), [5, 5]),
    "except, unscaled": mast.Except(mast.UnscaledBernoulli(0.5), [1]),
    "except, mixture": mast.Except(mast.Mixture([mast.RandK(2), mast.Bernoulli(0.5)]), [-1]),
    "except, matrices": mast.Except(
        mast.Matrices([_rotation[1:, 1:], 2 * np.eye(D - 1) - _rotation[1:, 1:]]), [2]
    ),
    "mixture": mast.Mixture([mast.Bernoulli(0.5), mast.RandK(2), mast.Identity()], [0.5, 0.3, 0.2]),
    "mixture nested": mast.Mixture([mast.Mixture([mast.RandK(1), mast.Identity()]), mast.PermK(3)]),
    "mixture of grouped mixture": mast.Mixture(
        [mast.Grouped(mast.Mixture([mast.RandK(1), mast.RandK(2)]), [0, 0, 1, 1, 2, 2]), mast.Bernoulli(0.8)]
    ),
    "mixture with matrices": mast.Mixture(
        [mast.Matrices([_rotation, 2 * np.eye(D) - _rotation]), mast.RandK(3)]
    ),
    "mixture with gaussian": mast.Mixture([mast.Gaussian(0.2), mast.RandK(3)]),
    "nested": mast.Nested([0.2, 0.5, 1.0]),
    "nested, random order": mast.Nested([0.2, 0.5, 1.0], order="random", seed=2),
    "nested, unscaled": mast.Nested([0.2, 0.5, 1.0], [0.5, 0.2, 0.3], scaled=False),
    "nested, unscaled, random order": mast.Nested([0.4, 1.0], order="random", scaled=False),
    "nested, unscaled, never whole": mast.Nested([0.2, 0.6], scaled=False),
    "except, nested unscaled": mast.Except(mast.Nested([0.4, 1.0], scaled=False), [1]),
    "nested, weighted": mast.Nested([0.3, 0.35, 1.0], [0.2, 0.3, 0.5]),
    "nested, never whole": mast.Nested([0.2, 0.6]),
    "grouped nested": mast.Grouped(mast.Nested([0.3, 1.0]), [0, 1, 0, 2, 1, 0]),
    "rolling": mast.Rolling(2),
    "rolling, wide": mast.Rolling(0.7),
    "rolling, whole": mast.Rolling(6),
    "except, rolling": mast.Except(mast.Rolling(2), [-1]),
    "sampled": mast.Sampled(mast.Bernoulli(0.5), 7, seed=1),
    "sampled, corrected": mast.Sampled(mast.Bernoulli(0.6), 9, seed=2, corrected=True),
    "sampled, balanced": mast.Sampled(mast.PermK(3, redraw=True), 12),
    "sampled blocks": mast.Sampled(mast.PermK(4), 4),
    "mixture, biased": mast.Mixture([mast.UnscaledBernoulli(0.5), mast.Identity()]),
}

UNBIASED = {name: sketch for name, sketch in SKETCHES.items() if sketch.unbiased}
BIASED = {name: sketch for name, sketch in SKETCHES.items() if not sketch.unbiased}
DIAGONAL = {name: sketch for name, sketch in SKETCHES.items() if sketch.diagonal}
FINITE = {name: sketch for name, sketch in SKETCHES.items() if sketch.support_size(D) is not None}
