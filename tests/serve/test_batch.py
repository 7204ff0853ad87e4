"""npusim batch: answers in the order of the requests, rows that fail, runs that were ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from npusim.errors import Error
from npusim.serve.batch import _Journal

from . import model


def row(number: int, **body: Any) -> dict[str, Any]:
    """Returns a request of a row."""
    asked = {"prompt": str(number % 10), "max_tokens": 3, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": asked}


def write(path: Path, rows: list[Any]) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def command(folder: Path, requests: Path, answers: Path, *options: object) -> list[str]:
    made = ["batch", requests, folder / "model.npubin", "--weights", folder / "spoken"]
    every = [*made, "-o", answers, "--threads", 1, *options]
    return [sys.executable, "-m", "npusim.cli", *map(str, every)]


def run(*given: Any) -> tuple[int, str]:
    done = subprocess.run(command(*given), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_answers_come_in_order(folder: Path, tmp_path: Path) -> None:
    chat = {**row(99), "url": "/v1/chat/completions"}
    chat["body"] = {"messages": [{"role": "user", "content": "x"}], "model": "model"}
    lengths = [1 + 97 * number % 50 for number in range(30)]
    rows = [row(number, max_tokens=length) for number, length in enumerate(lengths)]
    requests = write(tmp_path / "requests.jsonl", [*rows, "", chat])
    code, told = run(folder, requests, tmp_path / "answers.jsonl", "--json")
    assert code == 0, told
    assert json.JSONDecoder().raw_decode(told)[0]["answered"] == 31
    *answers, last = read(tmp_path / "answers.jsonl")
    for number, answer in enumerate(answers):
        assert answer["custom_id"] == f"r{number}" and answer["error"] is None
        (choice,) = answer["response"]["body"]["choices"]
        digits = "".join(str((number + 1 + i) % 10) for i in range(lengths[number]))
        assert choice["text"] == digits
    message = last["response"]["body"]["choices"][0]["message"]
    assert message["content"] == model.SPOKEN
    assert [path.name for path in tmp_path.glob("answers*")] == ["answers.jsonl"]


def test_rows_that_fail_say_why(folder: Path, tmp_path: Path) -> None:
    wrong: list[Any] = [
        "no JSON",
        "[]",
        {"url": "/v1/completions", "body": {}},
        {**row(3), "url": "/v1/embeddings"},
        {**row(4), "method": "GET"},
        {**row(5), "body": None},
        row(6, max_tokens=10**6),
        row(7, model="other"),
        row(8, stream=True),
        row(9, tools=[{}]),
        row(0),
    ]
    requests = write(tmp_path / "requests.jsonl", [row(0), *wrong, row(10)])
    code, told = run(folder, requests, tmp_path / "answers.jsonl")
    assert code == 1 and "2 answered, 11 failed" in told
    answers = read(tmp_path / "answers.jsonl")
    statuses = [answer["response"]["status_code"] for answer in answers]
    assert statuses == [200, *[400] * 7, 404, 400, 400, 400, 200]
    assert all(
        answer["response"]["body"]["error"]["message"]
        for answer in answers
        if answer["response"]["status_code"] != 200
    )
    assert "twice" in answers[11]["response"]["body"]["error"]["message"]


def test_a_run_that_was_ended_goes_on(folder: Path, tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", [row(n, max_tokens=300) for n in range(120)])
    answers, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    process = subprocess.Popen(
        command(folder, requests, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not answers.exists()
    with journal.open("ab") as file:  # cut off in the middle of a row
        file.write(b'{"line": 119, "row": {"id"')
    other = write(tmp_path / "other.jsonl", [row(1)])
    code, told = run(folder, other, answers)
    assert code == 2 and "other requests" in told
    code, told = run(folder, requests, answers, "--json")
    assert code == 0, told
    assert json.JSONDecoder().raw_decode(told)[0]["resumed"] >= 4
    made = read(answers)
    assert [answer["custom_id"] for answer in made] == [f"r{number}" for number in range(120)]
    assert all(len(a["response"]["body"]["choices"][0]["text"]) == 300 for a in made)
    assert not journal.exists()


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_files_without_requests(folder: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    code, told = run(folder, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert code == 2 and "no requests" in told
    assert run(folder, tmp_path / "none.jsonl", tmp_path / "out.jsonl")[0] == 2
    assert not (tmp_path / "out.jsonl").exists()


def test_answers_do_not_replace_what_is_there(folder: Path, tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", [row(1)])
    code, _ = run(folder, requests, requests)
    assert code == 2 and read(requests) == [row(1)]


HEAD = b'{"journal": "key"}\n'
KEPT = b'{"line": 1, "row": {"response": {"status_code": 200}}}\n'


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (b"", 0),
        (HEAD[:9], 0),
        (HEAD, 0),
        (HEAD + KEPT + KEPT[:20], 1),
        (HEAD + KEPT + b"{}\n" + KEPT, 1),
        (HEAD + KEPT + b'{"line": 1, "row": {"response": 5}}\n', 1),
        (HEAD + KEPT + b'{"line": "1", "row": {"response": {"status_code": 200}}}\n', 1),
        (HEAD + KEPT + b'{"line": 2, "row": {"response": {}}}\n', 1),
        (HEAD + KEPT + b"\xff" * 9 + b"\n", 1),
    ],
)
def test_a_journal_ends_where_it_is_none(tmp_path: Path, content: bytes, whole: int) -> None:
    path = tmp_path / "out.partial"
    path.write_bytes(content)
    row = {"response": {"status_code": 400}}
    with _Journal(path, "key") as journal:
        assert len(journal.done) == whole
        journal.add(7, row)
    assert path.read_bytes().startswith(HEAD + KEPT * whole)
    with _Journal(path, "key") as journal:
        assert journal.done[7] == row and len(journal.done) == whole + 1


@pytest.mark.parametrize("content", [b"x", b"x\n", HEAD[:-1] + b" \n", b'{"journal": "other"}\n'])
def test_files_that_are_no_journal_stay_as_they_are(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.partial"
    path.write_bytes(content)
    with pytest.raises(Error, match="no journal"), _Journal(path, "key"):
        pass
    assert path.read_bytes() == content


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_a_journal_is_one_runs(tmp_path: Path) -> None:
    with _Journal(tmp_path / "out.partial", "key") as first:
        first.add(1, {"response": {"status_code": 200}})
        with pytest.raises(Error, match="another run"), _Journal(first.path, "key"):
            pass
    with _Journal(first.path, "key") as again:
        assert list(again.done) == [1]


def test_a_full_disk_is_named_and_what_is_there_stays(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path, before = tmp_path / "a.partial", resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(Error, match=r"a\.partial cannot be written"), _Journal(path, "k") as it:
            it.add(1, {"response": {"status_code": 200}})
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
            it.add(2, {"lost": "x" * 500})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with _Journal(path, "k") as again:
        assert again.done == {1: {"response": {"status_code": 200}}}
