"""What a decoder of transformers keeps from call to call, as states of a traced model.

Owns the way from the caches of transformers to buffers and back. One trace without data shows what
a decoder leaves after a token; each tensor of it is one of two kinds:

* rows: keys, values and their likes, a row a token along one axis. The buffer has room for the
  whole context, and a call writes rows from the position on. What lies after is undefined: no
  token reads it before a later call has overwritten it.
* recurrent: of one size, changed by every token (the last inputs of a convolution, the state of a
  scan). Padding must not reach it. What it is before the first token is part of the program: a
  call at position 0 does not read the buffer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npusim.errors import ExportError

_NEWER = "Use transformers 5.23, or one that is close to it."
_ROWS = {"keys": ("key", 2), "values": ("value", 2), "indexer_keys": ("indexer_key", 1)}
_RECURRENT = {"conv_states": "convolution", "recurrent_states": "recurrence"}


@dataclass(frozen=True)
class Kept:
    """A tensor that survives a call.

    Attributes:
        name: of the state, `<layer>.<what>`.
        shape: after one token.
        dtype: of its elements.
        axis: along which there is a row a token; None: it is recurrent.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: int | None = None


class States(nn.Module):
    """The buffers of a decoder for as long as it is traced, one a tensor that it keeps.

    Args:
        kept: the tensors.
        rows: tokens that fit.
    """

    def __init__(self, kept: list[Kept], rows: int) -> None:
        super().__init__()
        for one in kept:
            layer, _, name = one.name.rpartition(".")
            if layer not in self._modules:
                self.add_module(layer, nn.Module())
            shape = [rows if i == one.axis else size for i, size in enumerate(one.shape)]
            empty = torch.empty(shape, dtype=one.dtype, device="meta")
            self.get_submodule(layer).register_buffer(name, empty, persistent=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name)


# ---- caches of transformers ----


class LibraryCache:
    """A cache of transformers, whose layers are of the kinds that the library has.

    Args:
        cache: what a decoder has left in a dynamic cache after one token.

    Raises:
        ExportError: a layer keeps what none of those kinds does.
    """

    def __init__(self, cache: Any) -> None:
        self.layers = list(cache.layers)
        self.kept = [one for i, layer in enumerate(self.layers) for one in _kept(i, layer)]

    def on(self, states: States, position: Tensor) -> Any:
        """Returns a cache that shows the states, and `position` tokens as seen."""
        from transformers.cache_utils import Cache

        layers = [_static(i, layer, states, position) for i, layer in enumerate(self.layers)]
        return Cache(layers=layers)

    def store(self, cache: Any, states: States) -> None:
        """Writes what a call has left in a cache made by `on` into the states."""
        for i, layer in enumerate(cache.layers):
            for name, tensor in _recurrent(i, layer):
                states[name].copy_(tensor)


class _Absent:
    """Stands for a class of layers that this release of transformers does not have."""


def _layers(name: str) -> type[Any]:
    """Returns a class of `transformers.cache_utils`; releases differ in which there are."""
    from transformers import cache_utils

    found: type[Any] = getattr(cache_utils, name, _Absent)
    return found


def _kept(index: int, layer: Any) -> Iterator[Kept]:
    known = tuple(map(_layers, ("DynamicLayer", "LinearAttentionCacheLayerMixin", "DummyLayer")))
    if not isinstance(layer, known) or not type(layer).__module__.endswith("cache_utils"):
        raise ExportError(
            f"layer {index} keeps its state in a {type(layer).__name__}, not in one of the layers "
            "of transformers.cache_utils."
        )
    for attribute, (name, axis) in _ROWS.items():
        tensor = getattr(layer, attribute, None)
        if tensor is not None:
            yield Kept(f"{index}.{name}", tuple(tensor.shape), tensor.dtype, axis)
    for name, tensor in _recurrent(index, layer):
        yield Kept(name, tuple(tensor.shape), tensor.dtype)


