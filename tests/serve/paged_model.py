"""A small decoder over pages, written as a model of its own: what the engine's tests serve.

Its method `step` takes the rows of many requests, writes their keys and values to the pages that
the tables name, and attends to what the pages hold up to each row's position. Everything is plain
PyTorch, computed row by row, so it says nothing about how fast such a step can be.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim.ir.module import Module, verify_module

VOCAB, WIDTH, HEADS, HEAD = 48, 32, 2, 16
PAGES, PAGE, CONTEXT = 24, 4, 40
MAX_TOKENS, MAX_REQUESTS = 16, 4
LONGEST = CONTEXT // PAGE
Pair = tuple[Tensor, Tensor]


class Layer(nn.Module):
    """Attention over pages and a gated product, each beside what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        for name in ("keys", "values"):
            pool = torch.zeros(PAGES, PAGE, HEADS, HEAD)
            self.register_buffer(name, pool, persistent=False)

    def forward(self, x: Tensor, cell: Pair, seen: Pair, mask: Tensor) -> Tensor:
        """Returns x [T, WIDTH] after the layer.

        Args:
            x: float32[T, WIDTH].
            cell: int64[T] each: page and place of each row's key and value.
            seen: int64[T, CONTEXT] each: where the keys lie that a row may see.
            mask: float32[T, CONTEXT]: 0 for those that it sees, -inf for others.
        """
        q, k, v = (part.view(-1, HEADS, HEAD) for part in self.qkv(self.norms[0](x)).chunk(3, 1))
        self.keys.index_put_(cell, k)
        self.values.index_put_(cell, v)
        scores = torch.einsum("thd,tchd->thc", q, self.keys[seen]) / HEAD**0.5
        weights = torch.softmax(scores + mask[:, None], -1)
        x = x + self.out(torch.einsum("thc,tchd->thd", weights, self.values[seen]).flatten(1))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


class PagedDecoder(nn.Module):
    """The decoder; its weights are drawn from a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(
        self, tokens: Tensor, positions: Tensor, requests: Tensor, tables: Tensor, rows: Tensor
    ) -> dict[str, Tensor]:
        """Returns the scores behind the rows that are asked for, float32[R, VOCAB]."""
        pages = tables[requests.clamp(min=0)].clamp(min=0)  # [T, LONGEST]
        cell = pages.gather(1, (positions // PAGE)[:, None])[:, 0], positions % PAGE
        places = torch.arange(CONTEXT)
        page = pages[:, places // PAGE]  # [T, CONTEXT]
        seen = page, (places % PAGE).expand_as(page)
        mask = torch.where(places[None] <= positions[:, None], 0.0, -torch.inf)
        x = self.tokens(tokens[0]) + self.places(positions)
        for layer in self.layers:
            x = layer(x, cell, seen, mask)
        return {"logits": self.head(x[rows.clamp(min=0)])}


class PagedSum(nn.Module):
    """After tokens comes their sum, modulo the vocabulary; the pages hold the tokens themselves.

    `python -m tests.serve.paged_model` saves its program for the tests of the C interface.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("said", torch.zeros(PAGES, PAGE), persistent=False)

    def forward(
        self, tokens: Tensor, positions: Tensor, requests: Tensor, tables: Tensor, rows: Tensor
    ) -> dict[str, Tensor]:
        """Returns the scores behind the rows that are asked for, float32[R, VOCAB]."""
        pages = tables[requests.clamp(min=0)].clamp(min=0)
        page = pages.gather(1, (positions // PAGE)[:, None])[:, 0]
        self.said.index_put_((page, positions % PAGE), tokens[0].float())
        places = torch.arange(CONTEXT)
        page = pages[:, places // PAGE]
        seen = self.said[page, (places % PAGE).expand_as(page)]
        sums = torch.where(places[None] <= positions[:, None], seen, 0.0).sum(1)
        distance = torch.arange(VOCAB) - torch.remainder(sums[rows.clamp(min=0)], VOCAB)[:, None]
        return {"logits": -(distance * distance)}


def paged_module(model: nn.Module) -> Module:
    """Returns a decoder over pages as a module whose program an engine can serve."""
    count, requests = Dim("tokens", max=MAX_TOKENS), Dim("requests", max=MAX_REQUESTS)
    of = torch.zeros(3, dtype=torch.int64)
    args = (of[None], of, of, torch.zeros(2, LONGEST, dtype=torch.int64), of[:2])
    shapes = ({1: count}, {0: count}, {0: count}, {0: requests}, {0: requests})
    graph = npusim.extract_ir(model, args, model_name="paged", dynamic_shapes=shapes)
    facts = {
        "max_context": CONTEXT,
        "prefill_chunk": 1,
        "vocab_size": VOCAB,
        "eos_token_ids": [0],
        "position": "",
        "caches": [],
        "serve": {
            "page_tokens": PAGE,
            "max_step_tokens": MAX_TOKENS,
            "max_requests": MAX_REQUESTS,
            "pools": [state.name for state in graph.states],
        },
    }
    return verify_module(Module("paged", {"step": graph}, {"language_model": facts}))


if __name__ == "__main__":
    folder = Path(__file__).parents[1] / "cpp" / "programs"
    npusim.compile(paged_module(PagedSum().eval())).save(folder / "paged_sum.npubin")
