"""Every trap is found, named with its fix, and gone where it can be fixed."""

from __future__ import annotations

import copy

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn, optim  # noqa: E402


def problems(findings):
    return " | ".join(str(f) for f in findings)


def test_a_plain_model_without_traps_has_none(models):
    assert mast.nn.validate(models.mlp()[0]) == []


def test_traps_of_modules(models):
    assert "BatchNorm" in problems(mast.nn.validate(models.cnn()[0]))
    assert "checkpoint" in problems(mast.nn.validate(models.checkpointed()[0]))
    assert "max_norm" in problems(mast.nn.validate(nn.Embedding(3, 2, max_norm=1.0)))
    assert "compiled" in problems(mast.nn.validate(torch.compile(models.mlp()[0], backend="eager")))
    model, _ = models.mlp()
    model[0].compile(backend="eager")
    assert "compiled" in problems(mast.nn.validate(model))


def test_statistics_are_one_finding_with_all_layers():
    model = nn.Sequential(nn.Linear(2, 2), *(nn.BatchNorm1d(2) for _ in range(19)))
    (finding,) = mast.nn.validate(model)
    assert finding.where == ", ".join(map(str, range(1, 20))) + " (BatchNorm1d)"
    assert str(finding).count("averages over draws") == 1


@pytest.mark.filterwarnings("error")
def test_a_batch_is_measured_without_warnings():
    """Those of BatchNorm are left for the submodels that are asked for; one number has no deviation."""
    model, batch = normed(trained=True), torch.randn(5, 4)
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    mast.nn.validate(model, batch=batch)
    with pytest.warns(UserWarning, match="BatchNorm"):
        sk.submodel(0)
    single = nn.Linear(4, 1)
    mast.nn.sparsify(single, mast.Bernoulli(0.5))
    assert not [f for f in mast.nn.validate(single, batch=batch[:1]) if f.where == "outputs"]


def normed(trained):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    for _ in range(3 if trained else 0):
        model(torch.randn(5, 4))
    return model


SIZES = mast.Nested([0.25, 0.5, 1.0])


@pytest.mark.parametrize("sketch", [mast.nn.Neurons(SIZES), SIZES], ids=["units", "weights"])
def test_pretrained_weights_under_nested_sizes_with_scales(sketch):
    model = normed(trained=True)
    mast.nn.sparsify(model, sketch)
    (start,) = [f for f in mast.nn.validate(model) if f.where == "the start"]
    assert start.certain
    assert "its BatchNorm layers have seen batches" in start.problem
    assert "scaled=False" in start.fix
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, 4)).sum().backward()
    with pytest.warns(UserWarning, match="pretrained weights are lost"):
        optimizer.step()
    assert not [f for f in mast.nn.validate(model) if f.where == "the start"]  # it lies behind


def test_statistics_of_old_files_without_counts_show_training():
    model, state = normed(trained=False), normed(trained=True).state_dict()
    model.load_state_dict({name: t for name, t in state.items() if "num_batches" not in name}, strict=False)
    assert mast.nn.sparsify(model, mast.nn.Neurons(SIZES)).trained


def test_fresh_weights_under_nested_sizes_are_not_called_pretrained():
    model = normed(trained=False)
    mast.nn.sparsify(model, mast.nn.Neurons(SIZES))
    model(torch.randn(5, 4)).sum().backward()  # counts a batch
    (start,) = [f for f in mast.nn.validate(model) if f.where == "the start"]
    assert not start.certain
    assert "scale_start" in start.fix
    optim.SGD(model.parameters(), lr=0.1).step()  # without a warning
    model = normed(trained=True)
    mast.nn.scale_start(model, mast.nn.Neurons(SIZES))
    mast.nn.sparsify(model, mast.nn.Neurons(SIZES))
    assert "the start" not in [f.where for f in mast.nn.validate(model)]


def test_a_resumed_run_is_not_called_pretrained():
    model = normed(trained=False)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SIZES))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    other = normed(trained=False)
    other.load_state_dict(model.state_dict())
    resumed = mast.nn.sparsify(other, mast.nn.Neurons(SIZES))
    resumed.load_state_dict(sk.state_dict())
    other(torch.randn(5, 4)).sum().backward()
    optim.SGD(other.parameters(), lr=0.1).step()  # without a warning
    assert "the start" not in [f.where for f in mast.nn.validate(other)]


def test_a_model_of_transformers_that_was_loaded_counts_as_trained(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=16, vocab_size=9)  # fmt: skip
    fresh = transformers.BertModel(config)
    fresh.save_pretrained(tmp_path)
    loaded = transformers.BertModel.from_pretrained(tmp_path)
    example = {"input_ids": torch.ones(1, 3, dtype=torch.long)}
    for model, certain in ((fresh, False), (loaded, True)):
        mast.nn.sparsify(model, mast.nn.Neurons(SIZES), example=example)
        assert [f.certain for f in mast.nn.validate(model) if f.where == "the start"] == [certain]


def test_evaluation_of_nested_sizes_with_scales():
    """After training, x is none of the sizes: what is said to be the whole one is."""
    x = torch.randn(5, 4)
    for scaled in (True, False):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Nested([0.25, 0.5, 1.0], scaled=scaled)))
        found = [f for f in mast.nn.validate(model) if f.where == "evaluation"]
        with sk.member(2):
            inside = model(x)
        torch.testing.assert_close(inside, sk.submodel(member=2)(x))
        assert torch.allclose(model(x), inside) is not scaled
        assert bool(found) is scaled
        for finding in found:
            assert "sk.submodel(member=2)" in finding.fix


