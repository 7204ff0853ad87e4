"""The stage after `assemble`: one kernel a distinct command, images, the cache, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import npusim
from npusim.codegen import generate
from npusim.codegen.cuda import generator, nvrtc
from npusim.codegen.cuda.image import Image, pack_image, unpack_image
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig
from npusim.errors import Error, ProgramFormatError, TargetConstraintError, UnsupportedOpError
from npusim.ir.opdef import REGISTRY, Case
from npusim.lowering.assemble import assemble
from npusim.program.program import CompiledProgram
from npusim.selftest.single_op import graph_of, tensors_for
from npusim.targets import TargetConfig


class Chain(nn.Module):
    """Two equal softmaxes and a sum between them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x, -1).cumsum(-1), -1)


def _compiled(target: str = "cuda") -> CompiledProgram:
    return npusim.compile((Chain().eval(), (torch.zeros(4, 96),)), target)


@pytest.mark.usefixtures("compiler")
def test_equal_commands_share_one_kernel_with_an_image() -> None:
    program = _compiled()
    commands = program.methods[0].commands
    assert [program.kernels[c.kernel].name for c in commands] == ["softmax", "scan", "softmax"]
    assert commands[0].kernel == commands[2].kernel
    assert len(program.kernels) == 2
    image = unpack_image(program.kernels[commands[0].kernel].image)
    assert image.arch == TargetConfig.named("cuda").arch
    assert image.cubin.startswith(b"\x7fELF")
    assert image.config.launches[0].entry == "npusim_kernel"
    assert "#include" not in image.source.replace("#include <cstdint>", "")


@pytest.mark.usefixtures("compiler")
def test_the_source_of_an_image_compiles_for_another_architecture(
    compiler: nvrtc.Nvrtc,
) -> None:
    for kernel in _compiled("cuda:sm_80").kernels:
        image = unpack_image(kernel.image)
        assert image.arch == "sm_80"
        options = ("--gpu-architecture=sm_100", *image.options)
        cubin, _ = compiler.compile(image.source, options, kernel.name)
        assert cubin.startswith(b"\x7fELF")


class Hopper(nn.Module):
    """A product, attention and a convolution that have configs of their own on sm_90a."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.conv = nn.Linear(64, 64), nn.Conv2d(32, 32, 3)

    def forward(
        self, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        attended = nn.functional.scaled_dot_product_attention(q, k, k)
        return self.linear(x), attended, self.conv(y)


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
def test_what_hopper_alone_has_compiles_elsewhere(arch: str, compiler: nvrtc.Nvrtc) -> None:
    shapes = ((128, 64), (1, 1, 128, 64), (1, 1, 2048, 64), (1, 32, 16, 16))
    given = tuple(torch.zeros(*shape, dtype=torch.bfloat16) for shape in shapes)
    program = npusim.compile((Hopper().bfloat16().eval(), given), "cuda:sm_90a")
    own = {}
    for command in program.methods[0].commands:
        kernel = program.kernels[command.kernel]
        image = unpack_image(kernel.image)
        defines = " ".join(image.options)
        own[kernel.name] = (
            f"-DNPUSIM_PATH={KernelPath.TMA:d}" in defines or "-DNPUSIM_CLUSTERED=1" in defines
        )
        cubin, _ = compiler.compile(
            image.source, (f"--gpu-architecture={arch}", *image.options), kernel.name
        )
        assert cubin.startswith(b"\x7fELF")
        for launch in image.config.launches:
            assert (launch.elsewhere or launch.shared) <= 99 << 10  # what every device has
    assert own["linear"] and own["attention"] and "conv" in own


@pytest.mark.usefixtures("compiler")
def test_a_second_compilation_compiles_nothing(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _compiled()
    assert sum(path.is_file() for path in cache_folder.rglob("*")) == 2

    def refuse(*_: object) -> tuple[bytes, str]:
        raise AssertionError("the cache should have had it")

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", refuse)
    assert _compiled().kernels == first.kernels


@pytest.mark.usefixtures("compiler")
def test_a_damaged_cache_entry_is_compiled_again(cache_folder: Path) -> None:
    first = _compiled()
    for path in cache_folder.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    assert _compiled().kernels == first.kernels


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(blocked))
    assert _compiled().kernels[0].image


def test_images_survive_a_round_trip_and_refuse_other_bytes() -> None:
    config = LaunchConfig(
        (Launch((7, 1, 1), (64, 2, 1), 1024, "other"),), scratch=256, failure=True
    )
    image = Image("sm_90", config, b"\x7fELFcode", "// café\n", ("--std=c++20",))
    data = pack_image(image)
    assert data.startswith(b"NPUCUDA\x01")
    assert unpack_image(data) == image
    for broken in (b"", data[:20], b"X" + data[1:], data[:-3]):
        with pytest.raises(ProgramFormatError, match="image is malformed"):
            unpack_image(broken)


def test_targets_name_an_architecture_behind_a_colon() -> None:
    assert TargetConfig.named("cuda:sm_90").arch == "sm_90"
    assert TargetConfig.named("cuda:sm_100").arch == "sm_100"
    with pytest.raises(TargetConstraintError, match="'hopper' is not an architecture"):
        TargetConfig.named("cuda:hopper")
    with pytest.raises(TargetConstraintError, match="no architectures"):
        TargetConfig.named("cpu:sm_90")
    with pytest.raises(TargetConstraintError, match="Unknown target 'rocm:sm_90'"):
        TargetConfig.named("rocm:sm_90")


@pytest.mark.usefixtures("compiler")
def test_an_architecture_the_compiler_does_not_know_is_refused() -> None:
    with pytest.raises(TargetConstraintError, match=r"does not compile for 'sm_11'.*sm_90"):
        _compiled("cuda:sm_11")


def test_without_nvrtc_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "load", nvrtc.load.__wrapped__)
    monkeypatch.setenv("NPUSIM_NVRTC", "/nowhere/libnvrtc.so")
    with pytest.raises(Error, match=r"needs NVRTC.*npusim\[cuda13\]"):
        _compiled()


def test_a_command_without_a_cuda_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {stem: rule for stem, rule in generator.RULES.items() if stem != "scan"}
    monkeypatch.setattr(generator, "RULES", rules)
    with pytest.raises(UnsupportedOpError, match=r"aten\.cumsum.*no kernel scan"):
        _compiled()


def test_other_targets_get_no_code() -> None:
    program = npusim.compile((Chain().eval(), (torch.zeros(4, 96),)), "cpu")
    assert generate(program, TargetConfig.named("cpu")) is program
    assert all(not kernel.image for kernel in program.kernels)


def test_winograd_and_packed_linears_are_left_to_processors() -> None:
    case = Case(((5, 7), (9, 7), (9,)))
    op = REGISTRY["aten.linear.default"]
    graph = graph_of(op, case, tensors_for(case, "float32", ""), "float32")
    cuda = TargetConfig.named("cuda")
    assert [k.name for k in assemble(graph, cuda).kernels] == ["linear"]
    assert cuda.winograd_tiles == ()
