"""Every conformance case as an ONNX model: ONNX Runtime computes what the reference does, and the
model imported again gives npusim's own result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import npusim
import npusim.ops
from npusim.errors import UnsupportedOpError
from npusim.ir.graph import Graph
from npusim.ir.opdef import REGISTRY, Case, OpDef
from npusim.selftest.single_op import assert_close, graph_of, reference, tensors_for

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnxruntime.capi.onnxruntime_pybind11_state import (  # noqa: E402
    NotImplemented as NotImplementedByRuntime,
)

from npusim.exporters.onnx.model import to_onnx  # noqa: E402
from npusim.frontends.onnx import from_onnx  # noqa: E402

# Fused operators that are written as what they compute; the others exist for kernels alone.
FUSED = {
    *("npu.linear", "npu.gated_linear", "npu.normed_linear", "npu.normed_gated_linear"),
    *("npu.conv", "npu.group_norm", "npu.rope", "npu.pointwise"),
}
# Formulas of ONNX Runtime that round elsewhere than PyTorch's.
SLACK = {"aten.upsample_bicubic2d.default": 4.0}


def _cases() -> Iterator[object]:
    for op in REGISTRY.values():
        for index, case in enumerate(op.cases):
            for dtype in dict.fromkeys((op.dtypes[0], op.dtypes[-1])):
                yield pytest.param(op, case, dtype, id=f"{op.name}-{case.id or index}-{dtype}")


@pytest.mark.parametrize(("op", "case", "dtype"), list(_cases()))
def test_a_case_survives_the_round_trip(op: OpDef, case: Case, dtype: str) -> None:
    tensors = tensors_for(case, dtype, f"{op.name}{case.inputs}")
    graph = graph_of(op, case, tensors, dtype)
    refusal = _refusal(op.name)
    if refusal:
        with pytest.raises(UnsupportedOpError, match=refusal):
            to_onnx(graph)
        return
    model, expected = to_onnx(graph).model, reference(graph, tensors)
    given = dict(
        zip((v.name for v in graph.inputs), (t for t in tensors if t is not None), strict=True)
    )
    imported = from_onnx(model)
    run = npusim.load(npusim.compile(imported.graph), imported.weights or None)
    ours = [torch.as_tensor(r) for r in run(*(given[v.name] for v in imported.graph.inputs))]
    if not given:  # without a tensor among the inputs bfloat16 comes as NumPy has it
        ours = [r.to(want.dtype) for r, want in zip(ours, expected, strict=True)]
    theirs = ours if _holds_bfloat16(graph) else _run(model, given) or ours
    scale = op.tolerance * SLACK.get(op.name, 2.0)
    for who, results in (("npusim", ours), ("ONNX Runtime", theirs)):
        for output, got, want in zip(graph.outputs, results, expected, strict=True):
            assert_close(torch.as_tensor(got), want, scale, f"{op.name}, {who}, {output.name}")


def _refusal(op: str) -> str:
    """Returns what is said of an operator without a form in standard ONNX."""
    if op.startswith("aten.adaptive_max_pool"):
        return "windows of several sizes"
    return "made for npusim's kernels" if op.startswith("npu.") and op not in FUSED else ""


def _holds_bfloat16(graph: Graph) -> bool:
    """NumPy has no such numbers, so ONNX Runtime's Python cannot hand them over."""
    return any(t.dtype == "bfloat16" for t in graph.types.values())


def _run(model, given: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """Returns ONNX Runtime's results; none when it has no kernel for the dtype."""
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), quiet, providers=["CPUExecutionProvider"]
        )
    except NotImplementedByRuntime:
        return []
    wanted = {i.name for i in session.get_inputs()}
    return session.run(None, {n: t.numpy() for n, t in given.items() if n in wanted})
