"""Rows that a mask chooses: traced as all rows and the mask, or refused where that is not the same.

Each model that runs is compiled and compared with PyTorch over inputs that choose none, some and
all rows; each that is refused differs from one that runs by what would make the trace wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import npusim
from npusim.errors import ExportError

EXPERTS, TOP, TOKENS, WIDTH = 4, 2, 6, 8


class _Experts(nn.Module):
    """Weights of experts, and a router that the input's first columns are."""

    classes = EXPERTS

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.up = nn.Parameter(torch.randn(EXPERTS, 12, WIDTH, generator=generator))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 12, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = x[:, :EXPERTS].topk(TOP)
        hits = F.one_hot(chosen, num_classes=self.classes).permute(2, 1, 0)
        return self.mixed(x, hits, scores)

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        raise NotImplementedError


class ByIndex(_Experts):
    """The experts that were hit, their weights chosen by a tensor; one class is no expert."""

    classes = EXPERTS + 1

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        hit = torch.greater(hits.sum(dim=(-1, -2)), 0).nonzero()
        for expert in hit:
            expert = expert[0]
            with torch.no_grad():
                place, token = torch.where(hits[expert])
            up = F.silu(x[token].matmul(self.up[expert].T))
            rows = up.matmul(self.down[expert].T).view(-1, WIDTH)
            result.index_add_(0, token, rows * scores[token, place, None])
        return result


class ByNumber(_Experts):
    """The same by numbers, with an expert that does nothing, and a way out that is never taken."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for hit in torch.greater(hits.sum(dim=(-1, -2)), 0).nonzero(as_tuple=False):
            expert = int(hit.item())
            place, token = torch.where(hits[expert].squeeze(0))
            if token.numel() == 0:
                continue
            rows = x[token]
            if expert > 0:
                first, second = F.linear(rows, self.up[expert]).chunk(2, dim=-1)
                rows = F.linear(torch.tanh(first) * second, self.down[expert][:, :6])
            rows = rows * scores[token, place, None]
            result.index_add_(0, token, rows.to(x.dtype))
        return result


class BySizes(_Experts):
    """Tokens sorted by expert, and split by how many each has."""

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = x[:, :EXPERTS].topk(TOP)
        sizes = torch.zeros(len(x), EXPERTS).scatter(1, chosen, 1).long().sum(0).tolist()
        order = chosen.flatten().sort(0)[1]
        token = order.div(TOP, rounding_mode="trunc")
        segments = x[token].split(sizes, dim=0)
        rows = torch.cat([F.linear(segments[i], self.up[i]) for i in range(EXPERTS)], dim=0)
        rows = torch.cat(
            [F.linear(s, w) for s, w in zip(rows.split(sizes), self.down, strict=True)]
        )
        return torch.zeros_like(x).index_add(0, token, rows * scores.flatten()[order][:, None])


class ByLanguage(nn.Module):
    """An adapter for each value of an input; what no value chooses stays zero."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 3), nn.GELU(), nn.LayerNorm(3), nn.Linear(3, WIDTH))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        language = x[:, 0].round()
        result = torch.zeros_like(x)
        for number, adapter in enumerate(self.adapters):
            mask = language == number
            result[mask] = adapter(x[mask])
        return result


class Twice(nn.Module):
    """A mask of two dimensions, and its indices; changed later, what they chose is what it was."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0.5
        row, column = mask.nonzero(as_tuple=True)
        result, rows = x.clone(), x[row, column][:, None]
        result[mask] = 1 / result[mask]
        chosen = result[mask]
        result.mul_(2)
        mask.zero_()
        return result.index_add(0, row, (rows + chosen[:, None]) * torch.ones(WIDTH))


def _inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    mixed = torch.randn(TOKENS, WIDTH, generator=generator)
    one_expert = mixed.clone()
    one_expert[:, :EXPERTS] = torch.tensor([3.0, 2.0, 0.0, -1.0])
    return [mixed, one_expert, 1 + mixed.abs(), -mixed.abs()]


# ---- what would be another result, or may be ----


class _Loop(_Experts):
    """A loop over experts; `body` is what one of these models does otherwise."""

    def rows(self, x: Tensor, token: Tensor, expert: Tensor) -> Tensor:
        return F.linear(F.linear(x[token], self.up[expert[0]]), self.down[expert[0]])


class Adds(_Loop):
    """What all of these are without a fault."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0]])
            result.index_add_(0, token, self.rows(x, token, expert))
        return result


class Counts(_Loop):
    """Counts the experts that were hit."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result, count = torch.zeros_like(x), 0
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0]])
            result.index_add_(0, token, self.rows(x, token, expert))
            count += 1
        return result * count


class Carries(_Loop):
    """Reads what the expert before has left."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result, last = torch.zeros_like(x), 0
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0]])
            result.index_add_(0, token, self.rows(x, token, expert) + last)
            last = expert.item()
        return result


