"""What was measured of architectures: files that say all of the schema and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from npusim.errors import TargetConstraintError
from npusim.partition.cost import CostModel
from npusim.passes.select_kernels import winograd_tile
from npusim.targets import TargetConfig, data_file, target_config, target_names
from npusim.targets.architecture import fitted, gpu, measured_architectures, pytorch_costs
from npusim.targets.data_file import to_toml
from npusim.targets.measured import Winograd
from npusim.targets.records import read_record
from npusim.targets.target_config import MEASURED
from tests.passes.conftest import Draft


@dataclass(frozen=True, slots=True)
class Part:
    width: int
    ratio: float = 0.5
    bytes_per_us: float | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    parts: tuple[Part, ...]
    fast: bool = False


def read(data: object) -> Whole:
    return read_record(Whole, data, "own.toml")


def test_fields_are_the_schema_and_have_the_defaults() -> None:
    data = {"name": "a", "parts": [{"width": 3}, {"width": 0, "ratio": 1, "bytes_per_us": 2}]}
    assert read(data) == Whole("a", (Part(3), Part(0, 1.0, 2.0)))
    assert type(read(data).parts[1].ratio) is float
    assert read({"name": "", "parts": [], "fast": True}) == Whole("", (), True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], r"it holds \[\], not a table"),
        ({"parts": []}, "key 'name' is missing"),
        ({"name": "a", "parts": [], "nmae": 1}, "unknown key 'nmae'"),
        ({"name": 3, "parts": []}, "'name' is 3, not text"),
        ({"name": "a", "parts": {}}, r"'parts' is \{\}, not a list"),
        ({"name": "a", "parts": [{"width": 1}, 2]}, r"'parts\[1\]' is 2, not a table"),
        ({"name": "a", "parts": [{}]}, r"key 'parts\[0\].width' is missing"),
        ({"name": "a", "parts": [{"width": 1.0}]}, r"'parts\[0\].width' is 1.0, not an integer"),
        ({"name": "a", "parts": [{"width": True}]}, r"width' is true, not an integer"),
        ({"name": "a", "parts": [{"width": -1}]}, r"width' is -1, not an integer that is not neg"),
        ({"name": "a", "parts": [{"width": 1, "ratio": "2"}]}, r"ratio' is \"2\", not a number"),
        ({"name": "a", "parts": [{"width": 1, "ratio": float("nan")}]}, r"ratio' is NaN"),
        ({"name": "a", "parts": [{"width": 1, "ratio": float("inf")}]}, r"ratio' is Infinity"),
        ({"name": "a", "parts": [{"width": 1, "bytes_per_us": 0}]}, r"us' is 0, .* above 0"),
        ({"name": "a", "parts": [], "fast": 1}, "'fast' is 1, not true or false"),
    ],
)
def test_refusals_name_the_file_and_the_key(data: object, said: str) -> None:
    with pytest.raises(TargetConstraintError, match=rf"^own\.toml: .*{said}"):
        read(data)


# The installed files


@pytest.mark.parametrize("name", measured_architectures())
def test_installed_files_are_whole(name: str) -> None:
    measured = fitted(name)
    assert measured.name == name
    assert measured.measured_on
    assert measured.gpu or measured.pytorch


@pytest.mark.parametrize("name", target_names())
def test_every_target_is_described(name: str) -> None:
    target = TargetConfig.named(name)
    assert target.measurements.name == MEASURED[target.code_format]
    assert pytorch_costs(target.measurements) == fitted("x86_64").pytorch


@pytest.mark.parametrize("name", target_names())
def test_an_installed_target_is_made_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every compilation names one."""
    target = TargetConfig.named(name)
    monkeypatch.setattr(target_config, "_target", None)
    assert TargetConfig.named(name) == target


def _keys(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all keys of objects within objects and lists."""
    found = []
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        found += [(*path, key)] if isinstance(data, dict) else []
        found += _keys(value, (*path, key)) if isinstance(value, (dict, list)) else []
    return found


def installed(name: str) -> dict[str, Any]:
    folder = Path(fitted.__code__.co_filename).parent / "architectures"
    data: dict[str, Any] = data_file.read(folder / f"{name}.toml", name).data
    return data


def at(data: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


@pytest.mark.parametrize("name", measured_architectures())
def test_no_key_can_be_lost_or_misspelt(name: str, tmp_path: Path) -> None:
    """But for those with a default, which are then the file's to leave out."""
    optional = {"winograd", "pytorch", "gpu", "blocks_per_processor", "copy_warp", "persistent"}
    path = tmp_path / "own.toml"

    def refused(change: Callable[[dict[str, Any]], None], said: str) -> None:
        data = installed(name)
        change(data)
        path.write_text(to_toml(data), encoding="utf-8")
        with pytest.raises(TargetConstraintError) as caught:
            fitted(str(path))
        place, _, message = caught.value.args[0].removeprefix(str(path)).partition(": ")
        assert message.startswith(said), caught.value.args[0]
        assert not place or int(place[1:]) <= len(path.read_text().splitlines())

    for *outer, key in _keys(installed(name)):
        where = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in (*outer, key))[1:]
        if key not in optional:
            refused(lambda d, o=tuple(outer), k=key: at(d, o).pop(k), f"key '{where}' is missing")
        refused(
            lambda d, o=tuple(outer), k=key: at(d, o).update({f"{k}s": 1}),
            f"unknown key '{where}s'",
        )