def _recurrent(index: int, layer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the recurrent tensors of a layer with the names of their states."""
    for attribute, name in _RECURRENT.items():
        tensors = getattr(layer, attribute, {})
        if not isinstance(tensors, dict):
            raise ExportError("its transformers has caches of another form.", hint=_NEWER)
        for number, tensor in tensors.items():
            if tensor is not None:
                yield f"{index}.{name}{number or ''}", tensor


def _static(index: int, layer: Any, states: States, position: Tensor) -> Any:
    """Returns a layer of a static cache that shows, and updates, its states."""
    attends = isinstance(layer, _layers("DynamicLayer")) and layer.is_initialized
    recurs = isinstance(layer, _layers("LinearAttentionCacheLayerMixin"))
    if isinstance(layer, _layers("DynamicIndexedLayer")):
        kind = _layers("StaticIndexedLayer")
    elif recurs:
        hybrid = "LinearAttentionAndStaticFullAttentionLayer"
        kind = _layers(hybrid if attends else "LinearAttentionLayer")
    else:
        kind = _layers("StaticLayer" if attends else "DummyLayer")
    if kind is _Absent:
        raise ExportError(
            f"its transformers has no static form of a {type(layer).__name__}.", hint=_NEWER
        )
    rows = states[f"{index}.key"].shape[2] if attends else 0
    counted = hasattr(layer, "number_of_states")
    made: Any = kind(
        max_cache_len=rows, **({"number_of_states": layer.number_of_states} if counted else {})
    )
    if attends:
        _show_rows(made, index, states, position)
    if recurs:
        _show_recurrent(made, index, layer, states, position)
    return made


def _show_rows(made: Any, index: int, states: States, position: Tensor) -> None:
    keys, values = states[f"{index}.key"], states[f"{index}.value"]
    made.keys, made.values = keys, values
    made.dtype, made.device = keys.dtype, keys.device
    made.batch_size, made.num_heads = keys.shape[:2]
    made.k_head_dim, made.v_head_dim = keys.shape[-1], values.shape[-1]
    made.cumulative_length = position[0].clone()
    made.is_initialized = True
    if hasattr(made, "indexer_keys"):
        made.indexer_keys = states[f"{index}.indexer_key"]
        made.indexer_dtype, made.indexer_device = made.indexer_keys.dtype, keys.device
        made.indexer_cumulative_length = position[0].clone()
        made.is_indexer_initialized = True


def _show_recurrent(made: Any, index: int, layer: Any, states: States, position: Tensor) -> None:
    for attribute, name in _RECURRENT.items():
        for number, seen in getattr(layer, attribute).items():
            if seen is None:
                continue
            state = states[f"{index}.{name}{number or ''}"]
            shown = torch.where(position == 0, torch.zeros_like(state), state)
            getattr(made, attribute)[number] = shown
            getattr(made, f"is_{attribute}_initialized")[number] = True
            made.dtype, made.device = state.dtype, state.device
    for number in range(layer.number_of_states):
        made.has_previous_state[number] = True
        made.conv_kernel_size[number] = layer.conv_kernel_size[number]


# ---- states that a model has in a form of its own ----


class OwnCache:
    """A cache that a decoder makes itself: any nesting of containers and objects with tensors.

    All its tensors are recurrent. What it is before the first token, only the decoder knows; so a
    call runs without a cache as well, and counts where the position is 0.

    Args:
        first, second: what the decoder has left after one token, and after a second one.

    Raises:
        ExportError: it changes by more than the values of its tensors.
    """

    def __init__(self, first: Any, second: Any) -> None:
        if _signature(first) != _signature(second):
            raise ExportError("its cache changes its form from token to token.")
        self.first = first
        self.kept = [
            Kept(f"0.tensor{i}", tuple(tensor.shape), tensor.dtype)
            for i, tensor in enumerate(leaves(first))
        ]
        if not self.kept:
            raise ExportError("its cache has no tensors.")

    def on(self, states: States) -> Any:
        """Returns a cache like the first one that holds the states."""
        return copied(self.first, [states[one.name].clone() for one in self.kept])

    def store(self, fresh: Any, continued: Any, states: States, starts: Tensor) -> None:
        """Writes what two calls have left, without a cache and with one, into the states."""
        new = [one for one, _ in self._pairs(fresh)]
        for begun, (tensor, one) in zip(new, self._pairs(continued), strict=True):
            states[one.name].copy_(torch.where(starts, begun, tensor))

    def _pairs(self, cache: Any) -> Iterator[tuple[Tensor, Kept]]:
        return zip(leaves(cache), self.kept, strict=True)


def copied(cache: Any, tensors: Sequence[Tensor]) -> Any:
    """Returns a copy of a cache with other tensors in the place of its own."""
    pairs = zip(leaves(cache), tensors, strict=True)
    return copy.deepcopy(cache, {id(old): new for old, new in pairs})


def leaves(cache: Any) -> list[Tensor]:
    """Returns the tensors in a cache, in order."""
    found: list[Tensor] = []
    _walk(cache, lambda value: found.append(value) if isinstance(value, Tensor) else None)
    return found


def _signature(cache: Any) -> list[Any]:
    """Returns all that is in a cache but the values of its tensors."""
    found: list[Any] = []

    def add(value: Any) -> None:
        plain = isinstance(value, (bool, int, float, str, type(None)))
        tensor = isinstance(value, Tensor)
        found.append((*value.shape, value.dtype) if tensor else value if plain else type(value))

    _walk(cache, add)
    return found


def _walk(value: Any, visit: Callable[[Any], None]) -> None:
    """Visits everything inside nested containers and plain objects, in order."""
    visit(value)
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, (list, tuple)):
        inside = list(value)
    elif isinstance(value, (Tensor, nn.Module)) or not _is_container(value):
        inside = []
    else:
        inside = list(vars(value).values())
    for item in inside:
        _walk(item, visit)


def _is_container(value: Any) -> bool:
    """Tells whether an object is one of a model's own that may hold tensors."""
    settings = hasattr(value, "to_dict")  # a configuration
    return hasattr(value, "__dict__") and not isinstance(value, type) and not settings
