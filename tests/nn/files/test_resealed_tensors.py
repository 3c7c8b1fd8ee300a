"""Submodels and deltas with one wrong tensor and a right checksum: refused before a forward pass meets it."""

from __future__ import annotations

import copy

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.nn.files import tensor_files  # noqa: E402

UNITS, LAYERS, SINGLE = mast.nn.Neurons(mast.RandK(0.5)), mast.nn.Layers(mast.RandK(1)), mast.RandK(0.25)
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
TYPES = (*TYPES, torch.bool, torch.complex64)


class Branched(nn.Module):
    """Residual branches, a norm with statistics, and a buffer of the channels that is not in the state."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.branches = nn.ModuleList(nn.Conv2d(4, 4, 3, padding="same") for _ in range(2))
        self.register_buffer("scale", torch.full((4, 1, 1), 2.0), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x))) * self.scale
        for branch in self.branches:
            h = h + branch(h)
        return self.head(h.mean((2, 3)))


@pytest.fixture
def make(models):
    def of(name):
        return (Branched(), torch.randn(4, 3, 1, 8, 8)) if name == "branched" else getattr(models, name)()

    return of


def wrong_forms(t, whole):
    """The tensor in other shapes and types, by what is wrong."""
    forms = {
        "of one dimension more": t[None],
        "of one dimension more at the end": t[..., None],
        "flat": t.reshape(-1),
        "a number": t.new_ones(()),
        "empty": t.reshape(-1)[:0],
        "as long as the whole": t.new_ones(whole),
    }
    for dim in range(t.dim()):
        longer = [n + (d == dim) for d, n in enumerate(t.shape)]
        forms[f"wider along {dim}"] = t.new_ones(longer)
        forms[f"narrower along {dim}"] = t.narrow(dim, 0, max(t.shape[dim] - 1, 0))
        if dim:
            forms[f"transposed with {dim}"] = t.transpose(0, dim)
    forms = {what: form for what, form in forms.items() if form.shape != t.shape}
    return forms | {f"of {dtype}": t.to(dtype) for dtype in TYPES if dtype != t.dtype}


def resealed(path, kind, version, change):
    """The file again, with a right checksum, after a change of its tensors."""
    header, tensors = tensor_files.read(path, kind, version)
    rest = {k: v for k, v in header.items() if k not in ("sha256", "kind", "format", "mast_version")}
    return tensor_files.write(path.with_name("wrong"), kind, version, rest, change(dict(tensors)))


def refused(call, path, name, what):
    """The error is one of ours, and names the file and the tensor."""
    said = None
    try:
        call()
    except mast.MastError as error:
        said = str(error)
    assert said is not None, f"{name} {what}: accepted"
    assert str(path) in said and name in said, f"{name} {what}: {said}"  # noqa: PT018


KINDS = [(name, UNITS) for name in ("mlp", "cnn", "attention", "transformer", "branched")]
KINDS += [("branched", LAYERS), ("transformer", LAYERS), ("mlp", SINGLE), ("lstm", SINGLE), ("tied", SINGLE)]


@pytest.mark.parametrize(("name", "sketch"), KINDS, ids=[f"{n}-{type(s).__name__}" for n, s in KINDS])
def test_submodels_with_one_wrong_tensor(make, tmp_path, name, sketch):
    model, inputs = make(name)
    sk = mast.nn.sparsify(model, sketch, example=inputs[0])
    path = sk.save_submodel(tmp_path / "right", 7, calibrate=False)
    sk.remove()
    state = dict(model.state_dict()) | dict(model.named_buffers())
    header, tensors = tensor_files.read(path, "submodel", 2)
    cut = [n for n in tensors if n in header.get("whole_shapes", {})]
    some = [n for n in tensors if n not in cut]
    tried = 0
    for tensor in [*cut[:8], *some[:4]]:
        for what, form in wrong_forms(tensors[tensor], state[tensor].shape).items():
            other = resealed(path, "submodel", 2, lambda t, n=tensor, form=form: t | {n: form})
            refused(lambda other=other: mast.nn.load_submodel(other, model), other, tensor, what)
            tried += 1
        other = resealed(path, "submodel", 2, lambda t, n=tensor: {k: v for k, v in t.items() if k != n})
        refused(lambda other=other: mast.nn.load_submodel(other, model), other, tensor, "absent")
    other = resealed(path, "submodel", 2, lambda t: t | {"stranger": torch.ones(2)})
    refused(lambda: mast.nn.load_submodel(other, model), other, "stranger", "too many")
    assert tried >= 20
    again = mast.nn.load_submodel(resealed(path, "submodel", 2, dict), model)
    with torch.no_grad():
        again(inputs[0])


@pytest.mark.parametrize("shapes", [{}, {"0.weight": [8]}, {"0.weight": [9, 5]}, {"0.weight": ["8", 5]}, 7])
def test_shapes_that_nothing_can_be_cut_to(make, tmp_path, shapes):
    model, _ = make("mlp")
    path = mast.nn.sparsify(model, UNITS).save_submodel(tmp_path / "a", 7)
    header, tensors = tensor_files.read(path, "submodel", 2)
    rest = {k: v for k, v in header.items() if k not in ("sha256", "kind", "format", "mast_version")}
    tensor_files.write(path, "submodel", 2, rest | {"shapes": shapes}, tensors)
    with pytest.raises(mast.errors.DataError, match="is damaged"):
        mast.nn.load_submodel(path, model)


def test_a_whole_file_of_another_floating_type_is_read(make, tmp_path):
    """It is the model in another precision: no tensor stands out."""
    model, inputs = make("cnn")
    sub = mast.nn.sparsify(model, UNITS).submodel(7, calibrate=False).double()
    path = mast.nn.save_submodel(sub, tmp_path / "a")
    with pytest.raises(mast.MastError, match="does not fit"):  # cut, and not by sk.save_submodel
        mast.nn.load_submodel(path, model)
    again = mast.nn.load_submodel(path, copy.deepcopy(sub).float())
    assert torch.equal(again(inputs[0].double()), sub.eval()(inputs[0].double()))


DELTAS = {
    "key": (SINGLE, {}),
    "indices": (SINGLE, {"indices": True}),
    "scales": (mast.Gaussian(0.2), {"indices": True}),
    "sketch with arrays": (mast.PermK(blocks=[range(100), range(100, 232)]), {}),
    "units": (UNITS, {}),
}


def legitimate(tensor, form, stored):
    """Numbers may be rounded to another floating type, and positions have two types."""
    kind = tensor.partition("/")[0]
    if kind in ("values", "scales"):
        return form.shape == stored.shape and form.is_floating_point()
    return kind == "indices" and form.shape == stored.shape and form.dtype in (torch.int32, torch.int64)


@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize("kind", DELTAS)
def test_deltas_with_one_wrong_tensor(make, tmp_path, kind, shift):
    sketch, options = DELTAS[kind]
    base, inputs = make("mlp")
    model = copy.deepcopy(base)
    sk = mast.nn.sparsify(model, sketch, shift=shift)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    path = sk.save_delta(tmp_path / "right", seed=7, **options)
    _, tensors = tensor_files.read(path, "delta", 2)
    tried = 0
    for tensor, t in tensors.items():
        of = tensor.partition("/")[2] if tensor.partition("/")[0] != "sketch" else ""
        for what, form in wrong_forms(t, (17, *t.shape[1:])).items():
            other = resealed(path, "delta", 2, lambda t, n=tensor, form=form: t | {n: form})
            if legitimate(tensor, form, t):
                mast.nn.apply_delta(base, other)(inputs[0])
                continue
            refused(lambda other=other: mast.nn.apply_delta(base, other), other, of, f"{tensor} {what}")
            tried += 1
        other = resealed(path, "delta", 2, lambda t, n=tensor: {k: v for k, v in t.items() if k != n})
        refused(lambda other=other: mast.nn.apply_delta(base, other), other, of, f"{tensor} absent")
    for stranger in ("stranger", "values/stranger", "whole/stranger", "sketch/stranger", "indices/stranger"):
        other = resealed(path, "delta", 2, lambda t, n=stranger: t | {n: torch.ones(2)})
        refused(lambda other=other: mast.nn.apply_delta(base, other), other, "stranger", "too many")
    assert tried >= 40
