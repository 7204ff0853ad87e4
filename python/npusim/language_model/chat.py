"""Chats: the template that puts turns of a conversation into the words a model was trained with.

Templates are Jinja, as Hugging Face models bring them (`chat_template.jinja`, or `chat_template` in
`tokenizer_config.json`). They come with the weights, from anywhere: they run in Jinja's sandbox.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from npusim.errors import Error
from npusim.language_model.generation import TextGeneration
from npusim.runtime.gguf import SUFFIX, gguf_chat_template

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from npusim.language_model.generation import GenerateOptions
    from npusim.language_model.session import LanguageSession

_TEMPLATE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")

Message = Mapping[str, Any]
"""One turn: `role` ("system", "user" or "assistant"), `content`, and what else a template reads."""


class ChatTemplate:
    """How a model wants to read a conversation.

    Args:
        source: the template's text, Jinja.
        special: tokens it may name, such as `bos_token`.

    Raises:
        Error: the text is no template, or the package `jinja2` is missing.
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise Error(
                "Chat templates need the jinja2 package.",
                hint="pip install 'npusim[llm]', or write the prompt as the model wants it.",
            ) from None
        # Settings and functions are those that templates are written for (transformers' own).
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _generation_blocks()],
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.filters["tojson"] = _to_json
        self._failure = TemplateError
        self.special = dict(special or {})
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise Error(f"The chat template is no Jinja: {error}.") from error

    @classmethod
    def beside(cls, tokenizer: str | os.PathLike[str]) -> ChatTemplate | None:
        """Returns the template beside a tokenizer, or in its GGUF file; None: there is none.

        Raises:
            Error: a file is damaged, or as the constructor.
        """
        found = template_beside(tokenizer)
        return None if found is None else cls(*found)

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the conversation as one text.

        Args:
            messages: the turns, in order.
            answer: end with what begins an answer of the assistant.
            variables: what else the template may read, such as `enable_thinking`.

        Raises:
            Error: the template refuses the conversation (two turns of one role, for some), or
                cannot be computed.
        """
        try:
            return self._template.render(
                {
                    **(variables or {}),
                    **self.special,
                    "messages": [dict(message) for message in messages],
                    "add_generation_prompt": answer,
                }
            )
        except (self._failure, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise Error(f"The chat template refuses this conversation: {error}.") from error


def _generation_blocks() -> Any:
    """Returns the extension that reads `{% generation %}`, which marks for training what the
    assistant says, and is nothing but its content here."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012, as jinja2 names it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def template_beside(tokenizer: str | os.PathLike[str]) -> tuple[str, Mapping[str, str]] | None:
    """Returns a template's text and the tokens that it may name; nothing of it has run.

    Raises:
        Error: a file is damaged.
    """
    path = Path(tokenizer)
    if path.suffix == SUFFIX:
        text, tokens = gguf_chat_template(path)
        return None if text is None else (text, tokens or {})
    folder = path if path.is_dir() else path.parent
    config = _config(folder / _CONFIG)
    file = folder / _TEMPLATE
    source = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {str(t.get("name")): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise Error(f"{folder / _CONFIG}: chat_template is no text.")
    return source, {name: _content(config[name]) for name in _SPECIAL if config.get(name)}


class Chat:
    """A conversation in turns with a model that was trained for it.

    What a turn shares with those before it stays in the session's cache; only what is new runs.

    Args:
        session: without tokens; the chat owns it.
        template: how the model wants to read turns.
        system: instructions that stand before the first turn.

    Attributes:
        messages: all turns; the answer to the latest is added when the next one is said.
    """

    def __init__(
        self, session: LanguageSession, template: ChatTemplate, system: str | None = None
    ) -> None:
        self.session = session
        self.messages: list[Message] = []
        self._template = template
        self._answer: TextGeneration | None = None
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def say(self, text: str, **options: Unpack[GenerateOptions]) -> TextGeneration:
        """Takes a turn; returns an iterator of pieces of the answer.

        Args:
            text: what the user says.
            **options: as `LanguageSession.generate`.

        Raises:
            Error: the conversation no longer fits into the context, an option is out of range, or
                as `ChatTemplate.render`; the turn does not count then.
        """
        turns = [*self.messages, *self._answered(), {"role": "user", "content": text}]
        tokens = self.session.model.tokenizer.encode(self._template.render(turns), begins=False)
        shared = self._return_to_shared(tokens)
        answer = self.session.generate(tokens[shared:], **options)
        self.messages, self._answer = turns, answer
        return answer

    def _answered(self) -> list[Message]:
        if self._answer is None:
            return []
        return [{"role": "assistant", "content": self._answer.text}]

    def _return_to_shared(self, tokens: Sequence[int]) -> int:
        """Brings the session back to the beginning it shares with `tokens`; returns its length.

        At least one token stays to be run: its scores choose the next.
        """
        held = self.session.tokens
        pairs = zip(held, tokens[:-1], strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if shared is None:
            shared = min(len(held), max(0, len(tokens) - 1))
        if shared < len(held):
            try:
                self.session.rewind(shared)
            except Error:  # a state that keeps no past: run all of it again
                self.session.reset()
                return 0
        return shared


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _config(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Error(f"{path} is no JSON: {error}.") from error
    if not isinstance(config, dict):
        raise Error(f"{path} is no JSON object.")
    return config


def _content(token: object) -> str:
    """Returns a special token's text: a string, or an object that holds it."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token)
