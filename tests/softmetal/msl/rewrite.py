"""MSL as C++ that clang takes over the shim, and the tables by which the engine runs it.

The text keeps its lines. What changes: constructors of vectors become `_msl::make`, threadgroup
variables of kernels live where the engine says, function constants read what the pipeline was made
with, literals lose the suffixes of half and bfloat, and attributes go into tables behind the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.softmetal.msl import lints
from tests.softmetal.msl.declarations import Declarations, Function, parse
from tests.softmetal.msl.signatures import BUILTINS, Parameter, parameters
from tests.softmetal.msl.tokens import (
    Refused,
    Token,
    closing,
    closing_angle,
    split_commas,
    tokenize,
)

_SCALARS = [
    "char",
    "uchar",
    "short",
    "ushort",
    "int",
    "uint",
    "long",
    "ulong",
    "half",
    "bfloat",
    "float",
    "bool",
]
_VECTORS = {f"{scalar}{n}" for scalar in _SCALARS for n in (2, 3, 4)}
# MTLDataType, first of a scalar's types; vectors of 2, 3 and 4 follow.
_DATA_TYPES = {"float": 3, "half": 16, "int": 29, "uint": 33, "short": 37, "ushort": 41}
_DATA_TYPES |= {"char": 45, "uchar": 49, "bool": 53, "long": 81, "ulong": 85, "bfloat": 121}
# The oldest Apple GPU family that has a feature, by the beginnings of its names.
_FAMILIES = {
    r"simdgroup_(?!index|barrier)\w+|make_filled_simdgroup_matrix": 7,
    r"simd_(sum|product|min|max|and|or|xor|prefix)\w*": 7,
    r"simd_\w+|bfloat[234]?": 6,
    r"quad_\w+": 4,
}


@dataclass(frozen=True)
class Constant:
    name: str
    type: str
    index: int


@dataclass(frozen=True)
class Rewritten:
    strict: str  # for the check of address spaces
    executed: str
    kernels: tuple[str, ...]


class _Edits:
    """Replacements of stretches of a text, applied at once."""

    def __init__(self, text: str) -> None:
        self.text, self.edits = text, list[tuple[int, int, str]]()

    def replace(self, first: Token, last: Token, by: str) -> None:
        kept = "\n" * self.text[first.start : last.end].count("\n")
        self.edits.append((first.start, last.end, by + kept))

    def apply(self) -> str:
        result, at = [], 0
        for start, end, by in sorted(self.edits):
            result += [self.text[at:start], by]
            at = end
        return "".join([*result, self.text[at:]])


def rewrite(text: str) -> Rewritten:
    """`text` is preprocessed. Raises Refused for what the device does not take."""
    tokens = tokenize(text)
    declarations = parse(tokens)
    lints.check(tokens, declarations)
    constants = [_constant(v) for v in declarations.variables if _is_function_constant(v)]
    kernels = [f for f in declarations.functions if f.is_kernel]
    _check_kernels(kernels)
    signatures = [parameters(text, kernel) for kernel in kernels]
    texts = []
    for strict in (True, False):
        edits = _Edits(text)
        _edit_expressions(edits, tokens, _VECTORS | lints.type_names(tokens))
        _edit_constants(edits, declarations, constants, strict)
        _edit_variables(edits, declarations, kernels, strict)
        _edit_attributes(edits, tokens, declarations)
        texts.append(edits.apply())
    tables = _tables(tokens, declarations, kernels, signatures, constants)
    return Rewritten(texts[0], texts[1] + tables, tuple(k.name for k in kernels))


def _check_kernels(kernels: list[Function]) -> None:
    for kernel in kernels:
        if kernel.template or kernel.member or kernel.in_namespace:
            raise Refused(kernel.line, f"kernel '{kernel.name}' is not a plain function")
        words = [token.text for token in kernel.specifiers]
        if "void" not in words:
            raise Refused(kernel.line, f"kernel '{kernel.name}' returns void")


def _edit_expressions(edits: _Edits, tokens: list[Token], types: set[str]) -> None:
    """Constructors of vectors, and of names that may stand for vectors: clang would copy bits."""
    for index, token in enumerate(tokens):
        behind = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.text in types and behind is not None and behind == "(":
            edits.replace(token, token, f"_msl::make<{token.text}>")
        elif token == "vec" and behind is not None and behind == "<":
            end = closing_angle(tokens, index + 1)
            if end is not None and end + 1 < len(tokens) and tokens[end + 1] == "(":
                last = tokens[end]
                edits.replace(token, token, "_msl::make<vec")
                edits.replace(last, last, ">>")
        elif token.kind == "number":
            literal = re.fullmatch(r"(?!0[xX])([\d.eE+-]+?)(h|H|bf|BF)", token.text)
            if literal:
                kind = "half" if literal[2] in "hH" else "bfloat"
                edits.replace(token, token, f"static_cast<{kind}>({_as_float(literal[1])})")


def _as_float(digits: str) -> str:
    return digits + "f" if re.search(r"[.eE]", digits) else digits + ".0f"


def _is_function_constant(variable: list[Token]) -> bool:
    return any(token == "function_constant" for token in variable)


def _constant(variable: list[Token]) -> Constant:
    """`constant T name [[function_constant(n)]]`."""
    words = [token.text for token in variable]
    shape = re.fullmatch(
        r"constant (\w+) (\w+) \[\[ function_constant \( (\d+) \) \]\]", " ".join(words)
    )
    if not shape or _data_type(shape[1]) is None:
        raise Refused(
            variable[0].line, "write constant T name [[function_constant(n)]], T a scalar or vector"
        )
    return Constant(shape[2], shape[1], int(shape[3]))


def _data_type(name: str) -> int | None:
    """MTLDataType of a type; None: it is not one of a function constant."""
    scalar = name.rstrip("234")
    if scalar not in _DATA_TYPES:
        return None
    return _DATA_TYPES[scalar] + (int(name[-1]) - 1 if name != scalar else 0)


def _edit_constants(
    edits: _Edits, declarations: Declarations, constants: list[Constant], strict: bool
) -> None:
    """A function constant is a reference to what the pipeline was made with: no constant of C++."""
    names = {constant.name for constant in constants}
    index = 0
    for variable in declarations.variables:
        used = {token.text for token in variable if token.kind == "name"} & names
        if not _is_function_constant(variable):
            if used:
                raise Refused(
                    variable[0].line,
                    f"a constant computed from the function constant '{used.pop()}' is not taken:"
                    " compute it in the kernel",
                )
            if not strict:
                edits.replace(variable[0], variable[0], "static " + variable[0].text)
            continue
        constant = constants[index]
        if strict:
            by = f"extern const {constant.type} {constant.name}"
        else:
            by = (
                f"static const {constant.type}& {constant.name} = *reinterpret_cast<const"
                f" {constant.type}*>(softmetal_constant_values + {32 * index})"
            )
        edits.replace(variable[0], variable[-1], by)
        index += 1


def _edit_variables(
    edits: _Edits, declarations: Declarations, kernels: list[Function], strict: bool
) -> None:
    for function in declarations.functions:
        found = _threadgroup_variables(function)
        if found and not function.is_kernel:
            raise Refused(found[0][0].line, "declare threadgroup variables in the kernel itself")
        for place, (first, end) in enumerate(found):
            statement = function.body[function.body.index(first) : function.body.index(end)]
            edits.replace(
                first,
                statement[-1],
                _variable(edits.text, statement, kernels.index(function), place, strict),
            )


def _threadgroup_variables(function: Function) -> list[tuple[Token, Token]]:
    """First token and semicolon of each declaration, all at the top of the kernel's body."""
    found, depth, body = list[tuple[Token, Token]](), 0, function.body
    for index, token in enumerate(body):
        depth += (token == "{") - (token == "}")
        if token != "threadgroup" or lints.points(body[index:]):
            continue
        before = [t for t in body[:index] if t.kind != "directive"]
        starts = not before or before[-1].text in {";", "{", "}"}
        if not starts or depth != 0:
            raise Refused(
                token.line, "declare a threadgroup variable at the top of the kernel, first in line"
            )
        end = next((i for i in range(index, len(body)) if body[i] == ";"), None)
        if end is None:
            raise Refused(token.line, "this declaration does not end")
        found.append((token, body[end]))
    return found


