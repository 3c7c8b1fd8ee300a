"""Inputs of MLPs and of networks for images are guessed; submodels are then right for other inputs too."""

from __future__ import annotations

import pytest

import mast

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from mast.nn.units.dependencies.search import guess_examples  # noqa: E402


class LeNet(nn.Module):
    """Flattens to a size that only images of 28 x 28 have."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.c, self.d = nn.Linear(400, 12), nn.Linear(12, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        return self.d(F.relu(self.c(F.max_pool2d(F.relu(self.b(x)), 2).flatten(1))))


class Spectrogram(nn.Module):
    """The same with 23 x 63."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 3, stride=2), nn.Conv2d(8, 4, 3)
        self.c, self.d = nn.Linear(4 * 9 * 29, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.d(F.relu(self.c(F.relu(self.b(F.relu(self.a(x)))).flatten(1))))


class Sides(nn.Module):
    """Several inputs: features of layers of their own, or side by side."""

    def __init__(self, beside):
        super().__init__()
        self.a, self.b = nn.Linear(7, 12), nn.Linear(5, 12)
        self.c, self.d, self.beside = nn.Linear(12, 6), nn.Linear(6, 2), beside

    def forward(self, x, y, scale=2.0):
        h = self.a(torch.cat([x, y], -1)) if self.beside else self.a(x) + self.b(y)
        return self.d(F.relu(self.c(F.relu(h)))) * scale


class Words(nn.Module):
    """Numbers of words, a table of positions, attention."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(30, 8), nn.Parameter(torch.randn(1, 4, 8))
        self.layer = nn.TransformerEncoderLayer(8, 4, 12, 0.0, batch_first=True)
        self.head = nn.Linear(8, 30)

    def forward(self, words):
        return self.head(self.layer(self.words(words) + self.positions[:, : words.shape[1]]))


class Mixed(nn.Module):
    """A softmax along dimension 1: over units of rows, over positions of sequences."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.c(F.relu(self.b(torch.softmax(self.a(x), 1))))


def rows(*shapes):
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


MODELS = {
    "image": (LeNet, lambda: rows((2, 1, 28, 28)), {"a.weight": 6, "b.weight": 16, "c.weight": 12}),
    "oblong": (Spectrogram, lambda: rows((2, 1, 23, 63)), {"a.weight": 8, "b.weight": 4, "c.weight": 6}),
    "two": (lambda: Sides(False), lambda: rows((5, 7), (5, 5)), {"a.weight": 12, "c.weight": 6}),
    "beside": (lambda: Sides(True), lambda: rows((5, 3), (5, 4)), {"a.weight": 12, "c.weight": 6}),
    "words": (
        Words, lambda: [torch.randint(30, (5, 3))],
        {"layer.self_attn.in_proj_weight": 4, "layer.linear1.weight": 12},
    ),
    "mixed": (Mixed, lambda: rows((5, 4)), {"b.weight": 6}),
    "mixed in sequences": (Mixed, lambda: rows((5, 6, 4)), {"b.weight": 6}),
}  # fmt: skip
NOT_GUESSED = ("oblong", "two", "beside", "words")


@pytest.mark.parametrize("name", MODELS)
def test_submodels_without_an_example_or_an_error_that_asks_for_one(zoo, name):
    make, inputs, groups = MODELS[name]
    torch.manual_seed(0)
    model, half, given, options = make().double().eval(), mast.nn.Neurons(mast.RandK(0.5)), inputs(), {}
    if name in NOT_GUESSED:
        with pytest.raises(mast.MastError, match=rf"\({type(model).__name__}\).*guessed.*pass example="):
            mast.nn.sparsify(model, half)
        options = {"example": tuple(given)}
    sk = mast.nn.sparsify(model, half, **options)
    assert {s.name: s.units for s in sk.unit_map.groups} == groups
    small, whole = sk.submodel(1), zoo.masked(sk, mast.randomness.Key(1))
    with torch.no_grad():
        torch.testing.assert_close(small(*given), whole(*given), rtol=0, atol=1e-12)


def test_guesses_leave_no_trace():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    before, state = {k: t.clone() for k, t in model.state_dict().items()}, torch.get_rng_state()
    assert [tuple(example.args[0].shape) for example in guess_examples(model)] == [(3, 4)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    assert not model[0]._forward_pre_hooks


def test_what_cannot_be_guessed_says_example():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, batch):
            return self.b(F.relu(self.a(batch["x"])))

    with pytest.raises(mast.MastError, match=r"\(Named\).*guessed.*pass example="):
        mast.nn.sparsify(Named(), mast.nn.Neurons(mast.RandK(0.5)))
    example = ({"x": torch.ones(3, 4)},)
    assert mast.nn.sparsify(Named(), mast.nn.Neurons(mast.RandK(0.5)), example=example).submodel(0)


def test_the_doors_of_federations_take_the_example_that_the_error_asks_for():
    from mast.nn.nodes import capacities_of, capacity_of, scale_prefixes, submodel_of

    words, shares = torch.randint(30, (5, 3)), [1, 0.5]
    whole = sum(p.numel() for p in Words().parameters())
    for call in (
        lambda **more: capacity_of(Words(), "neurons:.5", **more).part(mast.randomness.Key(0)).count,
        lambda **more: (
            capacities_of(Words(), "heterofl", shares, **more)[1].part(mast.randomness.Key(0)).count
        ),
        lambda **more: sum(p.numel() for p in submodel_of(Words(), "heterofl", 0.5, **more).parameters()),
    ):
        with pytest.raises(mast.MastError, match="pass example="):
            call()
        assert call(example=words) < whole
    assert "multiplied" in scale_prefixes(Words(), "heterofl", shares, example=words)
    pytest.importorskip("flwr", reason="mast.federated needs Flower")
    from mast.federated import server_for

    for held in (shares, ["neurons:.5", "identity"]):
        with pytest.raises(mast.MastError, match="pass example="):
            server_for(Words(), held, step_size=0.1)
        assert len(server_for(Words(), held, step_size=0.1, example=words).capacities) == 2


def test_a_file_of_a_model_that_was_followed_by_an_example(tmp_path):
    """Sizes in modules of one's own are in the file, so that reading it needs no example."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.norm = 4, nn.GroupNorm(2, 4, affine=False)
            self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 6)

        def forward(self, x, ways=None):
            n, t, _ = x.shape
            q, k, v = self.qkv(x).view(n, t, 3, self.heads, 2).permute(2, 0, 3, 1, 4).unbind(0)
            h = self.norm(torch.softmax(q @ k.transpose(-2, -1), -1) @ v)
            return x + self.out(h.transpose(1, 2).reshape(n, t, -1))

    torch.manual_seed(0)
    x = torch.randn(2, 5, 6)
    sk = mast.nn.sparsify(Heads(), mast.nn.Neurons(mast.RandK(0.5)), example={"x": x})
    assert {s.name: s.units for s in sk.unit_map.groups} == {"qkv.weight": 2}
    again = mast.nn.load_submodel(sk.save_submodel(tmp_path / "a", 3), Heads())
    assert (again.heads, again.norm.num_channels, again.norm.num_groups) == (2, 2, 1)
    assert torch.equal(again(x), sk.submodel(3)(x))
