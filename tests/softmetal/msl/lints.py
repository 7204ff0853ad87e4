"""What Apple's compiler refuses and clang would take, and what has no meaning on a GPU.

Each lint raises Refused with the line and what to write instead. They work on tokens: where a text
could mean two things, the lint refuses it and the kernel is written more plainly.
"""

from __future__ import annotations

import re
from itertools import pairwise

from tests.softmetal.msl.declarations import Declarations, Function
from tests.softmetal.msl.tokens import Refused, Token, closing_angle, split_commas

SPACES = {"device", "constant", "threadgroup", "thread"}
HEADERS = {
    "metal_stdlib",
    "metal_atomic",
    "metal_compute",
    "metal_integer",
    "metal_math",
    "metal_simdgroup",
    "metal_simdgroup_matrix",
    "metal_limits",
    "metal_type_traits",
}
_WORDS = {
    "double": "MSL has no double",
    "virtual": "MSL has no virtual functions",
    "try": "MSL has no exceptions",
    "catch": "MSL has no exceptions",
    "throw": "MSL has no exceptions",
    "new": "MSL has no dynamic memory",
    "delete": "MSL has no dynamic memory",
    "goto": "MSL has no goto",
    "asm": "MSL has no inline assembly",
    "__asm__": "MSL has no inline assembly",
    "typeid": "MSL has no run-time type information",
    "dynamic_cast": "MSL has no run-time type information",
    "const_cast": "what is const stays const",
    "thread_local": "MSL has no thread_local",
    "wchar_t": "MSL has no wchar_t",
    "std": "MSL's library is in namespace metal",
    "__attribute__": "clang's attributes are not MSL",
    "vertex": "only kernels run here",
    "fragment": "only kernels run here",
    "printf": "MSL has no printf",
}
_STATEMENT_WORDS = {"return", "else", "do", "case", "sizeof", "if", "while", "for", "switch"}


def check_includes(source: str) -> None:
    """The raw text: only headers of MSL's library, as each command's text stands alone."""
    for number, line in enumerate(source.splitlines(), 1):
        match = re.match(r"\s*#\s*(include|import)\b\s*(.*)", line)
        if not match:
            continue
        header = re.match(r"<(\w+)>", match[2])
        if match[1] == "import" or not header or header[1] not in HEADERS:
            raise Refused(number, f"cannot include {match[2].strip()}: only MSL's own headers")


def check(tokens: list[Token], declarations: Declarations) -> None:
    """All lints on preprocessed text. Raises Refused for the first that fires."""
    _check_words(tokens)
    _check_lambdas(tokens)
    _check_casts(tokens)
    _check_value_casts(tokens)
    for variable in declarations.variables:
        if "constant" not in [token.text for token in variable]:
            raise Refused(
                variable[0].line, "a variable of the program is in the constant address space"
            )
        _check_spaces(variable, "a pointer")
    for member in declarations.members:
        _check_spaces(member, "a pointer")
    for function in declarations.functions:
        for parameter in split_commas(function.parameters):
            _check_spaces(parameter, "a pointer or reference")
        _check_body(function)
    _check_recursion(declarations.functions)


def _check_words(tokens: list[Token]) -> None:
    asserted = False  # inside of a static_assert, whose message is the one string there may be
    for before, token in zip([None, *tokens], tokens, strict=False):
        asserted = token == "static_assert" or (asserted and token != ";")
        if token.kind == "name" and token.text in _WORDS:
            raise Refused(token.line, f"'{token.text}': {_WORDS[token.text]}")
        if token == "long" and before is not None and before == "long":
            raise Refused(token.line, "'long long': MSL has no such type; long has 64 bits")
        if token.kind == "string" and not asserted:
            raise Refused(token.line, "MSL has no strings")


def _check_lambdas(tokens: list[Token]) -> None:
    """`[` begins an index behind a name or a closing bracket, else a lambda."""
    for before, token in pairwise(tokens):
        if token == "[" and not (before.kind == "name" or before.text in {")", "]", "]]", ">"}):
            raise Refused(token.line, "MSL has no lambdas")
        if token == "[" and before.text in {"return", "operator"} and before.text == "return":
            raise Refused(token.line, "MSL has no lambdas")


def _is_type(tokens: list[Token]) -> bool:
    return bool(tokens) and all(
        token.kind in {"name", "number"} or token.text in {"::", "<", ">", ","} for token in tokens
    )


def _check_casts(tokens: list[Token]) -> None:
    """(float*)p and static_cast<float*>(p) name no address space."""
    for index, token in enumerate(tokens):
        if token.text not in {"*", "&"} or index + 1 == len(tokens):
            continue
        if tokens[index + 1].text not in {")", ">"}:
            continue
        opening = {")": "(", ">": "<"}[tokens[index + 1].text]
        first = index - 1
        while first >= 0 and (tokens[first].text != opening and tokens[first].text not in "(;{}"):
            first -= 1
        words = [t for t in tokens[first + 1 : index] if t != "*"]
        if tokens[first] == opening and _is_type(words):
            texts = {t.text for t in words}
            if not texts & SPACES and opening == "(" and len(words) == 1 and first > 0:
                before = tokens[first - 1]
                if before.kind == "name" and before.text not in _STATEMENT_WORDS:
                    continue  # an operand: f(a *) is no expression, so this is not MSL at all
            if not texts & SPACES and not texts & {"auto"}:
                raise Refused(
                    token.line,
                    "a pointer or reference type needs its address space: device, constant,"
                    " threadgroup or thread",
                )


