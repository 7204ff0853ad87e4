"""What was fitted to measurements of a device, as data: one file an architecture.

Read by code generation, which ranks tiles by it, and fit for whatever models times besides. Times
are microseconds, rates are a microsecond's. `architectures/sm_90a.json` holds

* `processors`, `threads_per_processor`: multiprocessors, and threads that each holds at once.
* `matmul`, `conv`: tiles by rows, columns, warps and stages, with the times of a step of 64 along
  K on a processor that has other tiles as well (`step`) and on one that has not (`alone`), and for
  `conv` of what else a tile takes (`ends`; a residual adds the share `residual_ends`).
  `start_steps` are the steps that beginning and ending a tile take; `combine` the time of a
  second launch, `partial_bytes` the rate of partial sums; `exchange` the time of a cluster's.
* `tma_matmul`: the processors that clusters of more than two blocks find at once; the rates of
  bytes that arrive at a processor and at all of them, of multiplications there, of bytes from
  memory and of exchanged sums; the times of a step at least, to begin, to end a tile, for each
  sum of a gated one, and to exchange with a block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from npusim.errors import TargetConstraintError


@cache
def fitted(name: str) -> Mapping[str, Any]:
    """Returns what was measured of an architecture.

    Raises:
        TargetConstraintError: nothing was; the message lists those that were measured.
    """
    folder = resources.files(__package__) / "architectures"
    known = sorted(e.name.removesuffix(".json") for e in folder.iterdir())
    if name not in known:
        raise TargetConstraintError(
            f"Architecture '{name}' was not measured.", hint=f"Measured: {', '.join(known)}."
        )
    return MappingProxyType(json.loads((folder / f"{name}.json").read_text("utf-8")))
