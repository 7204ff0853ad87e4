"""Indices that PyTorch refuses fail the run; those that it counts from the end are counted so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import npusim
from npusim.errors import Error

Call = Callable[[Tensor, Tensor], Tensor]
_ROWS = 5


class Called(nn.Module):
    """A function of a table and indices as a module."""

    def __init__(self, function: Call) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, table: Tensor, index: Tensor) -> Tensor:
        return self.function(table, index)


def _rows(index: Tensor) -> Tensor:
    return index[:, None].expand(-1, 3)


CALLS: dict[str, Call] = {
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x, mode="sum"),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, _rows(i)),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, _rows(i), 0),
    "scatter": lambda x, i: x.scatter(0, _rows(i), 1.5),
    "scatter_add": lambda x, i: x.scatter_add(0, _rows(i), x[: i.shape[0]]),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, _rows(i), x[: i.shape[0]], "amax"),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "index_put": lambda x, i: x.index_put((i,), torch.zeros(3)),
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x.T[:, i],
    "take": lambda x, i: torch.take(x[:, 0], i),
}


# PyTorch takes int32 for some others too, and does not look at what they hold.
_NARROW = [(name, torch.int32) for name in ("embedding", "x[i]")]


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.int64) for name in CALLS), *_NARROW])
def test_indices_are_taken_or_refused_as_in_pytorch(name: str, dtype: torch.dtype) -> None:
    call, table = CALLS[name], torch.randn(_ROWS, 3)
    model = Called(call)
    graph = npusim.extract_ir(model, (table, torch.tensor([0, 4], dtype=dtype)))
    session = npusim.load(npusim.compile(graph), {}, threads=1)
    for second in (4, -1, -_ROWS, -_ROWS - 1, _ROWS, 2**31 - 1):
        index = torch.tensor([0, second], dtype=dtype)
        expected = _answer(call, table, index)
        if expected:
            torch.testing.assert_close(session(table, index)[0], expected[0])
        else:
            with pytest.raises(Error, match=f"index out of range: {second},"):
                session(table, index)


def _answer(call: Call, table: Tensor, index: Tensor) -> list[Tensor]:
    """Returns what PyTorch gives, in a list; an empty one where it refuses."""
    try:
        return [call(table, index)]
    except (IndexError, RuntimeError):
        return []
