"""The networks of the benchmarks of `mast.nn`."""

from __future__ import annotations

#: what a process runs to find out how much memory a sketch takes beside plain training
MEMORY = """
import torch
from torch import nn

import mast


def peak():
    status = open("/proc/self/status").read()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def network(width, layers):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(2, model[0].in_features)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


torch.set_num_threads(1)
warm = network(400, 10)  # loads what is needed, and compiles the kernels
mast.nn.sparsify(warm, {sketch})
train(warm, 2)
model = network(1000, 20)
train(model, 2)
plain = peak()
mast.nn.sparsify(model, {sketch})
train(model, 30)
print(peak() - plain)
"""


def cnn():
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 10),
    )  # fmt: skip


def transformer():
    from torch import nn

    width = 256
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(4096, width),
        nn.TransformerEncoder(layer, 10, enable_nested_tensor=False),
        nn.Linear(width, 4096),
    )


def resnet18():
    """Its convolutions, norms and shortcuts, with a stem for small pictures."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.branch = nn.Sequential(
                nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b),
            )  # fmt: skip
            self.shortcut = nn.Identity() if a == b else nn.Conv2d(a, b, 1, stride, bias=False)

        def forward(self, x):
            return (self.branch(x) + self.shortcut(x)).relu()

    widths = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1),
              (256, 512, 2), (512, 512, 1))  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        *(Block(*sizes) for sizes in widths),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def resnet50():
    """He et al. (2016), for pictures of 224 x 224: 25.6 million weights."""
    from torch import nn

    def convolution(a: int, b: int, size: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b)]

    class Block(nn.Module):
        def __init__(self, a: int, width: int, stride: int) -> None:
            super().__init__()
            b = 4 * width
            self.branch = nn.Sequential(
                *convolution(a, width, 1), nn.ReLU(), *convolution(width, width, 3, stride), nn.ReLU(),
                *convolution(width, b, 1),
            )  # fmt: skip
            self.shortcut = nn.Identity() if a == b else nn.Sequential(*convolution(a, b, 1, stride))

        def forward(self, x):
            return (self.branch(x) + self.shortcut(x)).relu()

    layers = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Block(channels, width, 2 if width > 64 and block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def gpt2():
    """Its layers at a small size: norms first, GELU, no bias at the end."""
    from torch import nn

    width = 128
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.Sequential(
        nn.Embedding(4096, width),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.LayerNorm(width),
        nn.Linear(width, 4096, bias=False),
    )


def encoder():
    """A BERT of MiniLM's shape with random weights, a batch and targets."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    ids = torch.randint(0, 30522, (32, 28))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return transformers.BertForSequenceClassification(config), batch, torch.randint(0, 2, (32,))
