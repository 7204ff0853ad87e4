"""The ASGI app: paths, bodies, keys, streams, and what the log says about each request.

It can be mounted wherever ASGI apps are. The engine is loaded by whoever owns it, while the app
already answers that it is loading.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from npusim.errors import Error
from npusim.serve.answers import to_json
from npusim.serve.embeddings import Embedder
from npusim.serve.fields import Fields, RequestError, parse_object
from npusim.serve.generation import Generation, Generator, Record
from npusim.serve.metrics import CONTENT_TYPE, Counts, Metrics, Outcome
from npusim.serve.openai import parse_chat
from npusim.serve.response_answer import ResponseGeneration, response_to
from npusim.version import __version__

_log = logging.getLogger("npusim.serve")

_GONE = 499  # nginx's: the client went away
_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """What a client may ask of the server.

    Attributes:
        body_bytes: of a request.
        body_seconds: for a request's body to arrive.
        write_seconds: for a client to read what was sent; one that does not is left.
    """

    body_bytes: int = 8 << 20
    body_seconds: float = 60.0
    write_seconds: float = 60.0


class Server:
    """What the routes share.

    Args:
        name: what the model is called.
        api_keys: those that are let in; none: everybody is.
        limits: what clients may ask.
        metrics: where requests are counted; by default here.

    Attributes:
        app: the ASGI app.
        generator: what answers; None while it is loading, or where an encoder is served.
        embedder: what makes vectors, where an encoder is served; None while it is loading.
        failure: why it could not be loaded, or None.
        counts: requests by status.
    """

    def __init__(
        self,
        name: str,
        *,
        api_keys: Sequence[str] = (),
        limits: Limits | None = None,
        metrics: Counts | None = None,
    ) -> None:
        self.name, self._limits = name, limits or Limits()
        self.generator: Generator | None = None
        self.embedder: Embedder | None = None
        self.failure: Error | None = None
        self.counts: dict[int, int] = {}
        self._keys = [_digest(key) for key in api_keys]
        self._metrics: Counts = metrics or Metrics(self._stats, name)
        post, get = ["POST"], ["GET"]
        routes = [
            Route("/v1/completions", self._guarded(self._completions), methods=post),
            Route("/v1/chat/completions", self._guarded(self._chat), methods=post),
            Route("/v1/responses", self._guarded(self._responses), methods=post),
            Route("/v1/embeddings", self._guarded(self._embeddings), methods=post),
            Route("/v1/models", self._guarded(self._models), methods=get),
            Route("/v1/models/{name:path}", self._guarded(self._model), methods=get),
            Route("/tokenize", self._guarded(self._tokenize), methods=post),
            Route("/tokenizer_info", self._guarded(self._tokenizer_info), methods=get),
            Route("/detokenize", self._guarded(self._detokenize), methods=post),
            Route("/health", self._guarded(self._health, open_to_all=True), methods=get),
            Route("/metrics", self._guarded(self._tell_metrics, open_to_all=True), methods=get),
            Route("/version", self._guarded(self._version, open_to_all=True), methods=get),
        ]
        self.app = Starlette(routes=routes, exception_handlers={404: _not_there, 405: _not_there})

    @property
    def served(self) -> Generator | Embedder | None:
        """What answers; None while it is loading."""
        return self.embedder or self.generator

    def ready(self) -> Generator:
        """Returns what generates; RequestError 503 while there is none, 400 for an encoder."""
        served = self._loaded()
        if not isinstance(served, Generator):
            raise _not_of("The model makes vectors of texts: it answers /v1/embeddings.")
        return served

    def _loaded(self) -> Generator | Embedder:
        if self.failure is not None:
            raise _unavailable(f"The model could not be loaded: {self.failure}")
        if self.served is None:
            raise _unavailable("The model is being loaded.", retry_after=1)
        return self.served

    def _stats(self) -> Mapping[str, float]:
        return {} if self.served is None else self.served.engine.stats()

    def _guarded(
        self,
        handler: Callable[[Request, dict[str, Any]], Awaitable[Response]],
        *,
        open_to_all: bool = False,
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wraps a handler: keys, refusals as answers, a line of the log."""

        async def guarded(request: Request) -> Response:
            facts: dict[str, Any] = {"method": request.method, "path": request.url.path}
            began = time.monotonic()
            try:
                if not open_to_all:
                    self._check_key(request)
                response = await handler(request, facts)
            except RequestError as error:
                facts["error"] = str(error)
                response = _refusal(error)
            except ClientDisconnect:
                facts["error"] = "the client went away"
                response = Response(status_code=_GONE)
            except Exception as error:
                _log.exception("a defect of the server")
                facts["error"] = f"{type(error).__name__}: {error}"
                message = "The server failed; that is a defect of it."
                response = _refusal(RequestError(message, status=500, type="server_error"))
            if isinstance(response, EventStream):
                response.when_done = lambda: self._note(request, response.status, facts, began)
            else:
                self._note(request, response.status_code, facts, began)
            return response

        return guarded

    def _note(self, request: Request, status: int, facts: Mapping[str, Any], began: float) -> None:
        route = request.scope.get("route")
        self._metrics.note_http(getattr(route, "path", "other"), status)
        self.counts[status] = self.counts.get(status, 0) + 1
        quiet = request.url.path in ("/health", "/metrics") and status == 200
        client = request.client.host if request.client is not None else None
        seconds = round(time.monotonic() - began, 6)
        told = {"client": client, **facts, "status": status, "seconds": seconds}
        level = logging.DEBUG if quiet else logging.INFO
        _log.log(level, "request", extra={"facts": told})

    def _check_key(self, request: Request) -> None:
        if not self._keys:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = _digest(key.strip())
        known = [hmac.compare_digest(given, other) for other in self._keys]  # all, in equal time
        if scheme.lower() != "bearer" or not any(known):
            raise RequestError(
                "The API key is missing or wrong.", status=401, code="invalid_api_key"
            )

    async def _completions(self, request: Request, facts: dict[str, Any]) -> Response:
        generator, body = self.ready(), await self._body(request)
        return await self._answer(request, facts, body, generator.completion)

    async def _chat(self, request: Request, facts: dict[str, Any]) -> Response:
        generator, body = self.ready(), await self._body(request)
        return await self._answer(request, facts, body, generator.chat)

    async def _responses(self, request: Request, facts: dict[str, Any]) -> Response:
        generator, body = self.ready(), await self._body(request)

        async def begin(asked: Mapping[str, Any], record: Record) -> ResponseGeneration:
            return await response_to(generator, asked, record)

        return await self._answer(request, facts, body, begin)

    async def _embeddings(self, request: Request, facts: dict[str, Any]) -> Response:
        embedder = self._loaded()
        if not isinstance(embedder, Embedder):
            raise _not_of("The model generates text: it makes no vectors of texts.")
        body, record = await self._body(request), Record()
        try:
            told = await unless_gone(request.receive, embedder.answer(body, record))
        finally:
            self._tell_record(record, facts, None)
        return Response(told, media_type="application/json")

    async def _answer(
        self,
        request: Request,
        facts: dict[str, Any],
        body: Mapping[str, Any],
        begin: Callable[[Mapping[str, Any], Record], Awaitable[Generation | ResponseGeneration]],
    ) -> Response:
        record = Record()
        generation = await begin(body, record)
        facts["stream"] = generation.request.stream
        if generation.request.stream:

            def told(error: str | None) -> None:
                self._tell_record(record, facts, error)

            return EventStream(generation, self._limits.write_seconds, told)
        try:
            whole = await unless_gone(request.receive, generation.whole())
        finally:
            generation.close()
            self._tell_record(record, facts, None)
        return _json(whole)

    def _tell_record(self, record: Record, facts: dict[str, Any], error: str | None) -> None:
        self._metrics.note(Outcome.of(record, time.monotonic()))
        facts["prompt_tokens"] = record.usage.prompt
        facts["completion_tokens"] = record.usage.completion
        if record.first is not None:
            facts["ttft_seconds"] = round(record.first - record.began, 6)
        if record.finish_reasons:
            facts["finish_reasons"] = record.finish_reasons
        if error is not None:
            facts["error"] = error

    async def _models(self, request: Request, facts: dict[str, Any]) -> Response:
        return _json({"object": "list", "data": [self._card(self._loaded())]})

    async def _model(self, request: Request, facts: dict[str, Any]) -> Response:
        served = self._loaded()
        served.check_name(request.path_params["name"])
        return _json(self._card(served))

    def _card(self, served: Generator | Embedder) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": served.created,
            "owned_by": "npusim",
            "root": self.name,
            "parent": None,
            "max_model_len": served.engine.max_context,
            "vocab_size": served.vocab_size,
        }

    async def _tokenize(self, request: Request, facts: dict[str, Any]) -> Response:
        generator, body = self.ready(), await self._body(request)
        fields = Fields(body)
        generator.check_name(fields.text("model"))
        if fields.raw("messages") is not None:
            tokens = await generator.chat_tokens(parse_chat(body))
        else:
            prompt = fields.text("prompt")
            if prompt is None:
                fields.refuse("prompt", "a text")
            begins = fields.boolean("add_special_tokens", default=True)
            tokens = await generator.encode(prompt, begins=begins)
        most = generator.engine.max_context
        return _json({"tokens": tokens, "count": len(tokens), "max_model_len": most})

    async def _tokenizer_info(self, request: Request, facts: dict[str, Any]) -> Response:
        return _json(self.ready().tokenizer_info)

    async def _detokenize(self, request: Request, facts: dict[str, Any]) -> Response:
        generator, body = self.ready(), await self._body(request)
        fields = Fields(body)
        generator.check_name(fields.text("model"))
        tokens = fields.tokens("tokens", 1 << 22)
        try:
            generator.engine.model.check_tokens(tokens)
        except Error as error:
            raise RequestError(str(error), param="tokens") from error
        return _json({"prompt": generator.tokenizer.decode(tokens)})

    async def _health(self, request: Request, facts: dict[str, Any]) -> Response:
        try:
            self._loaded().engine.check()
        except RequestError:
            raise
        except Error as error:
            raise _unavailable(str(error)) from error
        return _json({"status": "ok"})

    async def _version(self, request: Request, facts: dict[str, Any]) -> Response:
        return _json({"version": __version__})

    async def _tell_metrics(self, request: Request, facts: dict[str, Any]) -> Response:
        return Response(await self._metrics.read(), media_type=CONTENT_TYPE)

    async def _body(self, request: Request) -> dict[str, Any]:
        """Returns the JSON object of a request, read under limits."""
        most = self._limits.body_bytes
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > most:
            raise _too_large(most)
        try:
            content = await asyncio.wait_for(_read(request, most), self._limits.body_seconds)
        except asyncio.TimeoutError:
            raise RequestError("The body did not arrive in time.", status=408) from None
        return parse_object(content)


