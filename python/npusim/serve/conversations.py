"""Conversations as text: the model's chat template, and the tools that it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npusim.errors import Error
from npusim.serve.call_format import CallFormat, learned
from npusim.serve.fields import RequestError
from npusim.serve.openai import ChatRequest
from npusim.serve.templates import LimitedTemplate
from npusim.serve.tool_use import ToolUse, with_calls_as


class Conversations:
    """Puts conversations as a model wants them.

    Args:
        template: the model's; None: it was not trained to answer in turns.
        visible: returns what is seen of a text when its tokens are decoded.
    """

    def __init__(self, template: LimitedTemplate | None, visible: Callable[[str], str]) -> None:
        self._template, self._visible = template, visible
        self._form: CallFormat | None = None

    async def put(self, request: ChatRequest) -> tuple[str, ToolUse | None]:
        """Returns a conversation as text, and how its tools are served, where it has any.

        Raises:
            RequestError: there is no template, it refuses the conversation, or shows no tools.
        """
        use = await self._tool_use(request)
        messages: Sequence[Mapping[str, Any]] = request.messages
        variables = dict(request.variables)
        if self._form is not None:
            messages = with_calls_as(messages, self._form)
        if request.tools is not None:
            variables["tools"] = request.tools.offered
        try:
            text = await self._own_template.render(
                messages, answer=request.answer, variables=variables
            )
        except Error as error:
            raise RequestError(str(error), param="messages") from error
        return text + ("" if use is None else use.begun), use

    def close(self) -> None:
        """Ends the template's process."""
        if self._template is not None:
            self._template.close()

    @property
    def _own_template(self) -> LimitedTemplate:
        if self._template is None:
            raise RequestError(
                "This model has no chat template: it was not trained to answer in turns. "
                "Use /v1/completions."
            )
        return self._template

    async def _tool_use(self, request: ChatRequest) -> ToolUse | None:
        called = any(message.get("tool_calls") for message in request.messages)
        if request.tools is None and not called:
            return None
        if self._form is None:
            self._form = await learned(self._rendered)
        if self._form is None:
            raise RequestError(
                "The model's chat template shows no tools, or writes calls in no form that this "
                "server reads.",
                param="messages" if request.tools is None else "tools",
                code="unsupported_parameter",
            )
        return None if request.tools is None else ToolUse(request.tools, self._form, self._visible)

    async def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> str:
        return await self._own_template.render(messages, answer=False, variables={"tools": tools})
