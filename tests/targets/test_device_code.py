"""What device code is: by data of the architecture, which a target's file may leave out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import npusim
from npusim.codegen.generator import _GENERATORS, generator_of
from npusim.errors import TargetConstraintError
from npusim.targets import TargetConfig, data_file, native
from npusim.targets.features import architecture, listed_architectures

DATA = Path(npusim.__file__).parent / "targets"
ALL = ("clusters", "overlapping_launches", "shared_227k", "tma")


def read(tmp_path: Path, like: str = "cuda", **changed: object) -> TargetConfig:
    """A target by a whole file that is like an installed one but for some keys."""
    data = data_file.read(DATA / f"data/{like}.toml", like).data
    assert not {"code_format", "features"} & set(data)
    path = tmp_path / "own.toml"
    path.write_text(data_file.to_toml({**data, "name": "own", **changed}), encoding="utf-8")
    return TargetConfig.named(str(path))


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("sm_75", ()),
        ("sm_80", ()),
        ("sm_86", ()),
        ("sm_87", ()),
        ("sm_89", ()),
        ("sm_90", ALL),
        ("sm_90a", (*ALL, "wgmma")),
        ("sm_100", ALL),
        ("sm_100a", ALL),
        ("sm_103f", ALL),
        ("sm_120", ("clusters", "overlapping_launches", "tma")),
        ("sm_120a", ("clusters", "overlapping_launches", "tma")),
        ("sm_121a", ("clusters", "overlapping_launches", "tma")),
    ],
)
def test_an_architecture_has_its_features_or_those_before_it(
    tmp_path: Path, name: str, features: tuple[str, ...]
) -> None:
    named, own = TargetConfig.named(f"cuda:{name}"), read(tmp_path, arch=name)
    assert (named.arch, named.code_format, named.features) == (name, "cubin", features)
    assert replace(own, name="cuda") == named
    assert named.uses_tma == named.leaves_norms == (name == "sm_90a")


@pytest.mark.parametrize(
    "name",
    ["", "sm_", "sm_90x", "sm_90A", "sm_90aa", "sm_9_0", "sm_\u0669\u0660", "sm_90\n", "gfx90a"],
)
def test_other_names_are_no_architectures(tmp_path: Path, name: str) -> None:
    assert architecture(name) is None
    with pytest.raises(TargetConstraintError, match="is not an architecture of target 'cuda'"):
        TargetConfig.named(f"cuda:{name}")
    with pytest.raises(TargetConstraintError, match=r"such as sm_80, sm_86, .*sm_120\."):
        TargetConfig.named(f"cuda:{name}")
    if name:
        with pytest.raises(TargetConstraintError, match=r"own\.toml:\d+: there is no architecture"):
            read(tmp_path, arch=name)


def test_what_is_here_is_asked_by_the_format_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_ASKED", {"cubin": lambda: "sm_86", "metallib": lambda: "apple9"})
    assert TargetConfig.named("cuda").arch == "sm_86"
    assert native.native_architecture("metallib") == "apple9"
    assert native.native_architecture("") == native.native_architecture("spirv") == ""
    assert TargetConfig.named("cpu").arch == ""
    both = listed_architectures("cubin") + listed_architectures("msl")
    assert both == listed_architectures()
    assert listed_architectures("metallib") == ()


def test_a_target_without_code_has_no_architectures(tmp_path: Path) -> None:
    none = read(tmp_path, code_format="", features=[])
    for target in (TargetConfig.named("cpu"), read(tmp_path, arch=""), none):
        assert (target.code_format, target.features) == ("", ())
        assert generator_of(target) is None
        with pytest.raises(TargetConstraintError, match="no architectures"):
            target.with_arch("sm_90")


def test_another_architecture_brings_its_features(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('like = "cuda"\nname = "own"\narch = "sm_80"', encoding="utf-8")
    target = TargetConfig.named(str(file))
    assert target.features == ()
    assert target.with_arch("sm_90").features == ALL
    assert target.with_arch("sm_90").with_arch("sm_80") == target


def test_a_file_may_say_less_than_its_architecture(tmp_path: Path) -> None:
    target = read(tmp_path, features=["tma"])
    assert target.features == ("tma",)
    assert not target.uses_tma
    assert generator_of(read(tmp_path, code_format="")) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"code_format": "spirv"}, "has not the format 'spirv'"),
        ({"code_format": 1}, "has not the format 1"),
        ({"arch": "", "code_format": "cubin"}, "has not the format 'cubin'"),
        ({"features": "tma"}, "'features' are"),
        ({"features": ["tmx"]}, "'features' are"),
        ({"features": [["tma"]]}, "'features' are"),
        ({"arch": "sm_80", "features": ["tma"]}, "'features' are"),
        ({"arch": "", "features": ["tma"]}, "'features' are"),
        ({"arch": 90}, "there is no architecture 90"),
        ({"kernels": ["copy", "sofmax"]}, 'no kernel is called "sofmax"'),
        ({"kernels": ["copy", ["copy"], 3]}, r'no kernel is called \["copy"\], 3'),
        ({"kernels": 3}, "'kernels' is no list"),
        ({"kernels": "copy"}, "'kernels' is no list"),
        ({"kernels": {"copy": 1}}, "'kernels' is no list"),
    ],
)
def test_what_nobody_has_is_refused_by_name(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    with pytest.raises(TargetConstraintError, match=rf"own\.toml:\d+: .*{said}"):
        read(tmp_path, **changed)


def test_generators_are_chosen_by_the_format_of_code() -> None:
    cuda = TargetConfig.named("cuda:sm_80")
    assert generator_of(replace(cuda, device="another")) is generator_of(cuda) is not None
    assert {a.code_format for n in listed_architectures() if (a := architecture(n))} == set(
        _GENERATORS
    )
    with pytest.raises(TargetConstraintError, match="format 'spirv', which target 'cuda'"):
        generator_of(replace(cuda, code_format="spirv"))
