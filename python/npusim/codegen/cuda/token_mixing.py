"""Launch configuration of linears along the second-to-last dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import epilogue_operands, on_tensor_cores, tiled
from npusim.codegen.launch_config import LaunchConfig, Rule, as_int, blocks


def token_mixing(p: Params) -> LaunchConfig:
    """The rule of `token_mixing`: the tiles of a matmul, those of one item after another's in x."""
    m, n, k, batch = (as_int(p, name) for name in ("m", "n", "k", "batch"))
    if m * n * batch == 0:
        return LaunchConfig(())
    config = tiled(
        m,
        n,
        k,
        parts=1,
        tensor_cores=on_tensor_cores(p["x_dtype"], p["w_dtype"]),
        arguments=2 + epilogue_operands(p),
        batch=batch,
        splits=(1,),
    )
    (launch,) = config.launches
    tiles = (blocks(m, config.defines["TILE_ROWS"]) * batch, launch.grid[1], 1)
    return replace(config, launches=(replace(launch, grid=tiles),), overlaps=True)


RULES: Mapping[str, Rule] = {"token_mixing": token_mixing}