def _variable(text: str, statement: list[Token], kernel: int, place: int, strict: bool) -> str:
    line = statement[0].line
    brackets = next((i for i, t in enumerate(statement) if t == "["), len(statement))
    name = statement[brackets - 1]
    kind = text[statement[1].start : name.start].strip()
    sizes = text[name.end : statement[-1].end]
    depth = 0
    for token in statement[1:]:
        depth += (token.text in "[(<") - (token.text in "])>")
        if (token == "," and depth == 0) or token.text in {"=", "{"}:
            raise Refused(line, "declare one threadgroup variable at a time, without a value")
    if (
        brackets < 3
        or name.kind != "name"
        or (sizes and not re.fullmatch(r"(\[.*\]\s*)+", sizes, re.S))
    ):
        raise Refused(line, "this declaration of a threadgroup variable is not understood")
    if strict:
        return f"extern threadgroup {kind} {name.text}{sizes}"
    own = f"_msl_type_{place}"
    return (
        f"typedef {kind} {own}{sizes}; static const softmetal::Variable _msl_variable_{place}"
        f' __attribute__((section("softmetal_variables_{kernel}"), used)) ='
        f" {{{place}, sizeof({own}), alignof({own})}};"
        f" {own}& {name.text} = *static_cast<{own}*>("
        f"_msl::softmetal_engine->current->variables[{place}])"
    )


