"""Submodel files: read into a model of the same class, the outputs are the same bit for bit."""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.nn.files import tensor_files  # noqa: E402


class Residual(nn.Module):
    """A norm with statistics, a buffer that is not saved, a residual branch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.branches = nn.ModuleList(nn.Conv2d(4, 4, 3, padding="same") for _ in range(3))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
        for branch in self.branches:
            h = h + branch(h)
        return self.head(h.mean((2, 3))) * self.scale


class Words(nn.Module):
    """One weight for input and output."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.middle = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(self.middle(self.embedding(tokens)))


def another(model):
    """A model of the same class and size with other weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for t in [*other.parameters(), *other.buffers()]:
            t.copy_(torch.rand_like(t, dtype=torch.float32) if t.is_floating_point() else t + 1)
    if isinstance(other, Residual):
        other.scale.fill_(2.0)  # not part of the state
    return other


SINGLE, UNITS, LAYERS = mast.RandK(0.25), mast.nn.Neurons(mast.RandK(0.25)), mast.nn.Layers(mast.RandK(1))
DRAWS = [(name, s) for name in ("mlp", "cnn", "attention", "transformer") for s in (SINGLE, UNITS)]
DRAWS += [("transformer", LAYERS), ("residual", SINGLE), ("residual", UNITS), ("residual", LAYERS)]
DRAWS += [
    ("words", SINGLE),
    ("words", UNITS),
    ("lstm", SINGLE),
    ("tied", SINGLE),
    ("mlp", mast.nn.Neurons(mast.Bernoulli(0.01))),
]


@pytest.fixture
def make(models):
    def of(name):
        if name == "residual":
            return Residual(), torch.randn(4, 3, 1, 8, 8)
        if name == "words":
            return Words(), torch.randint(0, 11, (4, 2, 7))
        return getattr(models, name)()

    return of


@pytest.mark.parametrize(("name", "sketch"), DRAWS, ids=[f"{name}-{type(s).__name__}" for name, s in DRAWS])
def test_the_submodel_of_a_draw(make, tmp_path, name, sketch):
    model, inputs = make(name)
    sk = mast.nn.sparsify(model, sketch, example=inputs[0])
    batches = list(inputs)
    path = sk.save_submodel(tmp_path / "a", 7, about={"note": "x"}, calibrate=batches)
    template = another(model)
    state = copy.deepcopy(template.state_dict())
    again, expected = mast.nn.load_submodel(path, template), sk.submodel(7, calibrate=batches)
    assert not again.training
    assert all(torch.equal(t, state[key]) for key, t in template.state_dict().items())  # it stays as it is
    assert repr(again) == repr(expected)
    found = again.state_dict()
    assert all(torch.equal(t, found[key]) for key, t in expected.state_dict().items())
    with torch.no_grad():
        assert torch.equal(again(inputs[1]), expected(inputs[1]))
    about = again.mast_about
    if sk.unit_map is None:
        assert about["density"] == SINGLE.count(sk.dim) / sk.dim
    else:
        kept = sk.draw(7).values()
        assert about["density"] == sum(k.count for k in kept) / sum(k.dim for k in kept)
        assert about["parameters"] < about["parameters_of_the_whole"]
    assert about["key"] == {"seed": 7, "step": 0, "node": 0}
    assert (about["note"], about["sketch"]) == ("x", sk.sketch.label())
    assert about["parameters_of_the_whole"] == sum(p.numel() for p in model.parameters())
    assert about["mast_version"] == mast.__version__


@pytest.mark.parametrize(
    ("sketch", "options"),
    [
        (UNITS, {"where": "0.weight"}),
        (mast.nn.Neurons(mast.Bernoulli(0.4)), {"keep": {"0.weight": 1, "2.weight": 0.5}}),
    ],
    ids=["where", "keep"],
)
def test_units_that_were_not_sketched_are_all_there(make, tmp_path, sketch, options):
    model, inputs = make("mlp")
    sk = mast.nn.sparsify(model, sketch, **options)
    again = mast.nn.load_submodel(sk.save_submodel(tmp_path / "a", 3), model)
    assert torch.equal(again(inputs[0]), sk.submodel(3)(inputs[0]))


@pytest.mark.parametrize("keep", [1, 2])
def test_branches_that_were_not_sketched_are_all_there(make, tmp_path, keep):
    model, inputs = make("residual")
    sk = mast.nn.sparsify(model, mast.nn.Layers(mast.RandK(keep)), where=["branches.1.*", "branches.2.*"])
    again = mast.nn.load_submodel(sk.save_submodel(tmp_path / "a", 3), another(model))
    assert torch.equal(again(inputs[0]), sk.submodel(3)(inputs[0]))


def test_a_submodel_that_was_trained_further(make, tmp_path):
    model, inputs = make("cnn")
    sk = mast.nn.sparsify(model, UNITS)
    sub = sk.submodel(7).train()
    optimizer = torch.optim.SGD(sub.parameters(), lr=0.1)
    sub(inputs[0]).square().mean().backward()
    optimizer.step()
    again = mast.nn.load_submodel(sk.save_submodel(tmp_path / "a", 7, model=sub), model)
    assert torch.equal(again(inputs[1]), sub.eval()(inputs[1]))
    assert not torch.equal(again(inputs[1]), sk.submodel(7)(inputs[1]))
    with pytest.raises(mast.MastError, match=r"not the submodel of this draw: its '0\.weight' has the shape"):
        sk.save_submodel(tmp_path / "b", 7, density=0.5, model=sub)
    assert not (tmp_path / "b").exists()


def test_types_and_layouts(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6()).to(memory_format=torch.channels_last)
    again = mast.nn.load_submodel(mast.nn.save_submodel(model, tmp_path / "a"), another(model))
    assert torch.equal(again[0].weight, model[0].weight)
    assert again[0].weight.stride() == model[0].weight.stride()
    half = nn.Linear(5, 3).bfloat16()
    again = mast.nn.load_submodel(mast.nn.save_submodel(half, tmp_path / "b"), nn.Linear(5, 3))
    assert again.weight.dtype == torch.bfloat16
    assert torch.equal(again.weight, half.weight)


def test_one_weight_for_two_modules_stays_one(tmp_path):
    path = mast.nn.save_submodel(Words(), tmp_path / "a")
    again = mast.nn.load_submodel(path, Words())
    assert again.out.weight is again.embedding.weight
    untied = Words()
    untied.out.weight = nn.Parameter(untied.out.weight.detach().clone())
    with pytest.raises(mast.MastError, match=r"does not fit.*the file has no 'out.weight'"):
        mast.nn.load_submodel(path, untied)


def test_a_fresh_process_that_has_the_class(make, tmp_path):
    model, inputs = make("residual")
    sk = mast.nn.sparsify(model, UNITS)
    sk.save_submodel(tmp_path / "model", 7)
    torch.save(inputs[0], tmp_path / "x.pt")
    code = (
        "import torch, mast, sys; from test_submodel_files import Residual; torch.set_num_threads(1);"
        "model = mast.nn.load_submodel(sys.argv[1], Residual());"
        "torch.save(model(torch.load(sys.argv[2])).detach(), sys.argv[3])"
    )
    arguments = [str(tmp_path / name) for name in ("model", "x.pt", "y.pt")]
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        check=True,
        timeout=120,
        cwd=Path(__file__).parent,
    )
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "y.pt"), sk.submodel(7)(inputs[0]))


# ---- refused -------------------------------------------------------------------------------


def test_what_cannot_be_written_is_refused(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return "text"

        def set_extra_state(self, state):
            """Nothing."""

    with pytest.raises(mast.MastError, match="'_extra_state' in the state_dict is no tensor"):
        mast.nn.save_submodel(Extra(2, 2), tmp_path / "a")
    with pytest.raises(mast.MastError, match="JSON"):
        mast.nn.save_submodel(nn.Linear(2, 2), tmp_path / "a", about={"x": object()})
    assert not list(tmp_path.iterdir())


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(mast.errors.DataError, match="cannot be read"):
        mast.nn.load_submodel(tmp_path, nn.Linear(5, 3))


def test_a_file_of_the_first_version_is_refused(tmp_path):
    path = tensor_files.write(tmp_path / "a", "submodel", 1, {"model": {}}, {})
    with pytest.raises(mast.errors.DataError, match=r"has format 1 of a submodel.*which reads format 2"):
        mast.nn.load_submodel(path, nn.Linear(2, 2))


def mlp(*widths, bias=True):
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths[:-1])]
    layers = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:], bias=bias))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (mlp(5, 16, 3), r"it has no '4\.(weight|bias)'"),
        (mlp(5, 16, 2, 3), r"its '2.weight' has the shape \(2, 16\), .* a model with \(8, 16\)"),
        (mlp(6, 16, 8, 3), r"its '0.weight' has the shape \(16, 6\), .* a model with \(16, 5\)"),
        (mlp(5, 16, 8, 3, bias=False), "it has no '4.bias'"),
    ],
    ids=["units", "fewer units", "shape", "bias"],
)
def test_another_model_is_refused(make, tmp_path, other, message):
    model, _ = make("mlp")
    path = mast.nn.sparsify(model, UNITS).save_submodel(tmp_path / "a", 7)
    with pytest.raises(mast.errors.ArgumentError, match="the model does not fit .*" + message):
        mast.nn.load_submodel(path, other)


NONSENSE = {
    "no shapes": {"whole_shapes": 3},
    "shapes": {"whole_shapes": {"0.weight": [3, 5]}},
    "fractions": {"heads": {"0": [0.5]}},
    "text": {"numbers": {"0": {"in_features": "__import__"}}},
    "no numbers": {"numbers": {"0": 7}},
    "a method": {"numbers": {"0": {"forward": 7}}},
    "no module": {"numbers": {"x": {"in_features": 7}}},
    "too many": {"numbers": {"0": {"in_features": 10**30}}},
    "negative": {"heads": {"0": [-1]}},
    "nested": {"heads": {"0": [[0]]}},
    "no attention": {"heads": {"0": [0]}},
    "unknown": {"absent": {"x": {}}},
    "another option": {"absent": {"0": {"code": 1}}},
    "absent": {"absent": {"0": {}}},
    "no about": {"about": None},
}


@pytest.mark.parametrize("name", NONSENSE)
def test_headers_that_make_no_sense_are_refused(make, tmp_path, name):
    model, _ = make("mlp")
    path = mast.nn.sparsify(model, UNITS).save_submodel(tmp_path / "a", 7)
    header, tensors = tensor_files.read(path, "submodel", 2)
    rest = {key: value for key, value in header.items() if key not in ("sha256", "kind", "format")}
    tensor_files.write(path, "submodel", 2, json.loads(json.dumps(rest)) | NONSENSE[name], tensors)
    with pytest.raises(mast.MastError, match=r"damaged|does not fit"):
        mast.nn.load_submodel(path, model)
