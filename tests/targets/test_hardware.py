"""Descriptions of machines: numbers that contradict each other are refused, with the line."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from npusim.errors import TargetConstraintError
from npusim.targets import Npu, TargetConfig, override, target_names
from npusim.targets.data_file import parse, to_toml
from npusim.targets.hardware import NPU_TABLES, Hardware
from npusim.targets.override import file_data
from npusim.targets.records import read_record, to_data

DESCRIBED = [name for name in target_names() if TargetConfig.named(name).hardware is not None]
EDGE = TargetConfig.named("npu-edge-32x32")


def edge() -> Npu:
    assert EDGE.hardware is not None
    assert EDGE.hardware.npu is not None
    return EDGE.hardware.npu


def own(tmp_path: Path, text: str) -> TargetConfig:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return TargetConfig.named(str(path))


@pytest.mark.parametrize("name", DESCRIBED)
def test_installed_machines_read_back_from_their_data(name: str) -> None:
    target = TargetConfig.named(name)
    assert target.hardware is not None
    assert target.hardware.name == name
    text = to_toml(file_data(target))
    assert TargetConfig.from_toml(text, "own.toml") == target
    assert read_record(Hardware, to_data(target.hardware), "own") == target.hardware


def test_units_stand_in_names() -> None:
    """Of what is no share, count, name or choice."""
    units = ("_mhz", "_cycles", "_cycle", "kib", "_mib", "_bytes", "_ns", "_us", "gb_per_s", "_pj")
    units += ("_per_byte", "_per_bit", "_byte_hop", "_w", "_eff", "efficiency", "_p")
    counts = {
        "count",
        "rows",
        "cols",
        "per_core",
        "min_stream_rows",
        "min_rows",
        "lanes",
        "banks",
        "channels",
    }
    counts |= {"ports_per_bank", "max_dims", "queue_depth", "max_rank", "m", "n", "k", "dtype_rate"}
    counts |= {"cycles_per_op", "other_cycles_per_op", "channel_align", "macs_per_pe_cycle"}

    def numbers(record: Any) -> None:
        for f in fields(record):
            value = getattr(record, f.name)
            if is_dataclass(value):
                numbers(value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                assert f.name in counts or f.name.endswith(units), f.name

    numbers(EDGE.hardware)


def test_a_machine_may_be_like_another(tmp_path: Path) -> None:
    target = own(tmp_path, 'like = "npu-edge-32x32"\nname = "mine"\n[mxu]\nrows = 16\n')
    assert target.hardware is not None
    assert target.hardware.name == "mine"
    assert target.hardware.npu == replace(edge(), mxu=replace(edge().mxu, rows=16))
    null = own(tmp_path, 'like = "npu-edge-32x32"\nname = "mine"\ndevice = "null"\n')
    assert null.hardware is None  # another device's machine says nothing of this one


def test_a_table_of_dtypes_is_taken_over_as_a_whole(tmp_path: Path) -> None:
    """Not so one of operations, whose others would take other times then."""
    text = 'like = "npu-edge-32x32"\nname = "mine"\n[mxu]\nmacs_per_pe_cycle = { int8 = 2 }\n'
    mine = own(tmp_path, text + "[vpu]\ncycles_per_op = { exp = 9 }\n").npu
    assert mine is not None
    assert mine.mxu.macs_per_pe_cycle == {"int8": 2.0}
    assert mine.vpu.dtype_rate == edge().vpu.dtype_rate
    assert mine.vpu.cycles_per_op == {**edge().vpu.cycles_per_op, "exp": 9}


def test_what_is_taken_over_says_nothing_of_other_dtypes(tmp_path: Path) -> None:
    head = 'like = "npu-edge-32x32"\nname = "mine"\n[constraints]\ndtypes = ["int8", "int32"]\n'
    mine = own(tmp_path, head).npu
    assert mine is not None
    assert mine.mxu.macs_per_pe_cycle == {"int8": 1}
    assert mine.vpu.dtype_rate == {"int8": 4, "int32": 1}
    assert mine.constraints.channel_align == {"int8": 16}
    assert mine.energy.mac_pj == {"int8": 0.23}
    with pytest.raises(TargetConstraintError, match=r"own.toml:6: 'vpu.dtype_rate.float16'"):
        own(tmp_path, head + "[vpu]\ndtype_rate = { float16 = 1 }\n")  # its own is held to them
    with pytest.raises(TargetConstraintError, match=r"32.toml:\d+: 'mxu.macs_per_pe_cycle.int8'"):
        own(tmp_path, head.replace('"int8", ', ""))  # nothing of it would be left


def test_sums_follow_what_is_multiplied(tmp_path: Path) -> None:
    head = 'like = "tpu-v6e"\nname = "mine"\n[mxu]\nmacs_per_pe_cycle = { int8 = 1 }\n'
    mine = own(tmp_path, head).npu
    assert mine is not None
    assert mine.mxu.sums == {"int8": "int32"}


def test_a_machine_without_an_array(tmp_path: Path) -> None:
    text = 'like = "npu-edge-32x32"\nname = "dsp"\n[mxu]\nmacs_per_pe_cycle = {}\n'
    target = own(tmp_path, text)
    npu = target.npu
    assert npu is not None
    assert target.multiplies_bytes
    assert npu.multiplied == edge().vpu.dtype_rate
    assert npu.multipliers == 256 * 4  # of int8
    assert npu.peak_ops_per_second("float16") == 2 * 256 * 2 * 1e9
    assert own(tmp_path, to_toml(file_data(target))) == target


@pytest.mark.parametrize("missing", ["mxu", "vpu", "sram", "acc", "dma", "dram", "dispatch"])
def test_a_machine_has_all_its_parts(tmp_path: Path, missing: str) -> None:
    data = {k: v for k, v in file_data(EDGE).items() if k != missing}
    with pytest.raises(TargetConstraintError, match=f"own.toml: key '{missing}' is missing"):
        own(tmp_path, to_toml(data))


REFUSED = {  # a table's keys -> what is said of which key
    "[acc]\nkib = 0.01": (8, r"'acc.kib': 10 bytes hold no row of 32 sums \(128 bytes\)"),
    "[mxu]\ncols = 100000": (8, "'mxu.cols': no array has more than 65536"),
    "[mxu]\nrows = 0": (8, "'mxu.rows': there is at least 1"),
    "[mxu]\ndataflow = 'rs'": (8, '\'mxu.dataflow\' is "rs", not "ws" or'),
    "[mxu]\nsums.int8 = 'int8'": (8, "'mxu.sums.int8': products of int8 are added up in"),
    "[mxu]\nsums.float16 = 'float16'": (8, "'mxu.sums.float16': products of float16 are added"),
    "[requantize]\nscale = 'float32'\nrounding = 'floor'": (
        9,
        "'requantize.rounding': products of",
    ),
    "[requantize]\nscale = 'fix'": (8, '\'requantize.scale\' is "fix", not "float32" or'),
    "[requantize]\nbits = 8": (8, "unknown key 'requantize.bits'"),
    "[mxu]\nsums.int16 = 'int32'": (8, "'mxu.sums.int16': the array does not multiply"),
    "[mxu]\nmacs_per_pe_cycle.int8 = 0": (8, "'mxu.macs_per_pe_cycle.int8': .*left out"),
    "[mxu]\nmacs_per_pe_cycle.int4 = 1": (8, "'mxu.macs_per_pe_cycle.int4': no dtype"),
    "[mxu]\nmacs_per_pe_cycle.int16 = 1": (8, "'constraints.dtypes' does not name it"),
    "[vpu]\nlanes = 0": (8, "'vpu.lanes': there is at least 1"),
    "[vpu]\ncycles_per_op.sine = 2": (8, "'vpu.cycles_per_op.sine': no scalar operation"),
    "[vpu]\ncycles_per_op.exp = 0": (8, "'vpu.cycles_per_op.exp': .*more than 0"),
    "[vpu]\nother_cycles_per_op = 0": (8, "'vpu.other_cycles_per_op'"),
    "[cores]\ncount = 65537": (8, "'cores.count': no chip has more than 65536"),
    "[dma]\nchannels = 4097": (8, "'dma.channels': no core has more than 4096"),
    "[dma]\nchannels = 0": (8, "'dma.channels': there is at least 1"),
    "[dma]\nburst_bytes = 48": (8, "'dma.burst_bytes': 48 is no power of two"),
    "[dma]\nbytes_per_cycle = 0": (8, "'dma.bytes_per_cycle' is 0, not a number above 0"),
    "[dram]\ngb_per_s = 0.0": (8, "'dram.gb_per_s' is 0.0, not a number above 0"),
    "[dram]\ngb_per_s = inf": (8, "'dram.gb_per_s' is Infinity"),
    "[dram]\ngb_per_s = nan": (8, "'dram.gb_per_s' is NaN"),
    "[dram]\ngb_per_s = -1": (8, "'dram.gb_per_s' is -1"),
    "[dram]\ngb_per_s = 1e30": (8, "'dram.gb_per_s' is 1e\\+30, .* at most 1e\\+09"),
    "[dram]\nefficiency = 1.01": (
        8,
        "'dram.efficiency' is 1.01, not a number above 0, at most 1\\.$",
    ),
    "[dram]\nefficiency = 0": (8, "'dram.efficiency' is 0"),
    "[dram]\ncapacity_mib = 1": (8, "'dram.capacity_mib': less than a memory on the chip"),
    "[dram]\nchannels = true": (8, "'dram.channels' is true, not an integer"),
    "[dram]\nchannels = 2.5": (8, "'dram.channels' is 2.5, not an integer"),
    "[dram]\nspeed = 2": (8, "unknown key 'dram.speed'. Known there: gb_per_s"),
    "[constraints]\nchannel_align.int8 = 12": (8, "channel_align.int8': 12 is no power of two"),
    "[constraints]\nchannel_align.int16 = 8": (8, "'dtypes' does not name it"),
    "[constraints]\ndtypes = []": (8, "a machine without dtypes"),
    "[constraints]\ndtypes = ['int4']": (8, r"'constraints.dtypes\[0\]': no dtype"),
    "[constraints]\nlayouts = []": (8, "'constraints.layouts'"),
    "[constraints]\nlayouts = ['NCWH']": (8, r"'constraints.layouts\[0\]' is \"NCWH\""),
    "[constraints]\ntile_multiple.n = 0": (8, "tile_multiple.n': there is at least 1"),
    "[constraints]\ntile_multiple.k = 99999": (8, "no memory has room for more than 1048576"),
    "[constraints]\ntile_multiple.m = 9999": (8, "sums take 1279872 bytes, 'acc' has 262144"),
    "[energy]\nmac_pj.int16 = 1": (8, "'energy.mac_pj.int16': 'constraints.dtypes'"),
    "[energy]\nstatic_w = -1": (8, "'energy.static_w' is -1"),
    "[calibration]\nmxu_eff = 0": (8, "'calibration.mxu_eff' is 0"),
    "[calibration]\noverlap_p = 0.5": (8, "'calibration.overlap_p'"),
    "[cores]\ncount = 0": (8, "'cores.count'"),
    "[clock]\ncore_mhz = 'fast'": (8, "'clock.core_mhz' is \"fast\", not a number"),
    "[tpu]\nx = 1": (7, "unknown key 'tpu'. Known there: name, device.*clock, mxu"),
    "[hardware]\nx = 1": (7, "unknown key 'hardware'"),
    "[[sram]]\nname = ''\nkib = 1\nbytes_per_cycle = 1": (8, r"'sram\[0\].name': a memory has"),
    "[[sram]]\nname = 'l1'": (7, r"key 'sram\[0\].kib' is missing"),
    "[[sram]]\nname = 'a'\nkib = 1\nbytes_per_cycle = 1\nbanks = 2\nalign_bytes = 1024": (
        11,
        r"'sram\[0\].banks': 2 banks of 1024 bytes are more than 1024",
    ),
    "sram = []": (7, "'sram': a machine has at least one memory"),
}


@pytest.mark.parametrize(("table", "line", "said"), [(k, *v) for k, v in REFUSED.items()])
def test_contradictions_are_refused_with_their_line(
    tmp_path: Path, table: str, line: int, said: str
) -> None:
    head = 'like = "npu-edge-32x32"\nname = "mine"\n\n# a comment\n\n\n'
    with pytest.raises(TargetConstraintError, match=rf"own\.toml:{line}: .*{said}"):
        own(tmp_path, head + table + "\n")


def test_two_memories_have_two_names(tmp_path: Path) -> None:
    data = file_data(EDGE)
    data["sram"] *= 2
    with pytest.raises(TargetConstraintError, match=r"'sram\[1\].name': 'l1' is another"):
        own(tmp_path, to_toml(data))


def test_a_json_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text('{"like": "cpu"}', encoding="utf-8")
    with pytest.raises(TargetConstraintError, match=r"own\.json: .* is TOML, not JSON.*\.toml"):
        TargetConfig.named(str(path))
    with pytest.raises(TargetConstraintError, match=r"Unknown target '.*nowhere.toml'.*cpu, cuda"):
        TargetConfig.named(str(tmp_path / "nowhere.toml"))
    binary = tmp_path / "own.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(TargetConstraintError, match="it is not UTF-8"):
        TargetConfig.named(str(binary))


# Devices of which peaks are known

ROOFLINE = """
[roofline]
call_us = 1
peaks = [{ dtype = "float32", product_tera_ops_per_second = 1, vector_tera_ops_per_second = 1 }]
memory = [
  { name = "l2", kib = 512, giga_bytes_per_second = 9 },
  { name = "dram", kib = 0, giga_bytes_per_second = 3 },
]
[[roofline.classes]]
name = "other"
stems = []
start_us = 1
compute_share = 1
memory_share = 1
overlap = 2
item_us = 0
tile_rows = 1
tile_columns = 1
products = false
"""


def test_a_machine_is_parts_or_a_roofline(tmp_path: Path) -> None:
    """A file that describes the one takes nothing over of the other."""
    for base in ("null", "npu-edge-32x32"):
        target = own(tmp_path, f'like = "{base}"\nname = "mine"\n{ROOFLINE}')
        assert target.hardware is not None
        assert target.hardware.npu is None
        assert target.hardware.roofline is not None
        assert target.hardware.roofline.level(2**19).name == "l2"
        assert TargetConfig.from_toml(to_toml(file_data(target)), "own") == target
        assert override(target, ["roofline.memory.l2.kib=1"]) != target
    text = to_toml(file_data(EDGE)) + ROOFLINE
    with pytest.raises(TargetConstraintError, match=r"own.toml:\d+: .*both of parts and of a"):
        own(tmp_path, text)
    with pytest.raises(TargetConstraintError, match=r"own.toml:3: .*neither of parts nor of"):
        own(tmp_path, 'like = "null"\nname = "mine"\n[calibration]\nsource = "x"\n')
    with pytest.raises(TargetConstraintError, match=r"own.toml:4: 'roofline': 'peaks' is empty\."):
        own(tmp_path, 'like = "null"\nname = "mine"\n' + ROOFLINE.replace("[{ dtype", "[] #"))


# Single numbers changed


def test_a_setting_changes_one_number() -> None:
    assert override(EDGE, []) is EDGE
    changed = override(EDGE, ["mxu.rows=16", "dram.gb_per_s=51.2", "mxu.rows=8"])
    assert changed.hardware is not None
    npu = changed.hardware.npu
    assert npu is not None
    assert (npu.mxu.rows, npu.mxu.cols, npu.dram.gb_per_s) == (8, 32, 51.2)
    assert override(changed, ["mxu.rows=32", "dram.gb_per_s=102.4"]) == EDGE
    by_name, by_place = override(EDGE, ["sram.l1.kib=64"]), override(EDGE, ["sram[0].kib = 64"])
    assert by_name == by_place != EDGE
    assert override(EDGE, ["mxu.dataflow=os"]) == override(EDGE, ['mxu.dataflow="os"']) != EDGE


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("mxu", "Setting 'mxu' is not 'key=value'"),
        ("=3", "is not 'key=value'"),
        ("mxu.rows=", "is not 'key=value'"),
        ("mxu..rows=1", "'mxu..rows' is no key"),
        ("mxu.rowz=1", "unknown key 'mxu.rowz'. Known there: rows, cols"),
        ("mxu.rows=1.5", "'mxu.rows' is 1.5, not an integer"),
        ("mxu.rows=many", "'mxu.rows' is \"many\", not an integer"),
        ("mxu.rows.x=1", "has no keys below it"),
        ("mux.rows=1", "unknown key 'mux'. Known there: .*mxu"),
        ("sram.l2.kib=1", "unknown key 'sram.l2'. Known there: l1"),
        ("sram[1].kib=1", r"unknown key 'sram\[1\]'. Known there: l1"),
        ("sram=1", "'sram' is 1, not a list"),
        ("clock.core_mhz=0", "'clock.core_mhz' is 0, not a number above 0"),
        ("clock.core_mhz=1e-300", "is 1e-300, not a number above 0, at least 1e-06\\.$"),
        ("dram.efficiency=1e-9", "is 1e-09, not a number above 0, at least 1e-06\\.$"),
        ("acc.kib=0.1", "'acc.kib': 102 bytes hold no row"),
        ("like=cpu", "unknown key 'like'"),
        ("hardware=1", "unknown key 'hardware'"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(setting: str, said: str) -> None:
    with pytest.raises(TargetConstraintError, match=said) as caught:
        override(EDGE, [setting])
    assert setting.strip() in str(caught.value)


def test_a_target_without_a_machine_has_no_such_numbers() -> None:
    null = TargetConfig.named("null")
    with pytest.raises(TargetConstraintError, match="target 'null' describes no machine"):
        override(null, ["mxu.rows=16"])
    assert override(null, ["run_seconds=1"]).run_seconds == 1.0


def test_what_follows_from_a_description() -> None:
    npu = edge()
    assert npu.dram_bytes_per_cycle == pytest.approx(92.16)  # 102.4e9 * 0.9 / 1e9
    assert npu.level.bytes == 2**21
    assert npu.level.tile_bytes == 2**20
    assert npu.mxu.sum_dtype("int8") == "int32"
    assert npu.mxu.sum_dtype("bfloat16") == npu.mxu.sum_dtype("float32") == "float32"
    assert (npu.vpu.cycles("exp"), npu.vpu.cycles("add")) == (4, 1)
    assert npu.sram_named("l1") is npu.level
    with pytest.raises(KeyError):
        npu.sram_named("l2")
    assert set(NPU_TABLES) == {f.name for f in fields(Npu)}
    assert parse("x = 1", "a").data == {"x": 1}
