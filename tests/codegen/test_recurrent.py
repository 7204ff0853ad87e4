"""Steps of recurrences: one command computes what PyTorch does, whatever its operands hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import npusim
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc, recurrent
from npusim.ir.types import dtype_code
from npusim.lowering.assemble import assemble
from tests.codegen import host
from tests.codegen.cases import TARGET, examples
from tests.codegen.test_kernels import _bytes, _check, check_spilling


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("rows", ["a row a block", "rows"])
def test_steps_are_what_pytorch_computes(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a block multiplies a row, and where it multiplies as many as it may."""
    ops = ["npu.recurrent_step"]
    if rows == "rows":
        measured = replace(recurrent.GPU.recurrent, blocks=1)
        monkeypatch.setattr(recurrent, "GPU", replace(recurrent.GPU, recurrent=measured))
    else:
        ops.append("npu.recurrence")  # whose blocks have their rows whatever this is
    chosen = list(examples(*ops))
    keys = host.keys_of(e.program for e in chosen)
    assert {op.removeprefix("npu.") for op in ops} <= {stem for stem, _ in keys}
    for unwritten in (0, 2):  # weights that are loaded after the wait, and before
        kernels = host.build(keys, tmp_path, unwritten=unwritten)
        for example in chosen:
            given = [_bytes(t) for t in example.tensors if t is not None]
            _check(example, host.run_program(example.program, kernels, given))


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite(value: float, tmp_path: Path) -> None:
    ops = ("npu.recurrent_step", "npu.recurrence")
    chosen = [e for e in examples(*ops) if e.dtype == "float32"]
    kernels = host.build(host.keys_of(e.program for e in chosen), tmp_path)
    for example in chosen:
        x, state = example.tensors[0], example.tensors[4]
        assert x is not None
        x.flatten()[1] = value
        if state is not None:
            state.flatten()[-1] = value
        given = [_bytes(t) for t in example.tensors if t is not None]
        _check(example, host.run_program(example.program, kernels, given))


def test_steps_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    chosen = (e for e in examples("npu.recurrent_step") if e.dtype in ("float32", "float16"))
    keys = [key for key in host.keys_of(e.program for e in chosen) if key[0] == "recurrent_step"]
    check_spilling(keys, "sm_90a", compiler)


@pytest.mark.parametrize(("dtype", "units"), [("float16", 128), ("float32", 104)])
def test_weights_on_the_chip_fit_there(dtype: str, units: int, compiler: nvrtc.Nvrtc) -> None:
    """The most units that `gpu.recurrent` says are held: in registers, and in shared memory."""
    measured = TARGET.recurrent
    assert units == (measured.held_floats if dtype == "float32" else measured.held_units)
    apart = {"sums_step": 4 * units, "sums_row": 200 * units, "y_step": units, "y_row": 50 * units}
    sizes = {"steps": 50, "m": 8, "units": units, "ldw": units, **apart, "gates": (0, 1, 2, 3)}
    kinds = {"cell": 2, "act": 0, "reverse": 0, "has_bias": 1, "dtype": dtype_code(dtype)}
    key = ("recurrence", KERNELS["recurrence"].pack({**sizes, **kinds}))
    check_spilling([key], "sm_90a", compiler)


@pytest.mark.parametrize(
    ("m", "units", "k", "grid"),
    [
        (1, 128, 128, (32, 1, 1)),
        (8, 128, 128, (32, 8, 1)),  # a row a block fills more processors
        (8, 256, 256, (128, 8, 1)),
        (8, 512, 512, (256, 4, 1)),  # and reads the weights for each of them
        (64, 512, 512, (256, 16, 1)),  # of the most rows
        (3, 8192, 512, (4096, 1, 1)),
    ],
)
def test_rows_of_a_block(m: int, units: int, k: int, grid: tuple[int, int, int]) -> None:
    p = {"m": m, "units": units, "k": k, "cell": 2, "has_bias": 0, "has_addend": 1}
    assert recurrent.recurrent_step(p).launches[0].grid == grid


def test_results_whose_rows_are_not_contiguous_have_a_product_and_formulas() -> None:
    lstms = (e for e in examples("npu.recurrent_step") if len(e.graph.nodes[0].outputs) == 2)
    rows = next(e for e in lstms if e.graph.nodes[0].outputs[0].type.shape[-2] > 1)
    (node,) = rows.graph.nodes
    hidden, cell = node.outputs
    turned = replace(cell, type=cell.type.with_order((2, 0, 1)))
    for outputs, one in ((node.outputs, True), ((hidden, turned), False)):
        graph = replace(rows.graph, nodes=(replace(node, outputs=outputs),))
        found = {kernel.name for kernel in assemble(graph, TARGET).kernels}
        assert ("recurrent_step" in found) == one


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_networks_give_all_steps_and_their_last_states(
    kind: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN], tmp_path: Path
) -> None:
    """Of several sequences, whose rows lie apart where steps are written into what is returned."""
    torch.manual_seed(0)
    model = kind(7, 16, 1, batch_first=True, bidirectional=True).eval()
    x = torch.randn(3, 3, 7)
    program = npusim.compile(npusim.extract_ir(model, (x,)), replace(TARGET, code_format=""))
    stems = [program.kernels[c.kernel].name for c in program.methods[0].commands]
    assert stems.count("recurrence") == 2 and "recurrent_step" not in stems
    weights = {name: _bytes(tensor) for name, tensor in model.state_dict().items()}
    kernels = host.build(host.keys_of([program]), tmp_path)
    results = host.run_program(program, kernels, [_bytes(x)], weights)
    with torch.no_grad():
        y, states = model(x)
    wanted = (y, *states) if isinstance(states, tuple) else (y, states)
    for want, spec, got in zip(wanted, program.output_specs, results, strict=True):
        assert spec.shape == tuple(want.shape)
        given = torch.frombuffer(bytearray(got), dtype=torch.float32).reshape(want.shape)
        torch.testing.assert_close(given, want)
