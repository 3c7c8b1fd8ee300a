"""Which parameters are sketched, and what is refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402


def names(sk):
    return [w.name for w in sk.weights]


def test_by_default_trainable_weights_of_two_dimensions_or_more(models):
    model, _ = models.cnn()
    model[3].weight.requires_grad_(False)
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    assert names(sk) == ["0.weight", "7.weight"]
    assert sk.unsketched["3.weight"] == "frozen"
    assert (
        sk.unsketched["1.weight"]
        == "a vector or a number: only weights of two or more dimensions are sketched"
    )
    assert sk.dim == model[0].weight.numel() + model[7].weight.numel()


class Layerwise(nn.Module):
    """Parameters of two dimensions and more that are no weights of layers, beside one that is."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
        self.layer_scale = nn.Parameter(torch.ones(4, 1, 1))
        self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.A_log = nn.Parameter(torch.zeros(4, 3))
        self.norm = nn.LayerNorm([4, 4])
        self.in_proj_weight = nn.Parameter(torch.ones(4, 4))
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.recurrent = nn.LSTM(4, 4, proj_size=2)


def test_only_weights_of_layers_are_sketched_by_default():
    sk = mast.nn.sparsify(Layerwise(), mast.Bernoulli(0.5))
    assert names(sk) == [
        "in_proj_weight", "attention.in_proj_weight", "attention.out_proj.weight",
        "recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "recurrent.weight_hr_l0",
    ]  # fmt: skip
    for name in ("cls_token", "pos_embed", "layer_scale", "A_log", "norm.weight", "attention.bias_k"):
        assert sk.unsketched[name] == "not the weight of a layer; where= can name it"
    assert "where= can name it" in str(sk)
    explicit = mast.nn.sparsify(Layerwise(), mast.Bernoulli(0.5), where=["pos_embed", "A_log"])
    assert names(explicit) == ["pos_embed", "A_log"]


def test_tied_weights_are_one_under_their_first_name(models):
    model, _ = models.tied()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    assert names(sk) == ["embedding.weight", "middle.weight"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("0.*", ["0.weight", "0.bias"]),
        (["0.weight", "*.bias"], ["0.weight", "0.bias", "2.bias", "4.bias"]),
        (lambda name, p: p.ndim == 1 and name != "2.bias", ["0.bias", "4.bias"]),
    ],
)
def test_where(models, where, expected):
    model, _ = models.mlp()
    assert names(mast.nn.sparsify(model, mast.Bernoulli(0.5), where=where)) == expected


def test_the_table_names_every_parameter(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), keep={"2.*": 0.25, "4.weight": 1})
    printed = str(sk)
    for name, _ in model.named_parameters():
        assert name in printed
    assert "keeps 25 %" in printed
    assert "no: keep = 1" in printed
    assert "208 of 259 weights are sketched" in printed
    assert sk.density == pytest.approx((80 * 0.5 + 128 * 0.25) / 208)


def test_tables_of_units_name_them_as_where_does(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), where="0.weight")
    units, parameters = str(sk).split("parameter ")
    assert "0.weight  16     yes" in units
    rows = {line.split()[0]: line for line in parameters.splitlines()[1:]}
    assert "no: it makes the units of 0.weight" in rows["0.weight"]
    assert "no: it makes the units of 0.weight" in rows["0.bias"]
    assert rows["2.weight"].endswith("yes, takes the units of 0.weight, keeps 50 %")
    assert [w.name for w in sk.weights] == ["2.weight"]


