"""The OpenAI interface as data: bodies of requests become what an engine takes.

Fields that nobody could notice are ignored when they are unknown; those that change the answer and
cannot be honoured are refused. https://platform.openai.com/docs/api-reference, and the fields that
vLLM added (`top_k`, `min_tokens`, `ignore_eos`, …), which load generators and evaluations send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npusim.serve.fields import Fields, RequestError, are_tokens
from npusim.serve.grammar import GrammarSpec
from npusim.serve.requests import MOST_LOGPROBS, Sampling
from npusim.serve.tools import Tools, calls_of, parse_tools

_MOST_CHOICES = 128  # of all prompts of a request together
_MOST_STOPS, _LONGEST_STOP = 16, 1024
_MOST_BIASES = 1024
_ANY = 2**53

Prompt = str | tuple[int, ...]

# Field -> values with which it asks for nothing. Any other value is refused.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "include_stop_str_in_output": (False,),
    "continue_final_message": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "truncate_prompt_tokens": (),
    "logits_processors": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": (),
    "chat_template": (),
    "documents": ([],),
    "return_tokens_as_token_ids": (False,),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
}
# Of chats, and of completions: what the one has and the other has not.
_REFUSED_CHATS: dict[str, tuple[Any, ...]] = {"echo": (False,), "add_special_tokens": (False,)}
_REFUSED_COMPLETIONS: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
}


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What completions and chats have in common.

    Attributes:
        model: the name that was asked for, or None.
        n: answers to each prompt.
        best_of: answers to each prompt that are made; the most probable `n` of them are told.
        stream: whether the answer comes as server-sent events.
        include_usage: whether a stream ends with how many tokens there were.
        continuous_usage: whether each event of a stream says it.
        sampling: how tokens are chosen; the constraint is made of `grammar`.
        stop: stop strings.
        grammar: what answers must look like, or None.
        return_token_ids: whether tokens are told beside the text.
        told_of_prompt: of each token of the prompt, how many of the most probable ones the field
            `prompt_logprobs` tells; None: there is no such field.
    """

    model: str | None
    n: int
    best_of: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    sampling: Sampling
    stop: tuple[str, ...]
    grammar: GrammarSpec | None
    return_token_ids: bool
    told_of_prompt: int | None


