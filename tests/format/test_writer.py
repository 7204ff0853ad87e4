"""The writer refuses what no reader would take, before a file exists."""

from __future__ import annotations

import dataclasses

import pytest

from npusim.errors import ProgramFormatError
from npusim.program.format import write_program
from npusim.program.program import Buffer, BufferKind, CompiledProgram, NodeInfo
from tests.format.golden.make_golden import golden_program


def changed(**fields: object) -> CompiledProgram:
    return dataclasses.replace(golden_program(), **fields)  # type: ignore[arg-type]


def twice_in_a_buffer() -> CompiledProgram:
    """A program with two outputs in one buffer."""
    first, *others = golden_program().methods
    output = first.outputs[0]
    outputs = (*first.outputs, dataclasses.replace(output, name="again"))
    return changed(methods=(dataclasses.replace(first, outputs=outputs), *others))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (changed(target=""), "target has no name"),
        (changed(methods=()), "no method to run"),
        (changed(methods=golden_program().methods[:1] * 2), "'forward' appears twice"),
        (twice_in_a_buffer(), "output buffer .*appears twice"),
        (changed(buffers=()), "no buffer 3"),
        (changed(nodes=()), "no node 0"),
        (changed(kernels=()), "no kernel 0"),
        (changed(constants=b""), "pass the end at 0"),
        (changed(weights=golden_program().weights[:1]), "belongs to no weight"),
        (changed(init=golden_program().methods[0]), "init has inputs or outputs"),
        (
            changed(buffers=(*golden_program().buffers, Buffer(BufferKind.TEMP, 8, 8))),
            "offset 8 is not aligned",
        ),
        (changed(nodes=(*golden_program().nodes, NodeInfo("\udc80", "", ""))), "not valid Unicode"),
        (changed(nodes=(*golden_program().nodes, NodeInfo("a\0b", "", ""))), "NUL"),
        (changed(metadata={"a": float("nan")}), "not JSON"),
        (changed(metadata={"a": object()}), "not JSON"),
    ],
)
def test_refusals(program: CompiledProgram, words: str) -> None:
    with pytest.raises(ProgramFormatError, match=words):
        write_program(program)


def test_operand_outside_its_buffer() -> None:
    forward = golden_program().methods[0]
    command = forward.commands[0]
    operand = dataclasses.replace(command.operands[0], offset=24)
    command = dataclasses.replace(command, operands=(operand, *command.operands[1:]))
    method = dataclasses.replace(forward, commands=(command, *forward.commands[1:]))
    with pytest.raises(ProgramFormatError, match="operand 0: offset 24 is outside"):
        write_program(changed(methods=(method, golden_program().methods[1])))


def test_equal_content_is_stored_once() -> None:
    forward = golden_program().methods[0]
    many = dataclasses.replace(forward, commands=forward.commands[:1] * 100)
    one = dataclasses.replace(forward, commands=forward.commands[:1])
    rest = golden_program().methods[1]
    grown = len(write_program(changed(methods=(many, rest), constants=bytes(80))))
    # Sections before the page of the constants grow by records alone: 32 + 3 * 16 bytes each.
    assert grown - len(write_program(changed(methods=(one, rest)))) <= 99 * 80 + 4096
