"""npusim in Ray: a server as a deployment of Ray Serve, and answers for the rows of a Dataset.

Both are the same code that answers without Ray: the ASGI app, and the generator behind it. What a
cluster is, where replicas run and which of them is asked is Ray's to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray import serve
from starlette.types import Receive, Scope, Send

from npusim.errors import Error, first_line
from npusim.serve.app import Limits, Server
from npusim.serve.engine import Engine
from npusim.serve.fields import RequestError
from npusim.serve.generation import Generator, Record

_HEALTH = 5.0  # seconds between checks of a replica


class _ToReplica:
    """The ASGI app that Ray Serve is given: that of the replica it runs in.

    An object and no function, which Ray Serve would call for an app.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # the replica is not there yet, and not there any more
            for moment in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{moment}.complete"})
            return
        replica = serve.get_replica_context().servable_object
        await replica.server.app(scope, receive, send)


@serve.ingress(_ToReplica())
class Replica:
    """One engine behind the OpenAI-compatible interface (docs/serving.md).

    Args:
        program: the path of what `npusim.compile` made, on every node.
        weights: the model's folder, on every node.
        name: what requests call the model.
        api_keys, limits: as `Server` takes them.
        engine: further arguments of `npusim.serve.Engine`.

    Raises:
        Error: the model cannot be loaded; the deployment then fails.
    """

    def __init__(
        self,
        program: str,
        weights: str | None,
        name: str,
        api_keys: tuple[str, ...],
        limits: Limits | None,
        engine: Mapping[str, Any],
    ) -> None:
        self.server = Server(name, api_keys=api_keys, limits=limits)
        self._engine = Engine(program, weights, **engine)
        self.server.generator = Generator(self._engine, name)

    def check_health(self) -> None:
        """Raises Error when the engine cannot serve; Ray then starts another replica."""
        self.server.ready().engine.check()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            if self.server.generator is not None:
                self.server.generator.close()
            engine.close()


def deployment(
    program: str,
    weights: str | None = None,
    *,
    name: str,
    api_keys: tuple[str, ...] = (),
    limits: Limits | None = None,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> serve.Application:
    """Returns an application for `ray.serve.run`.

    Args:
        program: the path of a `.npubin` file, on every node.
        weights: the model's folder, on every node.
        name: what requests call the model.
        api_keys: those that are let in; none: everybody is.
        limits: what clients may ask; as `Server` takes them.
        engine: further arguments of `npusim.serve.Engine`, such as `threads` and `max_batch`.
        options: of the deployment, as `ray.serve.deployment` takes them: `num_replicas`,
            `autoscaling_config`, `ray_actor_options`, …
    """
    given = dict(engine or {})
    chosen = {
        "name": "npusim",
        "max_ongoing_requests": given.get("max_batch", 256) + given.get("max_waiting", 1024),
        "health_check_period_s": _HEALTH,
        **options,
    }
    return serve.deployment(Replica, **chosen).bind(
        program, weights, name, tuple(api_keys), limits, given
    )


class BatchGenerator:
    """Answers the rows of a Dataset: a class for `Dataset.map_batches`.

    A row has `prompt` (a text), `tokens` (a list of numbers) or `messages` (a list of objects), and
    may have any other field of a request (docs/serving.md), such as `max_tokens` or `seed`. It
    gains `text`, `finish_reason`, `completion_tokens` and `error`: why it has no answer; None for a
    row that has one. A row that fails fails alone.

    Args:
        program: the path of a `.npubin` file, on every node.
        weights: the model's folder, on every node.
        fields: of requests, for rows that do not have them.
        engine: further arguments of `npusim.serve.Engine`.

    Raises:
        Error: the model cannot be loaded; of a batch: the engine failed.
    """

    def __init__(
        self,
        program: str,
        weights: str | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        self._fields = dict(fields or {})
        self._generator = Generator(Engine(program, weights, **dict(engine or {})), "npusim")
        self._room: asyncio.Semaphore | None = None

    async def __call__(self, batch: Mapping[str, Any]) -> Any:
        """Yields the batch with the answers, when all are there.

        Args:
            batch: columns of equal length. Several batches may be under way at a time.
        """
        if self._room is None:  # in the loop of the actor
            self._room = asyncio.Semaphore(self._generator.engine.max_batch)
        columns = {name: list(values) for name, values in batch.items()}
        count = len(next(iter(columns.values()), []))
        rows = [{name: _plain(values[i]) for name, values in columns.items()} for i in range(count)]
        answers = await asyncio.gather(*(self._answer(row) for row in rows))
        added = {
            name: np.array([answer[name] for answer in answers], dtype=object)
            for name in ("text", "finish_reason", "completion_tokens", "error")
        }
        yield {**batch, **added}

    async def _answer(self, row: Mapping[str, Any]) -> dict[str, Any]:
        body = {**self._fields, **{k: v for k, v in row.items() if v is not None}}
        chat = "messages" in body
        if "tokens" in body:
            body["prompt"] = body.pop("tokens")
        record = Record()
        assert self._room is not None
        try:
            async with self._room:
                begin = self._generator.chat if chat else self._generator.completion
                generation = await begin({**body, "stream": False, "n": 1}, record)
                choice = (await generation.whole())["choices"][0]
        except RequestError as error:
            if error.status == 503:
                raise Error(f"The engine failed: {error}") from error
            return _answer(error=str(error))
        except (TypeError, ValueError) as error:  # a value that no request can have
            return _answer(error=first_line(error))
        text = choice["message"]["content"] if chat else choice["text"]
        return _answer(text, choice["finish_reason"], record.usage.completion)


def _answer(
    text: str | None = None,
    reason: str | None = None,
    tokens: int = 0,
    error: str | None = None,
) -> dict[str, Any]:
    return {"text": text, "finish_reason": reason, "completion_tokens": tokens, "error": error}


def _plain(value: Any) -> Any:
    """Returns a value of a column as JSON has it: numbers and lists, and None for missing ones."""
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
