"""Rotary frequencies that go by how long the text is, held to those within a context.

Owns what transformers changes in a rotary embedding while it runs ("longrope", "dynamic"): up to a
length, which the published models have their context within, the frequencies stay the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from npusim.errors import ExportError


@contextmanager
def frequencies_within(model: nn.Module, rows: int) -> Iterator[None]:
    """Has the rotary embeddings of a decoder use the frequencies of texts of up to `rows` tokens.

    Raises:
        ExportError: these are not the same for all such texts.
    """
    before: list[tuple[nn.Module, dict[str, Any]]] = []
    try:
        for module in model.modules():
            fixed = _fixed(module, rows)
            before.append((module, {name: getattr(module, name) for name in fixed}))
            for name, value in fixed.items():
                setattr(module, name, value)
        yield
    finally:
        for module, values in before:
            for name, value in values.items():
                setattr(module, name, value)


def _fixed(module: nn.Module, rows: int) -> dict[str, Any]:
    """Returns attributes with which a rotary embedding changes nothing, by name."""
    kinds = getattr(module, "rope_type", None)
    by_layer = kinds if isinstance(kinds, Mapping) else {None: kinds}
    fixed: dict[str, Any] = {}
    plain = dict(by_layer)
    for layer, kind in by_layer.items():
        prefix = "" if layer is None else f"{layer}_"
        original = getattr(module, f"{prefix}original_inv_freq", None)
        limit = _length(module, layer, kind)
        if original is None or limit is None:
            continue
        if rows > limit:
            raise ExportError(
                f"max_context is {rows}; in texts of more than {limit} tokens the model rotates "
                f"by other frequencies ({kind}), and transformers takes for each token those of "
                "the text's length when it came.",
                hint=f"Lower max_context to {limit}.",
            )
        plain[layer] = "default"
        fixed[f"{prefix}inv_freq"] = original.clone()
    if fixed:
        fixed["rope_type"] = plain if isinstance(kinds, Mapping) else "default"
    return fixed


def _length(module: nn.Module, layer: str | None, kind: object) -> int | None:
    """Returns how many tokens a text may have before frequencies change; None: they never do."""
    if kind == "longrope":
        parameters = module.config.rope_parameters  # type: ignore[union-attr]
        parameters = parameters if layer is None else parameters[layer]  # type: ignore[index]
        return int(parameters["original_max_position_embeddings"])  # type: ignore[index, arg-type]
    if isinstance(kind, str) and "dynamic" in kind:
        length = getattr(module, "original_max_seq_len", None)
        return None if length is None else int(length)
    return None
