"""How a decoder of transformers is called with a state: the ways to trace it, in order.

Owns the arguments of its forward. A way says what the decoder keeps, and runs tokens at a position
through it; the first one that can be traced is taken:

1. `Cached`: over a static cache of transformers, its tensors in states. Where the cache is all
   rows, several tokens a call; where it has recurrent tensors, one: how a library runs several
   tokens through a recurrence is its own affair (some start from zero, whatever the cache holds),
   one token a call is the recurrence by its definition.
2. `OwnState`: a decoder with a cache of its own making, all of it recurrent.
3. `Recomputed`: a decoder without a cache that could be traced. The state is the text, all of which
   runs for every token: right, and slow.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from npusim.errors import ExportError
from npusim.frontends.decoder_state import Kept, LibraryCache, OwnCache, States, copied, leaves
from npusim.frontends.torch_export import call_without_data, unused_inputs

_CACHES = ("past_key_values", "cache_params", "state")  # names of forward's arguments


class Way(Protocol):
    """How tokens run through a decoder.

    Attributes:
        kept: the tensors that survive a call.
        recurrent: whether padding must not reach them, so that a call takes one token.
    """

    kept: list[Kept]
    recurrent: bool

    def run(
        self,
        model: nn.Module,
        states: States,
        tokens: Tensor,
        position: Tensor,
        last: Tensor | None,
    ) -> Tensor:
        """Appends tokens [1, n] at a position; returns the logits [1, 1, vocab] of one of them.

        Args:
            position: int64 [1], tokens before these.
            last: int64 [1], which of the tokens; None: the last one.
        """
        ...


def ways(model: nn.Module, rows: int) -> Iterator[Callable[[], Way]]:
    """Yields the ways to trace a decoder, each to be tried; they raise ExportError."""
    call = _Call(model)
    if call.cache is not None:
        for masked in (False, True):
            yield partial(Cached, model, call, rows, masked)
        yield partial(OwnState, model, call)
    yield partial(Recomputed, model, call, rows)


class _Call:
    """The arguments that a decoder's forward takes.

    Attributes:
        cache: the name of its cache; None: it has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.forward = type(model).forward
        self.takes = set(inspect.signature(self.forward).parameters)
        self.cache = next((name for name in _CACHES if name in self.takes), None)

    def __call__(self, model: nn.Module, tokens: Tensor, **given: Any) -> Any:
        """Runs forward; of what is given, it gets what it takes."""
        known = {key: value for key, value in given.items() if key in self.takes}
        return self.forward(model, input_ids=tokens, **known)

    def logits(self, output: Any, last: Tensor | None) -> Tensor:
        """Returns the logits of one token, where forward was given `logits_to_keep`."""
        logits: Tensor = output.logits
        if "logits_to_keep" in self.takes:
            return logits
        return logits[:, -1:] if last is None else logits.index_select(1, last)

    def cache_of(self, output: Any) -> Any:
        """Returns the cache that forward has left, or None."""
        return getattr(output, self.cache or "", None)


class Cached:
    """Over a static cache of transformers.

    Args:
        model, call: the decoder.
        rows: tokens that the cache holds.
        masked: whether forward gets a mask as long as the cache, too: some decoders make positions
            or biases of its length. The rows that it says are there and are not, are after the
            position, where no token looks.
    """

    def __init__(self, model: nn.Module, call: _Call, rows: int, masked: bool) -> None:
        if masked and "attention_mask" not in call.takes:
            raise ExportError(f"{type(model).__name__} takes no mask.")
        self._call, self._rows, self._masked = call, rows, masked
        self._cache = LibraryCache(_observed(model, self._leave))
        self.kept = self._cache.kept
        self.recurrent = any(one.axis is None for one in self.kept)
        # Some take a row's place in the cache for its position, or trust that a cache forgets.
        fits = getattr(type(model), "_can_compile_fullgraph", False)
        if not fits and any(one.axis is not None for one in self.kept):
            raise ExportError(
                f"transformers does not say that {type(model).__name__} runs over a cache of fixed "
                "size (_can_compile_fullgraph)."
            )

    def _leave(self, model: nn.Module, tokens: Tensor) -> Any:
        from transformers import DynamicCache

        before = _attributes(model)
        config = model.config.get_text_config(decoder=True)  # type: ignore[union-attr, operator]
        cache = DynamicCache(config=config)
        self._call(model, tokens, use_cache=True, **{self._call.cache or "": cache})
        changed = [name for name, at in _attributes(model).items() if before.get(name) != at]
        if changed:
            raise ExportError(f"it keeps state in attributes of its modules ({changed[0]}).")
        return cache

    def run(
        self,
        model: nn.Module,
        states: States,
        tokens: Tensor,
        position: Tensor,
        last: Tensor | None,
    ) -> Tensor:
        """Appends tokens; see `Way.run`."""
        positions = torch.arange(tokens.shape[1]) + position
        given: dict[str, Any] = {"position_ids": positions.unsqueeze(0), "use_cache": True}
        given["logits_to_keep"] = 1 if last is None else last
        if self._masked:
            given["attention_mask"] = torch.ones((1, self._rows), dtype=torch.int64)
        cache = self._cache.on(states, position)
        output = self._call(model, tokens, **given, **{self._call.cache or "": cache})
        self._cache.store(cache, states)
        return self._call.logits(output, last)


