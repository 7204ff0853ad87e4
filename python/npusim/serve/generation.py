"""From a request's body to its answer: templates, tokens, choices, whole or as a stream.

Knows no HTTP: the server, batch files and Ray answer by the same code.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from npusim.errors import Error
from npusim.language_model import Tokenizer
from npusim.language_model.chat import template_beside
from npusim.serve.answers import (
    ChatForm,
    CompletionForm,
    Form,
    TextTemplate,
    Usage,
    prompt_records,
    reasons,
    to_json,
)
from npusim.serve.any_engine import AnyEngine, Checked
from npusim.serve.conversations import Conversations
from npusim.serve.engine import Stream
from npusim.serve.fields import RequestError
from npusim.serve.grammar import GrammarCompiler, GrammarSpec
from npusim.serve.openai import (
    ChatRequest,
    GenerationRequest,
    Prompt,
    parse_chat,
    parse_completion,
)
from npusim.serve.requests import BusyError, Sampling, TokenLogprob, TooLongError
from npusim.serve.templates import LimitedTemplate
from npusim.serve.text import AnswerText, Delta
from npusim.serve.tool_use import Calls, ToolUse

_COMPILE = 10.0  # seconds that a schema or grammar may take


@dataclass
class Record:
    """What happened to a request, for logs and metrics; times are seconds of `time.monotonic`.

    Attributes:
        began: when its body was there.
        first: when its first token was there; None: not yet.
        latest: when its latest tokens were there.
        gaps: seconds between news of a choice, with how many tokens came then.
        usage: how many tokens.
        finish_reasons: of its choices.
    """

    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    latest: float | None = None
    gaps: list[tuple[float, int]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    finish_reasons: list[str] = field(default_factory=list)


@dataclass
class _Choice:
    """One answer that is being made.

    Attributes:
        calls: takes calls of tools out of the text, where there are any.
        first: the first answer to the same prompt, which hears of the prompt's log-probabilities.
        of_prompt: those, of the first answer.
    """

    index: int
    stream: Stream
    text: AnswerText
    echo: str
    first: _Choice | None
    calls: Calls | None
    latest: float | None = None
    of_prompt: asyncio.Future[list[TokenLogprob]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Generator:
    """Answers requests with one engine.

    Args:
        engine: what computes.
        name: what the model is called; requests may name it.
        template_seconds, template_bytes: what a chat template may take for one conversation.
    """

    def __init__(
        self,
        engine: AnyEngine,
        name: str,
        *,
        template_seconds: float = 5.0,
        template_bytes: int = 256 << 20,
    ) -> None:
        self.engine, self.name = engine, name
        self.created = int(time.time())
        template: LimitedTemplate | None = None
        found = template_beside(engine.tokenizer.path) if engine.model.has_tokenizer else None
        self._template = found
        if found is not None:
            template = LimitedTemplate(*found, seconds=template_seconds, memory=template_bytes)
        self._grammars: GrammarCompiler | None = None
        self._conversations = Conversations(template, self._visible)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.engine.model.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; RequestError where there is none."""
        try:
            return self.engine.tokenizer
        except Error as error:
            raise RequestError(str(error)) from error

    async def completion(self, body: Mapping[str, Any], record: Record) -> Generation:
        """Begins to answer a body of /v1/completions.

        Raises:
            RequestError: it is refused, with the status to answer.
        """
        request = parse_completion(body)
        self.check_name(request.model)
        prompts = [await self._tokens(prompt) for prompt in request.prompts]
        echoes = [
            self._echo(prompt, tokens) if request.echo else ""
            for prompt, tokens in zip(request.prompts, prompts, strict=True)
        ]
        form = CompletionForm(self.tokenizer, request.sampling.logprobs, request.echo)
        return await self._begin(request, form, prompts, echoes, record)

    async def chat(self, body: Mapping[str, Any], record: Record) -> Generation:
        """Begins to answer a body of /v1/chat/completions; raises as `completion`."""
        return await self.answer_chat(parse_chat(body), record)

    async def answer_chat(self, request: ChatRequest, record: Record) -> Generation:
        """Begins to answer a chat; raises as `completion`."""
        self.check_name(request.model)
        text, use = await self._conversations.put(request)
        tokens = await self.encode(text, begins=False)
        form = ChatForm(self.tokenizer, request.sampling.logprobs)
        if use is not None and use.grammar is not None:
            request = replace(request, grammar=use.grammar)
        return await self._begin(request, form, [tokens], [""], record, use)

    async def chat_tokens(self, request: ChatRequest) -> list[int]:
        """Returns the tokens of a conversation, as the model's template puts it."""
        text, _ = await self._conversations.put(request)
        return await self.encode(text, begins=False)

    async def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """Returns a text's tokens, without holding up the event loop."""
        tokenizer = self.tokenizer
        if len(text) < 4096:
            return tokenizer.encode(text, begins=begins)
        return await asyncio.to_thread(tokenizer.encode, text, begins=begins)

    @property
    def tokenizer_info(self) -> dict[str, Any]:
        """What clients that make prompts by themselves want to know, by vLLM's names: the chat
        template, and the tokens that begin, end and fill texts; null where there is none."""
        source, named = self._template or (None, {})
        ends = self.engine.model.eos_token_ids
        spelled = self.tokenizer.bytes_of(ends[0]) if ends else None
        end = None if spelled is None else spelled.decode("utf-8", "replace")
        return {
            "chat_template": source,
            "bos_token": named.get("bos_token"),
            "eos_token": named.get("eos_token", end),
            "pad_token": named.get("pad_token"),
            "unk_token": named.get("unk_token"),
        }

    def check_name(self, name: str | None) -> None:
        """Raises RequestError if a request names another model."""
        check_name(self.name, name)

    def close(self) -> None:
        """Ends the template's process; the engine is its owner's."""
        self._conversations.close()

    def _visible(self, text: str) -> str:
        return self.tokenizer.decode(self.tokenizer.encode(text, begins=False))

    async def _tokens(self, prompt: Prompt) -> list[int]:
        return await self.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _echo(self, prompt: Prompt, tokens: Sequence[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        self.engine.model.check_tokens(tokens)
        return self.tokenizer.decode(tokens)

    async def _begin(
        self,
        request: GenerationRequest,
        form: Form,
        prompts: Sequence[Sequence[int]],
        echoes: Sequence[str],
        record: Record,
        use: ToolUse | None = None,
    ) -> Generation:
        record.usage.prompt = sum(map(len, prompts))
        each, most = request.best_of, self.engine.most_open
        if len(prompts) * each > most:
            raise RequestError(
                f"{len(prompts) * each} answers are asked for; this server has {most} requests "
                "at a time, those that wait included.",
                param="prompt" if each == 1 else "best_of" if each > request.n else "n",
            )
        compiled = [await self._sampling(request, i) for i in range(len(prompts) * each)]
        try:
            streams = await self._ask_all(prompts, compiled, each)
        except Error as error:
            raise refusal_of(error, self.engine, begun=False) from error
        own_ends = self.engine.model.eos_token_ids
        choices: list[_Choice] = []
        for index, (sampling, stream) in enumerate(zip(compiled, streams, strict=True)):
            first = choices[index - index % each] if index % each else None
            text = AnswerText(self.tokenizer, request.stop, own_ends, sampling.min_tokens)
            calls = None if use is None else use.reader()
            choices.append(_Choice(index, stream, text, echoes[index // each], first, calls))
        return Generation(self, request, form, choices, record)

    async def _ask_all(
        self, prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling], each: int
    ) -> list[Stream]:
        """Returns the streams of `each` answers to every prompt, or of none."""
        streams: dict[int, Stream] = {}

        async def ask(index: int) -> None:
            first = streams[index - index % each] if index % each else None
            streams[index] = await self.engine.ask(prompts[index // each], sampling[index], first)

        firsts = [index for index in range(len(sampling)) if index % each == 0]
        others = [index for index in range(len(sampling)) if index % each]
        try:
            for together in filter(None, (firsts, others)):
                told = await asyncio.gather(*map(ask, together), return_exceptions=True)
                for failed in told:
                    if failed is not None:
                        raise failed
        except BaseException:  # of them the end of the task that asks
            for stream in streams.values():
                stream.close()
            raise
        return [streams[index] for index in range(len(sampling))]

    async def _sampling(self, request: GenerationRequest, index: int) -> Sampling:
        """Returns the options of one of several answers: its own seed and constraint.

        The first answer to a prompt hears of the prompt; where some are left out, all say how
        probable they are.
        """
        sampling, place = request.sampling, index % request.best_of
        if place > 0:
            sampling = replace(sampling, prompt_logprobs=None)
        if request.best_of > request.n and sampling.logprobs is None:
            sampling = replace(sampling, logprobs=0)
        if request.grammar is not None:
            sampling = replace(sampling, constraint=await self._constraint(request.grammar))
        if sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + place) % 2**64)
        return sampling

    async def _constraint(self, spec: GrammarSpec) -> Any:
        model = self.engine.model
        try:
            if self._grammars is None:
                self._grammars = await asyncio.to_thread(
                    GrammarCompiler, self.tokenizer, model.vocab_size, model.eos_token_ids
                )
            return await self._grammars.compiled(spec, _COMPILE)
        except asyncio.TimeoutError:
            raise RequestError(
                f"The form of the answer takes more than {_COMPILE:g} s to prepare.",
                param=spec.field,
            ) from None
        except RequestError:
            raise
        except Error as error:
            raise RequestError(str(error), param=spec.field) from error


class Generation:
    """An answer that is being made: take it whole or as chunks, once. Close it in any case.

    Attributes:
        request: what was asked.
        record: what happened.
    """

    def __init__(
        self,
        generator: Generator,
        request: GenerationRequest,
        form: Form,
        choices: Sequence[_Choice],
        record: Record,
    ) -> None:
        self.request, self.record = request, record
        self._generator, self._form, self._choices = generator, form, choices
        self._id = form.prefix + secrets.token_hex(12)
        self._created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        """Returns the whole answer.

        Raises:
            RequestError: it failed.
        """
        try:
            deltas = await asyncio.gather(*map(self._whole_choice, self._choices))
        except Error as error:
            raise refusal_of(error, self._generator.engine) from error
        finally:
            self.close()
        choices = [
            self._told(index, self._choices[place], deltas[place])
            for index, place in enumerate(self._best(deltas))
        ]
        return {**self._head(self._form.whole, choices), "usage": self.record.usage.as_dict()}

    def _best(self, deltas: Sequence[Delta]) -> list[int]:
        """Returns the places of the answers that are told: to each prompt the `n` with the highest
        mean log-probability of a token, the most probable first."""
        n, each = self.request.n, self.request.best_of
        if n == each:
            return list(range(len(deltas)))

        def unlikeliness(place: int) -> float:
            rows = deltas[place].logprobs
            return -sum(row.logprob for row in rows) / max(1, len(rows))

        groups = [range(start, start + each) for start in range(0, len(deltas), each)]
        return [place for group in groups for place in sorted(group, key=unlikeliness)[:n]]

    def _told(self, index: int, choice: _Choice, delta: Delta) -> dict[str, Any]:
        """Returns one answer of a whole one."""
        prompt, first = choice.stream.prompt, choice.first or choice
        if first.of_prompt.done():
            delta.prompt_logprobs = first.of_prompt.result()
        told = {
            "index": index,
            **self._form.choice(delta, prompt, choice.echo),
            **reasons(delta),
        }
        if self.request.told_of_prompt is not None:
            rows, tokenizer = delta.prompt_logprobs or [], self._generator.tokenizer
            told["prompt_logprobs"] = prompt_records(tokenizer, rows, self.request.told_of_prompt)
        return self._with_tokens(told, delta, prompt)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yields what the first answer gains, for who tells of it in another form.

        Raises:
            RequestError: it failed.
        """
        try:
            async for delta in self._deltas(self._choices[0]):
                yield delta
        except Error as error:
            raise refusal_of(error, self._generator.engine) from error
        finally:
            self.close()

    def told_logprobs(self, delta: Delta) -> list[dict[str, Any]]:
        """Returns the records of a delta's tokens as chats tell them; none where nobody asked."""
        told = self._form.piece(0, delta)["logprobs"]
        return [] if told is None else list(told["content"])

    def last_event(self, error: RequestError | None) -> bytes:
        """Returns what a stream ends with: that it is done, or what went wrong."""
        return _event(b"[DONE]" if error is None else to_json(error.body))

    @staticmethod
    def framed(chunk: bytes) -> bytes:
        """Returns a chunk as it is sent."""
        return _event(chunk)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of a stream as JSON, in the order that clients rely on.

        Raises:
            RequestError: it failed.
        """
        several = len(self._choices) > 1
        told = self._together() if several else self._told_of(self._choices[0])
        try:
            async for event in told:
                yield event
            if self.request.include_usage:
                usage = self.record.usage.as_dict()
                yield to_json({**self._head(self._form.chunk, []), "usage": usage})
        except Error as error:
            raise refusal_of(error, self._generator.engine) from error
        finally:
            await told.aclose()
            self.close()

    async def _together(self) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of all choices, as they come."""
        news: asyncio.Queue[bytes | Error | None] = asyncio.Queue(len(self._choices))

        async def put_all(choice: _Choice) -> None:
            try:
                async for told in self._told_of(choice):
                    await news.put(told)
            except Error as error:
                await news.put(error)
            else:
                await news.put(None)

        tasks = [asyncio.create_task(put_all(choice)) for choice in self._choices]
        open_choices = len(tasks)
        try:
            while open_choices:
                told = await news.get()
                if told is None:
                    open_choices -= 1
                elif isinstance(told, Error):
                    raise told
                else:
                    yield told
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """Ends what has not ended."""
        for choice in self._choices:
            choice.stream.close()

    async def _whole_choice(self, choice: _Choice) -> Delta:
        whole = Delta()
        async for delta in self._deltas(choice):
            whole.add(delta)
        return whole

    async def _told_of(self, choice: _Choice) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of one choice."""
        form, index = self._form, choice.index
        template = self._template_of(index)
        held: Delta | None = None
        begun = False
        async for delta in self._deltas(choice):
            if not begun:
                begun = True
                for start in await self._starts(choice, delta):
                    yield self._chunk(start)
            if held is None:
                held = delta
            else:
                held.add(delta)
            tells = held.text or held.calls or (delta.finish_reason is not None and held.tokens)
            if tells or (self.request.return_token_ids and held.tokens):
                if template is not None and not held.calls:
                    yield template.with_text(held.text)
                else:
                    yield self._chunk(self._with_tokens(self._gained(index, held), held))
                held = None
            if delta.finish_reason is not None:
                yield self._chunk({"index": index, **form.end(delta), **reasons(delta)})

    def _gained(self, index: int, held: Delta) -> dict[str, Any]:
        return {"index": index, **self._form.piece(index, held), "finish_reason": None}

    def _template_of(self, index: int) -> TextTemplate | None:
        """Returns how a choice tells of text; None where it tells more than that."""
        asked = self.request
        if asked.return_token_ids or asked.continuous_usage or asked.sampling.logprobs is not None:
            return None
        return TextTemplate(lambda text: self._told_chunk(self._gained(index, Delta(text))))

    async def _starts(self, choice: _Choice, delta: Delta) -> list[dict[str, Any]]:
        """Returns what a choice's stream begins with: who speaks, or the echo of the prompt."""
        form, index = self._form, choice.index
        starts = []
        if (start := form.begin(index)) is not None:
            starts.append({"index": index, **start, "finish_reason": None})
        if choice.echo:
            prompt, first = choice.stream.prompt, choice.first or choice
            echoed = Delta()
            if self.request.sampling.prompt_logprobs is not None:
                echoed.prompt_logprobs = await first.of_prompt
            parts = form.choice(echoed, prompt, choice.echo, index)
            starts.append({"index": index, **parts, "finish_reason": None})
            delta.prompt_logprobs = None
        return starts

    async def _deltas(self, choice: _Choice) -> AsyncIterator[Delta]:
        """Yields what one choice gains, and keeps the record."""
        async for piece in choice.stream:
            if piece.prompt_logprobs is not None:
                choice.of_prompt.set_result(piece.prompt_logprobs)
            delta = choice.text.push(piece)
            if choice.calls is not None:
                choice.calls.take(delta)
            self._note(choice, len(delta.tokens))  # not what came together with a stop string
            if delta.finish_reason is not None:
                self.record.finish_reasons.append(delta.finish_reason)
            yield delta
            if delta.finish_reason is not None:
                choice.stream.close()
                return

    def _note(self, choice: _Choice, tokens: int) -> None:
        record, now = self.record, time.monotonic()
        if tokens:
            record.first = now if record.first is None else record.first
            if choice.latest is not None:
                record.gaps.append((now - choice.latest, tokens))
            choice.latest = record.latest = now
            record.usage.completion += tokens

    def _with_tokens(
        self, told: dict[str, Any], delta: Delta, prompt: Sequence[int] | None = None
    ) -> dict[str, Any]:
        if self.request.return_token_ids:
            told["token_ids"] = delta.tokens
            if prompt is not None:
                told["prompt_token_ids"] = list(prompt)
        return told

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return to_json(self._told_chunk(choice))

    def _told_chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._head(self._form.chunk, [choice])
        if self.request.continuous_usage:
            chunk["usage"] = self.record.usage.as_dict()
        elif self.request.include_usage:
            chunk["usage"] = None
        return chunk

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._generator.name,
            "choices": choices,
        }


def _event(content: bytes) -> bytes:
    return b"data: " + content + b"\n\n"


def check_name(served: str, asked: str | None) -> None:
    """Raises RequestError if a request names another model than the one that is served."""
    if asked is not None and asked != served:
        raise RequestError(
            f"The model {asked!r} does not exist; this server has {served!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )


def refusal_of(error: Error, engine: Checked, *, begun: bool = True) -> RequestError:
    """Returns an error as a client gets it: whose fault it is decides the status.

    Args:
        begun: whether the request had been taken; what was wrong with it is said before.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, BusyError):
        return RequestError(
            str(error),
            status=429,
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after=error.retry_after,
        )
    if isinstance(error, TooLongError):
        return RequestError(str(error), code="context_length_exceeded")
    try:
        engine.check()
    except Error:
        return RequestError(str(error), status=503, type="server_error", code="unavailable")
    if begun:
        return RequestError(str(error), status=500, type="server_error")
    return RequestError(str(error))
