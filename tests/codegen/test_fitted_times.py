"""What tiles are ranked by: times counted by hand from an architecture's file."""

from __future__ import annotations

import pytest

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import convolutions, matmul_rules, tma_matmul
from npusim.errors import TargetConstraintError
from npusim.targets.architecture import fitted, gpu


@pytest.mark.parametrize(
    ("split", "m", "n", "time"),
    [
        (1, 256, 256, (10 + 4) * 0.6),  # four tiles, each on a processor of its own
        (2, 256, 256, (5 + 4) * 0.6 + 2.3 + 8 * 2 * 256 * 256 / 3.3e6),
        (1, 128 * 132 * 5, 128, 5 * (10 + 4) * 0.52),
    ],
)
def test_times_of_products(split: int, m: int, n: int, time: float) -> None:
    tile = matmul_rules.TILES[0]
    assert (tile.rows, tile.columns) == (128, 128)
    assert matmul_rules._time(tile, split, m, n, 640, 1, 1, 64) == pytest.approx(time)


@pytest.mark.parametrize(
    ("split", "tiles", "residual", "time"),
    [
        (1, 132, False, 10 * 0.686 + 1.49),
        (1, 133, False, 2 * (10 * 0.576 + 1.49)),
        (2, 132, True, 2 * (5 * 0.576 + 1.49 * 1.56 / 2 + 2.1)),
    ],
)
def test_times_of_convolutions(split: int, tiles: int, residual: bool, time: float) -> None:
    tile = convolutions.TILES[0]
    assert convolutions._time(tile, split, tiles, 640, residual) == pytest.approx(time)


@pytest.mark.parametrize(
    ("gated", "spans", "time"),
    [
        (0, 1, 10 * 32768 / 75e3 + 2.0 + 1.2),
        (1, 1, 10 * 32768 / 75e3 + 2.0 + 1.2 + 0.3e-3 * 16384 / 8),
        (0, 2, 5 * 32768 / 75e3 + 2.0 + 1.2 + 2 * 0.3 + 16384 * 4 / 40e3),
    ],
)
def test_times_of_tma_products(gated: int, spans: int, time: float) -> None:
    empty = KERNELS["linear"].unpack(bytes(KERNELS["linear"].params_size))
    params = {**empty, "m": 128, "n": 128 // (1 + gated), "k": 640, "gated": gated}
    tile = tma_matmul.ClusterTile(128, 128, 1, 1, spans, 4)
    assert tma_matmul.microseconds(params, tile) == pytest.approx(time)


def test_what_was_not_measured_is_refused() -> None:
    assert gpu("sm_90a").processors.count == matmul_rules.PROCESSORS == 132
    with pytest.raises(TargetConstraintError, match=r"'sm_70' was not measured.*sm_90a"):
        fitted("sm_70")
