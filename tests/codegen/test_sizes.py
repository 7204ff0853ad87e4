"""Kernels of commands whose parameters depend on the sizes of a call, prepared and made later."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import npusim
from npusim.codegen import generate, made_kernels
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.image import MAGIC, Image, Recipe, pack_image, read_recipe, unpack_image
from npusim.codegen.launch_config import LaunchConfig
from npusim.errors import Error, ProgramFormatError
from npusim.ir.symbolic import evaluate
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from npusim.program.program import Command, CompiledProgram, PatchKind
from npusim.program.sized_command import params_at
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.end_to_end.dynamic_models import MODELS
from tests.end_to_end.test_dynamic_shapes import extracted

TARGET = TargetConfig.named("cuda:sm_90")


def at_sizes(program: CompiledProgram, sizes: dict[str, int]) -> CompiledProgram:
    """Returns an assembled program of one method as it is at some sizes."""
    (method,) = program.methods
    buffers = list(program.buffers)

    def command(given: Command) -> Command:
        operands = list(given.operands)
        for patch in given.patches:
            if patch.kind is PatchKind.OPERAND:
                offset = evaluate(patch.size, sizes)
                operands[patch.at] = dataclasses.replace(operands[patch.at], offset=offset)
        return dataclasses.replace(
            given, params=params_at(given, sizes), operands=tuple(operands), patches=()
        )

    for spec in (*method.inputs, *method.outputs):
        shape = [evaluate(d, sizes) for d in spec.shape]
        whole = int(np.prod(spec.greatest_shape))
        old = buffers[spec.buffer]
        size = old.bytes // max(whole, 1) * int(np.prod(shape))
        buffers[spec.buffer] = dataclasses.replace(old, bytes=size)
    sized = dataclasses.replace(method, commands=tuple(map(command, method.commands)))
    return dataclasses.replace(program, buffers=tuple(buffers), methods=(sized,))


@pytest.mark.skipif(
    host.COMPILER is None, reason="running CUDA sources on the host needs a C++ compiler"
)
@pytest.mark.parametrize(
    ("name", "calls"), [("perceptron", ((1,), (3,), (8,))), ("decoder", ((3, 17),))]
)
def test_kernels_compute_the_sizes_of_a_call(
    name: str, calls: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    case = MODELS[name]
    model, graph = extracted(case)
    program = assemble(run_passes(graph, TARGET), TARGET)
    names = [symbol.name for symbol in program.methods[0].symbols]
    sized = [at_sizes(program, dict(zip(names, sizes, strict=True))) for sizes in calls]
    kernels = host.build(host.keys_of(sized), tmp_path)
    weights = {k: v.numpy().tobytes() for k, v in model.state_dict().items()}
    relative, absolute = case.tolerance
    for sizes, at in zip(calls, sized, strict=True):
        arguments = case.arguments(*sizes)
        with torch.no_grad():
            expected = model(*arguments)
        (raw,) = host.run_program(at, kernels, [a.numpy().tobytes() for a in arguments], weights)
        got = torch.frombuffer(bytearray(raw), dtype=torch.float32).view(expected.shape)
        torch.testing.assert_close(got, expected, rtol=relative, atol=absolute)


def compiled(sizes: list[dict[str, int]]) -> CompiledProgram:
    return npusim.compile(extracted(MODELS["decoder"])[1], "cuda:sm_90", sizes=sizes)


@pytest.mark.usefixtures("compiler")
def test_a_program_brings_what_was_asked_for() -> None:
    few, more = compiled([]), compiled([{"batch": 1}, {"batch": 2, "seq": 5}, {"batch": 8}])
    greatest = {"batch": 8, "seq": 32}
    assert few.metadata["prepared_sizes"] == {"forward": [greatest]}
    rows = [greatest, {"batch": 1, "seq": 32}, {"batch": 2, "seq": 5}]
    assert more.metadata["prepared_sizes"] == {"forward": rows}
    for program, prepared in ((few, [greatest]), (more, rows)):
        for command in program.methods[0].commands:
            kernel = program.kernels[command.kernel]
            known = {code.params for code in kernel.specialized}
            assert bool(command.patches) == bool(known) != bool(kernel.image)
            if command.patches:
                assert known >= {params_at(command, sizes) for sizes in prepared}
            operands = {
                len(c.operands) for c in program.methods[0].commands if c.kernel == command.kernel
            }
            assert not command.patches or len(operands) == 1
    for small, large in zip(few.kernels, more.kernels, strict=True):
        assert set(small.specialized) <= set(large.specialized)
    assert generate(more, TARGET) == more


@pytest.mark.usefixtures("compiler")
def test_code_made_later_is_the_code_that_would_have_been_brought() -> None:
    few, more = compiled([]), compiled([{"batch": 3, "seq": 17}])
    for brought, larger in zip(few.kernels, more.kernels, strict=True):
        if not brought.specialized:
            continue
        like = brought.specialized[0].image
        wanted = [(k.params, k.image) for k in larger.specialized]
        rows = [(brought.name, brought.schema, params, like) for params, _ in wanted]
        assert made_kernels.make_images(rows) == [image for _, image in wanted]


@pytest.mark.usefixtures("compiler")
def test_code_of_other_parameters_or_without_a_recipe_is_not_made() -> None:
    kernel = next(k for k in compiled([]).kernels if k.specialized)
    code = kernel.specialized[0]
    row = (kernel.name, kernel.schema + " more:i32", code.params, code.image)
    assert "from other parameters" in made_kernels.make_images([row])
    assert "from other parameters" in made_kernels.make_images([("new", "", b"", code.image)])
    bare = dataclasses.replace(unpack_image(code.image), recipe=None)
    with pytest.raises(ProgramFormatError, match="there is no recipe"):
        made_kernels.make_images([(kernel.name, kernel.schema, code.params, pack_image(bare))])


def test_without_a_compiler_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> nvrtc.Nvrtc:
        raise Error("There is no NVRTC.", hint="Install it.")

    monkeypatch.setattr(nvrtc, "load", missing)
    assert made_kernels.make_images([]) == []
    answer = made_kernels.make_images([("copy", "", b"", MAGIC)])
    assert isinstance(answer, str) and "no NVRTC" in answer and "sizes=" in answer


def test_an_image_keeps_its_recipe() -> None:
    recipe = Recipe(unwritten=6, libraries="none", cast=True)
    data = pack_image(Image("sm_90a", LaunchConfig(()), b"", "", (), recipe=recipe))
    assert unpack_image(data).recipe == recipe and read_recipe(data) == recipe
    for damaged in (b"", data[:20], data.replace(b"settled", b"unknown")):
        with pytest.raises(ProgramFormatError, match="malformed"):
            read_recipe(damaged)
