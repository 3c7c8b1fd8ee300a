"""Model files: the same outputs bit for bit, where the training code is unknown, and no code in the file."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from mast.nn import tensor_files  # noqa: E402


class Residual(nn.Module):
    """Functions, methods, operators, slices, a buffer that is not saved, a constant, a default argument."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding="same", bias=False)
        self.position = nn.Parameter(torch.randn(4, 1, 1))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x, mask=None):
        h = F.relu(self.norm(self.first(x))) + self.position
        if mask is not None:
            h = h * mask
        h = h + self.second(h) * self.scale
        h += torch.tensor([0.5])
        h.mul_(1.5)
        h = F.dropout(h, 0.5, training=self.training)
        pooled = torch.cat([h.mean((2, 3)), h.amax(dim=(-2, -1))], dim=1)
        return {"scores": self.head(pooled.view(x.shape[0], -1)), "rest": [h[:, :2, ..., -1], x.size(0)]}


class Words(nn.Module):
    """Positions counted from the input's size, one weight for input and output, own attention."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.positions = nn.Embedding(16, 8)
        self.project = nn.Linear(8, 24)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        h = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        q, k, v = self.project(h).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, float("-inf"))
        return self.out(h + F.softmax(scores, dim=-1) @ v)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Bilinear(3, 4, 2)

    def forward(self, left, right):
        return torch.sigmoid(self.mix(left, right)), (left * 2).sum()


MODELS = {
    "linear": lambda: (nn.Linear(5, 3), (torch.randn(2, 5),)),
    "residual": lambda: (Residual(), (torch.randn(3, 1, 8, 8),)),
    "words": lambda: (Words(), (torch.randint(0, 11, (2, 7)),)),
    "two_inputs": lambda: (TwoInputs(), (torch.randn(2, 3), torch.randn(2, 4))),
    "lstm": lambda: (
        nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True), (torch.randn(2, 4, 5),)
    ),
    "attention_block": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True), (torch.randn(2, 4, 8),)
    ),
    "encoder": lambda: (
        nn.Sequential(
            nn.Embedding(11, 8),
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2, nn.LayerNorm(8),
                enable_nested_tensor=False,
            ),
            nn.Linear(8, 3),
        ),
        (torch.randint(0, 11, (2, 4)),),
    ),
    "half": lambda: (nn.Sequential(nn.Linear(5, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 2)).bfloat16(),
                     (torch.randn(2, 5).bfloat16(),)),
    "channels_last": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6()).to(memory_format=torch.channels_last),
        (torch.randn(2, 3, 9, 9),),
    ),
}  # fmt: skip
LAYERS = {
    "bias_free_norm": lambda: (nn.BatchNorm2d(3, momentum=None), (2, 3, 4, 4)),
    "no_statistics": lambda: (nn.BatchNorm1d(3, track_running_stats=False, affine=False), (5, 3)),
    "group_norm": lambda: (nn.GroupNorm(2, 4, affine=False), (2, 4, 3)),
    "layer_norm": lambda: (nn.LayerNorm((3, 4), bias=False), (2, 3, 4)),
    "rms_norm": lambda: (nn.RMSNorm(4), (2, 4)),
    "instance_norm": lambda: (nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 4)),
    "transposed": lambda: (nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1, groups=1), (2, 3, 4, 4)),
    "circular": lambda: (nn.Conv1d(4, 6, 3, padding=2, padding_mode="circular", groups=2), (2, 4, 7)),
    "volume": lambda: (nn.Conv3d(1, 2, 2, dilation=2, bias=False), (1, 1, 5, 5, 5)),
    "average_pool": lambda: (nn.AvgPool2d(3, 2, ceil_mode=True, divisor_override=2), (1, 2, 8, 8)),
    "max_pool": lambda: (nn.MaxPool2d((2, 3), return_indices=True), (1, 2, 8, 8)),
    "adaptive_pool": lambda: (nn.AdaptiveAvgPool2d((None, 2)), (1, 2, 8, 8)),
    "upsample": lambda: (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (1, 2, 3, 3)),
    "unflatten": lambda: (nn.Unflatten(1, (2, 3)), (4, 6)),
    "prelu": lambda: (nn.PReLU(3), (2, 3)),
    "hardtanh": lambda: (nn.Hardtanh(-2.0, math.inf), (2, 3)),
    "gru": lambda: (nn.GRU(4, 3, 2, bias=False, dropout=0.1), (5, 2, 4)),
    "rnn": lambda: (nn.RNN(4, 3, nonlinearity="relu"), (5, 2, 4)),
    "lstm": lambda: (nn.LSTM(4, 5, bias=False), (5, 2, 4)),
}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_bit_for_bit(name, tmp_path):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    state = copy.deepcopy(model.state_dict())
    attributes = set(vars(model))
    path = mast.nn.save_submodel(model, tmp_path / "model.safetensors", example=inputs)
    assert model.training  # the model itself is left as it is
    assert set(vars(model)) == attributes
    assert all(torch.equal(t, state[key]) for key, t in model.state_dict().items())
    again = mast.nn.load_submodel(path)
    model.eval()
    with torch.no_grad():
        assert same(again(*inputs), model(*inputs))
        if name in ("residual", "words"):  # another batch size
            other = inputs[0][:1]
            assert same(again(other), model(other))
    loaded = again.state_dict()
    assert all(torch.equal(t, loaded[key]) for key, t in state.items())
    assert again.mast_about["parameters"] == sum(p.numel() for p in model.parameters())
    assert not again.training


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_comes_back_with_its_settings(name, tmp_path):
    torch.manual_seed(0)
    layer, shape = LAYERS[name]()
    x = torch.randn(shape)
    layer(x)
    again = mast.nn.load_submodel(mast.nn.save_submodel(layer, tmp_path / "a"))
    assert type(again) is type(layer)
    assert repr(again) == repr(layer)
    layer.eval()
    with torch.no_grad():
        assert same(again(x), layer(x))


def test_every_listed_module_can_be_made_from_its_own_settings():
    from mast.nn.portable_modules import SETTINGS, build, describe

    arguments = {
        "Bilinear": (2, 3, 4), "LocalResponseNorm": (2,), "Embedding": (5, 3), "Threshold": (0.1, 2.0),
        "Unflatten": (1, (2, 3)), "MultiheadAttention": (4, 2),
        "GroupNorm": (2, 4), "PixelShuffle": (2,), "PixelUnshuffle": (2,), "ChannelShuffle": (2,),
        "Linear": (3, 2), "PReLU": (3,), "GLU": (1,), "Softmax": (1,), "LogSoftmax": (-1,),
        "ConstantPad1d": (1, 0.5), "ConstantPad2d": (1, 0.5), "Upsample": (4,),
        "Hardtanh": (-1.0, 2.0), "LSTM": (4, 3, 1, True, False, 0.0, True, 2),
    }  # fmt: skip
    for kind in SETTINGS:
        if not hasattr(nn, kind):
            continue  # MAST's own attention has a test with submodels
        own = arguments.get(kind)
        if own is None:
            own = (
                (4, 2, 3)
                if "Conv" in kind
                else (0.3,)
                if "Drop" in kind
                else (4, 3)
                if kind in ("RNN", "GRU", "LSTM")
                else (2,)
            )
            if kind.endswith("Norm1d") or not SETTINGS[kind] or SETTINGS[kind] == "inplace":
                own = (3,) if "Norm" in kind else ()
        module = getattr(nn, kind)(*own)
        assert repr(build(describe(module, kind))) == repr(module)


def test_names_places_and_what_is_remembered(tmp_path):
    torch.manual_seed(0)
    path = mast.nn.save_submodel(TwoInputs(), tmp_path / "a", about={"density": 0.5, "note": ["x"]})
    again = mast.nn.load_submodel(path)
    a, b = torch.randn(2, 3), torch.randn(2, 4)
    assert same(again(a, right=b), again(left=a, right=b))
    assert again.mast_about["density"] == 0.5
    assert again.mast_about["mast_version"] == mast.__version__
    for args, kwargs in (((a,), {}), ((a, b, b), {}), ((a,), {"wrong": b}), ((a, b), {"left": a})):
        with pytest.raises(mast.MastError, match="takes left, right"):
            again(*args, **kwargs)
    copied = copy.deepcopy(again)
    assert same(copied(a, b), again(a, b))
    second = mast.nn.load_submodel(mast.nn.save_submodel(again, tmp_path / "b"))  # also a loaded model
    assert same(second(a, b), again(a, b))
    with pytest.raises(mast.MastError, match="JSON"):
        mast.nn.save_submodel(again, tmp_path / "c", about={"x": object()})


@pytest.mark.parametrize("activation", [F.silu, nn.GELU("tanh"), "gelu"], ids=["function", "module", "name"])
def test_blocks_with_parts_of_their_own(tmp_path, activation):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=activation).eval()
    block.norm2 = nn.LayerNorm(8, eps=0.1, bias=False)
    x = torch.randn(2, 5, 8)
    again = mast.nn.load_submodel(mast.nn.save_submodel(block, tmp_path / "a", example=x))
    with torch.no_grad():
        assert torch.equal(again(x), block(x))


def test_one_weight_for_two_modules_stays_one(tmp_path):
    again = mast.nn.load_submodel(mast.nn.save_submodel(Words(), tmp_path / "a"))
    assert again.out.weight is again.embedding.weight
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in Words().parameters())


def test_a_fresh_process_without_the_training_code(tmp_path):
    torch.manual_seed(0)
    model = Residual().eval()
    x = torch.randn(2, 1, 8, 8)
    torch.save(x, tmp_path / "x.pt")
    mast.nn.save_submodel(model, tmp_path / "model", example=x)
    code = (
        "import torch, mast, sys; torch.set_num_threads(1); x = torch.load(sys.argv[2]);"
        "torch.save(mast.nn.load_submodel(sys.argv[1])(x)['scores'].detach(), sys.argv[3])"
    )
    arguments = [str(tmp_path / name) for name in ("model", "x.pt", "y.pt")]
    subprocess.run([sys.executable, "-W", "error", "-c", code, *arguments], check=True, timeout=120)
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "y.pt"), model(x)["scores"])


# ---- refused when saving -------------------------------------------------------------------


class Branch(nn.Module):
    def __init__(self, condition):
        super().__init__()
        self.condition = condition
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) if self.condition(x) else x


class Inner(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Keywords(nn.Module):
    def forward(self, x, *rest):
        return x


class OwnLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * torch.fft.fft(x).abs()


class Counter(nn.Module):
    """Computes something else each time."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU(), Branch(lambda x: x.sum() > 0)), "module '1'.*cannot be written"),
        (
            lambda: nn.Sequential(Inner(torch.linalg.inv)),
            r"module '0' \(Inner\) calls the function linalg_inv",
        ),
        (lambda: nn.Sequential(Inner(lambda x: x.numpy())), r"module '0' \(Inner\) calls the method numpy"),
        (lambda: nn.Sequential(Inner(lambda x: x.data)), "attribute"),
        (lambda: Keywords(), r"takes \*rest"),
        (lambda: nn.Sequential(OwnLinear(3, 3)), r"module '0' \(OwnLinear\) calls the function fft"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), "parametrized"),
    ],
    ids=["branch", "function", "method", "attribute", "star", "subclass", "parametrized"],
)
def test_what_cannot_be_written_is_refused_by_name(make, message, tmp_path):
    with pytest.raises(mast.MastError, match=message):
        mast.nn.save_submodel(make(), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_hooks_and_changed_insides_are_refused(tmp_path):
    hooked = nn.Sequential(nn.Linear(3, 3))
    hooked[0].register_forward_hook(lambda m, i, o: o + 1)
    with pytest.raises(mast.MastError, match=r"'0' \(Linear\).*hooks"):
        mast.nn.save_submodel(hooked, tmp_path / "a")
    attention = nn.MultiheadAttention(8, 2)
    attention.out_proj = nn.Linear(8, 7)
    with pytest.raises(mast.MastError, match=r"out_proj.*was changed"):
        mast.nn.save_submodel(attention, tmp_path / "a")
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=lambda x: x)
    with pytest.raises(mast.MastError, match="activation"):
        mast.nn.save_submodel(block, tmp_path / "a")
    with pytest.raises(mast.MastError, match="does not give the output"):
        mast.nn.save_submodel(nn.Sequential(Counter()), tmp_path / "a", example=torch.ones(2))
    assert not list(tmp_path.iterdir())


