"""Schedules of programs: every command has one, and buffers meet on the chip where they fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import npusim
from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS
from npusim.errors import TargetConstraintError
from npusim.schedule import Schedule, schedule_program
from npusim.schedule.work import Work, works_of
from npusim.simulate.roofline import work_of
from npusim.targets import TargetConfig, override

EDGE = TargetConfig.named("npu-edge-32x32")


class Net(nn.Module):
    """A bit of everything: convolutions, depthwise ones, rows, attention, products."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.grouped = nn.Conv2d(16, 16, 1, groups=2)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.grouped(torch.relu(self.depthwise(self.conv(x))))
        y = torch.max_pool2d(y, 2).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(y)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        z = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(z.transpose(1, 2).flatten(2)).softmax(-1).cumsum(-1)


@pytest.fixture(scope="module")
def program() -> npusim.CompiledProgram:
    torch.manual_seed(0)
    graph = npusim.extract_ir(Net().eval(), (torch.zeros(1, 3, 16, 16),))
    return npusim.compile(graph, EDGE)


def of(program: npusim.CompiledProgram, target: TargetConfig = EDGE) -> tuple[Schedule, ...]:
    return schedule_program(program, target)["forward"]


def test_every_command_has_one(program: npusim.CompiledProgram) -> None:
    schedules = of(program)
    method = program.methods[0]
    assert sorted({s.command for s in schedules}) == list(range(len(method.commands)))
    stems = {i: program.kernels[c.kernel].name for i, c in enumerate(method.commands)}
    forms = {stems[s.command]: s.form for s in schedules}
    assert forms["conv_depthwise"] == "depthwise"
    assert [s.form for s in schedules if stems[s.command] == "attention"] == [
        *("product", "rows", "product")
    ]
    assert "conv_winograd" not in forms  # an algorithm of the CPU
    grouped = [s for s in schedules if s.form == "conv" and s.sizes.b == 2]
    assert [(s.sizes.n, s.sizes.k, s.sizes.m) for s in grouped] == [(8, 8, 256)]


def test_operands_are_those_of_the_commands(program: npusim.CompiledProgram) -> None:
    """Bytes in DRAM are at least those that the kernel's definition counts, if none stays."""
    method, far = program.methods[0], override(EDGE, ["cores.count=2"])
    for schedule in of(program, far):
        command = method.commands[schedule.command]
        kernel = program.kernels[command.kernel].name
        cost = kernel_cost(kernel, KERNELS[kernel].unpack(command.params))
        for plan in schedule.operands:
            if plan.operand < 0:
                assert plan.source == "l1" and plan.transfers == 0
                continue
            assert plan.source == "dram"
            assert plan.total_bytes >= cost.operand_bytes[plan.operand]
            writes = command.operands[plan.operand].access != 0
            assert writes == plan.write


def test_buffers_stay_where_they_fit(program: npusim.CompiledProgram) -> None:
    near, far = of(program), of(program, override(EDGE, ["cores.count=2"]))
    assert sum(s.dram_bytes for s in near) < sum(s.dram_bytes for s in far)
    buffers: dict[int, set[str]] = {}
    method = program.methods[0]
    for schedule in near:
        for plan in schedule.operands:
            if plan.operand >= 0:
                buffer = method.commands[schedule.command].operands[plan.operand].buffer
                buffers.setdefault(buffer, set()).add(plan.source)
        assert schedule.bytes <= 2 * 2**20
    assert all(len(sources) == 1 for sources in buffers.values())  # in one place all its life
    kinds = {b: program.buffers[b].kind.name for b, sources in buffers.items() if "l1" in sources}
    assert set(kinds.values()) == {"TEMP"}
    assert len(kinds) >= 5


def test_what_does_not_fit_is_refused(program: npusim.CompiledProgram) -> None:
    small = override(EDGE, ["sram.l1.kib=5", "sram.l1.align_bytes=8", "dram.capacity_mib=0.008"])
    with pytest.raises(TargetConstraintError, match=r"'dram.capacity_mib' is 0.008 \(8388 bytes\)"):
        schedule_program(program, small)
    tight = override(EDGE, ["sram.l1.kib=5", "sram.l1.align_bytes=8"])
    with pytest.raises(TargetConstraintError, match=r"Node '\w+' \(.*smallest tile"):
        schedule_program(program, tight)
    for name in ("cpu", "null"):
        with pytest.raises(TargetConstraintError, match=f"'{name}' describes no machine"):
            schedule_program(program, TargetConfig.named(name))


def test_a_schedule_is_the_same_each_time(program: npusim.CompiledProgram) -> None:
    assert of(program) == of(program)
    doubled = override(EDGE, ["dram.gb_per_s=204.8"])
    assert sum(s.cycles for s in of(program, doubled)) <= sum(s.cycles for s in of(program))


def test_a_cache_is_read_as_far_as_it_is_used() -> None:
    class Cached(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, v)

    graph = npusim.extract_ir(
        Cached().eval(), (torch.zeros(1, 2, 3, 8), *[torch.zeros(1, 2, 40, 8)] * 2)
    )
    first, second, third, transposed = of(npusim.compile(graph, EDGE))
    assert transposed.unit == "dma" and transposed.dram_bytes == 4 * 2 * 3 * 8
    assert (first.sizes.b, first.sizes.m, first.sizes.n, first.sizes.k) == (2, 3, 40, 8)
    assert (third.sizes.m, third.sizes.n, third.sizes.k) == (3, 8, 40)
    assert second.vector["exp"] == 2 * 3 * 40


