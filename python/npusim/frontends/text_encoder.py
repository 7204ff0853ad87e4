"""Models that make a vector of a text: an encoder of `transformers`, how its rows become one
vector, and whether that has length one, as the files of sentence-transformers say.

The program takes whole texts without padding: texts of a call have one length, so no mask is
needed, and what a text's vector is depends on the text alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from npusim.errors import ExportError, first_line
from npusim.frontends.checkpoints.folder import stored_in_folder
from npusim.frontends.decoder_calls import replaced_forward
from npusim.frontends.hollow_model import hollow_model, with_buffers_data
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Graph
from npusim.ir.module import Module, verify_module

MODULES = "modules.json"  # of sentence-transformers: what a model is made of

# How the rows [texts, length, size] of texts become vectors [texts, size]: sentence-transformers'
# pooling (sentence_transformers.models.Pooling), of texts without padding.
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda rows: rows[:, 0],
    "lasttoken": lambda rows: rows[:, -1],
    "max": lambda rows: rows.amax(1),
    "mean": lambda rows: rows.mean(1),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(1) / rows.shape[1] ** 0.5,
}
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
_SHORTEST = 1e-12  # of a vector that is divided by its length; torch.nn.functional.normalize


@dataclass(frozen=True)
class Embedding:
    """How a model's files say that a text becomes a vector.

    Attributes:
        pooling: a name of POOLINGS.
        normalize: whether vectors are made one long.
        max_tokens: of a text; None: as many as the model has positions.
        prompt: what is put before each text.
    """

    pooling: str
    normalize: bool
    max_tokens: int | None = None
    prompt: str = ""


def extract_encoder(
    model: str | Path,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    max_tokens: int | None = None,
    max_texts: int = 8,
    dtype: str | None = None,
) -> Module:
    """Extracts a model that makes vectors of texts, without its weights.

    Args:
        model: a folder of `transformers`, with `config.json`; where it has sentence-transformers'
            `modules.json`, that says how vectors are made.
        pooling: how the rows of a text's tokens become one vector: "mean", "cls", "lasttoken",
            "max" or "mean_sqrt_len_tokens"; needed where no file says it.
        normalize: whether vectors are made one long; by default as the files say, else yes.
        max_tokens: of a text; by default as the files say, else the model's positions.
        max_texts: texts of one length that a call takes.
        dtype: of the weights ("bfloat16"); by default the configuration's.

    Returns:
        A Module with the method `embed`: `tokens` int64[texts, length], without padding, become
        `vectors` float32[texts, size]. `facts["text_encoder"]` has max_tokens, max_texts,
        vocab_size, size, pooling, normalize and prompt, which goes before each text.

    Raises:
        ExportError: no such model, its files ask for what is not there, nothing says how vectors
            are made, or it cannot be traced.
    """
    said = _said_by(Path(model))
    pooling = pooling or (None if said is None else said.pooling)
    if pooling not in POOLINGS:
        raise ExportError(
            f"{model} does not say how the rows of a text become a vector."
            if pooling is None
            else f"pooling is {pooling!r}.",
            hint=f"Say pooling: {', '.join(POOLINGS)}.",
        )
    if normalize is None:
        normalize = True if said is None else said.normalize
    encoder = hollow_model(model, dtype, "AutoModel")
    config: Any = encoder.config
    rewritten = stored_in_folder(config, model)
    limits = _limits(config, said, max_tokens, max_texts)
    with with_buffers_data(encoder):
        graph = _traced(encoder, POOLINGS[pooling], normalize, *limits)
    graphs = {"embed": graph}
    if rewritten is not None:
        graphs = rewritten(graphs)
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise ExportError(f"{model} does not say how many tokens it knows (vocab_size).")
    facts = {
        "max_tokens": limits[0],
        "max_texts": limits[1],
        "vocab_size": vocabulary,
        "size": int(graph.types[graph.graph_outputs[0].value].shape[1]),
        "pooling": pooling,
        "normalize": normalize,
        "prompt": "" if said is None else said.prompt,
    }
    return verify_module(Module(type(encoder).__name__, graphs, {"text_encoder": facts}))


def says_pooling(folder: Path) -> bool:
    """Tells whether a folder has a model of sentence-transformers, which says how it pools."""
    return (folder / MODULES).is_file()


def _limits(
    config: Any, said: Embedding | None, max_tokens: int | None, max_texts: int
) -> tuple[int, int]:
    """Returns how long a text may be, and how many there may be at a time."""
    known = getattr(config, "max_position_embeddings", None)
    # RoBERTa and its kin count positions from behind that of padding.
    if isinstance(known, int) and config.model_type in _AFTER_PADDING:
        known -= int(config.pad_token_id) + 1
    asked = max_tokens or (None if said is None else said.max_tokens) or known
    if not isinstance(asked, int) or asked < 2 or max_texts < 2:
        raise ExportError(
            f"max_tokens is {asked} and max_texts {max_texts}; both must be 2 or more."
        )
    if isinstance(known, int) and 0 < known < asked:
        if max_tokens is None:
            return known, max_texts
        raise ExportError(
            f"max_tokens is {asked}, but the model knows {known} positions.",
            hint="Lower max_tokens.",
        )
    return asked, max_texts


_AFTER_PADDING = (
    *("camembert", "ibert", "longformer", "mpnet", "roberta", "roberta-prelayernorm"),
    *("xlm-roberta", "xlm-roberta-xl", "xmod"),
)


def _traced(
    encoder: Any,
    pool: Callable[[Tensor], Tensor],
    normalize: bool,
    max_tokens: int,
    max_texts: int,
) -> Graph:
    whole = encoder.forward
    encoder.config.use_cache = False

    def embed(tokens: Tensor) -> dict[str, Tensor]:
        rows = whole(input_ids=tokens).last_hidden_state
        vectors = pool(rows.float())
        if normalize:
            length = vectors.square().sum(1, keepdim=True).sqrt()
            vectors = vectors / length.clamp(min=_SHORTEST)
        return {"vectors": vectors}

    name = f"{type(encoder).__name__}.embed"
    tokens = torch.zeros(2, min(max_tokens, 7), dtype=torch.int64)
    shapes = ({0: Dim("texts", max=max_texts), 1: Dim("length", max=max_tokens)},)
    with replaced_forward(encoder, embed):
        return extract_ir(encoder, (tokens,), model_name=name, dynamic_shapes=shapes)


def _said_by(folder: Path) -> Embedding | None:
    """Returns what sentence-transformers' files say; None where there are none.

    Raises:
        ExportError: they are damaged, or ask for what is not there.
    """
    if not says_pooling(folder):
        return None
    modules = _read(folder / MODULES, list)
    pooling, normalize = None, False
    for place, module in enumerate(modules):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        path = str(module.get("path", "")) if kind else ""
        if kind == "Transformer" and place == 0 and path in ("", "0_Transformer"):
            if path and not (folder / "config.json").is_file():
                raise ExportError(
                    f"{folder} keeps its encoder in {path}.",
                    hint="Copy the files of that folder beside modules.json.",
                )
        elif kind == "Pooling" and pooling is None and not normalize:
            pooling = _pooling(_read(folder / path / "config.json", dict))
        elif kind == "Normalize" and pooling is not None:
            normalize = True
        else:
            raise ExportError(
                f"{folder / MODULES} has a module {kind or module!r} in place {place}, which is "
                "not read.",
                hint="Read are Transformer, Pooling and Normalize, in this order.",
            )
    if pooling is None:
        raise ExportError(f"{folder / MODULES} has no Pooling.")
    sizes = _read(folder / "sentence_bert_config.json", dict, needed=False)
    if sizes.get("do_lower_case"):
        raise ExportError(f"{folder} makes texts lower case by itself, which is not read.")
    longest = sizes.get("max_seq_length")
    return Embedding(
        pooling,
        normalize,
        longest if isinstance(longest, int) and longest > 0 else None,
        _prompt(_read(folder / "config_sentence_transformers.json", dict, needed=False)),
    )


def _pooling(config: Mapping[str, Any]) -> str:
    named = config.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    chosen += [
        _SWITCHES.get(key, key)
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise ExportError(
            f"The model pools by {', '.join(map(str, chosen)) or 'nothing'}, which is not read.",
            hint=f"Read is one of {', '.join(POOLINGS)}.",
        )
    if config.get("include_prompt") is False:
        raise ExportError("The model leaves its prompt out when it pools; that is not read.")
    return str(chosen[0])


def _prompt(config: Mapping[str, Any]) -> str:
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    if name is None:
        return ""
    found = prompts.get(name) if isinstance(prompts, dict) else None
    if not isinstance(found, str):
        raise ExportError(f"The model's default prompt {name!r} is none of its prompts.")
    return found


def _read(path: Path, kind: type, *, needed: bool = True) -> Any:
    if not needed and not path.is_file():
        return kind()
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path} cannot be read: {first_line(error)}.") from error
    if not isinstance(value, kind):
        raise ExportError(f"{path} must hold JSON's {'a list' if kind is list else 'an object'}.")
    return value
