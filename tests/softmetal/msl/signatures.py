"""Parameters of kernels: buffers by index, threadgroup memory, built-in values."""

from __future__ import annotations

from dataclasses import dataclass

from tests.softmetal.msl.declarations import Function
from tests.softmetal.msl.tokens import Refused, Token, closing, split_commas

# Built-in values by attribute: the field of softmetal::Thread, and whether it has three components.
BUILTINS = {
    "thread_position_in_grid": ("thread_position_in_grid", True),
    "thread_position_in_threadgroup": ("thread_position_in_threadgroup", True),
    "threadgroup_position_in_grid": ("threadgroup_position_in_grid", True),
    "threads_per_threadgroup": ("threads_per_threadgroup", True),
    "dispatch_threads_per_threadgroup": ("dispatch_threads_per_threadgroup", True),
    "threadgroups_per_grid": ("threadgroups_per_grid", True),
    "threads_per_grid": ("threads_per_grid", True),
    "thread_index_in_threadgroup": ("thread_index_in_threadgroup", False),
    "thread_index_in_simdgroup": ("thread_index_in_simdgroup", False),
    "simdgroup_index_in_threadgroup": ("simdgroup_index_in_threadgroup", False),
    "simdgroups_per_threadgroup": ("simdgroups_per_threadgroup", False),
    "dispatch_simdgroups_per_threadgroup": ("dispatch_simdgroups_per_threadgroup", False),
    "threads_per_simdgroup": ("", False),
    "thread_execution_width": ("", False),
}
_SPACES = {"buffer": ("device", "constant"), "threadgroup": ("threadgroup",)}
_INDEX_LIMITS = {"buffer": 31, "threadgroup": 31}
_BUILTIN_TYPES = {f"u{t}{n}": n or "1" for t in ("int", "short") for n in ("", "2", "3")}


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str  # as the text has it, with address space and * or &
    attribute: str  # buffer, threadgroup, or a built-in's
    index: int  # of a buffer or of threadgroup memory
    space: str  # device, constant or threadgroup; empty for a built-in


def parameters(text: str, kernel: Function) -> list[Parameter]:
    """Parameters in order. Raises Refused for what Metal or this device does not take."""
    found = [_parameter(text, tokens) for tokens in split_commas(kernel.parameters)]
    seen: set[tuple[str, int]] = set()
    for parameter in found:
        key = (parameter.attribute, parameter.index)
        if parameter.space and key in seen:
            raise Refused(
                kernel.line,
                f"{kernel.name}: {parameter.attribute}({parameter.index}) is used twice",
            )
        seen.add(key)
    widths = {_BUILTIN_TYPES[p.type] for p in found if not p.space and BUILTINS[p.attribute][1]}
    if len(widths) > 1:
        raise Refused(
            kernel.line,
            f"{kernel.name}: positions and sizes of a grid have one number of components",
        )
    return found


def _parameter(text: str, tokens: list[Token]) -> Parameter:
    line = tokens[0].line
    opening = next((i for i, token in enumerate(tokens) if token == "[["), None)
    if opening is None:
        raise Refused(line, "a kernel's parameter needs its attribute, such as [[buffer(0)]]")
    end = closing(tokens, opening)
    if end + 1 != len(tokens) or opening < 2 or tokens[opening - 1].kind != "name":
        raise Refused(line, "a kernel's parameter is a type, a name and one attribute")
    attribute = tokens[opening + 1 : end]
    name = tokens[opening - 1]
    written = text[tokens[0].start : name.start]
    kind = " ".join(written.split())
    if attribute[0].text in _SPACES:
        return _memory(line, kind, name.text, tokens[: opening - 1], attribute)
    if attribute[0].text not in BUILTINS or len(attribute) != 1:
        raise Refused(line, f"attribute [[{' '.join(t.text for t in attribute)}]] is not taken")
    if kind not in _BUILTIN_TYPES:
        raise Refused(line, f"'{name.text}' has type {kind}; a built-in is a uint or a ushort")
    if not BUILTINS[attribute[0].text][1] and _BUILTIN_TYPES[kind] != "1":
        raise Refused(line, f"'{name.text}' is a scalar, not a {kind}")
    return Parameter(name.text, kind, attribute[0].text, 0, "")


def _memory(
    line: int, kind: str, name: str, words: list[Token], attribute: list[Token]
) -> Parameter:
    what = attribute[0].text
    if len(attribute) != 4 or attribute[2].kind != "number":
        raise Refused(line, f"write [[{what}(n)]] with a number")
    index = int(attribute[2].text)
    if index >= _INDEX_LIMITS[what]:
        raise Refused(line, f"{what}({index}): there are {_INDEX_LIMITS[what]}")
    spaces = [word.text for word in words if word.text in ("device", "constant", "threadgroup")]
    if len(spaces) != 1 or spaces[0] not in _SPACES[what]:
        raise Refused(line, f"'{name}' of [[{what}({index})]] is in {' or '.join(_SPACES[what])}")
    pointers = [word.text for word in words if word.text in ("*", "&", "&&")]
    if pointers not in (["*"], ["&"]):
        raise Refused(line, f"'{name}' is a pointer or a reference: kernels take no values")
    return Parameter(name, kind, what, index, spaces[0])