# ---- refused when reading ------------------------------------------------------------------


def test_a_file_that_was_changed_is_refused(tmp_path):
    path = mast.nn.save_submodel(Residual(), tmp_path / "a")
    whole = path.read_bytes()
    for place in range(0, len(whole), 11):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(mast.errors.DataError):
            mast.nn.load_submodel(path)
    for length in (0, 7, 8, 50, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(mast.errors.DataError):
            mast.nn.load_submodel(path)
    with pytest.raises(mast.errors.DataError, match="cannot be read"):
        mast.nn.load_submodel(tmp_path)


@pytest.fixture
def forged(tmp_path):
    """Files with a right checksum and a changed description: somebody else made them."""
    path = mast.nn.save_submodel(Residual(), tmp_path / "a")
    said, tensors = tensor_files.read(path, "submodel", 1)
    own = {k: v for k, v in said.items() if k not in ("sha256", "kind", "format", "mast_version")}

    def make(change):
        description, mine = json.loads(json.dumps(own)), dict(tensors)
        change(description, mine)
        return tensor_files.write(tmp_path / "forged", "submodel", 1, description, mine)

    return make


def calls(op):
    return lambda said: next(c for c in said["model"]["calls"] if c["op"] == op)


EVIL = [
    ("function", "os.system"),
    ("function", "torch.load"),
    ("function", "builtins.eval"),
    ("function", "operator.attrgetter"),
    ("function", "__import__"),
    ("method", "__reduce__"),
    ("method", "tofile"),
    ("method", "numpy"),
    ("method", "__class__"),
    ("module", "head.__class__"),
    ("module", ""),
    ("module", "absent"),
    ("tensor", "head.1.weight.__class__"),
    ("call", "x"),
]


@pytest.mark.parametrize(("op", "target"), EVIL, ids=[f"{a}-{b}" for a, b in EVIL])
def test_no_file_calls_what_is_not_listed(forged, op, target):
    def change(said, tensors):
        said["model"]["calls"][1] |= {"op": op, "target": target}

    with pytest.raises(mast.errors.DataError, match="damaged"):
        mast.nn.load_submodel(forged(change))


def test_no_file_reaches_into_objects(forged):
    def attribute(said, tensors):
        calls("function")(said).update(target="attribute", args=[{"result": 0}, "__class__"], kwargs={})

    with pytest.raises(mast.errors.DataError, match="__class__"):
        mast.nn.load_submodel(forged(attribute))(torch.ones(1, 1, 8, 8))

    def method_of_text(said, tensors):
        calls("method")(said).update(target="split", args=["a b"], kwargs={})

    with pytest.raises(mast.errors.DataError, match="of a str"):
        mast.nn.load_submodel(forged(method_of_text))(torch.ones(1, 1, 8, 8))


def _at(*path, value):
    def change(said, tensors):
        for key in path[:-1]:
            said = said[key]
        said[path[-1]] = value

    return change


NONSENSE = {
    "module type": _at("model", "modules", "first", "type", value="Module"),
    "module settings": _at("model", "modules", "first", "settings", "device", value="cpu"),
    "module sizes": _at("model", "modules", "first", "settings", "in_channels", value=7),
    "huge module": _at("model", "modules", "first", "settings", "out_channels", value=10**12),
    "text as size": _at("model", "modules", "first", "settings", "in_channels", value="__import__('os')"),
    "module name": _at("model", "modules", "x; import os", value={"type": "Identity", "settings": {}}),
    "class attribute": _at("model", "modules", "forward", value={"type": "Identity", "settings": {}}),
    "own attribute": _at("model", "modules", "mast_calls", value={"type": "Identity", "settings": {}}),
    "input name": _at("model", "inputs", value=["x = exec('')"]),
    "later result": _at("model", "calls", 0, "args", value=[{"result": 99}]),
    "own result": _at("model", "calls", 0, "args", value=[{"result": 1}]),
    "value": _at("model", "calls", 0, "args", value=[{"eval": "1"}]),
    "device": _at("model", "calls", 0, "args", value=[{"device": "hpu:x"}]),
    "no calls": _at("model", "calls", value=None),
    "type": _at("model", "type", value="Program"),
    "strides": _at("strides", value={"first.weight": [10**9, 1, 1, 1]}),
    "alias": _at("aliases", value={"a": "nothing"}),
    "missing tensor": lambda said, tensors: tensors.pop("first.weight"),
    "extra tensor": lambda said, tensors: tensors.update({"first.weight.x": torch.ones(1)}),
    "shape": lambda said, tensors: tensors.update({"first.weight": torch.ones(1)}),
    "deep": _at("model", "output", value=json.loads("[" * 900 + "]" * 900)),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_files_that_contradict_themselves_are_refused(forged, name):
    with pytest.raises(mast.errors.DataError, match="damaged"):
        mast.nn.load_submodel(forged(NONSENSE[name]))


# ---- submodels of draws --------------------------------------------------------------------


SINGLE, UNITS = mast.RandK(0.25), mast.nn.Neurons(mast.RandK(0.25))
DRAWS = [(name, sketch) for name in ("mlp", "cnn", "attention", "transformer") for sketch in (SINGLE, UNITS)]
DRAWS.append(("transformer", mast.nn.Layers(mast.RandK(1))))


@pytest.mark.parametrize(
    ("name", "sketch"), DRAWS, ids=[f"{name}-{type(sketch).__name__}" for name, sketch in DRAWS]
)
def test_the_submodel_of_a_draw(models, tmp_path, name, sketch):
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, sketch)
    path = sk.save_submodel(tmp_path / "a", 7, example=inputs[0], about={"note": "x"})
    again = mast.nn.load_submodel(path)
    with torch.no_grad():
        assert torch.equal(again(inputs[1]), sk.submodel(7)(inputs[1]))
    about = again.mast_about
    if sk.structure is None:
        assert about["density"] == mast.RandK(0.25).count(sk.dim) / sk.dim
    else:
        kept = sk.draw(7).kept.values()
        assert about["density"] == sum(len(k.units) for k in kept) / sum(k.of for k in kept)
    assert about["key"] == {"seed": 7, "step": 0, "node": 0}
    assert about["note"] == "x"
    assert about["sketch"] == sk.sketch._label()
    assert about["parameters_of_the_whole"] == sum(p.numel() for p in model.parameters())
    if sk.structure is not None:
        assert about["parameters"] < about["parameters_of_the_whole"]


def unpacked(x):
    b, c, h, w = x.shape
    return x.reshape(b * c, h, w)[..., None, 1:-1:2]


FUNCTIONS = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2, ceil_mode=True),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, (1, 1)),
    "activations": lambda x: F.gelu(x) + F.silu(x) + F.leaky_relu(x, 0.2) + F.elu(x) + F.mish(x),
    "hard": lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.hardtanh(x, -0.5, 0.5) + F.relu6(x),
    "softmax": lambda x: x.softmax(1) + F.log_softmax(x, -1) + torch.softmax(x, dim=2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
    "norms": lambda x: F.layer_norm(x, (6,)) + F.group_norm(x, 2) + F.normalize(x, dim=1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
    "unpacked": unpacked,
    "stacked": lambda x: torch.stack(x.unbind(1), dim=-1) + torch.cat(x.chunk(2, 1), 1).permute(0, 2, 3, 1),
    "reductions": lambda x: x.mean((2, 3), keepdim=True) + x.var(1).amax() - x.max(2)[0].sum(),
    "comparisons": lambda x: torch.where(x > 0, x, -x) * (x != 0).to(x.dtype) + (~(x <= 0)).float(),
    "numbers": lambda x: x / math.sqrt(x.shape[-1]) + (x.shape[2] // 2) + x**2 % 3 - 2.5,
    "made": lambda x: x + torch.arange(x.size(3), dtype=x.dtype) + torch.zeros(x.size(2), 1) * x.new_ones(6),
    "in place": lambda x: F.relu(x.clone(), inplace=True).mul_(2).add_(x),
    "moved": lambda x: x.transpose(1, 2).contiguous().flatten(2).roll(1, dims=-1).flip(0).unsqueeze(1),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_methods(name, tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(2, 4, 1), Inner(FUNCTIONS[name])).eval(), torch.randn(3, 2, 6, 6)
    again = mast.nn.load_submodel(mast.nn.save_submodel(model, tmp_path / "a", example=x))
    with torch.no_grad():
        assert torch.equal(again(x[:2]), model(x[:2]))
