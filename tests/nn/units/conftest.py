"""Models of many shapes, in float64, with statistics and affine norms far from their initial values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    torch = None

if torch is not None:

    class Block(nn.Module):
        """Two convolutions and a way around them, with a convolution of its own where shapes change."""

        def __init__(self, inside, outside, stride=1):
            super().__init__()
            self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(outside)
            self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(outside)
            self.around = None
            if stride > 1 or inside != outside:
                self.around = nn.Sequential(
                    nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
                )

        def forward(self, x):
            out = F.relu(self.norm1(self.first(x)))
            out = self.norm2(self.second(out))
            out += x if self.around is None else self.around(x)
            return F.relu(out)

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.blocks = nn.Sequential(Block(8, 8), Block(8, 8), Block(8, 12, 2))
            self.head = nn.Linear(12, 5)

        def forward(self, x):
            x = self.blocks(F.relu(self.norm(self.stem(x))))
            x = F.adaptive_avg_pool2d(x, 1)
            return self.head(x.squeeze(-1).squeeze(2))

    class Viewed(nn.Module):
        """Runs of columns after a reshape, an odd number of everything, functional activations."""

        def __init__(self):
            super().__init__()
            self.a = nn.Conv1d(2, 7, 3)
            self.b = nn.Conv1d(7, 5, 3, bias=False)
            self.c = nn.Linear(5 * 5, 9)
            self.d = nn.Linear(9, 3)

        def forward(self, x):
            x = F.max_pool1d(torch.tanh(self.a(x)), 2)
            x = F.gelu(self.b(x))
            x = x.view(x.size(0), -1)
            return F.log_softmax(self.d(torch.sigmoid(self.c(x))), dim=-1)

    def _glu():
        return nn.Sequential(
            nn.Conv2d(3, 12, 3), nn.GLU(1), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(6, 10), nn.GLU(), nn.Linear(5, 14), nn.GLU(-1), nn.Linear(7, 3),
        )  # fmt: skip

    class Gated(nn.Module):
        """Two projections whose product is used, a scale and a shift of its own, and a shared layer."""

        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.gate, self.up = nn.Linear(6, 10), nn.Linear(6, 10, bias=False)
            self.scale, self.move = nn.Parameter(torch.rand(10) + 0.5), nn.Parameter(torch.randn(10))
            self.down = nn.Linear(10, 6)

        def forward(self, x):
            for _ in range(2):  # the same weights twice
                h = self.norm(x)
                x = x + self.down(F.silu(self.gate(h)) * self.up(h) * self.scale + self.move)
            return x

    class Vit(nn.Module):
        def __init__(self, **options):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, **options)
            self.embed = nn.Linear(5, 8)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.hidden, self.head = nn.Linear(8, 6), nn.Linear(6, 4)

        def forward(self, x):
            return self.head(torch.relu(self.hidden(self.encoder(self.embed(x)))))

    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 4, bias=False)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(x + self.attention(x, x, x, need_weights=False)[0])

    class Mixer(nn.Module):
        """Channels last and first by turns, with branches that end in a scale."""

        def __init__(self):
            super().__init__()
            self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
            self.stem = nn.Conv2d(2, 6, 1)
            self.norm = nn.LayerNorm(6)
            self.up, self.down = nn.Linear(6, 11), nn.Linear(11, 6)
            self.gamma = nn.Parameter(torch.rand(6) + 0.5)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            x = self.stem(x)
            h = self.depth(x).permute(0, 2, 3, 1)
            h = self.down(F.gelu(self.up(self.norm(h)))) * self.gamma
            x = x + h.permute(0, 3, 1, 2)
            return self.head(x.mean([2, 3]))

    class Excited(nn.Module):
        """Channels weighted by what a small network says of them, in four spellings."""

        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 3, 1)
            self.down, self.up = nn.Linear(8, 5), nn.Linear(5, 8)

        def forward(self, x):
            x = F.relu(self.conv(x))
            b, c, _, _ = x.size()
            w = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
            x = x * w.view(b, c, 1, 1) + x * w[:, :, None, None] - x * w.unsqueeze(-1).unsqueeze(3)
            return self.out(x)

    class ClassToken(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(2, 8, 4, 4)
            self.token = nn.Parameter(torch.randn(1, 1, 8))
            self.position = nn.Parameter(torch.randn(1, 5, 8))
            self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.attention = nn.MultiheadAttention(8, 4, batch_first=True)
            self.feed = nn.Sequential(nn.Linear(8, 13), nn.GELU(), nn.Dropout(0.0), nn.Linear(13, 8))
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
            h = self.norm1(x)
            a, _ = self.attention(h, h, h)
            x = x + a
            x = x + self.feed(self.norm2(x))
            return self.head(x[:, 0])

    def _mlp():
        return nn.Sequential(
            nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 7), nn.Sigmoid(), nn.Dropout(0.0), nn.Linear(7, 3)
        )

    def _grouped():
        return nn.Sequential(
            nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.ELU(),
            nn.Conv2d(12, 12, 3, groups=12), nn.PReLU(12), nn.GroupNorm(6, 12, affine=False),
            nn.Conv2d(12, 6, 1), nn.InstanceNorm2d(6), nn.BatchNorm2d(6, affine=False), nn.Hardswish(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 4),
        )  # fmt: skip

    def _transposed():
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, 2), nn.BatchNorm2d(6), nn.Softplus(), nn.ConvTranspose2d(6, 5, 2, 2),
            nn.Tanh(),
            nn.Upsample(scale_factor=2), nn.ZeroPad2d(1), nn.Conv2d(5, 2, 3),
        )  # fmt: skip

    MODELS = {
        "mlp": (_mlp, (6, 4)),
        "unbatched": (_mlp, (4,)),
        "resnet": (ResNet, (4, 3, 8, 8)),
        "viewed": (Viewed, (4, 2, 16)),
        "grouped": (_grouped, (4, 3, 9, 9)),
        "transposed": (_transposed, (3, 1, 9, 9)),
        "gated": (Gated, (5, 6)),
        "glu": (_glu, (4, 3, 5, 5)),
        "mixer": (Mixer, (3, 2, 5, 5)),
        "excited": (Excited, (3, 2, 4, 4)),
        "class token": (ClassToken, (3, 2, 8, 8)),
        "attention": (Attending, (5, 3, 8)),
        **{
            f"vit {'pre' if pre else 'post'} {'batch' if first else 'time'} first": (
                lambda pre=pre, first=first: Vit(norm_first=pre, batch_first=first, activation="gelu"),
                (3, 5, 5),
            )
            for pre in (True, False)
            for first in (True, False)
        },
        "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, bias=False), (5, 3, 8)),
    }
    UNITS = sorted(MODELS)
    BRANCHES = [
        "attention",
        "class token",
        "encoder layer",
        "mixer",
        "resnet",
        *(n for n in UNITS if n.startswith("vit")),
    ]


def make(name):
    """A model with the name, and inputs."""
    torch.manual_seed(abs(hash_of(name)) % 1000)
    model, shape = MODELS[name][0]().double(), MODELS[name][1]
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn_like(p))
        for b in model.buffers():
            if b.is_floating_point():
                b.add_(0.2 * torch.rand_like(b))
    return model, torch.randn(shape, dtype=torch.float64)


def hash_of(name):
    return sum(ord(c) * (i + 1) for i, c in enumerate(name))


def masked(sk, key):
    """The whole model with the weights v + S(x - v) of a draw, the long way: every scale is written out."""
    model = sk.watched.plain_copy()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, kept in sk.kept(key).items():
            p = parameters[name]
            v = torch.zeros_like(p) if sk.shift is None else sk.shift[name]
            p.copy_(v + torch.from_numpy(kept.diagonal()).to(p) * (p - v))
    return model.eval()


@pytest.fixture
def zoo():
    return SimpleNamespace(make=make, masked=masked)


def pytest_generate_tests(metafunc):
    if torch is None:
        return
    if "unit_model" in metafunc.fixturenames:
        metafunc.parametrize("unit_model", UNITS)
    if "branch_model" in metafunc.fixturenames:
        metafunc.parametrize("branch_model", BRANCHES)
