"""npusim profile --roofline: measured limits, commands held to them, three forms, and refusals."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import npusim
from npusim.profile.profile import CommandProfile, Profile
from npusim.profile.roofline import roof_of, share_of, to_roofline_html, to_roofline_svg
from npusim.profile.saved import read_profile

from .conftest import Cli, Compiled

LIMITS = {"read": 1e9, "float32": 1e12, "bfloat16": 2e12, "int8": 4e12}


def command(operations: int = 0, nbytes: int = 0, seconds: float = 1.0, **params) -> CommandProfile:
    return CommandProfile(
        0, "linear", "", "n<0>", "op", "", "", nbytes, 0, operations, seconds, params
    )


def profile(*commands: CommandProfile, limits: dict[str, float] | None = None) -> Profile:
    given = LIMITS if limits is None else limits
    return Profile("net", "forward", "cpu", "a <CPU>", 0, 1, commands, 1.0, given)


@pytest.mark.parametrize(
    ("params", "dtype"),
    [
        ({}, "float32"),  # parameters that are 0 are left out, and so is float32
        ({"x_dtype": 2, "w_dtype": 2}, "bfloat16"),
        ({"x_dtype": 2, "y_dtype": 0}, "bfloat16"),  # codes of a quantized product have no dtype
        ({"x_dtype": 0, "w_dtype": 2}, "float32"),
        ({"x_dtype": 1, "w_dtype": 1}, "float32"),  # float16 has no rate of its own
        ({"x_dtype": 8, "w_dtype": 7}, "int8"),
        ({"x_dtype": (0, 2)}, "float32"),
    ],
)
def test_a_commands_roof(params: dict, dtype: str) -> None:
    computing, moving = command(10**12, 1, **params), command(1, 10**9, **params)
    assert roof_of(computing, LIMITS).seconds == 1e12 / LIMITS[dtype]
    assert roof_of(computing, LIMITS).bound == "compute"
    assert (roof_of(moving, LIMITS).seconds, roof_of(moving, LIMITS).bound) == (1.0, "memory")
    assert roof_of(computing, LIMITS).dtype == dtype


def test_shares() -> None:
    fast, slow = command(10**12, 0, 1.0), command(0, 10**9, 3.0)
    assert share_of([fast, slow], LIMITS) == 0.5
    assert share_of([], LIMITS) == share_of([command(seconds=0.0)], LIMITS) == 0.0


def test_pictures_and_pages_are_whole() -> None:
    odd = (command(), command(5, 0), command(0, 5), command(5, 5, 0.0), command(5, 5))
    for found in (profile(*odd), profile()):
        root = ElementTree.fromstring(to_roofline_svg(found))
        circles = root.iter("{http://www.w3.org/2000/svg}circle")
        commands = sum(c.operations * c.bytes_read * c.seconds > 0 for c in found.commands)
        assert len(list(circles)) == commands
        page = to_roofline_html(found)
        HTMLParser().feed(page)
        assert "a &lt;CPU&gt;" in page and "http" not in page.replace("http://www.w3.org", "")
        assert page.count("<tr>") == 1 + len(found.commands)


def test_limits_are_needed() -> None:
    for limits in ({}, {"read": 1.0}):
        with pytest.raises(npusim.Error, match="not measured"):
            to_roofline_svg(profile(command(5, 5), limits=limits))
    assert npusim.Device("null").measure_rates() == {}


def test_this_machine_has_limits() -> None:
    for threads in (1, 2):
        rates = npusim.Device("cpu", threads=threads).measure_rates()
        assert list(rates) == ["read", "float32", "bfloat16", "int8"]
        assert all(1e8 < rate < 1e15 for rate in rates.values())


@pytest.mark.parametrize("form", ["svg", "png", "html"])
def test_a_program_below_its_roofs(cli: Cli, mlp: Compiled, tmp_path: Path, form: str) -> None:
    arguments = ("profile", mlp.program, "--weights", mlp.weights, "--repeats", 1, "--threads", 1)
    output = tmp_path / f"roof.{form}"
    outcome = cli(*arguments, "--roofline", output)
    assert outcome.code == 0, outcome.err
    assert "of limit" in outcome.out and "GB/s read" in outcome.out and str(output) in outcome.out
    assert output.read_bytes()[:4] in (b"<svg", b"\x89PNG", b"<!do")
    facts = cli(*arguments, "--roofline", output, "--json").json
    saved = tmp_path / "profile.json"
    saved.write_text(json.dumps(facts))
    assert read_profile(saved).limits == facts["limits"]
    facts["limits"]["read"] = 0
    saved.write_text(json.dumps(facts))
    with pytest.raises(npusim.Error, match="'read' of limits"):
        read_profile(saved)


def test_refusals(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    arguments = ("profile", mlp.program, "--weights", mlp.weights, "--repeats", 1)
    cli(*arguments, "--roofline", tmp_path / "roof.pdf").refused(".svg, .png or .html")
    cli(*arguments, "--roofline", tmp_path / "no" / "roof.svg").refused("does not exist")
    assert "of limit" not in cli(*arguments).out
