"""What a command is at given sizes, and which sizes a method is prepared for."""

from __future__ import annotations

import dataclasses
import struct

import pytest

import npusim
from npusim.ir.symbolic import symbol
from npusim.program.program import Patch, PatchKind
from npusim.program.sized_command import (
    PREPARED,
    check_sizes,
    combinations,
    params_at,
    prepared_sizes,
)
from tests.format.symbolic_program import SEQ, symbolic_program


def test_patches_of_every_kind_make_the_parameters() -> None:
    _, command = symbolic_program().methods[0].commands
    at = params_at(command, {"batch": 3, "seq": 9})
    expected = bytearray(32)
    struct.pack_into("<i", expected, 4, 9 // 2 + 1)
    struct.pack_into("<q", expected, 8, 27)
    struct.pack_into("<f", expected, 16, 9 % 3)
    struct.pack_into("<d", expected, 24, max(9 - 4, 3))
    assert at == bytes(expected)


def test_a_command_without_patches_stays_as_it_is() -> None:
    still, _ = symbolic_program().methods[0].commands
    assert params_at(still, {}) == still.params


def test_a_number_that_the_kernel_cannot_count_is_refused() -> None:
    _, command = symbolic_program().methods[0].commands
    large = Patch(PatchKind.I32, 4, SEQ * 2**30)
    with pytest.raises(npusim.ShapeError, match=f"a size of {9 * 2**30} is more than a kernel"):
        params_at(dataclasses.replace(command, patches=(large,)), {"batch": 1, "seq": 9})


def test_methods_are_prepared_for_the_greatest_sizes_and_those_wanted() -> None:
    forward, fixed = symbolic_program().methods
    greatest = {"batch": 8, "seq": 64}
    wanted = [{"batch": 2}, {"seq": 64}, {"seq": 2, "other": 5}, {"batch": 2, "seq": 64}]
    rows = [greatest, {"batch": 2, "seq": 64}, {"batch": 8, "seq": 2}]
    assert combinations(forward, wanted) == rows and combinations(forward, []) == [greatest]
    assert combinations(fixed, wanted) == [{}]


def test_sizes_that_calls_cannot_have_are_refused() -> None:
    methods = symbolic_program().methods
    check_sizes(methods, [{"batch": 1, "seq": 64}, {}])
    with pytest.raises(npusim.ShapeError, match=r"no symbolic size 'b'; it has: batch 1 … 8, seq"):
        check_sizes(methods, [{"b": 1}])
    for sizes in ({"seq": 1}, {"batch": 9}):
        with pytest.raises(npusim.ShapeError, match=r"possible is (seq 2 … 64|batch 1 … 8)"):
            check_sizes(methods, [sizes])
    with pytest.raises(npusim.ShapeError, match="it has: none"):
        check_sizes(methods[1:], [{"batch": 1}])
    narrow = dataclasses.replace(methods[0].inputs[0], shape=(symbol("batch", 1, 2), 4 * SEQ))
    other = dataclasses.replace(methods[0], name="other", inputs=(narrow,))
    with pytest.raises(npusim.ShapeError, match="batch is 5"):
        check_sizes((*methods, other), [{"batch": 5}])


def test_what_a_program_says_of_its_sizes_is_read_with_care() -> None:
    program = symbolic_program()
    rows = [{"batch": 8, "seq": 64}, {"batch": 1, "seq": 64}]
    said = dataclasses.replace(program, metadata={PREPARED: {"forward": rows}})
    assert prepared_sizes(program) == [] and prepared_sizes(said) == rows
    for damaged in (5, [1], {"forward": [3]}, {"forward": 5}, {"forward": [{"batch": "1"}]}):
        broken = dataclasses.replace(program, metadata={PREPARED: damaged})
        assert prepared_sizes(broken) == []