def test_evaluation_of_nested_sizes_without_the_whole_one():
    """With all units x is larger than the largest size, so evaluating it scores units that no size trains."""
    x = torch.randn(5, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    sk = mast.nn.elastic(model, [0.25, 0.5], [x])
    (finding,) = [f for f in mast.nn.validate(model) if f.where == "evaluation"]
    assert "the largest keeps 50 % of it" in finding.problem
    assert "sk.submodel(member=1), the largest size" in finding.fix
    with sk.member(1):
        inside = model(x)
    torch.testing.assert_close(inside, sk.submodel(member=1)(x))
    assert not torch.allclose(model(x), inside)


def test_clipping_thresholds(models):
    model, _ = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.25))
    assert "multiply clipping thresholds by 2" in problems(mast.nn.validate(model))


def test_an_optimizer_of_other_parameters(models):
    model, _ = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    other = optim.SGD(models.mlp()[0].parameters(), lr=0.1)
    assert "no sketched parameter" in problems(mast.nn.validate(model, other))
    mixed = optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    assert "1 of its parameters are not in this model" in problems(mast.nn.validate(model, mixed))
    with pytest.raises(mast.MastError, match="torch optimizer"):
        mast.nn.validate(model, "sgd")


def test_one_of_several_optimizers(models):
    model, _ = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    whole, part = (optim.SGD(m.parameters(), lr=0.1) for m in (model, model[:3]))
    assert "optimizers" not in problems(mast.nn.validate(model, whole))
    found = problems(mast.nn.validate(model, part))
    assert "it holds 2 of the 3 sketched parameters" in found
    assert "cannot be known" in found


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.3),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
    "SGD, maximize": lambda p: optim.SGD(p, lr=0.1, maximize=True, weight_decay=0.3),
    "Adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.3),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.3),
    "AdamW, one by one": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.3, foreach=False),
    "NAdam": lambda p: optim.NAdam(p, lr=0.1, weight_decay=0.3),
    "NAdam, decoupled": lambda p: optim.NAdam(p, lr=0.1, weight_decay=0.3, decoupled_weight_decay=True),
    "RAdam": lambda p: optim.RAdam(p, lr=0.1, weight_decay=0.3),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, weight_decay=0.3),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, weight_decay=0.3),
    "Adadelta": lambda p: optim.Adadelta(p, weight_decay=0.3),
    "Adamax": lambda p: optim.Adamax(p, lr=0.1, weight_decay=0.3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_goes_to_the_shift(name):
    """With the fix, an optimizer on x does what it would do on u = x - v without it."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3, bias=False).double()
    v = torch.randn(3, 4, dtype=torch.float64)
    mast.nn.sparsify(layer, mast.Bernoulli(0.5), shift={"weight": v})
    u = nn.Parameter(layer.weight.detach() - v)
    opt, other = OPTIMIZERS[name]([layer.weight]), OPTIMIZERS[name]([u])
    (finding,) = [f for f in mast.nn.validate(layer, opt, fix=True) if "decay" in f.problem]
    assert finding.fixed
    for _ in range(6):
        g = torch.randn(3, 4, dtype=torch.float64)
        layer.weight.grad, u.grad = g.clone(), g.clone()
        opt.step()
        other.step()
        torch.testing.assert_close(layer.weight.detach() - v, u.detach(), rtol=1e-12, atol=1e-12)
    assert not any("decay" in f.problem for f in mast.nn.validate(layer, opt))


def test_without_a_shift_or_without_decay_there_is_nothing_to_fix(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    assert "decay" not in problems(mast.nn.validate(model, OPTIMIZERS["AdamW"](model.parameters())))
    sk.remove()
    mast.nn.sparsify(model, mast.Bernoulli(0.5), shift="init")
    assert "decay" not in problems(mast.nn.validate(model, optim.SGD(model.parameters(), lr=0.1)))
    assert "decay" in problems(mast.nn.validate(model, OPTIMIZERS["AdamW"](model.parameters())))
    only_biases = optim.AdamW([{"params": [p for p in model.parameters() if p.ndim == 1]}], weight_decay=0.1)
    assert "decay" not in problems(mast.nn.validate(model, only_biases))


def test_an_unknown_optimizer_is_not_touched(models):
    class Mine(optim.SGD):
        """Who knows what it does with weight_decay."""

    model, _ = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5), shift="init")
    opt = Mine(model.parameters(), lr=0.1, weight_decay=0.1)
    (finding,) = [f for f in mast.nn.validate(model, opt, fix=True) if "decay" in f.problem]
    assert not finding.fixed
    assert "weight_decay=0" in finding.fix
    assert not opt._optimizer_step_pre_hooks


def test_parameters_that_are_not_sketched_decay_as_before(models, loss_on, same):
    model, inputs = models.mlp()
    plain = copy.deepcopy(model)
    mast.nn.sparsify(model, mast.Identity(), where="0.weight", shift={"0.weight": torch.zeros(16, 5)})
    opts = [OPTIMIZERS["AdamW"](m.parameters()) for m in (model, plain)]
    mast.nn.validate(model, opts[0], fix=True)
    for x in inputs:
        for m, opt in zip((model, plain), opts, strict=True):
            loss_on(x)(m).backward()
            opt.step()
            opt.zero_grad()
    same(model, plain)