# A user's own


def own(tmp_path: Path, **data: object) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(data), encoding="utf-8")
    return str(path)


def preset(tmp_path: Path, like: str = "cpu", **changed: object) -> TargetConfig:
    path = tmp_path / "target.toml"
    path.write_text(to_toml({"like": like, "name": "own", **changed}), encoding="utf-8")
    return TargetConfig.named(str(path))


def test_a_file_may_be_like_an_installed_one(tmp_path: Path) -> None:
    file = own(tmp_path, like="x86_64", name="mine", winograd={"least_channels": 8})
    base = fitted("x86_64")
    assert base.winograd is not None
    expected = replace(base, name="mine", winograd=replace(base.winograd, least_channels=8))
    assert fitted(file) == expected
    with pytest.raises(TargetConstraintError, match=r"mine.toml:1: .*called \"vax\".*sm_90a, x86"):
        fitted(own(tmp_path, like="vax"))


def test_a_target_chooses_by_its_own_measurements(tmp_path: Path) -> None:
    costs = {"node_seconds": 1.0, "flops_per_second": 2.0, "bytes_per_second": 3.0}
    file = own(tmp_path, like="x86_64", name="mine", pytorch=costs)
    model = CostModel.of(preset(tmp_path, measured=file))
    assert (model.node_seconds, model.host_rates) == (1.0, (2.0, 3.0))
    assert CostModel.of(preset(tmp_path)).node_seconds == 9.5e-6


def test_what_is_not_measured_is_not_chosen(tmp_path: Path) -> None:
    from npusim.passes.canonicalize_conv import canonicalize_conv
    from npusim.passes.select_kernels import select_kernels

    draft = Draft()
    y = draft.call(
        "aten.conv2d.default", draft.x(1, 64, 56, 56), draft.w(64, 64, 3, 3), None, padding=(1, 1)
    )

    drawn = draft.graph(y)

    def chosen(**winograd: object) -> object:
        target = preset(tmp_path, measured=own(tmp_path, name="m", measured_on="m", **winograd))
        graph = select_kernels(canonicalize_conv(drawn, target), target)
        return graph.nodes[-1].attrs["algorithm"]

    costs = installed("x86_64")["winograd"]
    assert chosen(winograd=costs) == "winograd4"
    assert chosen(winograd=costs | {"least_channels": 65}) == "igemm"
    assert chosen() == "igemm"


@pytest.mark.parametrize(
    ("changed", "channels", "out", "tile"),
    [
        ({}, 32, (1, 32, 2, 38), 0),
        ({"direct_weights_pixels": 6}, 32, (1, 32, 2, 38), 2),
        ({"transform_multiply_adds": 8}, 32, (1, 32, 2, 38), 2),
        ({"weights_tiles": 15}, 32, (1, 32, 2, 38), 2),
        ({"least_channels": 33}, 32, (1, 32, 2, 400), 0),
    ],
)
def test_every_number_of_winograd_decides(
    changed: dict[str, int], channels: int, out: tuple[int, ...], tile: int
) -> None:
    base = fitted("x86_64").winograd
    assert isinstance(base, Winograd)
    assert winograd_tile(channels, out, (2,), replace(base, **changed)) == tile


def test_measurements_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetConstraintError, match=r"target\.toml:3: 'measured' is 3"):
        preset(tmp_path, measured=3)
    with pytest.raises(TargetConstraintError, match="'vax' was not measured"):
        preset(tmp_path, measured="vax")
    assert preset(tmp_path, like="cuda", measured="sm_90a").measurements.gpu
    with pytest.raises(TargetConstraintError, match=r"target\.toml:3: code in the format 'cubin'"):
        preset(tmp_path, like="cuda", measured="x86_64")
    with pytest.raises(TargetConstraintError, match=r"x86_64\.toml: key 'gpu' is missing"):
        gpu("x86_64")
    (tmp_path / "mine.toml").write_text("{", encoding="utf-8")
    with pytest.raises(TargetConstraintError, match=r"mine\.toml: it is not TOML"):
        fitted(str(tmp_path / "mine.toml"))