def type_names(tokens: list[Token]) -> set[str]:
    """Aliases and type parameters of templates: names that may stand for vectors."""
    names = set()
    for index, token in enumerate(tokens):
        rest = [t.text for t in tokens[index + 1 : index + 3]]
        if token.text in {"using", "typename", "class"} and rest and rest[0] != "namespace":
            if token == "using" and rest[1:] != ["="]:
                continue
            names.add(rest[0])
        elif token == "typedef":
            end = index
            while tokens[end] != ";":
                end += 1
            names.add(tokens[end - 1].text)
    return names


def _check_value_casts(tokens: list[Token]) -> None:
    """(float4)x and static_cast<float4>(x) would copy bits in clang where MSL converts."""
    aliases = type_names(tokens)
    for index in range(len(tokens) - 3):
        opening, name, end, operand = tokens[index : index + 4]
        if opening.text + end.text not in {"()", "<>"} or name.kind != "name":
            continue
        if opening == "<" and (index == 0 or tokens[index - 1] != "static_cast"):
            continue
        if opening == "(" and operand.kind not in {"name", "number"} and operand != "(":
            continue
        if opening == "(" and index > 0 and tokens[index - 1].kind == "name":
            continue
        vector = re.fullmatch(r"[a-z]+[234]", name.text) is not None
        if vector or (opening == "(" and name.text in aliases):
            raise Refused(
                name.line,
                f"write {name.text}(x) instead of a cast: clang would copy a vector's bits",
            )


def _check_spaces(tokens: list[Token], what: str) -> None:
    """A declaration with a `*` or `&` outside of brackets and initialisers names a space."""
    words: set[str] = set()
    index = 0
    while index < len(tokens) and tokens[index].text not in {"=", "[", "[[", "(", "{"}:
        token = tokens[index]
        if token == "<":
            index = closing_angle(tokens, index) or index
        words.add(token.text)
        index += 1
    if words & {"*", "&", "&&"} and not words & (SPACES | {"auto"}):
        raise Refused(
            tokens[0].line,
            f"{what} needs its address space: device, constant, threadgroup or thread",
        )


def _check_body(function: Function) -> None:
    body = function.body
    starts = True
    for index, token in enumerate(body):
        if token == "static":
            raise Refused(token.line, "MSL has no static variables in functions")
        if starts and token.kind == "name" and token.text not in _STATEMENT_WORDS:
            _check_local(body[index:])
        starts = token.text in {"{", "}", ";", ")"} or (
            token == "(" and index > 0 and body[index - 1] == "for"
        )
        if token.text in {"device", "constant"} and not points(body[index:]):
            raise Refused(
                token.line,
                f"a variable in the {token.text} address space cannot be declared in a function",
            )


def points(tokens: list[Token]) -> bool:
    """Whether an address space belongs to a pointer or reference: one follows in the type."""
    index = 1
    while index < len(tokens):
        token = tokens[index]
        if token.text in {"*", "&", "&&"}:
            return True
        if token == "<":
            end = closing_angle(tokens, index)
            if end is None:
                return False
            index = end
        elif token.kind != "name" and token != "::":
            return False
        index += 1
    return False


def _check_local(tokens: list[Token]) -> None:
    """`float* p = …` at the beginning of a statement."""
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token == "<":
            end = closing_angle(tokens, index)
            if end is None:
                return
            index = end
        elif token.kind != "name" and token != "::":
            break
        index += 1
    declared = tokens[index + 1] if index + 1 < len(tokens) else None
    if (
        index < len(tokens)
        and tokens[index].text in {"*", "&"}
        and declared is not None
        and (declared.kind == "name" or declared.text in {"*", "&"})
    ):
        _check_spaces(tokens[: index + 1], "a pointer or reference")


def called(function: Function, names: set[str]) -> set[str]:
    """Which of the functions `names` a body calls: a name in front of a parenthesis, no sign.

    What is written `metal::…` is of MSL's library, whatever else has that name.
    """
    body = function.body
    return {
        token.text
        for index, (token, behind) in enumerate(pairwise(body))
        if token.kind == "name"
        and token.text in names
        and behind == "("
        and not _is_of_library(body, index)
    }


def _is_of_library(body: list[Token], index: int) -> bool:
    """Whether the qualified name that ends at `index` begins with `metal::`."""
    while index >= 2 and body[index - 1] == "::":
        index -= 2
    return body[index] == "metal"


def _check_recursion(functions: list[Function]) -> None:
    free = [f for f in functions if not f.member and f.body]
    names = {f.name for f in free}
    calls: dict[str, set[str]] = {name: set() for name in names}
    for function in free:
        calls[function.name] |= called(function, names)
    for function in free:
        seen, waiting = set[str](), list(calls[function.name])
        while waiting:
            name = waiting.pop()
            if name == function.name:
                raise Refused(
                    function.line,
                    f"'{name}' calls itself: MSL has no recursion (an overload that calls another"
                    " of the same name reads as one here: give it a name of its own)",
                )
            if name not in seen:
                seen.add(name)
                waiting += calls[name]
