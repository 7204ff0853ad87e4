"""The types that `ops/inference` gives are PyTorch's, and what it takes, PyTorch takes.

Each conformance case of each operator is held to PyTorch in every dtype of devices, as it is and
with its operands and attributes changed at random.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from npusim.errors import Error
from npusim.ir.opdef import REGISTRY, find
from npusim.ir.types import DTYPES
from npusim.ops import schema
from npusim.ops.check_types import inferred
from npusim.ops.inference import RULES
from npusim.ops.inference.signature import _schemas
from npusim.ops.reference import execute, type_of
from npusim.selftest.single_op import attributes, tensors_for

CASES = [
    (name, case)
    for name in RULES
    for case in find(name).cases  # type: ignore[union-attr]
    if not name.startswith("transformers.")
]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(CASES)]
MUTATIONS = 10, 30  # of every case: in every run, and by `make long`

# What PyTorch's kernels refuse, and npusim's take: types say nothing against it.
STRICTER = (
    "Expected a value of type 'List[int]'",  # one number for several
    "optional 0 dim batch size",
    "to have positive length",  # nothing in, nothing out
    "Non-empty",
    "smaller than kernel size",
    "internal error",
    "mat2 must be a matrix",  # a weight that is a vector, in 16-bit floats alone
    "Currently do not support dropout",
    "output with shape [] doesn't match the broadcast shape",
    "ZeroDivisionError",
    "IndexError",  # of what the indices hold
    "out of bounds",
    "out of range",
    "indexing axis dim should be positive",
    "non-zero size for non-batch dimensions",
    "source tensor shape must match self tensor shape",  # a scalar for one element
    "with half to float conversion",  # a softmax of 16-bit floats in float32
)


def test_schemas_are_those_of_the_installed_pytorch() -> None:
    lines = {name: line for name, line in _schemas().items() if name.startswith("aten::")}
    assert len(lines) > 200
    for name, line in lines.items():
        assert line == str(schema.resolve(name.replace("::", "."))._schema)


def test_every_registered_operator_has_a_rule() -> None:
    without = [name for name, op in REGISTRY.items() if name not in RULES and op.infer is None]
    assert [name for name in without if name.startswith(("aten.", "npu."))] == []


@pytest.mark.parametrize("name, case", CASES, ids=IDS)
def test_cases_have_the_types_of_pytorch(name: str, case: Any) -> None:
    for dtype in (*find(name).dtypes, *DTYPES):  # type: ignore[union-attr]
        tensors = tensors_for(case, dtype, name)
        attrs = attributes(name, case, dtype)
        truth = _torch(name, tensors, attrs)
        ours = _ours(name, tensors, attrs)
        if dtype in find(name).dtypes:  # type: ignore[union-attr]
            assert not isinstance(truth, str), truth
            assert not isinstance(ours, str), ours
        if not isinstance(ours, str) and truth is not None:
            assert ours == truth, (dtype, tensors, attrs)


@pytest.mark.parametrize("name, case", CASES, ids=IDS)
@pytest.mark.parametrize(
    "mutations", [MUTATIONS[0], pytest.param(MUTATIONS[1], marks=pytest.mark.long)]
)
def test_what_is_taken_is_what_pytorch_takes(name: str, case: Any, mutations: int) -> None:
    chance = random.Random(zlib.crc32(f"{name}{case}".encode()))
    for _ in range(mutations):
        dtype = chance.choice(find(name).dtypes)  # type: ignore[union-attr]
        tensors, attrs = _changed(
            chance, tensors_for(case, dtype, name), attributes(name, case, dtype)
        )
        ours = _ours(name, tensors, attrs)
        if not isinstance(ours, str) and sum(t.numel for t in ours) < 1 << 22:
            truth = _torch(name, tensors, attrs)
            if isinstance(truth, str) and any(text in truth for text in STRICTER):
                continue
            assert truth is None or ours == truth, (_shapes(tensors), attrs)


def _ours(name: str, tensors: Sequence[Any], attrs: dict[str, Any]) -> Any:
    try:
        return inferred(name, [None if t is None else type_of(t) for t in tensors], attrs)
    except Error as error:
        return str(error)


def _torch(name: str, tensors: Sequence[Any], attrs: dict[str, Any]) -> Any:
    try:
        results = execute(name, tensors, attrs, torch.device("cpu"))
        return tuple(map(type_of, results))
    except NotImplementedError:  # no kernel of the CPU for the dtype, which says nothing of types
        return None
    except Exception as error:  # whatever PyTorch has to say
        return f"{type(error).__name__}: {error}"


def _shapes(tensors: Sequence[Any]) -> list[str]:
    return [str(None if t is None else type_of(t)) for t in tensors]


def _changed(
    chance: random.Random, tensors: Sequence[Any], attrs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    tensors, attrs = list(tensors), dict(attrs)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if attrs and (not tensors or chance.random() < 0.5):
            key = chance.choice(sorted(attrs))
            attrs[key] = _changed_attribute(chance, attrs[key])
        elif tensors:
            place = chance.randrange(len(tensors))
            tensors[place] = _changed_tensor(chance, tensors[place])
    return tensors, attrs


def _changed_attribute(chance: random.Random, value: Any) -> Any:
    if isinstance(value, tuple) and value and chance.random() < 0.7:
        items = list(value)
        place = chance.randrange(len(items))
        items[place] = _changed_attribute(chance, items[place])
        if chance.random() < 0.2:
            items.pop()
        return tuple(items)
    if type(value) is int and chance.random() < 0.7:
        return value + chance.choice((-3, -2, -1, 1, 2, 3))
    if isinstance(value, bool):
        return not value
    return chance.choice((None, True, 0, 1, -1, 2, 7, 0.5, 2.0, "int64", "x", (), (1,), (1, 2)))


def _changed_tensor(chance: random.Random, value: Any) -> Any:
    how = chance.randrange(5)
    if value is None or how == 0:
        shape = tuple(chance.randrange(4) for _ in range(chance.randrange(4)))
        return torch.ones(shape, dtype=value.dtype if value is not None else torch.float32)
    if how == 1:
        return value.to(getattr(torch, chance.choice(sorted(DTYPES))))
    if how == 2 and value.dim():
        d = chance.randrange(value.dim())
        return value.narrow(d, 0, chance.randrange(value.shape[d] + 1)).contiguous()
    if how == 3 and value.dim():
        return value.select(chance.randrange(value.dim()), 0) if value.numel() else value
    return value.unsqueeze(0)
