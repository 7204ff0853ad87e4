"""What commands are offered to cuBLASLt and cuDNN, what their programs bring along, and tuning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import npusim
from npusim.abi.kernels import KERNELS
from npusim.abi.scalar import OPCODES
from npusim.codegen import generate
from npusim.codegen.cuda.choices import Choice, default_choice
from npusim.codegen.cuda.generator import GENERATOR
from npusim.codegen.cuda.image import unpack_image
from npusim.codegen.cuda.library import library_problem
from npusim.codegen.cuda.variants import variants
from npusim.codegen.trial import random_bits, subjects, trial
from npusim.codegen.tuning import Tuning, key_of
from npusim.errors import ProgramFormatError, TargetConstraintError
from npusim.program.program import Access, BufferKind, CompiledProgram
from npusim.program.validate import validate_program
from npusim.targets import TargetConfig
from npusim.tune import apply, target_of


def params_of(stem: str, **given: Any) -> bytes:
    zero = {name: [0] * count if count > 1 else 0 for name, _, count in KERNELS[stem].fields}
    return KERNELS[stem].pack({**zero, **given})


def linear(m: int = 128, n: int = 1024, k: int = 1024, **given: Any) -> bytes:
    dtypes = dict.fromkeys(("x_dtype", "w_dtype", "y_dtype", "r_dtype"), 2)
    sizes = {"m": m, "n": n, "k": k, "ldx": k, "ldy": n, "ldr": n}
    return params_of(
        "linear", **{"rows": [n], "ldw": [k], "segments": 1, **sizes, **dtypes, **given}
    )


def conv(**given: Any) -> bytes:
    square = {"in_size": [1, 8, 8], "out_size": [1, 8, 8], "kernel": [1, 3, 3], "pad": [0, 1, 1]}
    steps = {"stride": [1, 1, 1], "dilation": [1, 1, 1], "x_strides": [1024, 1, 0, 128, 16]}
    sizes = {"batch": 2, "in_channels": 16, "out_channels": 32, "groups": 1}
    dtypes = dict.fromkeys(("x_dtype", "w_dtype", "y_dtype", "r_dtype"), 1)
    strides = {"y_strides": [2048, 1, 0, 256, 32], "r_strides": [2048, 1, 0, 256, 32]}
    return params_of("conv", **{**square, **steps, **sizes, **dtypes, **strides, **given})


def test_a_product_is_described_with_the_bias_in_its_dtype() -> None:
    problem = library_problem("linear", linear(has_bias=1, residual=1, act=OPCODES["relu"][0]))
    assert problem is not None and problem.cast is not None
    assert (problem.cast.operand, problem.cast.count, problem.cast.dtype) == (
        2,
        1024,
        2,
    )
    (product,) = problem.header["products"]
    assert problem.header["activation"] == "relu" and problem.header["dtype"] == "bfloat16"
    assert product["residual"] == [3, 0, 1024, 0] and product["y"] == [4, 0, 1024, 0]
    assert product["bias"] == [5, 0, 0, 0]
    floats = dict.fromkeys(("x_dtype", "w_dtype", "y_dtype", "r_dtype"), 0)
    exact = library_problem("linear", linear(has_bias=1, **floats))
    assert exact is not None and exact.cast is None
    assert exact.header["products"][0]["bias"] == [2, 0, 0, 0]


def test_several_matrices_are_several_products() -> None:
    problem = library_problem("linear", linear(rows=[512, 256, 256], ldw=[1024] * 3, segments=3))
    assert problem is not None
    assert [p["w"][0] for p in problem.header["products"]] == [1, 2, 3]
    assert [p["y"] for p in problem.header["products"]] == [[4, c, 1024, 0] for c in (0, 512, 768)]


@pytest.mark.parametrize(
    "params",
    [
        linear(gated=1),
        linear(x_dtype=0),
        linear(act=OPCODES["gelu"][0]),
        linear(act=OPCODES["relu"][0], residual=2),
        linear(m=0),
    ],
    ids=["gated", "two dtypes", "exact gelu", "residual after relu", "empty"],
)
def test_products_that_libraries_compute_otherwise_are_not_theirs(params: bytes) -> None:
    assert library_problem("linear", params) is None


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ({}, True),
        ({"has_bias": 1, "residual": 1, "act": OPCODES["relu"][0]}, True),
        ({"act": OPCODES["silu"][0]}, False),
        ({"transposed": 1}, False),
        ({"in_channels": 12}, False),  # packed in panels
        ({"groups": 2}, True),
        ({"groups": 2, "out_channels": 24}, False),  # panels of 16 columns, of which 4 are padding
        ({"x_strides": [1024, 64, 0, 8, 1]}, False),
        ({"in_size": [4, 8, 8], "kernel": [3, 3, 3]}, False),
        ({"out_size": [1, 5, 8]}, False),  # windows that leave whole steps of the input out
    ],
)
def test_convolutions_that_cudnn_is_offered(given: dict[str, Any], offered: bool) -> None:
    assert (library_problem("conv", conv(**given)) is not None) is offered


def matmul(batch: list[int], steps: list[int], **given: Any) -> bytes:
    sizes = {"m": 40, "n": 24, "k": 16, "a_m": 16, "a_k": 1, "b_k": 24, "b_n": 1, "y_m": 24}
    lead = [1] * (6 - len(batch)) + batch
    strides = [0] * (6 - len(steps)) + steps
    return params_of(
        "matmul",
        **{"batch": lead, "a_batch": strides, "b_batch": strides, "y_batch": strides, "alpha": 1.0,
           **sizes, **given},
    )  # fmt: skip


def test_batches_are_one_dimension_or_not_offered() -> None:
    problem = library_problem("matmul", matmul([3, 4], [4000, 1000]))
    assert problem is not None
    (product,) = problem.header["products"]
    assert product["batch"] == 12 and product["x"] == [0, 0, 16, 1000]
    assert library_problem("matmul", matmul([3, 4], [9000, 1000])) is None
    assert library_problem("matmul", matmul([], [], alpha=0.5)) is None
    assert library_problem("matmul", matmul([], [], dtype=4)) is None
    turned = library_problem("matmul", matmul([], [], b_k=1, b_n=16))
    assert turned is not None and not turned.header["products"][0]["columns_inside"]


def test_the_default_is_what_pays() -> None:
    auto = TargetConfig.named("cuda:sm_90")  # with `a`, products of many rows are own
    everything, nothing = (replace(auto, libraries=name) for name in ("all", "none"))
    few, many = linear(m=32), linear(m=128)
    segments = linear(rows=[512, 512], ldw=[1024] * 2, segments=2)
    floats = linear(m=128, x_dtype=0, w_dtype=0, y_dtype=0, r_dtype=0)
    assert default_choice("linear", many, auto) == Choice("cublaslt")
    for params in (few, segments, floats):
        assert default_choice("linear", params, auto) == Choice()
        assert default_choice("linear", params, everything) == Choice("cublaslt")
    assert default_choice("conv", conv(), auto) == Choice()
    assert default_choice("linear", many, nothing) == Choice()
    assert default_choice("softmax", params_of("softmax"), everything) == Choice()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x))) + x


def compiled(libraries: str, dtype: torch.dtype = torch.bfloat16) -> CompiledProgram:
    torch.manual_seed(0)
    target = replace(TargetConfig.named("cuda"), libraries=libraries)
    return npusim.compile((Layers().to(dtype).eval(), (torch.randn(80, 32).to(dtype),)), target)


def libraries_of(program: CompiledProgram) -> list[dict[str, Any] | None]:
    images = [unpack_image(program.kernels[c.kernel].image) for c in program.methods[0].commands]
    return [None if i.library is None else dict(i.library) for i in images]


def test_init_makes_what_a_library_wants() -> None:
    program = compiled("all")
    validate_program(program)
    own = compiled("none")
    for command, plain in zip(program.methods[0].commands, own.methods[0].commands, strict=True):
        extra = command.operands[-1]
        assert len(command.operands) == len(plain.operands) + 1
        assert extra.access is Access.READ
        assert program.buffers[extra.buffer].kind is BufferKind.PERSISTENT
        assert unpack_image(program.kernels[command.kernel].image).operands == len(plain.operands)
    assert len(program.init.commands) == len(own.init.commands) + 2
    assert libraries_of(own) == [None, None]
    assert [x["name"] for x in libraries_of(program) if x] == ["cublaslt", "cublaslt"]


def test_generating_again_changes_nothing() -> None:
    program = compiled("all")
    target = replace(TargetConfig.named("cuda"), libraries="all")
    again = generate(program, target)
    assert again.methods == program.methods and again.buffers == program.buffers
    assert generate(program, replace(target, libraries="none")).methods == program.methods


def test_every_candidate_makes_a_sound_program() -> None:
    program = compiled("none", torch.float32)
    target = target_of(program)
    (subject, _) = subjects(program, GENERATOR).values()
    found = list(GENERATOR.candidates(subject.stem, subject.params))
    names = [name for name, _ in found]
    assert names[0] == "own" and "cublaslt 0" in names
    for _, choice in found[:2]:
        validate_program(trial(subject, choice, target))


def test_choices_reach_the_program(tmp_path: Path) -> None:
    program = compiled("none")
    keys = [(program.kernels[c.kernel].name, c.params) for c in program.methods[0].commands]
    first, second = (key_of(*key) for key in keys)
    variant = next(iter(variants(*keys[1])))
    choices = {first: Choice("cublaslt", 3, 130100), second: Choice(variant=variant)}
    tuning = Tuning("a GPU", choices, {first: "linear", second: "linear"}, {first: {"own": 2.5}})
    tuning.save(tmp_path / "tuning.json")
    read = Tuning.load(tmp_path / "tuning.json")
    assert (read.choices, read.device) == (choices, "a GPU")
    assert read.microseconds[first] == {"own": 2.5}
    tuned = apply(program, read)
    validate_program(tuned)
    library, none = libraries_of(tuned)
    assert none is None and library is not None
    assert (library["plan"], library["version"]) == (3, 130100)
    config = variants(*keys[1])[variant]
    image = unpack_image(tuned.kernels[tuned.methods[0].commands[1].kernel].image)
    assert image.config.launches == config.launches


def test_choices_that_npusim_would_not_make_are_left_out() -> None:
    program = compiled("none")
    command = program.methods[0].commands[0]
    key = (program.kernels[command.kernel].name, command.params)

    def kept(choice: Choice) -> bool:
        tuning = Tuning("", {key_of(*key): choice}, {key_of(*key): key[0]})
        return bool(tuning.for_commands(iter([key]), GENERATOR))

    assert kept(Choice()) and kept(Choice("cublaslt"))
    for choice in (Choice("cudnn"), Choice("libc"), Choice(variant="9999x9999/1")):
        assert not kept(choice)


def _documents() -> Iterator[Any]:
    entry = {"stem": "linear", "library": "", "plan": 0, "library_version": 0, "variant": ""}
    whole = {"format": "npusim tuning", "version": 1, "device": "d", "commands": {"k": entry}}

    def changed(change: Callable[[dict[str, Any]], None], name: str) -> Any:
        document = json.loads(json.dumps(whole))
        change(document)
        return pytest.param(json.dumps(document), id=name)

    yield pytest.param("[]", id="no object")
    yield pytest.param("{", id="cut short")
    yield pytest.param("[" * 100_000, id="deep")
    yield pytest.param("\ud800".encode("utf-8", "surrogatepass"), id="no UTF-8")
    yield changed(lambda d: d.update(format="tuning"), "another format")
    yield changed(lambda d: d.update(version=2), "another version")
    yield changed(lambda d: d.update(commands=[]), "no commands")
    yield changed(lambda d: d["commands"].update(k=1), "no entry")
    yield changed(lambda d: d["commands"]["k"].update(stem="system"), "unknown stem")
    yield changed(lambda d: d["commands"]["k"].update(plan=-1), "negative plan")
    yield changed(lambda d: d["commands"]["k"].update(plan=True), "plan is no number")
    yield changed(lambda d: d["commands"]["k"].update(plan=1 << 40), "large plan")
    yield changed(lambda d: d["commands"]["k"].update(variant="v" * 999), "long name")
    yield changed(lambda d: d["commands"]["k"].update(library=3), "library is no text")
    yield changed(lambda d: d["commands"]["k"].update(microseconds={"own": "1"}), "time is text")


@pytest.mark.parametrize("text", list(_documents()))
def test_malformed_tuning_files_are_refused(text: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "tuning.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ProgramFormatError, match="no tuning file"):
        Tuning.load(file)


def test_only_cuda_programs_are_tuned() -> None:
    program = npusim.compile((Layers().eval(), (torch.randn(2, 32),)), target="cpu")
    with pytest.raises(TargetConstraintError, match="compiled for 'cpu'"):
        target_of(program)


FIELDS = {
    "linear": "m n k ldx ldy ldr rows ldw segments gated x_dtype w_dtype y_dtype r_dtype has_bias "
    "residual act act_lo act_hi",
    "matmul": "batch a_batch b_batch y_batch m n k a_m a_k b_k b_n y_m dtype alpha",
    "conv": "batch in_channels out_channels in_size out_size kernel stride pad dilation x_strides "
    "y_strides r_strides groups transposed x_dtype w_dtype y_dtype r_dtype has_bias residual act "
    "act_lo act_hi",
}


@pytest.mark.parametrize("stem", FIELDS)
def test_no_field_of_a_command_is_overlooked(stem: str) -> None:
    # A new field means something that a library would leave out: library.py has to know.
    assert {name for name, _, _ in KERNELS[stem].fields} == set(FIELDS[stem].split())


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_trials_run_on_ordinary_numbers(dtype: str, size: int) -> None:
    bits = random_bits(4096 * size + 1, dtype, seed=1)
    assert bits.nbytes == 4096 * size + 1
    values = torch.frombuffer(bits[:-1].copy(), dtype=getattr(torch, dtype)).float()
    assert abs(float(values.mean())) < 0.1 and abs(float(values.std()) - 1) < 0.1
