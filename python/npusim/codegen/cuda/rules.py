"""The table of stems that CUDA has kernels for: the rule of each stem's config.

One module a family holds the rules; a stem's source is `<stem>.cu` in a folder of
`kernels/cuda/`, or generated where the family says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.codegen import elementwise
from npusim.codegen.cuda import (
    convolutions,
    decoding,
    grouped,
    indexed,
    matmul_rules,
    rows,
    windows,
)
from npusim.codegen.launch_config import Rule

RULES: Mapping[str, Rule] = {
    **convolutions.RULES,
    **elementwise.RULES,
    **grouped.RULES,
    **indexed.RULES,
    **matmul_rules.RULES,
    **decoding.RULES,  # linear among them
    **rows.RULES,
    **windows.RULES,
}
