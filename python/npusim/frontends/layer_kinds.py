"""Which layers of a model are equal but for their weights and their place in a list.

Owns what is compared of a module and of plain values; equal_layers.py says what follows from it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_FEWEST = 3  # equal layers, from which on it is worth knowing

Key = Any  # what is compared: nested tuples


class Unproved(Exception):
    """A call cannot be shown to be traced as another one would be."""


@dataclass(frozen=True)
class Layer:
    """A layer of a list.

    Attributes:
        module: itself.
        key: equal for equal layers.
        places: by the paths of attributes that count layers, their values.
    """

    module: nn.Module
    key: Key
    places: Mapping[str, int]


def equal_layers(modules: list[nn.Module]) -> list[Layer]:
    """Returns those of a list that have enough equals in it."""
    if len(modules) < _FEWEST:
        return []
    numbers = [dict(_numbers(module)) for module in modules]
    places = {
        path for path in numbers[0] if all(found.get(path) == i for i, found in enumerate(numbers))
    }
    layers = []
    for module, found in zip(modules, numbers, strict=True):
        try:
            key = _described(module, places, "", {})
        except Unproved:
            continue
        layers.append(Layer(module, key, {path: found[path] for path in places}))
    keys = [layer.key for layer in layers]
    return [layer for layer in layers if keys.count(layer.key) >= _FEWEST]


def _numbers(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yields the attributes of a module and those in it that are integers, by path."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if type(value) is int:
                yield f"{prefix}.{name}", value


def _described(module: nn.Module, places: set[str], prefix: str, seen: dict[int, int]) -> Key:
    """Returns what a layer is but for its weights' values and its place.

    Raises:
        Unproved: it does what is not seen from its attributes, hooks for one.
    """
    if "forward" in vars(module) or id(module) in seen:
        raise Unproved
    seen[id(module)] = len(seen)
    found: list[Any] = [type(module)]
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers"):
            tensors = ((key, _stored(tensor, seen)) for key, tensor in value.items())
            found.append((name, tuple(tensors)))
        elif name == "_modules":
            for key, part in value.items():
                path = f"{prefix}.{key}" if prefix else key
                inside = None if part is None else _described(part, places, path, seen)
                found.append((key, inside))
        elif "hook" in name:
            if value:
                raise Unproved
        elif f"{prefix}.{name}" in places:
            found.append((name, "place"))
        else:
            found.append((name, plain(value)))
    return tuple(found)


def _stored(tensor: Tensor | None, seen: dict[int, int]) -> Key:
    if tensor is None:
        return None
    number = seen.setdefault(id(tensor), len(seen))
    kind = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad
    return type(tensor), kind, number


def plain(value: Any) -> Key:
    """Returns what is equal for values that forward cannot tell apart.

    Objects that are not taken apart are equal to themselves alone.
    """
    if isinstance(value, (Tensor, nn.Module)):
        raise Unproved
    if type(value) in (tuple, list):
        return type(value), tuple(map(plain, value))
    if type(value) in (dict, OrderedDict):
        return type(value), tuple((plain(k), plain(v)) for k, v in value.items())
    if type(value) in (set, frozenset):
        return type(value), frozenset(map(plain, value))
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return type(value), repr(value)
    if isinstance(value, (torch.dtype, torch.device)):
        return value
    if type(value) is functools.partial:
        return type(value), plain(value.func), plain(value.args), plain(value.keywords)
    return "object", id(value), Held(value)


class Held:
    """Keeps an object, so that its identity is no other one's; equal to all of its kind."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held)

    def __hash__(self) -> int:
        return 0
