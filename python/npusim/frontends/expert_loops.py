"""Loops over the rows that a mask has, such as the experts that were hit: may all rows be visited?

`for e in mask.nonzero(): …` runs its body for the rows where the mask holds; a trace visits every
row and hides the effects of the others. That is the same where nothing but hidden effects leaves
an iteration. This file owns the reading of the loop's source that shows it: the body only assigns
to names that no other place reads, and every name that it stores is stored before it is read.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Sequence
from types import FrameType

from npusim.errors import ExportError

_PLAIN = (ast.Assign, ast.AnnAssign, ast.Expr, ast.If, ast.With, ast.Continue, ast.Pass)
_SCOPES = (
    *(ast.Lambda, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.Yield, ast.YieldFrom, ast.Await),
)


class LoopBody:
    """The body of the loop that a frame is at.

    Args:
        frame: of the code that iterates.

    Attributes:
        code: the function's code object.
        skips: the lines of conditions under which the body only goes on to the next row.

    Raises:
        ExportError: more than an iteration's own values would survive it.
    """

    def __init__(self, frame: FrameType) -> None:
        self.code = frame.f_code
        function, self._first = _parsed(frame)
        line = frame.f_lineno - self._first + 1
        loops = [n for n in ast.walk(function) if isinstance(n, ast.For) and n.lineno == line]
        if len(loops) != 1 or loops[0].orelse:
            raise ExportError("Rows that a mask chooses are iterated by something but a for loop.")
        self.skips: set[int] = set()
        self._check(loops[0], function)

    def _check(self, loop: ast.For, function: ast.AST) -> None:
        inside = set(map(id, ast.walk(loop)))
        self._stored = _names(loop, ast.Store)
        read = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in inside
        }
        if self._stored & read:
            raise _refused(f"{min(self._stored & read)} is read outside of it")
        self._block(loop.body, _names(loop.target, ast.Store))

    def _block(self, body: Iterable[ast.stmt], known: set[str]) -> set[str]:
        """Checks statements in order; returns the names that are stored after them."""
        for statement in body:
            if not isinstance(statement, _PLAIN):
                raise _refused(f"it has a statement {type(statement).__name__}")
            if isinstance(statement, ast.If):
                known = self._branches(statement, known)
            elif isinstance(statement, ast.With):
                self._reads([item.context_expr for item in statement.items], known)
                known = self._block(statement.body, known)
            else:
                known = self._simple(statement, known)
        return known

    def _branches(self, statement: ast.If, known: set[str]) -> set[str]:
        self._reads([statement.test], known)
        if not statement.orelse and all(isinstance(s, ast.Continue) for s in statement.body):
            last = statement.test.end_lineno or statement.test.lineno
            lines = range(statement.test.lineno, last + 1)
            self.skips |= {line + self._first - 1 for line in lines}
            return known
        sides = [self._block(side, set(known)) for side in (statement.body, statement.orelse)]
        return sides[0] & sides[1]

    def _simple(self, statement: ast.stmt, known: set[str]) -> set[str]:
        if isinstance(statement, ast.Expr) and not _changes_in_place(statement.value):
            raise _refused("it has an expression without effect on a tensor")
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for part in (part for target in targets for part in ast.walk(target)):
                if isinstance(part, (ast.Attribute, ast.Subscript)):
                    raise _refused("it assigns to more than names")
        self._reads([statement], known)
        return known | _names(statement, ast.Store)

    def _reads(self, parts: Sequence[ast.AST], known: set[str]) -> None:
        for node in (node for part in parts for node in ast.walk(part)):
            if isinstance(node, _SCOPES):
                raise _refused(f"it has a {type(node).__name__}")
        early = set().union(*(_names(part, ast.Load) for part in parts)) & self._stored - known
        if early:
            raise _refused(f"{min(early)} may be left from the row before")


def _parsed(frame: FrameType) -> tuple[ast.AST, int]:
    """Returns the function that a frame runs, and the line in its file that it starts at."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        return ast.parse(textwrap.dedent("".join(lines))), max(first, 1)
    except (OSError, SyntaxError, TypeError) as error:
        raise ExportError("The source of a loop over rows is not there to be read.") from error


def _names(part: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Returns the names that are read, or stored, in a part of the source."""
    found = (n for n in ast.walk(part) if isinstance(n, ast.Name))
    return {node.id for node in found if isinstance(node.ctx, context)}


def _changes_in_place(call: ast.expr) -> bool:
    """Tells whether an expression calls a method like `x.add_(…)`, whose effect a trace sees."""
    if isinstance(call, ast.Constant):  # a string between statements
        return True
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr.endswith("_") and not call.func.attr.endswith("__")


def _refused(why: str) -> ExportError:
    return ExportError(f"A loop over the rows that a mask chooses may keep state: {why}.")
