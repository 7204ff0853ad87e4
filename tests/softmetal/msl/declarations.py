"""What a preprocessed MSL text declares: functions with parameters and bodies, program variables.

Only what the rewriter and the lints ask for. A declaration that is not understood is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.softmetal.msl.tokens import Refused, Token, closing, closing_angle, split_commas

_RECORDS = {"struct", "class", "union", "enum"}
_TO_SEMICOLON = {"using", "typedef", "static_assert"}


@dataclass
class Function:
    name: str
    line: int
    specifiers: list[Token]  # all before the name
    attributes: list[list[Token]]  # the tokens between [[ and ]] before the name
    parameters: list[Token]  # between the parentheses
    body: list[Token]  # between the braces
    member: bool
    template: bool
    in_namespace: bool

    @property
    def is_kernel(self) -> bool:
        """Whether the host can run it."""
        words = [token.text for token in self.specifiers]
        return "kernel" in words or any(a and a[0] == "kernel" for a in self.attributes)


@dataclass
class Declarations:
    functions: list[Function] = field(default_factory=list)
    variables: list[list[Token]] = field(default_factory=list)  # of the program, up to the ;
    members: list[list[Token]] = field(default_factory=list)  # variables of structs


def parse(tokens: list[Token]) -> Declarations:
    """Raises Refused for what is not understood."""
    found = Declarations()
    _Parser(tokens, found).declarations(0, len(tokens), member=False, nested=False)
    return found


class _Parser:
    def __init__(self, tokens: list[Token], found: Declarations) -> None:
        self.tokens, self.found = tokens, found

    def declarations(self, at: int, end: int, *, member: bool, nested: bool) -> None:
        while at < end:
            token = self.tokens[at]
            if token.kind == "directive" or token == ";":
                at += 1
            elif member and token.text in {"public", "private", "protected"}:
                at += 2
            elif token.text in _TO_SEMICOLON:
                at = self.semicolon(at) + 1
            elif token == "namespace":
                at = self.namespace(at)
            elif token == "extern":
                raise Refused(token.line, "'extern' has no meaning in a kernel's text")
            else:
                at = self.declaration(at, member=member, nested=nested)

    def namespace(self, at: int) -> int:
        brace = next(i for i in range(at, len(self.tokens)) if self.tokens[i].text in "{;=")
        if self.tokens[brace] != "{":
            return self.semicolon(at) + 1
        end = closing(self.tokens, brace)
        self.declarations(brace + 1, end, member=False, nested=True)
        return end + 1

    def semicolon(self, at: int) -> int:
        while at < len(self.tokens) and self.tokens[at] != ";":
            at = closing(self.tokens, at) if self.tokens[at].text in "({" else at
            at += 1
        return at

    def declaration(self, at: int, *, member: bool, nested: bool) -> int:
        template = False
        while self.tokens[at] == "template":
            angle = closing_angle(self.tokens, at + 1) if self.tokens[at + 1] == "<" else None
            if angle is None:
                raise Refused(
                    self.tokens[at].line,
                    "explicit instantiations of templates (host_name) are not taken: write one"
                    " kernel, with macros for what varies",
                )
            template, at = True, angle + 1
        if self.tokens[at] == "using":
            return self.semicolon(at) + 1
        first, attributes = at, []
        while at < len(self.tokens):
            token = self.tokens[at]
            if token == "[[":
                end = closing(self.tokens, at)
                attributes += split_commas(self.tokens[at + 1 : end])
                at = end + 1
            elif token.text in _RECORDS:
                return self.record(at, template=template)
            elif token == "alignas":
                at = closing(self.tokens, at + 1) + 1
            elif token == "<":
                at = (closing_angle(self.tokens, at) or at) + 1
            elif token == "operator":
                at += 1
                while self.tokens[at] != "(" or self.tokens[at + 1 : at + 3] == [")", "("]:
                    at += 2 if self.tokens[at] == "(" else 1
                return self.function(first, at, attributes, member, template, nested)
            elif token == "(":
                return self.function(first, at, attributes, member, template, nested)
            elif token.text in {"=", ";", "[", "{", ":"}:
                end = self.semicolon(at)
                (self.found.members if member else self.found.variables).append(
                    self.tokens[first:end]
                )
                return end + 1
            else:
                at += 1
        raise Refused(self.tokens[first].line, "this declaration does not end")

    def record(self, at: int, *, template: bool) -> int:
        kind, line = self.tokens[at].text, self.tokens[at].line
        while self.tokens[at].text not in {"{", ";"}:
            if self.tokens[at].text in {"(", "="}:
                raise Refused(line, f"write '{kind}' only where the type is declared")
            at += 1
        if self.tokens[at] == ";":
            return at + 1
        end = closing(self.tokens, at)
        if kind != "enum":
            self.declarations(at + 1, end, member=True, nested=True)
        if self.tokens[end + 1] != ";":
            raise Refused(line, "declare variables apart from their type")
        return end + 2

    def function(
        self,
        first: int,
        opening: int,
        attributes: list[list[Token]],
        member: bool,
        template: bool,
        nested: bool,
    ) -> int:
        end = closing(self.tokens, opening)
        name = self.tokens[opening - 1]
        at = end + 1
        while self.tokens[at].text not in {"{", ";"}:
            if self.tokens[at] == ":":
                at = self.initializers(at + 1)
                break
            at = closing(self.tokens, at) + 1 if self.tokens[at] == "[[" else at + 1
        body: list[Token] = []
        if self.tokens[at] == "{":
            stop = closing(self.tokens, at)
            body, at = self.tokens[at + 1 : stop], stop
        self.found.functions.append(
            Function(
                name=name.text,
                line=name.line,
                specifiers=self.tokens[first : opening - 1],
                attributes=attributes,
                parameters=self.tokens[opening + 1 : end],
                body=body,
                member=member,
                template=template,
                in_namespace=nested,
            )
        )
        return at + 1

    def initializers(self, at: int) -> int:
        """Behind the members that a constructor initialises: the index of its body's brace."""
        while True:
            while self.tokens[at].text not in {"(", "{"}:
                at += 1
            at = closing(self.tokens, at) + 1
            if self.tokens[at] != ",":
                return at
            at += 1
