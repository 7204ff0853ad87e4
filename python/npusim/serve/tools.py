"""Tools that a chat offers, and calls that its messages hold: read, or refused by their field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from npusim.serve.fields import Fields, RequestError

_MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a model may call.

    Attributes:
        offered: the tools as they came, which is how chat templates want them.
        schemas: of the arguments, by the names of the tools.
        forced: the names of those of which one has to be called; none: the model decides.
        named: whether the request named the one.
        parallel: whether there may be several calls in an answer.
    """

    offered: tuple[Mapping[str, Any], ...]
    schemas: Mapping[str, Any]
    forced: tuple[str, ...]
    named: bool
    parallel: bool


def parse_tools(fields: Fields) -> Tools | None:
    """Returns what the fields `tools`, `tool_choice` and `parallel_tool_calls` of a chat say; None
    where nothing may be called. RequestError for wrong ones."""
    parallel = fields.boolean("parallel_tool_calls", default=True)
    offered = _offered(fields)
    schemas: dict[str, Any] = {}
    for place, tool in enumerate(offered):
        name, schema = _function(Fields(tool, f"tools[{place}]."))
        if name in schemas:
            raise RequestError(f"tools has {name!r} twice.", param="tools")
        schemas[name] = schema
    choice = fields.raw("tool_choice")
    if not offered and choice not in (None, "none", "auto"):
        fields.refuse("tool_choice", "absent where there are no tools")
    if not offered or choice == "none":
        return None
    named = isinstance(choice, dict)
    forced: tuple[str, ...] = ()
    if named:
        forced = (_chosen(fields, schemas),)
    elif choice == "required":
        forced = tuple(schemas)
    elif choice not in (None, "auto"):
        fields.refuse("tool_choice", '"none", "auto", "required", or an object that names a tool')
    return Tools(offered=offered, schemas=schemas, forced=forced, named=named, parallel=parallel)


def _offered(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    given = fields.raw("tools")
    if given is None:
        return ()
    objects = isinstance(given, list) and all(isinstance(tool, dict) for tool in given)
    if not objects or len(given) > _MOST_TOOLS:
        fields.refuse("tools", f"a list of {_MOST_TOOLS} objects at most")
    return tuple(given)


def _function(tool: Fields) -> tuple[str, Any]:
    """Returns the name of a tool and the schema of its arguments."""
    if tool.raw("type") != "function":
        tool.refuse("type", '"function"; this server has no tools of its own')
    function = tool.object("function")
    name = None if function is None else function.text("name")
    if function is None or name is None or not _NAME.fullmatch(name):
        tool.refuse("function", "an object with a name of 1 to 64 letters, digits, '_', '-' or '.'")
    function.text("description")
    function.boolean("strict")
    parameters = function.raw("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        function.refuse("parameters", "a JSON schema, which is an object")
    return name, parameters or _NOTHING


def _chosen(fields: Fields, schemas: Mapping[str, Any]) -> str:
    choice = fields.object("tool_choice")
    assert choice is not None
    if choice.raw("type") != "function":
        choice.refuse("type", '"function"')
    function = choice.object("function")
    name = None if function is None else function.text("name")
    if function is None or name is None or name not in schemas:
        choice.refuse("function", "an object with the name of one of the tools")
    return name


def calls_of(message: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Returns the calls that a message of a conversation holds, their arguments as objects.

    Raises:
        RequestError: they are none.
    """
    if message.get("function_call"):
        raise RequestError(f"{where}.function_call is no longer: use tool_calls.", param=where)
    given = message.get("tool_calls")
    if not given:
        return []
    where += ".tool_calls"
    if not isinstance(given, list) or len(given) > _MOST_TOOLS:
        raise RequestError(f"{where} must be a list of calls.", param=where)
    return [_call(call, f"{where}[{place}]") for place, call in enumerate(given)]


def _call(call: Any, where: str) -> dict[str, Any]:
    def refuse() -> NoReturn:
        raise RequestError(
            f"{where} must have a function with a name and arguments, a JSON object as text.",
            param=where,
        )

    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        refuse()
    arguments = function.get("arguments")
    try:
        read = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
    except (ValueError, RecursionError):
        refuse()
    if not isinstance(read, dict):
        refuse()
    return {**call, "type": "function", "function": {**function, "arguments": read}}
