"""A small network and its data for the cluster: scikit-learn's digits, shared among the nodes by rows."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def data(node: int, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of one node: every fifth row is left out for testing, the others are dealt in turn."""
    inputs, targets = _rows()
    mine = [i for i in range(len(targets)) if i % 5][node::nodes]
    return inputs[mine], targets[mine]


def test() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = _rows()
    return inputs[::5], targets[::5]
