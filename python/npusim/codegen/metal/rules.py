"""The table of stems that Metal has kernels for: the rule of each stem's launch configuration.

One module a family holds the rules; a stem's source is `<stem>.metal` in a folder of
`kernels/metal/`, or generated where the family says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.codegen import elementwise
from npusim.codegen.launch_config import Rule
from npusim.codegen.metal import matmul, rows

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **matmul.RULES,
    **rows.RULES,
}
