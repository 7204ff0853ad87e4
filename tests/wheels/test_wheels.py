"""What `make wheels` rests on, without building anything."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.wheels import checks, commands, cpp_tests, python_headers, report, userland
from tests.wheels.targets import TARGETS

ROOT = Path(__file__).parents[2]


def test_recorded_programs_run_with_the_module_here() -> None:
    """What runs from every wheel runs from the tree, and says with which kernels."""
    command = [sys.executable, "tests/wheels/replay.py", "tests/compatibility/corpus"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ recorded calls to the bit on cpu, \w+", done.stdout)
    other = subprocess.run(
        [*command, "sse9"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert other.returncode == 1 and "not with sse9" in other.stderr


def test_a_changed_bit_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "0.1.0"
    folder.mkdir()
    corpus = ROOT / "tests" / "compatibility" / "corpus" / "0.1.0"
    for path in corpus.glob("dense.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    calls = folder / "dense.calls.json"
    outputs = calls.read_text().rindex('"values"')
    text = calls.read_text()
    broken = re.sub(r"\d", lambda m: str((int(m[0]) + 1) % 10), text[outputs:], count=1)
    calls.write_text(text[:outputs] + broken)
    command = [sys.executable, "tests/wheels/replay.py", f"{tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "FAILED" in done.stderr


def test_exports_of_python_are_what_its_headers_declare(tmp_path: Path) -> None:
    names = python_headers.exports(python_headers.headers(tmp_path, windows=True))
    assert names["PyExc_RuntimeError"] and names["PyType_Type"]  # data
    assert not names["PyObject_Call"] and not names["PyUnicode_DecodeUTF8"]
    assert "MS_WIN64" in (tmp_path / "include" / "pyconfig.h").read_text()


def test_a_wheel_has_to_stay_small(tmp_path: Path) -> None:
    wheel = tmp_path / "npusim-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a", bytes(checks.MOST_BYTES - 200))
    assert checks.check_size(wheel) <= checks.MOST_BYTES
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a", bytes(checks.MOST_BYTES + 1))
    with pytest.raises(commands.Failed, match=f"at most {checks.MOST_BYTES}"):
        checks.check_size(wheel)


def test_missing_tools_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(commands.Missing, match=r"is not installed \(Debian: apt-get install"):
        userland.emulator("aarch64")


def test_commands_that_fail_say_so() -> None:
    with pytest.raises(commands.Failed, match=r"exit status 3.*\n.*why"):
        commands.run([sys.executable, "-c", "print('why'); raise SystemExit(3)"])
    with pytest.raises(commands.Failed, match="no end after 1 s"):
        commands.run([sys.executable, "-c", "import time; time.sleep(60)"], limit=1)


@pytest.mark.parametrize(
    ("code", "properties", "said"),
    [
        ("print('yes')", {}, "passed"),
        ("raise SystemExit(1)", {}, "t: 1: "),
        ("raise SystemExit(77)", {"SKIP_RETURN_CODE": 77}, "skipped"),
        ("print('usage: it')", {"PASS_REGULAR_EXPRESSION": ["usage: it"]}, "passed"),
        ("print('other')", {"PASS_REGULAR_EXPRESSION": ["usage: it"]}, "t: 0: other\n"),
        ("import time; time.sleep(60)", {}, "t: no end after 1 s"),
    ],
)
def test_outcomes_of_tests(code: str, properties: dict[str, object], said: str) -> None:
    facts = [{"name": name, "value": value} for name, value in properties.items()]
    test = {"name": "t", "command": [sys.executable, "-c", code], "properties": facts}
    assert cpp_tests.outcome(test, [], 1 if "sleep" in code else 30) == said


def test_what_a_run_found_is_kept(tmp_path: Path) -> None:
    target = TARGETS[0]
    found = report.Result(
        target.name, target.floor, Path("a.whl"), 1_250_000, ["ran"], ["metal: none"], ["broke: x"]
    )
    assert report.kept(target, tmp_path).left_out == ["it was never built here"]
    report.keep(found, tmp_path / "deeper")
    again = report.kept(target, tmp_path / "deeper")
    assert again == found
    row = f"| {target.name} | 1.2 MB | {target.floor} | ran | metal: none; FAILED broke |"
    assert again.row() == row


def test_the_page_has_every_platform() -> None:
    results = [report.Result(target.name, target.floor) for target in TARGETS]
    text = report.table(results)
    page = report.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- wheels: begin -->") == page.count("<!-- wheels: end -->") == 1
    for target in TARGETS:
        assert f"| {target.name} | not built | {target.floor} | – | – |" in text