class OwnState:
    """Over a cache that the decoder makes, of recurrent tensors."""

    recurrent = True

    def __init__(self, model: nn.Module, call: _Call) -> None:
        self._call = call
        self._cache = OwnCache(*_observed(model, self._leave))
        self.kept = self._cache.kept

    def _leave(self, model: nn.Module, tokens: Tensor) -> Any:
        first = self._call.cache_of(self._call(model, tokens, use_cache=True))
        kept = copied(first, [tensor.clone() for tensor in leaves(first)])
        second = self._call(model, tokens, use_cache=True, **{self._call.cache or "": first})
        return kept, self._call.cache_of(second)

    def run(
        self,
        model: nn.Module,
        states: States,
        tokens: Tensor,
        position: Tensor,
        last: Tensor | None,
    ) -> Tensor:
        """Appends tokens; see `Way.run`."""
        cache = {self._call.cache or "": self._cache.on(states)}
        given: dict[str, Any] = {"use_cache": True, "logits_to_keep": 1 if last is None else last}
        continued = self._call(model, tokens, **given, **cache)
        fresh = self._call(model, tokens, **given)
        starts = position == 0
        caches = self._call.cache_of(fresh), self._call.cache_of(continued)
        self._cache.store(*caches, states, starts)
        logits = (self._call.logits(output, last) for output in (fresh, continued))
        return torch.where(starts, *logits)


class Recomputed:
    """Without a cache: the whole text runs for every token.

    What lies after the text is hidden by forward's mask.

    Args:
        model, call: the decoder.
        rows: tokens that the text may have.

    Raises:
        ExportError: forward does not use a mask, generating takes more than the text, or less.
    """

    recurrent = False

    def __init__(self, model: nn.Module, call: _Call, rows: int) -> None:
        self._call, self._rows = call, rows
        self.kept = [Kept("text.tokens", (1, 1), torch.int64, 1)]
        _observed(model, self._check)
        mask = torch.ones((1, rows), dtype=torch.int64)
        with replaced_forward(model, partial(self._masked, model)):
            tokens = torch.zeros((1, rows), dtype=torch.int64)
            if 1 in unused_inputs(model, (tokens, mask)):
                raise ExportError(
                    "it has no cache that tokens can be appended to, and does not read the mask "
                    "that would hide what lies after a text."
                )

    def _check(self, model: Any, tokens: Tensor) -> None:
        from transformers import DynamicCache

        config = model.config.get_text_config(decoder=True)
        if self._call.cache is not None and self._forgets(DynamicCache(config=config)):
            raise ExportError(
                "its cache forgets what lies after a window, and nothing says that the whole text "
                "is seen through that window, too."
            )
        given = {"use_cache": False, "is_first_iteration": True}
        inputs = model.prepare_inputs_for_generation(tokens, **given)
        extended = inputs.get("input_ids") is None or inputs["input_ids"].shape != tokens.shape
        others = [key for key, value in inputs.items() if isinstance(value, Tensor)]
        if extended or set(others) - {"input_ids", "position_ids", "attention_mask"}:
            raise ExportError(
                "it has no cache that tokens can be appended to, and generates from more than the "
                "text (see its prepare_inputs_for_generation)."
            )

    def _forgets(self, cache: Any) -> bool:
        """Tells whether a cache drops rows before it has seen the whole text."""
        windows = (getattr(layer, "sliding_window", None) for layer in cache.layers)
        return any(
            slides and (window is None or window < self._rows)
            for slides, window in zip(cache.is_sliding, windows, strict=True)
        )

    def _masked(self, model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(self._rows).unsqueeze(0)
        given = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
        logits: Tensor = self._call(model, tokens, **given).logits
        return logits

    def run(
        self,
        model: nn.Module,
        states: States,
        tokens: Tensor,
        position: Tensor,
        last: Tensor | None,
    ) -> Tensor:
        """Appends tokens; see `Way.run`."""
        text = states["text.tokens"]
        text.index_copy_(1, torch.arange(tokens.shape[1]) + position, tokens)
        positions = torch.arange(self._rows).unsqueeze(0)
        where = position + (tokens.shape[1] - 1 if last is None else last)
        mask = (positions <= where).to(torch.int64)
        given: dict[str, Any] = {"attention_mask": mask, "position_ids": positions}
        given["use_cache"] = False
        given["logits_to_keep"] = where
        return self._call.logits(self._call(model, text, **given), where)


def _attributes(model: nn.Module) -> dict[str, int]:
    """Returns which tensors are plain attributes of a model's modules."""
    return {
        f"{path}.{name}": id(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    }


def _observed(model: nn.Module, leave: Callable[[nn.Module, Tensor], Any]) -> Any:
    """Returns what a call on one token leaves behind, its tensors without data."""
    seen: list[Any] = []

    def forward(tokens: Tensor) -> Tensor:
        seen.append(leave(model, tokens))
        return tokens + 0

    with replaced_forward(model, forward):
        call_without_data(model, (torch.zeros((1, 1), dtype=torch.int64),))
    return seen[-1]


@contextmanager
def replaced_forward(model: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Gives a model another forward for a while; its signature names the inputs."""
    model.forward = forward
    try:
        yield
    finally:
        del model.forward
