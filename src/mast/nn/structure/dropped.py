"""What stands in the place of a residual branch that was dropped: modules without parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Zeros(nn.Module):
    """Zeros like its input.

    >>> import torch
    >>> Zeros()(torch.ones(2))
    tensor([0., 0.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Zeros."""
        return torch.zeros_like(input)


class NoAttention(nn.Module):
    """Zeros like the query; called like `nn.MultiheadAttention`."""

    _qkv_same_embed_dim = False  # keeps nn.TransformerEncoderLayer from its own kernel
    in_proj_bias = None
    num_heads = 1

    def __init__(self, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first

    def forward(self, query: Tensor, *inputs: Any, **options: Any) -> tuple[Tensor, None]:
        """Zeros, and no attention weights."""
        return torch.zeros_like(query), None
