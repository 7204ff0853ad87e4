"""The whole text that Metal is given for a command, with its launches: five commands of different
kinds. `pytest --update-golden` writes what is wanted anew; read the difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npusim.codegen.metal.generator import specialise
from npusim.ir.opdef import find
from npusim.lowering.assemble import assemble
from npusim.selftest.single_op import graph_of, tensors_for
from npusim.targets import TargetConfig

METAL = TargetConfig.named("metal:apple7")


@pytest.mark.parametrize(
    ("stem", "op", "label", "dtype"),
    [
        ("pointwise", "aten.div.Tensor_mode", 0, "bfloat16"),
        ("norm", "aten.rms_norm.default", 0, "float16"),
        ("normed_linear", "npu.normed_gated_linear", 0, "bfloat16"),
        ("linear", "aten.linear.default", 1, "float16"),
        ("attention_step", "npu.attention_step", "many_tiles", "bfloat16"),
    ],
)
def test_text(
    golden: Callable[[str], None], stem: str, op: str, label: int | str, dtype: str
) -> None:
    """Parameters: the kernel, and the conformance case whose program has a command of it."""
    definition = find(op)
    assert definition is not None
    cases = {case.id: case for case in definition.cases}
    case = cases[label] if isinstance(label, str) else definition.cases[label]
    graph = graph_of(definition, case, tensors_for(case, dtype, ""), dtype)
    program = assemble(graph, METAL)
    command = next(c for c in program.methods[0].commands if program.kernels[c.kernel].name == stem)
    text, config = specialise(stem, command.params, METAL.features)
    launches = (f"{x.entry}: grid {x.grid}, block {x.block}" for x in config.launches)
    head = "\n".join((*launches, f"scratch {config.scratch}, failure {config.failure}"))
    golden(f"{head}\n\n{text}")
