"""The table of stems that CUDA has kernels for: the rule of each stem's config.

One module a family holds the rules; a stem's source is `<stem>.cu` in a folder of
`kernels/cuda/`, `<stem>.gpu` in one of `kernels/gpu/` where all GPUs share it, or generated where
the family says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.codegen import elementwise, indexed, windows
from npusim.codegen.cuda import (
    attention_rules,
    convolutions,
    decoding,
    grouped,
    matmul_rules,
    paging,
    ranks,
    recurrent,
    rows,
    scatter,
    token_mixing,
)
from npusim.codegen.launch_config import Rule

RULES: Mapping[str, Rule] = {
    **attention_rules.RULES,
    **convolutions.RULES,
    **elementwise.RULES,
    **grouped.RULES,
    **indexed.RULES,
    **matmul_rules.RULES,
    **decoding.RULES,  # linear among them
    **paging.RULES,
    **ranks.RULES,
    **recurrent.RULES,
    **rows.RULES,
    **scatter.RULES,
    **token_mixing.RULES,
    **windows.rules(matmul_rules.GPU.rows.pool_threads),
}
