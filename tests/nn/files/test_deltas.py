"""Deltas: base and file give the submodel bit for bit; anything else is refused by name."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import mast
from mast.randomness import Key

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.nn.tensors.sparsified import multiply  # noqa: E402

SKETCHES = {
    "bernoulli": mast.Bernoulli(0.3),
    "unscaled": mast.UnscaledBernoulli(0.3),
    "identity": mast.Identity(),
    "rand_k": mast.RandK(0.1),
    "perm_k": mast.PermK(4, seed=5),
    "perm_k_redrawn": mast.PermK(4, redraw=True),
    "gaussian": mast.Gaussian(0.2),
    "mixture": mast.Mixture([mast.Bernoulli(0.5), mast.RandK(0.1)], [0.3, 0.7]),
}


def trained(models, name, sketch, shift, dtype=None, **options):
    """A base, and the handle of a model that has moved away from it in everything."""
    model, _ = getattr(models, name)()
    model = model.to(dtype)
    base = copy.deepcopy(model)
    sk = mast.nn.sparsify(model, sketch, shift=shift, seed=3, **options)
    with torch.no_grad():
        for i, t in enumerate(model.state_dict().values()):
            t.add_(torch.linspace(0.1, 1, t.numel()).view(t.shape).mul(i + 1).to(t.dtype))
    return base, sk


def equal_states(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("indices", [None, True])
@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES)
def test_base_and_delta_give_the_submodel(models, tmp_path, sketch, shift, indices):
    base, sk = trained(models, "cnn", sketch, shift)
    before = copy.deepcopy(base)
    path = mast.nn.save_delta(sk, tmp_path / "a.delta", seed=7, indices=indices)
    assert equal_states(mast.nn.apply_delta(base, path), sk.submodel(7))
    assert equal_states(base, before)  # one base, many files
    other = sk.save_delta(tmp_path / "b.delta", seed=8, indices=indices)
    assert equal_states(mast.nn.apply_delta(base, other), sk.submodel(8))
    assert mast.nn.apply_delta(base, path, in_place=True) is base
    assert equal_states(base, sk.submodel(7))


@pytest.mark.parametrize("name", ["mlp", "lstm", "tied", "attention", "transformer", "lists"])
def test_every_kind_of_model(models, tmp_path, name):
    base, sk = trained(models, name, mast.Bernoulli(0.4), "init")
    path = mast.nn.save_delta(sk, tmp_path / "a.delta", seed=7)
    sub = mast.nn.apply_delta(base, path)
    assert equal_states(sub, sk.submodel(7))
    if name == "tied":
        assert sub.output.weight is sub.embedding.weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sketch", [SKETCHES["bernoulli"], SKETCHES["perm_k"]], ids=["bernoulli", "perm_k"])
@pytest.mark.parametrize("indices", [None, True])
def test_other_types(models, tmp_path, dtype, sketch, indices):
    base, sk = trained(models, "mlp", sketch, "init", dtype)
    path = mast.nn.save_delta(sk, tmp_path / "a.delta", seed=7, indices=indices)
    assert equal_states(mast.nn.apply_delta(base, path), sk.submodel(7))


def test_keep_probabilities_and_keys_of_their_own(models, tmp_path):
    base, sk = trained(models, "mlp", mast.Bernoulli(0.4), "init", keep={"0.weight": 0.8, "4.weight": 1})
    key = Key(seed=5, step=11, node=2)
    path = mast.nn.save_delta(sk, tmp_path / "a.delta", key=key)
    sub = mast.nn.apply_delta(base, path)
    for name, kept in sk.kept(key).items():
        x, v = sk.model.get_parameter(name).detach(), base.get_parameter(name).detach()
        assert torch.equal(sub.get_parameter(name), v + multiply(kept, x - v))
    assert torch.equal(sub[4].weight, sk.model[4].weight)  # not sketched: whole
    assert mast.nn.read_delta(path).about["key"] == {"seed": 5, "step": 11, "node": 2}


@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize("indices", [None, True])
@pytest.mark.parametrize("sketch", [mast.PermK(4), mast.PermK(3, redraw=True)], ids=["fixed", "redrawn"])
def test_unscaled_deltas_of_a_partition_sum_to_the_whole_difference(models, tmp_path, sketch, shift, indices):
    base, sk = trained(models, "cnn", sketch, shift)
    total = {w.name: torch.zeros(w.shape) for w in sk.weights}
    for node in range(sketch.k):
        key = Key(seed=2, step=9, node=node)
        path = sk.save_delta(tmp_path / f"{node}.delta", key=key, scale=False, indices=indices)
        for name, difference in mast.nn.read_delta(path).differences().items():
            total[name] += difference
    for w in sk.weights:
        v = 0 if shift is None else base.get_parameter(w.name)
        assert torch.equal(total[w.name], w.parameter - v)  # exactly: every number is in one file
    unscaled = mast.nn.apply_delta(base, path)
    name = sk.weights[0].name
    v = 0 if shift is None else base.get_parameter(name)
    assert torch.equal(unscaled.get_parameter(name), v + mast.nn.read_delta(path).differences()[name])


def test_what_equals_the_base_is_not_written(models, tmp_path):
    model, _ = models.cnn()
    base = copy.deepcopy(model)
    sk = mast.nn.sparsify(model, mast.PermK(4), shift="init")
    with torch.no_grad():
        model[0].weight.add_(1)
        model[4].bias.add_(1)
    path = sk.save_delta(tmp_path / "a.delta", base=base)
    assert list(mast.nn.read_delta(path).whole) == ["4.bias"]
    assert equal_states(mast.nn.apply_delta(base, path), sk.submodel(0))
    base[1].running_mean.add_(1)  # now the file relies on it
    with pytest.raises(mast.MastError, match=r"other values in '1\.running_mean'"):
        mast.nn.apply_delta(base, path)
    base[0].weight.data.add_(1)
    with pytest.raises(mast.MastError, match=r"base has other values in '0\.weight'"):
        sk.save_delta(tmp_path / "b.delta", base=base.state_dict())


def test_a_wrong_base_is_refused_by_what_differs(models, tmp_path):
    base, sk = trained(models, "mlp", mast.PermK(4), "init")
    path = sk.save_delta(tmp_path / "a.delta")
    for change, message in (
        (lambda m: m[2].weight.data[3, 3].add_(1e-6), r"other values in '2\.weight'\."),
        (lambda m: [p.data.neg_() for p in m.parameters()], r"'0\.weight' and 2 more of 3"),
        (lambda m: m.append(nn.Linear(3, 3)), r"has another tensor, '5\.weight'"),
        (lambda m: m.__delitem__(4), r"has no '4\.weight'"),
        (lambda m: m.__setitem__(2, nn.Linear(16, 9)), r"'2\.weight' is 9 x 16 .*, that of the base 8 x 16"),
        (lambda m: m.double(), r"'0\.weight' is 16 x 5 of float64"),
    ):
        wrong = copy.deepcopy(base)
        change(wrong)
        before = copy.deepcopy(wrong)
        with pytest.raises(mast.MastError, match=message):
            mast.nn.apply_delta(wrong, path, in_place=True)
        assert equal_states(wrong, before)
    tied, sk = trained(models, "tied", mast.PermK(4), "init")
    path = sk.save_delta(tmp_path / "b.delta")
    tied.output.weight = nn.Parameter(tied.embedding.weight.detach().clone())
    with pytest.raises(mast.MastError, match="were one tensor"):
        mast.nn.apply_delta(tied, path)


def test_foreign_files_are_refused(models, tmp_path):
    from safetensors.torch import save_file

    from mast.nn.files import tensor_files

    base, _ = trained(models, "mlp", mast.PermK(4), "init")
    save_file(base.state_dict(), tmp_path / "plain.safetensors")
    with pytest.raises(mast.errors.DataError, match="not a file of MAST's"):
        mast.nn.apply_delta(base, tmp_path / "plain.safetensors")
    with pytest.raises(mast.errors.DataError, match="cannot be read"):
        mast.nn.apply_delta(base, tmp_path / "nothing")
    tensor_files.write(tmp_path / "other", "shopping list", 1, {}, {})
    with pytest.raises(mast.errors.DataError, match="holds a shopping list, not a delta"):
        mast.nn.apply_delta(base, tmp_path / "other")
    for version in (1, 99):  # of MAST 0.1, and of one that is to come
        tensor_files.write(tmp_path / "other", "delta", version, {}, {})
        with pytest.raises(mast.errors.DataError, match=f"has format {version} of a delta.*reads format 2"):
            mast.nn.apply_delta(base, tmp_path / "other")


@pytest.mark.parametrize("indices", [None, True])
def test_files_that_contradict_themselves_are_refused(models, tmp_path, indices):
    """Whole by their checksum, but made by somebody else."""
    from mast.nn.files import tensor_files

    base, sk = trained(models, "mlp", mast.RandK(0.5), "init")
    path = sk.save_delta(tmp_path / "a.delta", indices=indices)
    about, tensors = tensor_files.read(path, "delta", 2)
    about = {k: v for k, v in about.items() if k not in ("sha256", "kind", "format", "mast_version")}

    def refused(message, tensors=tensors, **changes):
        tensor_files.write(path, "delta", 2, json.loads(json.dumps(about)) | changes, tensors)
        with pytest.raises(mast.MastError, match=message):
            mast.nn.apply_delta(base, path)

    refused("layout of draws", layout=mast.randomness.LAYOUT + 1)
    refused("damaged", weights="none")
    refused("damaged", key={"seed": -1, "step": 0, "node": 0})
    refused("damaged", scale=None)
    if indices:
        wrong = {k: v + 10_000 if k.startswith("indices") else v for k, v in tensors.items()}
        refused("indices of '0.weight'", wrong)
        refused("damaged", {k: v.flip(0) if k.startswith("indices") else v for k, v in tensors.items()})
    else:
        refused("does not know", sketch={"kind": "eval"})
        refused("damaged", sketch={"kind": "RandK"})


def test_size_and_form(models, tmp_path):
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    full = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    sk = mast.nn.sparsify(model, mast.RandK(0.1), shift="init")
    size = {
        name: sk.save_delta(tmp_path / name, **options).stat().st_size
        for name, options in {
            "key": {},
            "indices": {"indices": True},
            "half": {"dtype": torch.bfloat16},
        }.items()
    }
    others = 4 * 138  # the biases
    assert size["key"] - 0.1 * full - others < 2000  # the header
    assert size["indices"] - 0.2 * full - others < 2000
    assert size["half"] - 0.05 * full - others < 2000
    assert (tmp_path / "key").read_bytes() == sk.save_delta(tmp_path / "again").read_bytes()


def test_rounded_numbers(models, tmp_path):
    base, sk = trained(models, "mlp", mast.PermK(4), "init")
    path = sk.save_delta(tmp_path / "a.delta", dtype=torch.bfloat16)
    for name, found in mast.nn.read_delta(path).differences().items():
        x, v = sk.model.get_parameter(name).detach(), base.get_parameter(name).detach()
        expected = multiply(sk.kept(Key(0))[name], (x - v).bfloat16().float())
        assert torch.equal(found, expected)
    for wrong in (torch.int8, torch.complex64, "bfloat16"):
        with pytest.raises(mast.MastError, match=r"dtype must be torch\.float16, .*or None"):
            sk.save_delta(path, dtype=wrong)
    sk.model[0].weight.data.fill_(1e30)
    with pytest.raises(mast.MastError, match=r"infinity in '0\.weight', as numbers of type torch\.float16"):
        sk.save_delta(path, dtype=torch.float16)


def test_what_is_written_whole_is_rounded_too(models, tmp_path):
    model, _ = models.cnn()
    base = copy.deepcopy(model)
    sk = mast.nn.sparsify(model, mast.PermK(4), shift="init")
    with torch.no_grad():
        for t in model.state_dict().values():
            t.add_(1) if t.is_floating_point() else t.fill_(7)
    path = sk.save_delta(tmp_path / "a.delta", dtype=torch.bfloat16)
    _, stored = mast.nn.files.tensor_files.read(path, "delta", 2)
    assert {t.dtype for name, t in stored.items() if "num_batches" not in name} == {torch.bfloat16}
    found, state = mast.nn.apply_delta(base, path).state_dict(), model.state_dict()
    for name in mast.nn.read_delta(path).whole:
        rounded = state[name].bfloat16().float() if state[name].is_floating_point() else state[name]
        assert found[name].dtype == state[name].dtype
        assert torch.equal(found[name], rounded)
    model[1].running_var.fill_(1e30)
    with pytest.raises(mast.MastError, match=r"'1\.running_var' holds infinity as numbers of .*float16"):
        sk.save_delta(path, dtype=torch.float16)


@pytest.mark.parametrize("sketch", [mast.Bernoulli(0.5), mast.nn.Neurons(mast.RandK(0.5))], ids=repr)
@pytest.mark.parametrize("indices", [None, True])
def test_a_number_in_place_of_the_scale(models, tmp_path, sketch, indices):
    base, sk = trained(models, "mlp", sketch, "init")
    path = sk.save_delta(tmp_path / "a.delta", seed=7, rescale=1.5, indices=indices)
    once = sk.save_delta(tmp_path / "b.delta", seed=7, scale=False, indices=indices)
    masked = mast.nn.read_delta(once).differences()
    applied = mast.nn.apply_delta(base, path)
    for name, difference in mast.nn.read_delta(path).differences().items():
        assert torch.equal(difference, 1.5 * masked[name])
        assert torch.equal(applied.get_parameter(name), base.get_parameter(name) + difference)
    for wrong in (0, -1.0, float("nan"), float("inf"), "a", "2", [2.0], True):
        with pytest.raises(mast.MastError, match="rescale must"):
            sk.save_delta(path, rescale=wrong)
    with pytest.raises(mast.MastError, match=r"scale=False leaves.*give one"):
        sk.save_delta(path, rescale=2.0, scale=False)


def test_sketches_that_no_header_can_spell_have_indices(models, tmp_path):
    class Own(mast.Bernoulli):
        pass

    base, sk = trained(models, "mlp", Own(0.5), "init")
    path = sk.save_delta(tmp_path / "a.delta", seed=7)
    assert equal_states(mast.nn.apply_delta(base, path), sk.submodel(7))
    with pytest.raises(mast.MastError, match="does not follow from the key"):
        sk.save_delta(path, indices=False)
    # Groups that fill more room than the indices would.
    base, sk = trained(models, "mlp", mast.Grouped(mast.RandK(3), np.arange(232) // 10), "init")
    path = sk.save_delta(tmp_path / "b.delta", seed=7)
    assert mast.nn.read_delta(path).about["sketch"] is None
    assert equal_states(mast.nn.apply_delta(base, path), sk.submodel(7))
    # Keep probabilities by coordinate: scales that differ.
    keep = np.linspace(0.2, 0.9, 232)
    base, sk = trained(models, "mlp", mast.Bernoulli(keep), "init")
    path = sk.save_delta(tmp_path / "c.delta", seed=7)
    assert mast.nn.read_delta(path).about["sketch"] is None
    assert equal_states(mast.nn.apply_delta(base, path), sk.submodel(7))


@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_deltas_of_units(models, tmp_path, name, shift):
    """The scale is on outgoing weights; all others are whole, because dropped units still compute."""
    example = getattr(models, name)()[1][0]
    base, sk = trained(models, name, mast.nn.Neurons(mast.RandK(0.5)), shift, example=example)
    path = sk.save_delta(tmp_path / "a.delta", seed=7)
    sub = mast.nn.apply_delta(base, path)
    every, state = sk.kept(Key(7)), sk.model.state_dict()
    for key, y in sub.state_dict().items():
        x, v = state[key], 0 if shift is None else base.state_dict()[key]
        assert torch.equal(y, v + multiply(every[key], x - v) if key in every else x)
    found = mast.nn.read_delta(path)
    kept = sum(int(multiply(k, torch.ones(k.shape)).count_nonzero()) for k in every.values())
    assert found.about["kept"] == kept
    numbers = kept + sum(t.numel() for t in found.whole.values())
    assert path.stat().st_size < 4 * numbers + 6000  # no index beside each number


def test_what_cannot_be_asked(models, tmp_path):
    _, sk = trained(models, "mlp", mast.PermK(4), "init")
    with pytest.raises(mast.MastError, match="not by both"):
        sk.save_delta(tmp_path / "a", seed=1, key=Key(1))
    with pytest.raises(mast.MastError, match=r"key is a mast\.Key, got 3"):
        sk.save_delta(tmp_path / "a", key=3)
    for base in (3, "base", {"0.weight": 3}):
        with pytest.raises(mast.MastError, match="base is a model, or a mapping from names to tensors"):
            sk.save_delta(tmp_path / "a", base=base)
    with sk.sample(0), pytest.raises(mast.MastError, match="inside"):
        sk.save_delta(tmp_path / "a")
    with pytest.raises(mast.errors.DataError, match="cannot be written"):
        sk.save_delta(tmp_path / "absent" / "a")
    assert not list(tmp_path.iterdir())
