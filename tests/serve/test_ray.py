"""npusim in a Ray of this machine: replicas that die, and rows of a Dataset that are wrong."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .model import SPOKEN

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'npusim[ray]'")
serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed")

from npusim.serve.ray import BatchGenerator, deployment  # noqa: E402

PREFIX = "SERVE_REPLICA::"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Ray of four processors, which are not held to be there; most of the minutes are its own."""
    if not request.config.getoption("--ray"):
        pytest.skip("starts a Ray: make ray")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, namespace="serve")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def port(cluster: None, folder: Path) -> Iterator[int]:
    """Where two replicas are served."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": number})
    application = deployment(
        *(str(folder / "model.npubin"), str(folder / "spoken")),
        name="spoken",
        engine={"threads": 1},
        num_replicas=2,
        ray_actor_options={"num_cpus": 0.5},
    )
    serve.run(application, name="llm", route_prefix="/")
    yield number
    serve.shutdown()


def ask(port: int, body: dict[str, Any]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps({"model": "spoken", **body}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def replicas() -> list[str]:
    names = (actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True))
    return [name for name in names if name.startswith(PREFIX)]


def test_answers_come_whole_and_as_events(port: int) -> None:
    status, content = ask(port, {"prompt": "\n"})
    assert status == 200
    assert json.loads(content)["choices"][0]["text"] == SPOKEN
    status, content = ask(port, {"prompt": "\n", "stream": True})
    events = [line[6:] for line in content.decode().splitlines() if line.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]"
    said = [choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(said) == SPOKEN
    assert ask(port, {"prompt": "\n", "n": 0})[0] == 400


def test_a_replica_that_dies_is_replaced(port: int) -> None:
    before = replicas()
    assert len(before) == 2
    ray.kill(ray.get_actor(before[0], namespace="serve"))
    until = time.monotonic() + 120
    while not (len(set(replicas()) - set(before)) == 1 and len(replicas()) == 2):
        assert ask(port, {"prompt": "\n"})[0] in (200, 500, 503)  # while Ray finds out
        assert time.monotonic() < until, "no other replica was started"
        time.sleep(0.2)
    assert ask(port, {"prompt": "\n"})[0] == 200


def test_rows_are_answered_by_two_actors_and_bad_ones_say_why(cluster: None, folder: Path) -> None:
    pytest.importorskip("ray.data", reason="needs the extra ray: Ray Data with pandas, pyarrow")
    rows: list[dict[str, Any]] = [{"place": i, "prompt": "\n", "max_tokens": 3} for i in range(40)]
    rows[7]["max_tokens"] = -1
    rows[20]["prompt"] = ""
    dataset = ray.data.from_items(rows).repartition(8)
    answered = dataset.map_batches(
        BatchGenerator,
        fn_constructor_kwargs={
            "program": str(folder / "model.npubin"),
            "weights": str(folder / "spoken"),
            "fields": {"seed": 1},
            "engine": {"threads": 1},
        },
        batch_size=5,
        concurrency=2,
        num_cpus=0.5,
    )
    found = {row["place"]: row for row in answered.take_all()}
    assert sorted(found) == list(range(40))
    for place, row in found.items():
        if place in (7, 20):
            assert row["text"] is None and row["completion_tokens"] == 0
            assert ("max_tokens" if place == 7 else "prompt") in row["error"]
        else:
            assert row["error"] is None and row["finish_reason"] == "length"
            assert row["completion_tokens"] == 3 and row["text"] == SPOKEN[:3]