@dataclass(frozen=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """A body of /v1/completions.

    Attributes:
        prompts: texts or tokens.
        echo: whether the answer begins with the prompt.
    """

    prompts: tuple[Prompt, ...]
    echo: bool


@dataclass(frozen=True, kw_only=True)
class ChatRequest(GenerationRequest):
    """A body of /v1/chat/completions.

    Attributes:
        messages: the turns, with whatever fields they have; contents are texts.
        answer: whether the template begins the assistant's answer.
        variables: what else the template gets.
        tools: what the model may call, or None.
    """

    messages: tuple[Mapping[str, Any], ...]
    answer: bool
    variables: Mapping[str, Any]
    tools: Tools | None


def parse_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Returns the request that a body of /v1/completions makes; RequestError for a wrong one."""
    fields = Fields(body)
    refuse_what_is_not_there(fields, {**_REFUSED, **_REFUSED_COMPLETIONS})
    prompts = _prompts(fields)
    logprobs = fields.integer("logprobs", 0, MOST_LOGPROBS)
    echo = fields.boolean("echo")
    common = _common(fields, len(prompts), 16, logprobs, logprobs if echo else None)
    return CompletionRequest(prompts=prompts, echo=echo, **common)


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Returns the request that a body of /v1/chat/completions makes; raises as above."""
    fields = Fields(body)
    refuse_what_is_not_there(fields, {**_REFUSED, **_REFUSED_CHATS})
    top = fields.integer("top_logprobs", 0, MOST_LOGPROBS)
    wanted = fields.boolean("logprobs")
    if top is not None and not wanted:
        fields.refuse("top_logprobs", "absent, or logprobs true")
    if fields.raw("prompt_logprobs") is not None:
        fields.refuse("prompt_logprobs", "absent: /v1/completions has it")
    common = _common(fields, 1, None, (top or 0) if wanted else None, None)
    variables = dict(_plain(fields, "chat_template_kwargs"))
    if fields.raw("reasoning_effort") is not None:
        variables["reasoning_effort"] = fields.text("reasoning_effort")
    tools = parse_tools(fields)
    if tools is not None and common["grammar"] is not None:
        if not tools.forced:
            fields.refuse(
                "response_format",
                "absent where a tool may be called: beside tools, tool_choice "
                "has to be none, required or of a name",
            )
        common["grammar"] = None  # the answer is a call, whose arguments have a schema of their own
    return ChatRequest(
        messages=_messages(fields),
        answer=fields.boolean("add_generation_prompt", default=True),
        variables=variables,
        tools=tools,
        **common,
    )


def _common(
    fields: Fields,
    prompts: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> dict[str, Any]:
    n = fields.integer("n", 1, _MOST_CHOICES) or 1
    stream = fields.boolean("stream")
    best_of = fields.integer("best_of", 1, _MOST_CHOICES) or n
    if best_of < n:
        fields.refuse("best_of", "n or more")
    if best_of > n and stream:
        fields.refuse("best_of", "n or absent in a stream: which are best is known at the end")
    if best_of * prompts > _MOST_CHOICES:
        name = "n" if best_of == n else "best_of"
        fields.refuse(name, f"so small that all prompts have {_MOST_CHOICES} answers at most")
    of_prompt = fields.integer("prompt_logprobs", 0, MOST_LOGPROBS)
    if of_prompt is not None and stream:
        fields.refuse("prompt_logprobs", "absent in a stream")
    wanted = [count for count in (prompt_logprobs, of_prompt) if count is not None]
    prompt_logprobs = max(wanted, default=None)
    options = fields.object("stream_options")
    if options is not None and not stream:
        fields.refuse("stream_options", "absent where stream is not true")
    options = options or Fields({})
    return {
        "model": fields.text("model"),
        "n": n,
        "best_of": best_of,
        "stream": stream,
        "include_usage": options.boolean("include_usage"),
        "continuous_usage": options.boolean("continuous_usage_stats"),
        "sampling": _sampling(fields, max_tokens, logprobs, prompt_logprobs),
        "stop": fields.texts("stop", _MOST_STOPS, _LONGEST_STOP),
        "grammar": _grammar(fields),
        "return_token_ids": fields.boolean("return_token_ids"),
        "told_of_prompt": of_prompt,
    }


def _sampling(
    fields: Fields, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
) -> Sampling:
    newer = fields.integer("max_completion_tokens", 0, _ANY)
    older = fields.integer("max_tokens", 0, _ANY)
    asked = older if newer is None else newer
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        fields.refuse("top_p", "above 0 and at most 1")
    penalty = fields.number("repetition_penalty", 1.0, 0.0, 1e6)
    if penalty == 0:
        fields.refuse("repetition_penalty", "above 0")
    top_k = fields.integer("top_k", -1, _ANY) or 0
    return Sampling(
        max_tokens=max_tokens if asked is None else asked,
        min_tokens=fields.integer("min_tokens", 0, _ANY) or 0,
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_k=max(0, top_k),
        top_p=top_p,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=penalty,
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        logit_bias=_bias(fields),
        seed=fields.integer("seed", -(2**63), 2**64 - 1),
        stop_token_ids=fields.tokens("stop_token_ids", _MOST_STOPS),
        ignore_eos=fields.boolean("ignore_eos"),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def refuse_what_is_not_there(fields: Fields, refused: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises RequestError for a field that is not supported.

    Args:
        refused: fields, and the values with which each asks for nothing.
    """
    for name, neutral in refused.items():
        value = fields.raw(name)
        if value is not None and value not in neutral:
            raise RequestError(
                f"This server does not support {name}.", param=name, code="unsupported_parameter"
            )


def _bias(fields: Fields) -> dict[int, float]:
    given = fields.raw("logit_bias")
    if given is None:
        return {}
    what = f"an object of {_MOST_BIASES} token ids at most, with numbers from -100 to 100"
    if not isinstance(given, dict) or len(given) > _MOST_BIASES:
        fields.refuse("logit_bias", what)
    biases: dict[int, float] = {}
    for key, value in given.items():
        known = key.isascii() and key.isdigit() and len(key) <= 10
        if not known or type(value) not in (int, float) or not -100 <= value <= 100:
            fields.refuse("logit_bias", what)
        biases[int(key)] = float(value)
    return biases


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    given = fields.raw("prompt")
    many = given if isinstance(given, list) and not are_tokens(given) else [given]
    if given == [] or len(many) > _MOST_CHOICES:
        fields.refuse("prompt", f"one to {_MOST_CHOICES} texts or lists of tokens")
    prompts: list[Prompt] = []
    for prompt in many:
        if isinstance(prompt, str):
            prompts.append(prompt)
        elif isinstance(prompt, list) and prompt and are_tokens(prompt):
            prompts.append(tuple(prompt))
        else:
            fields.refuse("prompt", "a text, a list of tokens, or a list of either")
    return tuple(prompts)


def _messages(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    given = fields.raw("messages")
    if not isinstance(given, list) or not given:
        fields.refuse("messages", "a list of one message or more")
    messages = []
    for place, message in enumerate(given):
        where = f"messages[{place}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"{where} must be an object with a role.", param=where)
        told = {**message, "content": _content(message.get("content"), where)}
        if calls := calls_of(message, where):
            told["tool_calls"] = calls
        else:
            told.pop("tool_calls", None)
        messages.append(told)
    return tuple(messages)


def _content(content: Any, where: str) -> str:
    """Returns the text of a message; parts of text are joined."""
    where += ".content"
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{where} must be a text or a list of parts.", param=where)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
            raise RequestError(f"{where} has a part that is no text.", param=where)
        texts.append(part[kind])
    return "".join(texts)


def _plain(fields: Fields, name: str) -> Mapping[str, Any]:
    value = fields.raw(name)
    if value is not None and not isinstance(value, dict):
        fields.refuse(name, "an object")
    return value or {}


def _grammar(fields: Fields) -> GrammarSpec | None:
    """Returns what `response_format` or `structured_outputs` asks for."""
    found = [g for g in (_response_format(fields), _structured(fields)) if g is not None]
    if len(found) > 1:
        fields.refuse("structured_outputs", "absent beside response_format")
    return found[0] if found else None


def _response_format(fields: Fields) -> GrammarSpec | None:
    form = fields.object("response_format")
    if form is None:
        return None
    kind = form.text("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec("json", {"type": "object"})
    if kind != "json_schema":
        form.refuse("type", '"text", "json_object" or "json_schema"')
    schema = form.object("json_schema")
    value = None if schema is None else schema.raw("schema")
    if not isinstance(value, (dict, bool)):
        form.refuse("json_schema", "an object with a schema")
    return GrammarSpec("json", value)


def _structured(fields: Fields) -> GrammarSpec | None:
    """vLLM's `structured_outputs`: one of json, regex, choice, grammar."""
    given = fields.object("structured_outputs")
    if given is None:
        return None
    kinds = [k for k in ("json", "regex", "choice", "grammar") if given.raw(k) is not None]
    if len(kinds) != 1:
        fields.refuse("structured_outputs", "an object with one of json, regex, choice, grammar")
    kind = kinds[0]
    if kind == "json":
        value = given.raw("json")
    else:
        value = _choices(given) if kind == "choice" else given.text(kind)
    return GrammarSpec(kind, value, f"structured_outputs.{kind}")


def _choices(given: Fields) -> Sequence[str]:
    choices = given.texts("choice", 1024, 4096)
    if not choices:
        given.refuse("choice", "a list of one text or more")
    return choices
