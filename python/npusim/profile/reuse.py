"""How far back operands of commands were used last: what caches can still hold of them.

The reach of an operand is what a run touches from its last use up to and including this one, in
bytes: the stack distance of R. Mattson, J. Gecsei, D. Slutz, I. Traiger, "Evaluation techniques for
storage hierarchies", IBM Systems Journal 9(2), 1970. A cache that replaces what was used longest
ago holds an operand whose reach it is large enough for. Runs follow one another, so what only one
command uses has the reach of a whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.program.program import BufferKind, CompiledProgram, Method


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a command finds in caches.

    Attributes:
        operands: of each operand in order, the bytes touched of it, and their reach in bytes.
        code: bytes that were touched since a command of the same kernel.
    """

    operands: tuple[tuple[int, int], ...]
    code: int


Key = tuple[str | int, ...]  # of a place in memory


def method_reuse(
    program: CompiledProgram, method: Method, touched: Sequence[Sequence[int]]
) -> list[Reuse]:
    """Returns what each command of a method finds, in the second of two runs.

    Args:
        touched: of each command, bytes of each operand that it reads or writes.
    """
    pieces = _pieces(program, method)
    sizes = {b: sum(size for _, size in parts) or 1 for b, parts in pieces.items()}
    steps = sum(2 * len(pieces[o.buffer]) for c in method.commands for o in c.operands)
    history = _History(steps + 2 * len(method.commands))
    found: list[Reuse] = []
    for _ in range(2):
        found = []
        for command, counts in zip(method.commands, touched, strict=True):
            rows, uses = [], {}
            for operand, count in zip(command.operands, counts, strict=True):
                share = count / sizes[operand.buffer]
                parts = {key: round(size * share) for key, size in pieces[operand.buffer]}
                if share < 1 and program.buffers[operand.buffer].kind != BufferKind.TEMP:
                    parts = {("part", operand.buffer, count): count}
                rows.append((count, max((history.reach(key) for key in parts), default=0)))
                uses.update(parts)
            code = ("code", command.kernel)
            found.append(Reuse(tuple((n, max(n, reach)) for n, reach in rows), history.reach(code)))
            for key, size in (*uses.items(), (code, 0)):
                history.use(key, size)
    return found


def _pieces(program: CompiledProgram, method: Method) -> dict[int, list[tuple[Key, int]]]:
    """Returns the places that each buffer consists of: those of the arena may share some."""
    buffers = {o.buffer for command in method.commands for o in command.operands}
    arena = [b for b in buffers if program.buffers[b].kind == BufferKind.TEMP]
    ends = ((one.offset, one.offset + one.bytes) for one in (program.buffers[b] for b in arena))
    cuts = sorted({at for pair in ends for at in pair})
    at = {cut: index for index, cut in enumerate(cuts)}
    found: dict[int, list[tuple[Key, int]]] = {}
    for b in buffers:
        one = program.buffers[b]
        if one.kind == BufferKind.TEMP:
            first, last = at[one.offset], at[one.offset + one.bytes]
            parts = zip(cuts[first:last], cuts[first + 1 : last + 1], strict=True)
            found[b] = [(("arena", low), high - low) for low, high in parts]
        else:
            found[b] = [(("buffer", b), one.bytes)]
    return found


class _History:
    """Places in the order of their last use; sums of their bytes by a Fenwick tree."""

    def __init__(self, steps: int) -> None:
        self._sums = [0] * (steps + 1)
        self._at: dict[Key, tuple[int, int]] = {}  # step of the last use, bytes
        self._now = self._all = 0

    def reach(self, key: Key) -> int:
        """Returns the bytes used since a place was, its own among them; 0: it never was."""
        if key not in self._at:
            return 0
        step, before = self._at[key][0], 0
        while step:  # what was used before it
            before += self._sums[step]
            step &= step - 1
        return self._all - before

    def use(self, key: Key, size: int) -> None:
        """Makes a place the one that was used last."""
        if key in self._at:
            step, was = self._at[key]
            self._add(step + 1, -was)
        self._at[key] = self._now, size
        self._add(self._now + 1, size)
        self._now += 1

    def _add(self, step: int, size: int) -> None:
        self._all += size
        while step < len(self._sums):
            self._sums[step] += size
            step += step & -step