def _edit_attributes(edits: _Edits, tokens: list[Token], declarations: Declarations) -> None:
    """Attributes of kernels and their parameters go; others are refused."""
    known = {"buffer", "threadgroup", "kernel", "max_total_threads_per_threadgroup", *BUILTINS}
    index = 0
    while index < len(tokens):
        token = tokens[index]
        behind = tokens[index + 1] if index + 1 < len(tokens) else token
        # a[[…] of an index would be a lambda, which the lints refuse.
        if token == "[[" and behind != "function_constant":
            end = closing(tokens, index)
            for part in split_commas(tokens[index + 1 : end]):
                if part[0].text not in known:
                    raise Refused(token.line, f"attribute [[{part[0].text}]] is not taken")
            edits.replace(token, tokens[end], "")
            index = end
        index += 1


def _reachable(kernel: Function, functions: list[Function]) -> set[str]:
    """Names that the text of a kernel, and of what it calls, holds."""
    by_name: dict[str, list[Function]] = {}
    for function in functions:
        by_name.setdefault(function.name, []).append(function)
    names, waiting = set[str](), [kernel]
    done: list[Function] = []
    while waiting:
        function = waiting.pop()
        done.append(function)
        found = {token.text for token in function.body if token.kind == "name"}
        for name in found - names:
            waiting += [f for f in by_name.get(name, []) if f not in done]
        names |= found
    return names


def _family(tokens: list[Token]) -> int:
    names = {token.text for token in tokens if token.kind == "name"}
    needed = [2]
    for name in names:
        for pattern, family in _FAMILIES.items():
            if re.fullmatch(pattern, name):
                needed.append(family)
                break
    return max(needed)


def _max_threads(kernel: Function) -> int:
    for attribute in kernel.attributes:
        if attribute[0] == "max_total_threads_per_threadgroup":
            if len(attribute) != 4 or not attribute[2].text.isdecimal():
                raise Refused(kernel.line, "write [[max_total_threads_per_threadgroup(n)]]")
            return int(attribute[2].text)
    return 0


def _tables(
    tokens: list[Token],
    declarations: Declarations,
    kernels: list[Function],
    signatures: list[list[Parameter]],
    constants: list[Constant],
) -> str:
    lines = ['\n# 1 "softmetal_tables"']
    rows = []
    for place, (kernel, signature) in enumerate(zip(kernels, signatures, strict=True)):
        used = _reachable(kernel, declarations.functions)
        numbers = [str(i) for i, constant in enumerate(constants) if constant.name in used]
        lines += _kernel_tables(place, kernel, signature, numbers)
        bindings = sum(1 for p in signature if p.space)
        rows.append(
            f'{{"{kernel.name}", _msl_run_{place}, _msl_bindings_{place}, {bindings},'
            f" __start_softmetal_variables_{place}, __stop_softmetal_variables_{place},"
            f" {_max_threads(kernel)}, _msl_used_{place}, {len(numbers)}}}"
        )
    lines.append(f"static const softmetal::Kernel _msl_kernels[] = {{{', '.join(rows) or '{}'}}};")
    values = [
        f'{{"{c.name}", {c.index}, {_data_type(c.type)}, {32 * i}, sizeof({c.type})}}'
        for i, c in enumerate(constants)
    ]
    lines.append(
        "static const softmetal::FunctionConstant _msl_constants[] ="
        f" {{{', '.join(values) or '{}'}}};"
    )
    lines.append(
        'extern "C" __attribute__((visibility("default"))) const softmetal::Library'
        f" softmetal_library = {{softmetal::kAbi, {_family(tokens)}, _msl_kernels, {len(kernels)},"
        f" _msl_constants, {len(constants)}, softmetal_constant_values}};"
    )
    return "\n".join(lines) + "\n"


def _kernel_tables(
    place: int, kernel: Function, signature: list[Parameter], constants: list[str]
) -> list[str]:
    arguments, bindings = [], []
    for parameter in signature:
        if parameter.space:
            memory = "threadgroup_buffers" if parameter.attribute == "threadgroup" else "buffers"
            arguments.append(
                f"_msl::argument<{parameter.type}>::from(t->{memory}[{parameter.index}])"
            )
            space = "k" + parameter.space.capitalize()
            bindings.append(
                f'_msl::binding<{parameter.type}>("{parameter.name}", softmetal::{space},'
                f" {parameter.index})"
            )
        else:
            field = BUILTINS[parameter.attribute][0]
            value = f"t->{field}" if field else "softmetal::kSimdWidth"
            arguments.append(f"_msl::builtin<{parameter.type}>({value})")
    section = f"softmetal_variables_{place}"
    return [
        f'extern "C" __attribute__((weak, visibility("hidden"))) const softmetal::Variable'
        f" __start_{section}[], __stop_{section}[];",
        f"static void _msl_run_{place}(const softmetal::Thread* t) {{"
        f" (void)t; {kernel.name}({', '.join(arguments)}); }}",
        f"static const softmetal::Binding _msl_bindings_{place}[] ="
        f" {{{', '.join(bindings) or '{}'}}};",
        f"static const unsigned _msl_used_{place}[] = {{{', '.join(constants) or '0'}}};",
    ]
