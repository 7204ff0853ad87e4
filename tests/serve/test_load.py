"""npusim bench --serve: what is sent, what is reported of it, and servers that fail."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.cli import main
from npusim.errors import Error
from npusim.serve.load import LoadTest, report_of
from npusim.serve.load_client import LoadClient, Timing
from npusim.serve.load_processes import shares
from npusim.serve.load_trace import TRACES, Distribution, Trace, make_trace

from .conftest import Running

FIXED = Distribution((math.log(20), 0.0), (math.log(5), 0.0), 1.0)


def trace(count: int = 100, lengths: Distribution = FIXED, **options: Any) -> Any:
    given = {
        "request_rate": math.inf,
        "burstiness": 1.0,
        "max_context": 4096,
        "vocab_size": 50,
        "seed": 0,
        **options,
    }
    return make_trace(count, lengths, **given)


# ---- what is sent


def test_lengths_and_tokens_are_those_asked_for() -> None:
    made = trace()
    assert {len(prompt) for prompt in made.prompts} == {20} and set(made.answers) == {5}
    tokens = np.concatenate(made.prompts)
    assert tokens.min() == 0 and tokens.max() == 49
    assert not made.delays.any() and made.cut == 0
    again, other = trace(), trace(seed=1)
    assert all((a == b).all() for a, b in zip(made.prompts, again.prompts, strict=True))
    assert any((a != b).any() for a, b in zip(made.prompts, other.prompts, strict=True))


@pytest.mark.parametrize("burstiness", [0.1, 1.0, 5.0])
def test_arrivals_end_where_the_rate_says(burstiness: float) -> None:
    made = trace(1000, request_rate=50.0, burstiness=burstiness)
    assert made.delays[-1] == pytest.approx(20.0)
    gaps = np.diff(made.delays, prepend=0.0)
    assert (gaps >= 0).all()
    variation = gaps.std() / gaps.mean()
    assert variation == pytest.approx(burstiness**-0.5, rel=0.25)


@pytest.mark.parametrize("name", TRACES)
def test_published_lengths(name: str) -> None:
    lengths = TRACES[name]
    made = trace(20_000, lengths, max_context=1 << 20)
    for found, (mean, deviation) in (
        ([len(p) for p in made.prompts], lengths.prompt),
        (made.answers, lengths.answer),
    ):
        assert np.median(found) == pytest.approx(math.exp(mean), rel=0.1)
        assert np.log(found).std() == pytest.approx(deviation, abs=0.1)


def test_what_does_not_fit_is_cut() -> None:
    made = trace(10, max_context=22)
    assert made.cut == 10 and {len(p) for p in made.prompts} == {20} and set(made.answers) == {2}
    made = trace(10, max_context=2)
    assert {len(p) for p in made.prompts} == {1} and set(made.answers) == {1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"request_rate": 0.0},
        {"request_rate": -1.0},
        {"request_rate": math.nan},
        {"burstiness": 0.0},
        {"burstiness": math.inf},
        {"max_context": 1},
        {"vocab_size": 0},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Error):
        trace(**wrong)


def test_processes_of_a_load_test_share_it() -> None:
    whole = Trace([np.array([i]) for i in range(7)], np.arange(7), np.arange(7.0), 0)
    for most in (None, 2, 5):
        test = LoadTest("/v1/completions", "model", whole, most, {}, [50])
        for clients in (1, 2, 5):
            parts = shares(test, clients)
            assert len(parts) == min(clients, most or clients)
            answers = [int(n) for part in parts for n in part.trace.answers]
            assert sorted(answers) == list(range(7))
            at_a_time = [part.max_concurrency for part in parts]
            assert sum(each or 0 for each in at_a_time) == (most or 0)


# ---- what is reported


def asked(**options: Any) -> LoadTest:
    given = {"max_concurrency": None, "goodput": {}, "percentiles": [50, 99], **options}
    return LoadTest("/v1/completions", "m", trace(1), **given)


def test_a_report_by_hand() -> None:
    timings = [
        Timing(True, "", 0.0, 0.1, [0.1, 0.2], 0.4, 10, 4),
        Timing(True, "", 0.2, 0.3, [], 0.3, 20, 1),
        Timing(False, "gone", 0.1),
    ]
    told = report_of(timings, 2.0, asked(goodput={"ttft": 200.0, "tpot": 101.0}))
    assert (told["completed"], told["failed"]) == (2, 1)
    assert (told["total_input_tokens"], told["total_output_tokens"]) == (30, 5)
    assert told["request_throughput"] == 1.0 and told["output_throughput"] == 2.5
    assert told["total_token_throughput"] == 17.5
    assert told["request_goodput"] == 0.5  # the second one's first token came late
    assert told["max_concurrent_requests"] == 2
    assert told["mean_ttft_ms"] == pytest.approx(200) and told["p50_ttft_ms"] == pytest.approx(200)
    assert told["mean_tpot_ms"] == pytest.approx(100)  # of the one answer of two or more
    assert told["mean_itl_ms"] == pytest.approx(150)
    assert told["mean_e2el_ms"] == pytest.approx(350)
    assert told["max_output_tokens_per_s"] == pytest.approx(5)
    assert told["errors"] == ["", "", "gone"]


def test_a_report_of_nothing_that_came() -> None:
    told = report_of([Timing(False, "gone")], 1.0, asked())
    assert told["completed"] == 0 and told["request_goodput"] is None
    assert told["mean_ttft_ms"] == 0 and told["max_concurrent_requests"] == 0
    json.dumps(told, allow_nan=False)


# ---- a server


def test_a_load_test_of_a_server(
    spoken: Running, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "r.json"
    command = ["bench", "--serve", spoken.url, "--num-prompts", "12", "--input-len", "9"]
    command += ["--output-len", "6", "--request-rate", "200", "--max-concurrency", "3"]
    command += ["--goodput", "e2el:60000", "--percentiles", "50,99", "--result", str(result)]
    assert main([*command, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["completed"] == 12 and told["failed"] == 0
    assert told["total_input_tokens"] == 12 * 9 and told["total_output_tokens"] == 12 * 6
    assert told["max_concurrent_requests"] <= 3
    assert told["request_goodput"] == pytest.approx(told["request_throughput"])
    assert told["mean_e2el_ms"] >= told["mean_ttft_ms"] > 0
    assert json.loads(result.read_text())["completed"] == 12
    assert main(command) == 0
    assert "Output token throughput (tok/s)" in capfd.readouterr().out


def test_answers_that_fail_are_counted(spoken: Running) -> None:
    async def work() -> tuple[Timing, Timing]:
        async with LoadClient(spoken.url) as client:
            body = {"model": "nobody", "prompt": [1], "max_tokens": 1, "stream": True}
            missing = await client.stream("/v1/completions", body)
        async with LoadClient("http://127.0.0.1:9") as nowhere:
            with pytest.raises(Error, match="cannot be read"):
                await nowhere.get("/v1/models")
            return missing, await nowhere.stream("/v1/completions", body)

    missing, nowhere = asyncio.run(work())
    assert not missing.success and missing.error.startswith("404")
    assert not nowhere.success and "ConnectionRefused" in nowhere.error


async def _answered(raw: bytes) -> Timing:
    """Returns what a client makes of a server's bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with LoadClient(f"http://127.0.0.1:{port}") as client:
        timing = await client.stream("/v1/completions", {})
    server.close()
    return timing


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TEXT = b'data: {"choices": [{"text": "a"}]}\n\n'


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (HEAD + TEXT, "ended early"),
        (HEAD + TEXT + b'data: {"error": {"message": "no more"}}\n\n', "no more"),
        (HEAD + b"data: no json\n\n", "JSONDecodeError"),
        (b"nonsense\r\n\r\n", "HttpParserError"),
        (b"", "ended early"),
        (b"HTTP/1.1 429 x\r\ncontent-length: 4\r\n\r\nbusy", "429: busy"),
        (HEAD + TEXT + b"data: [DONE]\n\n", ""),
    ],
)
def test_whatever_a_server_says_is_an_outcome(raw: bytes, error: str) -> None:
    timing = asyncio.run(_answered(raw))
    assert timing.success == (not error) and error in timing.error


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--serve", "ftp://x"], "no URL"),
        (["--serve", "http://127.0.0.1:9", "--goodput", "ttft"], "goodput"),
        (["--serve", "http://127.0.0.1:9", "--goodput", "speed:1"], "goodput"),
        (["--serve", "http://127.0.0.1:9", "--percentiles", "101"], "percentiles"),
        (["--serve", "http://127.0.0.1:9"], "cannot be read"),
        (["--serve", "http://127.0.0.1:9", "model.npubin"], "leave the program out"),
        (["model.npubin", "--num-prompts", "3"], "--num-prompts is about --serve"),
        ([], "--serve"),
    ],
)
def test_refusals(arguments: list[str], word: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert word in capfd.readouterr().err
