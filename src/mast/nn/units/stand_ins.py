"""Modules that stand in for others in a submodel: attention with some of its heads, and nothing at all."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class HeadsAttention(nn.Module):
    """Multi-head attention over a subset of heads; called like `nn.MultiheadAttention`, with the same names.

    `nn.MultiheadAttention` itself ties its width to the number of heads times their size. This is made of
    such an attention, whose parameters it takes. If they are cut to some heads, `kept` has the numbers
    of those, among the `all_heads` that attention masks of three dimensions are made for.

    >>> whole = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> attention, x = HeadsAttention(whole), torch.ones(1, 3, 8)
    >>> torch.allclose(attention(x, x, x)[0], whole(x, x, x)[0])
    True
    """

    # Keeps nn.TransformerEncoderLayer from its own kernel, which knows no such heads.
    _qkv_same_embed_dim = False

    def __init__(self, whole: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.head_dim, self.all_heads = whole.embed_dim, whole.head_dim, whole.num_heads
        self.dropout, self.batch_first = whole.dropout, whole.batch_first
        self.kept = list(range(whole.num_heads))
        self.in_proj_weight, self.in_proj_bias = whole.in_proj_weight, whole.in_proj_bias
        self.out_proj = nn.Linear(whole.embed_dim, whole.embed_dim, device="meta")
        self.out_proj.weight, self.out_proj.bias = whole.out_proj.weight, whole.out_proj.bias
        self.train(whole.training)

    @property
    def num_heads(self) -> int:
        """How many heads there are."""
        return len(self.kept)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output and, if wanted, attention weights of the heads that are here."""
        batched = query.dim() == 3
        q, k, v = (t if batched else t.unsqueeze(0 if self.batch_first else 1) for t in (query, key, value))
        if not self.batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        q, k, v = self._project(q, k, v)
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        mask = self._mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, dropout) if dropout else weights
            out = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            causal = is_causal and attn_mask is None
            out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal and mask is None)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if not self.batch_first:
            out = out.transpose(0, 1)
        return out if batched else out.squeeze(0 if self.batch_first else 1), weights

    def _project(self, *inputs: Tensor) -> list[Tensor]:
        """Queries, keys and values as batch x heads x length x head size."""
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            F.linear(t, w, b).view(*t.shape[:2], len(self.kept), self.head_dim).transpose(1, 2)
            for t, w, b in zip(inputs, weights, biases, strict=True)
        ]

    def _mask(self, attention: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
        """Both masks as one that is added to the scores."""
        merged = None
        if attention is not None:
            merged = _added(attention, like)
            if merged.dim() == 3:  # one for each sequence and head of the whole model
                merged = merged.view(-1, self.all_heads, *merged.shape[1:])[:, self.kept]
        if padding is not None:
            own = _added(padding, like)[:, None, None, :]
            merged = own if merged is None else merged + own
        return merged

    def extra_repr(self) -> str:
        """Width, and heads."""
        return f"embed_dim={self.embed_dim}, head_dim={self.head_dim}, heads={self.kept} of {self.all_heads}"


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)
    return mask.to(like.dtype)


class PassThrough(nn.Module):
    """In the place of a module whose result nobody needs: the first tensor it is given, or zeros like it.

    >>> PassThrough(zeros=True)(torch.ones(2)), PassThrough(places=2)(torch.ones(2))
    (tensor([0., 0.]), (tensor([1., 1.]), None))
    """

    # What nn.TransformerEncoderLayer asks its attention for, before it takes the way without its own kernel.
    _qkv_same_embed_dim, in_proj_bias, num_heads = False, None, 1

    def __init__(self, zeros: bool = False, places: int | None = None, batch_first: bool = False) -> None:
        super().__init__()
        self.zeros, self.places, self.batch_first = zeros, places, batch_first

    def options(self) -> dict[str, Any]:
        """What makes another one like it."""
        return {"zeros": self.zeros, "places": self.places, "batch_first": self.batch_first}

    def forward(self, *args: Any, **options: Any) -> Any:
        """That tensor, alone or as the first of a tuple."""
        given = next(a for a in (*args, *options.values()) if isinstance(a, Tensor))
        found = torch.zeros_like(given) if self.zeros else given
        return found if self.places is None else (found, *[None] * (self.places - 1))


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put another module under this name, and under all others that the old one has.

    Kernels of torch for whole encoder layers look at modules that are not there any more: they are not used.
    """
    old = model.get_submodule(name)
    for module in list(model.modules()):
        for key, child in module._modules.items():
            if child is old:
                module._modules[key] = new
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
        elif isinstance(module, nn.TransformerEncoderLayer) and isinstance(new, PassThrough):
            module.activation_relu_or_gelu = 0
