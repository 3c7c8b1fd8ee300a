"""Batches: inputs or pairs; tensors, tuples and dicts; outputs of every kind."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from types import SimpleNamespace

import pytest

import mast

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from mast.nn.batches import Batch, output_of, with_first  # noqa: E402

F = torch.nn.functional


class Named(nn.Module):
    """Takes one or two arguments by name and refuses others; the output is a namespace with logits."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.last = nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, more=None, labels=None):
        x = self.norm(x if more is None else x + more)
        logits = self.last(torch.tanh(self.first(x)))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"hidden": x, "logits": logits, "loss": loss}


X = torch.arange(12.0).view(4, 3)
LABELS = torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize(
    "batch",
    [
        X,
        (X, LABELS),
        [X, LABELS],
        ((X, torch.zeros(4, 3)), LABELS),
        ({"x": X}, None),
        {"x": X, "labels": LABELS},
        UserDict(x=X, more=torch.zeros(4, 3)),
        OrderedDict(x=X),
        (X,),
        (X, torch.zeros(4, 3), None),
    ],
)
def test_a_batch_in_every_form_calibrates_alike(batch):
    norm = mast.nn.recalibrate(Named(), [batch]).norm
    torch.testing.assert_close(norm.running_mean, X.mean(0))


def test_a_tuple_of_two_is_inputs_and_targets_and_not_two_inputs():
    torch.testing.assert_close(mast.nn.recalibrate(Named(), [(X, 9 * X)]).norm.running_mean, X.mean(0))


class OfTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, other):
        return self.last(self.first(x).relu() + self.first(other).relu())


def test_who_passes_two_inputs_as_a_pair_is_told_how_to_pass_them():
    with pytest.raises(mast.MastError, match=r"'other'\. The batch is a pair.* \(\(first, second\), None\)"):
        mast.nn.elastic(OfTwo(), [0.5, 1.0], [(X, X)])
    for batch in (((X, X), None), {"x": X, "other": X}):
        assert mast.nn.elastic(OfTwo(), [0.5, 1.0], [batch]).members == 2


def test_labels_are_left_out_where_no_loss_is_asked_for():
    model = Named().eval()
    batch = Batch.of({"x": X, "labels": LABELS})
    assert batch.call(model)["loss"] is None
    torch.testing.assert_close(batch.loss(model, None), model(X, labels=LABELS)["loss"])
    torch.testing.assert_close(batch.loss(model, F.cross_entropy), model(X, labels=LABELS)["loss"])
    pair = Batch.of(({"x": X}, LABELS))
    torch.testing.assert_close(pair.loss(model, F.cross_entropy), batch.loss(model, None))


def test_outputs():
    y, whole = torch.ones(2), torch.tensor([1])
    assert output_of(y) is y
    for output in (
        SimpleNamespace(logits=y),
        {"hidden": torch.zeros(2), "logits": y},
        (whole, y),
        {"ids": whole, "deeper": [whole, (y,)]},
    ):
        assert output_of(output) is y
    with pytest.raises(mast.MastError, match="without a tensor of floating point"):
        output_of({"ids": whole})


@pytest.mark.parametrize("batch", [None, X.numpy(), "text", (None, LABELS), {3: X}])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(mast.MastError, match="a batch is what the model is called with"):
        Batch.of(batch)


def test_losses_that_are_missing():
    with pytest.raises(mast.MastError, match="a loss needs targets"):
        Batch.of(X).loss(Named(), F.cross_entropy)
    with pytest.raises(mast.MastError, match="a loss is needed"):
        Batch.of((X, LABELS)).loss(Named(), None)


def test_what_a_loss_is_and_returns():
    for loss, message in (
        ("ce", "a function of outputs and targets"),
        (lambda y, t: F.cross_entropy(y, t, reduction="none"), r"one number for the whole batch.*\(4,\)"),
        (lambda y, t: 1.0, "as a tensor; got float"),
    ):
        with pytest.raises(mast.MastError, match=message):
            Batch.of((X, LABELS)).loss(Named(), loss)


def test_what_fails_on_a_batch_is_said_in_words():
    def fails(output, targets):
        raise IndexError("Target 9 is out of bounds.")

    with pytest.raises(mast.MastError, match="the model cannot be run on a batch: running_mean should"):
        Batch.of(torch.ones(4, 5)).output(Named())
    with pytest.raises(mast.MastError, match=r"the model cannot be run on a batch: .*labels"):
        Batch.of({"input": X, "labels": LABELS}).loss(nn.Linear(3, 2), None)
    with pytest.raises(mast.MastError, match="the loss of a batch cannot be computed: Target 9 is out"):
        Batch.of((X, LABELS)).loss(Named(), fails)


def test_one_batch_is_no_list_of_batches():
    sk = mast.nn.sparsify(Named(), mast.Bernoulli(0.5))
    takers = (
        lambda batches: with_first("sorting", batches),
        lambda batches: mast.nn.recalibrate(Named(), batches),
        lambda batches: mast.nn.recalibrate(nn.Linear(3, 2), batches),
        lambda batches: mast.nn.keep_probabilities(Named(), batches),
        lambda batches: sk.submodel(calibrate=batches),
        lambda batches: sk.best(lambda model: 0.0, 2, calibrate=batches),
        lambda batches: sk.report(lambda model: 0.0, [0.5], calibrate=batches),
        lambda batches: mast.nn.advise(Named(), None, batches, mast.Bernoulli(0.5)),
    )
    for batches in (X, X.numpy(), {"x": X}, (X, LABELS), 3):
        for take in takers:
            with pytest.raises(mast.MastError, match=r"needs batches in a list .* got (one )?\w+"):
                take(batches)
    for batches in (X.split(2), (X, X)):  # tuples of batches
        assert with_first("sorting", batches)[2] == 2
        mast.nn.recalibrate(Named(), batches)
    with pytest.raises(mast.MastError, match="needs at least one batch"):
        with_first("sorting", iter(()))
    first, batches, count = with_first("sorting", (x for x in (X, 2 * X)))
    assert torch.equal(first.inputs.args[0], X)
    assert [float(batch.inputs.args[0][0, 1]) for batch in batches] == [1, 2]
    assert count == 2


def test_a_loader_of_a_stream_has_no_length():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(X)

    _, batches, count = with_first("sorting", torch.utils.data.DataLoader(Stream(), batch_size=2))
    assert [len(batch.inputs.args[0]) for batch in batches] == [2, 2]
    assert count == 2


@pytest.mark.parametrize("sketch", [mast.Bernoulli(0.5), mast.nn.Neurons(mast.RandK(0.5))])
def test_advise_takes_dicts_and_reads_logits(sketch):
    torch.manual_seed(0)
    model = Named().eval()
    tensors = [(X, LABELS), (X / 2, LABELS)]
    dicts = [({"x": x, "more": torch.zeros(4, 3)}, y) for x, y in tensors]
    plain = mast.nn.advise(model, F.cross_entropy, tensors, sketch, iterations=4)
    named = mast.nn.advise(model, F.cross_entropy, dicts, sketch, iterations=4)
    labelled = [{"x": x, "labels": y} for x, y in tensors]
    own = [mast.nn.advise(model, loss, labelled, sketch, iterations=4) for loss in (None, F.cross_entropy)]
    for found in (named, *own):
        assert plain.smoothness == pytest.approx(found.smoothness, rel=1e-5)