class KeepsTheLast(_Loop):
    """Reads the last expert after the loop."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0]])
            result.index_add_(0, token, self.rows(x, token, expert))
        return result * expert.item()


class Stops(_Loop):
    """Takes the first expert that was hit, and no other."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0]])
            result.index_add_(0, token, self.rows(x, token, expert))
            break
        return result


class AddsForEach(_Loop):
    """Adds something for each expert that was hit, not for its tokens."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0]])
            result.index_add_(0, token, self.rows(x, token, expert))
            result.add_(1.0)
        return result


class AsksHowMany(_Loop):
    """Divides by how many tokens an expert has."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0]])
            result.index_add_(0, token, self.rows(x, token, expert) / token.numel())
        return result


class AsksWhetherAny(_Loop):
    """Does something else where an expert has no tokens in the first place."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, token = torch.where(hits[expert[0], :1])
            rows = self.rows(x, token, expert)
            if token.numel() == 0:
                rows = x[:0] + 1
            result.index_add_(0, token, rows)
        return result


class GoesOnForOthers(_Loop):
    """Leaves an expert out where another selection is empty."""

    def mixed(self, x: Tensor, hits: Tensor, scores: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in hits.sum(dim=(-1, -2)).nonzero():
            _, first = torch.where(hits[expert[0], :1])
            _, token = torch.where(hits[expert[0]])
            if first.numel() == 0:
                continue
            result.index_add_(0, token, self.rows(x, token, expert))
        return result


class Normalises(nn.Module):
    """Sums over the chosen rows, of which there are as many as the mask says."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x[:, 0] > 0
        result = torch.zeros_like(x)
        result[mask] = x[mask] / x[mask].sum(0)
        return result


class ChangesTheMask(nn.Module):
    """Writes where the mask is by then."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x[:, 0] > 0
        rows, result = x[mask], torch.zeros_like(x)
        mask.logical_not_()
        result[mask] = rows
        return result


class ChangesAView(nn.Module):
    """The same through a view of the mask."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x[:, 0] > 0
        rows, result = x[mask], torch.zeros_like(x)
        mask[1:].logical_not_()
        result[mask] = rows
        return result


class MeetsAnother(nn.Module):
    """Adds the rows of two masks, which fit where there are as many."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = x[:, 0] > 0, x[:, 0] <= 0
        result = torch.zeros_like(x)
        result[first] = x[first] + x[second]
        return result


class Reorders(_Experts):
    """Puts segments together in another order."""

    def forward(self, x: Tensor) -> Tensor:
        sizes = x[:, 0].long().abs().tolist()
        return torch.cat(x.repeat(9, 1)[: sum(sizes)].split(sizes)[::-1])


class Returned(nn.Module):
    """Returns the chosen rows themselves."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


@pytest.mark.parametrize("kind", [ByIndex, ByNumber, BySizes, ByLanguage, Twice, Adds])
def test_what_masks_choose_is_computed(kind: Callable[[], nn.Module]) -> None:
    model = kind().eval()
    ir = npusim.extract_ir(model, (torch.empty(TOKENS, WIDTH),))
    session = npusim.load(npusim.compile(ir), weights=model.state_dict())
    for x in _inputs():
        with torch.no_grad():
            want = model(x)
        (got,) = session(x)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        *(Counts, Carries, KeepsTheLast, Stops, AddsForEach, AsksHowMany, AsksWhetherAny),
        *(
            GoesOnForOthers,
            Normalises,
            ChangesTheMask,
            ChangesAView,
            MeetsAnother,
            Reorders,
            Returned,
        ),
    ],
)
def test_what_may_be_another_result_is_refused(kind: Callable[[], nn.Module]) -> None:
    with pytest.raises(ExportError, match=r"depend|static shapes"):
        npusim.extract_ir(kind().eval(), (torch.empty(TOKENS, WIDTH),))


def test_a_loop_without_source_is_refused() -> None:
    model = ByNumber().eval()
    space: dict[str, object] = {"torch": torch}
    code = (
        "def mixed(self, x, hits, scores):\n"
        "    result = torch.zeros_like(x)\n"
        "    for e in hits.sum(dim=(-1, -2)).nonzero():\n"
        "        _, token = torch.where(hits[e[0]])\n"
        "        result.index_add_(0, token, x[token])\n"
        "    return result\n"
    )
    exec(code, space)
    model.mixed = space["mixed"].__get__(model)  # type: ignore[attr-defined, method-assign]
    with pytest.raises(ExportError, match="control flow"):
        npusim.extract_ir(model, (torch.empty(TOKENS, WIDTH),))