def macs(works: tuple[Work, ...]) -> int:
    """Returns the multiply-adds of products."""
    sizes = [w.sizes for w in works if w.form in ("product", "conv", "depthwise")]
    taps = [w.taps for w in works if w.form in ("product", "conv", "depthwise")]
    return sum(s.b * s.m * s.n * s.k * t for s, t in zip(sizes, taps, strict=True))


def nbytes(works: tuple[Work, ...]) -> int:
    """Returns the bytes of operands in memory."""
    return sum(part.nbytes for work in works for part in work.parts if part.operand >= 0)


def only(module: nn.Module, stem: str, *given: torch.Tensor) -> dict[str, Any]:
    """Returns the parameters of the one command of a stem of a compiled module."""
    program = npusim.compile(npusim.extract_ir(module.eval(), given), EDGE)
    found = [c for c in program.methods[0].commands if program.kernels[c.kernel].name == stem]
    assert len(found) == 1
    return dict(KERNELS[stem].unpack(found[0].params))


def test_transposed_convolutions_multiply_what_comes_in() -> None:
    """Each tap a product of the pixels there are, whatever the stride puts between them."""
    x = torch.zeros(1, 8, 6, 5)
    for groups in (1, 2):
        layer = nn.ConvTranspose2d(8, 6, 3, stride=2, bias=False, groups=groups)
        params = only(layer, "conv", x)
        works = works_of("conv", params)
        cost = kernel_cost("conv", params)
        assert 2 * macs(works) == cost.operations == 2 * 30 * 8 * 6 * 9 // groups
        assert nbytes(works) == sum(cost.operand_bytes)


def test_rows_that_windows_share_reach_as_far_as_they_are_spread() -> None:
    halos = []
    for dilation in (1, 3):
        layer = nn.Conv2d(8, 8, 3, padding=dilation, dilation=dilation)
        params = only(layer, "conv", torch.zeros(1, 8, 12, 12))
        halos.append(works_of("conv", params)[0].parts[0].halo_bytes)
    row = 12 * 8 * 4
    assert halos == [2 * row, 6 * row]


@pytest.mark.parametrize(("rows", "groups"), [(2, 8), (8, 8), (13, 4), (512, 60), (1, 1)])
def test_rows_of_experts_are_multiplied_once(rows: int, groups: int) -> None:
    """Each with its own matrix, of as many as there can be."""
    sizes = {"batch": (1, 1, 1, 1, 1, groups), "m": rows, "n": 24, "k": 16}
    params = {**sizes, "a_batch": (0,) * 6, "b_batch": (0,) * 6, "y_batch": (0,) * 6}
    params |= {"a_m": 16, "a_k": 1, "b_k": 1, "b_n": 16, "y_m": 24, "dtype": 0, "alpha": 1.0}
    works, cost = works_of("grouped_matmul", params), kernel_cost("grouped_matmul", params)
    assert 2 * macs(works) == cost.operations
    assert nbytes(works) == sum(cost.operand_bytes) - 4 * groups  # but for the offsets
    assert sum(w.sizes.b for w in works) == min(rows, groups)
    assert sum(w.sizes.b * w.sizes.m for w in works) == rows
    known = work_of("grouped_matmul", params, cost.operations, sum(cost.operand_bytes))
    assert (known.groups, known.rows) == (min(rows, groups), -(-rows // min(rows, groups)))


def test_attention_over_pages_is_products() -> None:
    params = {
        "heads": 8, "kv_heads": 2, "length": 5, "head_dim": 16, "v_dim": 32, "pages": 6,
        "page_tokens": 4, "requests": 3, "table_length": 2, "window": 0, "q_strides": (16, 128),
        "k_strides": (128, 64, 16), "v_strides": (256, 128, 32), "y_strides": (32, 256),
        "dtype": 0, "scale": 1.0, "softcap": 0.0,
    }  # fmt: skip
    works = works_of("paged_attention", params)
    assert [w.form for w in works] == ["product", "rows", "product"]
    assert macs(works) == 8 * 5 * (2 * 4) * (16 + 32)
    cost = kernel_cost("paged_attention", params)
    places = sum(cost.operand_bytes[3:6])
    assert nbytes(works) == sum(cost.operand_bytes) - places
    windowed = works_of("paged_attention", {**params, "window": 3})
    assert macs(windowed) == 8 * 5 * 3 * (16 + 32)


def test_sums_of_bytes_are_elements() -> None:
    """A product with ones a channel is no work for an array; a mean over a window is."""
    pytest.importorskip("torch.ao.quantization.fx._decomposed")

    class Sums(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            q = torch.ops.quantized_decomposed
            x, y = (q.dequantize_per_tensor(v, 0.5, 0, -128, 127, torch.int8) for v in (a, b))
            z = q.quantize_per_tensor(x + y, 0.25, 3, -128, 127, torch.int8)
            z = q.dequantize_per_tensor(z, 0.25, 3, -128, 127, torch.int8).mean((2, 3))
            return q.quantize_per_tensor(z, 0.25, 3, -128, 127, torch.int8)

    a = torch.zeros(1, 4, 6, 6, dtype=torch.int8)
    found = of(npusim.compile(npusim.extract_ir(Sums().eval(), (a, a)), EDGE))
    total, mean = (schedule for schedule in found if schedule.form != "move")
    assert (total.form, total.unit, total.sizes.m) == ("elements", "vpu", 4 * 36)
    assert total.vector == {"mul": 144.0, "round": 144.0, "add": 144.0}
    assert (mean.form, mean.unit, mean.taps) == ("depthwise", "mxu", 36)
