"""Small models, and the reference that materialises S."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest

import mast

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError:  # the tests skip by themselves, with a reason
    torch = None


if torch is not None:

    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0].mean(1))

    class Tied(nn.Module):
        """Input and output embeddings are one parameter."""

        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(11, 6)
            self.middle = nn.Linear(6, 6)
            self.output = nn.Linear(6, 11, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, x):
            return self.output(torch.tanh(self.middle(self.embedding(x)))).mean(1)

    class Checkpointed(nn.Module):
        def __init__(self, use_reentrant):
            super().__init__()
            self.use_reentrant = use_reentrant
            self.first = nn.Linear(5, 8)
            self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
            self.extra = nn.Linear(8, 8)
            self.last = nn.Linear(8, 3)

        def forward(self, x):
            h = checkpoint(self.block, self.first(x), use_reentrant=self.use_reentrant)
            h = checkpoint(lambda t: self.extra(t).tanh(), h, use_reentrant=self.use_reentrant)
            return self.last(h)

    class OwnLists(nn.Module):
        """Keeps its parameters in a plain list and dict as well."""

        def __init__(self):
            super().__init__()
            self.first_weight = nn.Parameter(torch.randn(5, 7) / 3)
            self.second_weight = nn.Parameter(torch.randn(7, 3) / 3)
            self.chain = [self.first_weight]
            self.named = {"last": [self.second_weight]}

        def forward(self, x):
            for w in self.chain:
                x = torch.tanh(x @ w)
            return x @ self.named["last"][0]


def _mlp():
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def _cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Flatten(), nn.Linear(54, 3),
    )  # fmt: skip


@pytest.fixture
def models():
    """Name -> (a model, inputs for it): all classify into 3, or 11, classes."""
    torch.manual_seed(1)
    return SimpleNamespace(
        mlp=lambda: (_mlp(), torch.randn(4, 10, 5)),
        cnn=lambda: (_cnn(), torch.randn(4, 10, 1, 8, 8)),
        lstm=lambda: (Lstm(), torch.randn(4, 10, 4, 5)),
        attention=lambda: (Attention(), torch.randn(4, 10, 4, 8)),
        tied=lambda: (Tied(), torch.randint(0, 11, (4, 10, 4))),
        transformer=lambda: (
            nn.Sequential(
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
                nn.Flatten(),
                nn.Linear(32, 3),
            ),
            torch.randn(4, 10, 4, 8),
        ),
        lists=lambda: (OwnLists(), torch.randn(4, 10, 5)),
        checkpointed=lambda: (Checkpointed(False), torch.randn(4, 10, 5)),
        reentrant=lambda: (Checkpointed(True), torch.randn(4, 10, 5)),
    )


def diagonals(sk, step, seed=None, node=None):
    """c of each sketched parameter, from the sketch's own draws, as tensors."""
    from mast.nn.tensors.weights import name_index

    seed, node = sk.seed if seed is None else seed, sk.node if node is None else node
    one_keep = isinstance(sk.sketch, mast.Bernoulli) and isinstance(sk.sketch.keep, float)
    if one_keep or isinstance(sk.sketch, mast.Gaussian):
        flat = [
            (sk.sketch if w.keep is None else type(sk.sketch)(w.keep))
            .draw(w.count, seed, step, node, index=name_index(w.name))
            .diagonal()
            for w in sk.weights
        ]
    else:
        whole = sk.sketch.draw(sk.dim, seed, step, node).diagonal()
        flat = np.split(whole, np.cumsum([w.count for w in sk.weights])[:-1])
    return {
        w.name: torch.from_numpy(c).to(w.parameter.dtype).view(w.shape)
        for w, c in zip(sk.weights, flat, strict=True)
    }


class Reference:
    """Trains a copy of the model the long way: every y and every S'g is written out."""

    def __init__(self, sk, model, make_optimizer):
        self.sk = sk
        self.x = copy.deepcopy(model)
        self.v = None if sk.shift is None else {name: v.clone() for name, v in sk.shift.items()}
        self.optimizer = make_optimizer(self.x.parameters())

    def gradient(self, step, losses, c=None):
        """Add S'grad of each loss at y to the .grad of x; return the losses."""
        c = diagonals(self.sk, step) if c is None else c
        y = copy.deepcopy(self.x).train()
        for p in y.parameters():
            p.grad = None
        with torch.no_grad():
            for name, p in y.named_parameters():
                if name in c:
                    v = 0 if self.v is None else self.v[name]
                    p.copy_(v + c[name] * (p - v))
        values = []
        parameters = dict(y.named_parameters())
        for loss in losses:
            value = loss(y)
            value.backward()
            values.append(value.detach())
            for name, p in self.x.named_parameters():
                g = parameters[name].grad
                if g is not None:
                    g = g * c[name] if name in c else g
                    p.grad = g.clone() if p.grad is None else p.grad + g
                    parameters[name].grad = None
        for mine, theirs in zip(self.x.buffers(), y.buffers(), strict=True):
            mine.copy_(theirs)
        return values

    def step(self, step, losses, c=None):
        values = self.gradient(step, losses, c)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return values


@pytest.fixture
def reference():
    return Reference


@pytest.fixture
def diagonal():
    return diagonals


@pytest.fixture
def loss_on():
    """A loss of a model on inputs: cross-entropy with targets derived from the inputs' number."""

    def make(x, scale=1.0):
        def loss(model):
            out = model(x)
            return scale * F.cross_entropy(out, torch.arange(len(x)) % out.shape[-1])

        return loss

    return make


@pytest.fixture
def same():
    """Two models agree in every entry, exactly unless a tolerance is given."""

    def check(a, b, atol=0.0):
        left, right = a.state_dict(), b.state_dict()
        assert left.keys() == right.keys()
        for name in left:
            torch.testing.assert_close(
                left[name], right[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )

    return check


@pytest.fixture(autouse=True)
def one_thread():
    if torch is not None:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Tests of what submodels compute leave BatchNorm's statistics as they are; one is of the warning."""
    for item in items:
        if "tests/nn/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore:the model has BatchNorm layers"))
