"""BERT's encoder (Devlin et al., arXiv:1810.04805); keys as in Hugging Face's `BertModel`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Embeddings(nn.Module):
    """Words, positions and segments, summed and normalised."""

    def __init__(self, words: int, positions: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("position_ids", torch.arange(positions)[None], persistent=False)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Maps ids [N, S] to [N, S, width]."""
        positions = self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(x + positions))


class SelfAttention(nn.Module):
    """Scaled dot-product attention over `heads` heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Maps [N, S, width] to the same shape; `mask` is added to the scores."""
        q, k, v = (self._split(f(x)) for f in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return y.transpose(1, 2).reshape(x.shape)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class Residual(nn.Module):
    """A projection whose result is added to the block's input, then normalised."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, shortcut: Tensor) -> Tensor:
        """Maps [N, S, inputs] to [N, S, width]."""
        return self.LayerNorm(self.dropout(self.dense(x)) + shortcut)


class Layer(nn.Module):
    """Attention and an MLP, each with its residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {"self": SelfAttention(width, heads), "output": Residual(width, width)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, 4 * width)})
        self.output = Residual(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Maps [N, S, width] to the same shape."""
        x = self.attention["output"](self.attention["self"](x, mask), x)
        return self.output(functional.gelu(self.intermediate["dense"](x)), x)


class Bert(nn.Module):
    """The encoder with its pooler."""

    def __init__(
        self,
        words: int = 30522,
        positions: int = 512,
        depth: int = 12,
        width: int = 768,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(words, positions, width)
        layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> dict[str, Tensor]:
        """Maps ids, mask (1: real token) and segments, all int64 [N, S], to hidden states."""
        x = self.embeddings(input_ids, token_type_ids)
        ignored = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.encoder["layer"]:
            x = layer(x, ignored)
        pooled = torch.tanh(self.pooler["dense"](x[:, 0]))
        return {"last_hidden_state": x, "pooler_output": pooled}
