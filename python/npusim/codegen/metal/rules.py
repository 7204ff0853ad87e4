"""The table of stems that Metal has kernels for: the rule of each stem's launch configuration.

One module a family holds the rules; a stem's source is `<stem>.metal` in a folder of
`kernels/metal/`, `<stem>.gpu` in one of `kernels/gpu/` where all GPUs share it, or generated where
the family says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from npusim.codegen import elementwise, indexed, windows
from npusim.codegen.launch_config import Rule
from npusim.codegen.metal import attention, convolution, matmul, rows
from npusim.codegen.metal.device import ROWS
from npusim.codegen.rope import rope

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **attention.RULES,
    **convolution.RULES,
    **matmul.RULES,
    **rows.RULES,
    **indexed.RULES,
    **windows.rules(ROWS.pool_threads),
    "rope": partial(rope, eights=False),
}
