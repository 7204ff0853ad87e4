"""A language model of a few commands, written by hand, whose logits NumPy computes as well.

The logits after a text are the sum over its tokens of table[token], halved for each token that
follows: they depend on every token and its place, through a cache of one row a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from npusim.abi.kernels import RANK
from npusim.ir.types import dtype_code
from npusim.program.program import BufferKind, CompiledProgram, Method
from tests.runtime.programs import Builder

VOCABULARY, CONTEXT, CHUNK, EOS = 32, 24, 4, 31
_INT = dtype_code("int64")
_LOGITS = (1, 1, VOCABULARY)


class _Toy(Builder):
    """Emits the methods over the same states."""

    def __init__(self, generates: bool) -> None:
        super().__init__()
        self.token = self.buffer(BufferKind.STATE, 8, "token") if generates else -1
        self.history = self.buffer(BufferKind.STATE, CONTEXT * 8, "history") if generates else -1
        self.position = self.buffer(BufferKind.STATE, 8, "position")
        self.cache = self.buffer(BufferKind.STATE, CONTEXT * VOCABULARY * 4, "cache")
        self.table = self.weight("table", (VOCABULARY, VOCABULARY))
        steps = np.arange(CONTEXT)[:, None] - np.arange(CONTEXT)
        self.decay = self.constant(np.where(steps >= 0, 0.5 ** np.abs(steps), 0).astype(np.float32))
        self.zero = self.constant(np.zeros(1, np.int64))

    def method(self, name: str, count: int, length: int | None) -> Method:
        """Appends `count` tokens, of which `length` (an input, or all) count."""
        self._forward(self.inputs[0].buffer, count, length, self.output("logits", _LOGITS))
        return self._made(name)

    def generate(self) -> Method:
        """Appends the token of the state, and chooses the next one."""
        scores = self.buffer(BufferKind.TEMP, VOCABULARY * 4)
        self._forward(self.token, 1, None, scores)
        reads = [scores, *(spec.buffer for spec in self.inputs), self.position]
        params = {"size": VOCABULARY, "capacity": CONTEXT, "dtype": 0}
        writes = [self.token, self.history, self.output("chosen", (1,), "int64")]
        self.call("sample", params, reads, writes, update=True)
        return self._made("generate")

    def _made(self, name: str) -> Method:
        made = Method(name, tuple(self.run), tuple(self.inputs), tuple(self.outputs), 0)
        self.run, self.inputs, self.outputs = [], [], []
        return made

    def _forward(self, tokens: int, count: int, length: int | None, scores: int) -> None:
        length = self.constant(np.array([count])) if length is None else length
        rows = self.buffer(BufferKind.TEMP, count * 8)
        self.copy(self.constant(np.arange(count)), rows, count, size=8)
        self._add(self.position, self.constant(np.arange(count)), rows, count)
        vectors = self.buffer(BufferKind.TEMP, count * VOCABULARY * 4)
        self._rows(self.table, tokens, vectors, count, VOCABULARY, VOCABULARY)
        self._store(vectors, rows, count)
        last = self.buffer(BufferKind.TEMP, 8)
        self.copy(self.constant(np.array([-1])), last, 1, size=8)
        self._add(self.position, self.zero, last, 1)
        self._add(length, self.zero, last, 1)
        weights = self.buffer(BufferKind.TEMP, CONTEXT * 4)
        self._rows(self.decay, last, weights, 1, CONTEXT, CONTEXT)
        self._product(weights, scores)
        self._add(length, self.zero, self.position, 1)

    def _rows(self, x: int, ids: int, y: int, count: int, rows: int, width: int) -> None:
        params = {
            "element_size": 4, "idx_dtype": _INT, "n": 1, "rank": 2,
            "shape": (count, width, *[1] * (RANK - 2)), "x_strides": (0, 1),
            "y_strides": (width, 1), "idx_strides": (1, 0), "k_size": (rows,),
            "k_stride": (width,),
        }  # fmt: skip
        self.call("index", params, [x, ids], [y])

    def _store(self, x: int, rows: int, count: int) -> None:
        params = {
            "mode": 0, "dtype": 0, "idx_dtype": _INT, "n": 1, "rank": 2,
            "shape": (count, VOCABULARY, *[1] * (RANK - 2)), "src_strides": (VOCABULARY, 1),
            "y_strides": (0, 1), "idx_strides": (1, 0), "k_size": (CONTEXT,),
            "k_stride": (VOCABULARY,),
        }  # fmt: skip
        self.call("scatter", params, [x, rows], [self.cache], update=True)

    def _add(self, x: int, ids: int, y: int, count: int) -> None:
        """y[ids] += x, a single int64."""
        params = {
            "mode": 1, "dtype": _INT, "idx_dtype": _INT, "n": 1, "rank": 1,
            "shape": (count, *[1] * (RANK - 1)), "src_strides": (0,), "y_strides": (0,),
            "idx_strides": (1,), "k_size": (count,), "k_stride": (1,),
        }  # fmt: skip
        self.call("scatter", params, [x, ids], [y], update=True)

    def _product(self, x: int, y: int) -> None:
        params = {
            "batch": [1] * 6, "a_batch": [0] * 6, "b_batch": [0] * 6, "y_batch": [0] * 6,
            "m": 1, "n": VOCABULARY, "k": CONTEXT, "a_m": CONTEXT, "a_k": 1, "b_k": VOCABULARY,
            "b_n": 1, "y_m": VOCABULARY, "dtype": 0, "alpha": 1.0,
        }  # fmt: skip
        self.call("matmul", params, [x, self.cache], [y])


def program(
    facts: Mapping[str, object] | None = None,
    larger: Sequence[int] = (),
    generates: bool = False,
    **metadata: object,
) -> CompiledProgram:
    """Returns the program; `facts` and `metadata` replace what its metadata says.

    Args:
        larger: chunks that have a method beside `prefill`.
        generates: has the method `generate` as well.
    """
    toy = _Toy(generates)
    prefills = []
    for name, chunk in (("prefill", CHUNK), *((f"prefill_{n}", n) for n in larger)):
        toy.input("tokens", (1, chunk), "int64")
        prefills.append(toy.method(name, chunk, toy.input("length", (1,), "int64")))
    toy.input("tokens", (1, 1), "int64")
    methods = [*prefills, toy.method("decode", 1, None)]
    if generates:
        toy.input("sampling", (5,), "float64")
        toy.input("seed", (1,), "int64")
        methods.append(toy.generate())
    built = toy.build()
    arena = max(method.arena_bytes for method in built.methods)
    language_model: dict[str, Any] = {
        "max_context": CONTEXT,
        "prefill_chunk": CHUNK,
        "vocab_size": VOCABULARY,
        "eos_token_ids": [EOS],
        "position": "position",
        "caches": [{"state": "cache", "axis": 1}],
        **({"larger_chunks": list(larger)} if larger else {}),
        **({"token": "token", "history": "history"} if generates else {}),
    }
    states = [
        {"name": "position", "buffer": toy.position, "dtype": "int64", "shape": [1]},
        {
            "name": "cache",
            "buffer": toy.cache,
            "dtype": "float32",
            "shape": [1, CONTEXT, VOCABULARY],
        },
    ]
    if generates:
        states += [
            {"name": "token", "buffer": toy.token, "dtype": "int64", "shape": [1, 1]},
            {"name": "history", "buffer": toy.history, "dtype": "int64", "shape": [CONTEXT]},
        ]
    return replace(
        built,
        methods=tuple(replace(method, arena_bytes=arena) for method in methods),
        metadata={
            "states": states,
            "language_model": {**language_model, **(facts or {})},
            **metadata,
        },
    )


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights."""
    rng = np.random.default_rng(seed)
    return {"table": rng.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32) * 3}


def logits(table: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """The logits after a text."""
    decay = 0.5 ** np.arange(len(tokens) - 1, -1, -1)
    return decay @ table[list(tokens)].astype(np.float64)
