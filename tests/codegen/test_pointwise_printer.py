"""The printer of scalar programs knows no language: another one is another table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.abi.kernels import KERNELS
from npusim.abi.scalar import OPCODES
from npusim.codegen.cuda.dialect import CUDA
from npusim.codegen.pointwise_printer import Language, can_fail, statements
from npusim.errors import UnsupportedOpError

_F, _D, _I = range(3)
_C = Language(
    name="C",
    types=("float", "", "long"),
    load="{type} {name} = {element};",
    bind="auto {name} = {expression};",
    call="{op}_of({arguments})",
    failure="&failed",
    powers={2.0: "square({0})"},
    float32=lambda value: f"{value}f",
    float64=str,
    int64=lambda value: f"{value}L",
    unsigned="UL",
)


def _params(code: list[list[int]], classes: list[int], **given: object) -> dict[str, object]:
    """Returns the parameters of a program: rows of (opcode, destination, three operands, class)."""
    size = dict(KERNELS["pointwise"].unpack(bytes(KERNELS["pointwise"].params_size)))
    return {
        **size,
        "n_instructions": len(code),
        "x_class": classes,
        "code": [number for row in code for number in row],
        "constants": [],
        "int_constants": [],
        "result": code[-1][1],
        **given,
    }


def _row(op: str, dst: int, *args: int, cls: int) -> list[int]:
    return [OPCODES[op][0], dst, *args, *[0] * (3 - len(args)), cls]


def test_a_table_says_how_everything_is_written() -> None:
    code = [_row("mul", 2, 0, -1, cls=_F), _row("pow", 0, 2, -2, cls=_F)]
    p = _params(code, [_F, _F], constants=[0.1, 2.0])
    lines, result = statements(p, ["x[i]", "z[i]"], _C)
    assert lines == [
        "float r0 = x[i];",
        "float r1 = z[i];",
        "auto t0 = mul_of(r0, 0.10000000149011612f);",  # as float32 has it
        "auto t1 = square(t0);",
    ]
    assert result == "t1"
    assert not can_fail(p)
    assert statements(p, ["x", "z"], CUDA)[0][-1] == "const auto t1 = t0 * t0;"


def test_divisions_of_integers_are_told_where_to_report() -> None:
    p = _params([_row("remainder", 1, 0, -1, cls=_I)], [_I], int_constants=[-(2**63)])
    assert can_fail(p)
    lines, _ = statements(p, ["x"], _C)
    assert lines[-1] == f"auto t0 = remainder_of(r0, {-(2**63)}L, &failed);"
    assert "kSmallest, failure" in statements(p, ["x"], CUDA)[0][-1]
    assert not can_fail(_params([_row("remainder", 1, 0, 0, cls=_F)], [_F]))


def test_a_language_without_a_class_refuses_it() -> None:
    for p in (
        _params([_row("neg", 1, 0, cls=_D)], [_D]),
        _params([_row("to_d", 1, 0, cls=_D)], [_F]),
    ):
        with pytest.raises(UnsupportedOpError, match="C has no numbers of float64"):
            statements(p, ["x"], _C)
        assert statements(p, ["x"], replace(_C, types=CUDA.types))[1] == "t0"