class EventStream(Response):
    """An answer as server-sent events, until the client has it all or is gone.

    Args:
        generation: what is told.
        write_seconds: how long the client may take to read what was sent.
        told: called at the end, with what went wrong.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation | ResponseGeneration,
        write_seconds: float,
        told: Callable[[str | None], None],
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation, self._write_seconds, self._told = generation, write_seconds, told
        self.when_done: Callable[[], None] = lambda: None
        self.status = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it all; ends the generation in any case."""
        error: str | None = None
        try:
            error = await unless_gone(receive, self._send_all(send))
        except (ClientDisconnect, OSError):
            self.status, error = _GONE, "the client went away"
        except asyncio.TimeoutError:
            self.status, error = _GONE, "the client did not read"
        finally:
            self._generation.close()
            self._told(error)
            self.when_done()

    async def _send_all(self, send: Send) -> str | None:
        """Returns what was told to have gone wrong."""

        deadline = _Deadline(self._write_seconds)

        async def put(content: bytes, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": content, "more_body": more}
            await deadline.keep(send(message))

        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        error: str | None = None
        events = self._generation.events()
        try:
            async for event in events:
                await put(self._generation.framed(event))
            await put(self._generation.last_event(None))
        except RequestError as refused:  # the status is out already
            error = str(refused)
            self.status = refused.status
            await put(self._generation.last_event(refused))
        finally:
            await events.aclose()
            deadline.close()
        await put(b"", more=False)
        return error


class _Deadline:
    """Ends the task that awaits something for too long, for a task that awaits often: one timer
    looks now and then, instead of one for each time.

    Args:
        seconds: that one thing may take; up to twice as long passes.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waits = self._waited = False
        self._late = False
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        if self._waited:
            self._late = True
            self._task.cancel()
            return
        self._waited = self._waits
        self._arm()

    async def keep(self, work: Awaitable[None]) -> None:
        """Awaits it; asyncio.TimeoutError when it takes too long."""
        self._waits = True
        try:
            await work
        except asyncio.CancelledError:
            if self._late:
                raise asyncio.TimeoutError from None
            raise
        finally:
            self._waits = self._waited = False

    def close(self) -> None:
        """Looks no more."""
        self._timer.cancel()


async def unless_gone(receive: Receive, work: Awaitable[_T]) -> _T:
    """Returns what the work returns; cancels it when the client goes away.

    Raises:
        ClientDisconnect: it went.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _read(request: Request, most: int) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise _too_large(most)
    return bytes(content)


def _too_large(most: int) -> RequestError:
    return RequestError(f"The body has more than {most} bytes.", status=413)


def _unavailable(message: str, retry_after: int | None = None) -> RequestError:
    return RequestError(
        message, status=503, type="server_error", code="unavailable", retry_after=retry_after
    )


def _not_of(message: str) -> RequestError:
    return RequestError(message, param="model", code="unsupported_model")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(value), status, dict(headers or {}), "application/json")


def _refusal(error: RequestError) -> Response:
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (408, 413):  # the rest of the body is not read
        headers["connection"] = "close"
    return _json(error.body, error.status, headers)


async def _not_there(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    what = f"{request.method} {request.url.path}"
    return JSONResponse(RequestError(f"There is no {what}.", status=status).body, status)
