"""Launches that overlap: every entry waits, and only what nobody writes before is read earlier."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import npusim
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda.image import unpack_image
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.cuda.source import kernel_source, reads_before_wait, stem_source
from npusim.codegen.unwritten import unwritten_operands
from npusim.frontends.step_method import StepSizes
from npusim.program.program import BufferKind, CompiledProgram
from tests.runtime import toy_language_model as toy
from tests.serve.test_step_method import decoder

_WAIT = "wait_on_dependencies();"
_WAITING = (_WAIT, "run(operands)", "run_tma(operands, keys, values)")  # the last two wait inside


def _entries(stem: str) -> list[str]:
    """Returns what stands after the head of each entry of a stem's source."""
    body = stem_source(stem)
    assert body is not None
    params = KERNELS[stem].unpack(bytes(KERNELS[stem].params_size))
    text = kernel_source(stem, params, body)
    head = r'^(?:extern "C" __global__ void[^{;]*|NPUSIM_ENTRY )\{'
    return re.split(head, text, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("stem", sorted(s for s in RULES if stem_source(s) is not None))
def test_every_entry_waits(stem: str) -> None:
    entries = [entry.strip().splitlines() for entry in _entries(stem)]
    assert entries
    if reads_before_wait(stem):
        assert all(any(x in line for x in _WAITING) for line in map("".join, entries))
    else:
        assert all(any(_WAIT in line for line in entry[:2]) for entry in entries)


def _names(program: CompiledProgram, method: str) -> list[tuple[str, list[str]]]:
    """Returns the kernel and the unwritten operands' kinds of each command."""
    chosen = program.method(method)
    return [
        (
            program.kernels[command.kernel].name,
            [
                program.buffers[operand.buffer].kind.name
                for index, operand in enumerate(command.operands)
                if mask >> index & 1
            ],
        )
        for command, mask in zip(chosen.commands, unwritten_operands(program, chosen), strict=True)
    ]


def test_what_a_method_has_written_is_no_longer_unwritten() -> None:
    program = toy.program()
    found = _names(program, "decode")
    assert ("index", ["WEIGHT", "INPUT"]) in found
    assert found[-2] == ("matmul", []), "the cache was written, the rest is temporary"
    scatters = [kinds for kernel, kinds in found if kernel == "scatter"]
    assert scatters[0] == ["STATE", "CONSTANT"], "the position, before its update"


def test_memory_that_shares_bytes_with_what_was_written_counts_as_written() -> None:
    program = toy.program()
    buffers = tuple(
        replace(buffer, offset=0) if buffer.kind is BufferKind.STATE else buffer
        for buffer in program.buffers
    )
    apart, shared = (
        sum(mask.bit_count() for mask in unwritten_operands(p, p.method("decode")))
        for p in (program, replace(program, buffers=buffers))
    )
    assert shared < apart


def test_inputs_are_unwritten_until_an_output_may_lie_over_them() -> None:
    a = nn.Parameter(torch.ones(4), requires_grad=False)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = a

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x @ self.a).relu(), (x @ y).softmax(0)

    program = npusim.compile((Net().eval(), (torch.ones(3, 4), torch.ones(4, 2))), "cpu")
    method = program.methods[0]
    outputs = {spec.buffer for spec in method.outputs}
    handed_out = False
    seen = set()
    for command, mask in zip(method.commands, unwritten_operands(program, method), strict=True):
        for index, operand in enumerate(command.operands):
            if program.buffers[operand.buffer].kind is BufferKind.INPUT:
                assert bool(mask >> index & 1) is not handed_out
                seen.add(handed_out)
        handed_out |= bool(outputs & {o.buffer for o in command.operands})
    assert seen == {False, True}


def test_pools_are_unwritten_but_for_appends_at_the_places_of_an_attention() -> None:
    sizes = StepSizes(page_tokens=16, max_step_tokens=8, max_requests=4, pages=20)
    module = npusim.extract_llm(decoder("grouped"), max_context=64, prefill_chunk=8, serve=sizes)
    program = npusim.compile(module, "cpu")
    method = program.method("step")
    names = [program.kernels[command.kernel].name for command in method.commands]
    first, append = names.index("paged_attention"), names.index("paged_append")

    def kinds(change: int | None, operand: int = 0) -> list[int]:
        """Returns which operands of the first attention are unwritten, an append having others."""
        commands = list(method.commands)
        if change is not None:
            operands = list(commands[append].operands)
            operands[change] = replace(operands[change], buffer=operand)
            commands[append] = replace(commands[append], operands=tuple(operands))
        mask = unwritten_operands(program, replace(method, commands=tuple(commands)))[first]
        return [i for i in range(7) if mask >> i & 1]

    positions, requests = (o.buffer for o in method.commands[append].operands[1:3])
    assert kinds(None) == [1, 2, 3, 4, 5]
    assert kinds(1, requests) == [2, 3, 4, 5], "at other positions"
    assert kinds(2, positions) == [2, 3, 4, 5], "of other requests"


@pytest.mark.usefixtures("compiler")
def test_matmuls_of_one_row_or_by_tma_overlap_and_tiles_do_not() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).to(torch.bfloat16).eval()
    overlaps = []
    for rows, arch in ((1, "sm_80"), (128, "sm_90a"), (128, "sm_90")):
        x = torch.zeros(rows, 64, dtype=torch.bfloat16)
        program = npusim.compile((model, (x,)), f"cuda:{arch}")
        kernels = {c.kernel for c in program.methods[0].commands}
        overlaps.append({unpack_image(program.kernels[k].image).dependent for k in kernels})
    assert overlaps == [{True}, {True}, {False}]