@pytest.mark.parametrize(
    ("sketch", "share"),
    [
        (mast.RandK(0.25), 0.25),
        (mast.PermK(4), 0.25),
        (mast.Gaussian(0.5), 1.0),
        (mast.Identity(), 1.0),
        (mast.Mixture([mast.Bernoulli(0.5), mast.PermK(4)]), 0.375),
        (mast.Grouped(mast.Bernoulli(0.5), np.arange(232) // 8), 0.5),
    ],
)
def test_density(models, sketch, share):
    model, _ = models.mlp()
    assert mast.nn.sparsify(model, sketch).density == pytest.approx(share, abs=1e-9)


REFUSED = [
    (lambda m: mast.nn.sparsify([1], mast.Bernoulli(0.5)), "must be an nn.Module"),
    (lambda m: mast.nn.sparsify(m, 0.5), "must be a sketch"),
    (
        lambda m: mast.nn.sparsify(
            m, mast.Matrices([np.eye(232)[::-1], 2 * np.eye(232) - np.eye(232)[::-1]])
        ),
        "not diagonal",
    ),
    (
        lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), keep={"nothing*": 0.5}),
        "matches none of the parameters",
    ),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), keep={"*.bias": 0.5}), "not sketched"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), keep={"0.*": 1.5}), "probability"),
    (lambda m: mast.nn.sparsify(m, mast.RandK(0.5), keep={"0.*": 0.5}), "only Bernoulli"),
    (lambda m: mast.nn.sparsify(m, mast.Gaussian(0.5), keep={"0.*": 0.5}), "only Bernoulli"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), where="nothing"), "matches none"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), where=3), "where is a name pattern.* got 3"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), where=lambda n, p: False), "no parameter to sketch"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli([0.5, 0.5])), "is for 2 coordinates"),
    (lambda m: mast.nn.sparsify(m, mast.RandK(1000)), "cannot keep"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), shift="zero"), '"init"'),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), shift={}), "no tensor for"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), shift={"0.weight": torch.ones(2)}), "shape"),
    (
        lambda m: mast.nn.sparsify(
            m, mast.Bernoulli(0.5), shift={n: p / 0 for n, p in m.state_dict().items()}
        ),
        "NaN or infinity",
    ),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), keep={"0.weight": "x"}), "got 'x'"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), keep={"0.weight": None}), "got None"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), keep={"0.weight": ["x"]}), r"got \['x'\]"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), keep={0: 0.5}), "names and probabilities"),
    (lambda m: mast.nn.sparsify(m, mast.Bernoulli(0.5), seed=-1), "seed"),
    (lambda m: mast.nn.sparsify(nn.DataParallel(m), mast.Bernoulli(0.5)), "DistributedDataParallel"),
    (lambda m: mast.nn.sparsify(nn.LazyLinear(3), mast.Bernoulli(0.5)), "no shape yet"),
    (lambda m: mast.nn.sparsify(m.to("meta"), mast.Bernoulli(0.5)), "meta device"),
    (lambda m: mast.nn.sparsify(nn.ReLU(), mast.Bernoulli(0.5)), "none at all"),
]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")  # torch says so each time
@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals_say_why(models, call, message):
    model, _ = models.mlp()
    with pytest.raises(mast.MastError, match=message):
        call(model)
    if not model[0].weight.is_meta:  # and leave nothing behind
        mast.nn.sparsify(model, mast.Bernoulli(0.5)).remove()


def test_twice_is_refused(models):
    model, _ = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    with pytest.raises(mast.MastError, match=r"remove\(\)"):
        mast.nn.sparsify(model, mast.Bernoulli(0.5))
    with pytest.raises(mast.MastError, match=r"remove\(\)"):
        mast.nn.sparsify(nn.Sequential(model), mast.Bernoulli(0.5))


def test_a_parameter_in_a_tuple_is_refused():
    model = nn.Linear(2, 2)
    model.both = (model.weight, model.bias)
    with pytest.raises(mast.MastError, match="tuple"):
        mast.nn.sparsify(model, mast.Bernoulli(0.5))


def test_sharded_parameters_are_refused():
    model = nn.Linear(2, 2)
    model.weight.device_mesh = object()  # what a DTensor has
    with pytest.raises(mast.MastError, match="sharded"):
        mast.nn.sparsify(model, mast.Bernoulli(0.5))


def test_different_names_seeds_steps_and_nodes_have_different_draws():
    model = nn.ModuleList([nn.Linear(20, 20) for _ in range(2)])

    def masks(seed, step, node):
        sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), seed=seed, node=node)
        with sk.sample(step):
            found = [(m.weight == 0).clone() for m in model]
        sk.remove()
        return found

    seen = [mask for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)) for mask in masks(*key)]
    for i, a in enumerate(seen):
        for b in seen[:i]:
            # 400 independent coins agree 200 ± 10 times: five standard errors.
            assert abs((a == b).sum() - 200) < 50
