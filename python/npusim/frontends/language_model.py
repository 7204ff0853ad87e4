"""A Hugging Face decoder to a Module of methods over one KV cache: prefill, decode, generate.

Owns what turns a causal language model of `transformers` into a program that keeps its cache: the
tensors of the cache (decoder_state.py) and the position become buffers of the model for as long as
it is traced, forward updates them, and the extraction makes states of what forward updates. The
model's own modules are traced unmodified, by torch.export, without their weights.

* `prefill(tokens int64[1, chunk], length int64[1]) -> logits[1, 1, vocab]`: appends a chunk of
  which the first `length` tokens count; the logits are those of the last token that counts. Not
  for decoders with recurrent states, which no padding may reach, and no chunk of one token.
* `prefill_<chunk>`: the same for each larger chunk that is asked for.
* `decode(tokens int64[1, 1]) -> logits[1, 1, vocab]`: appends one token.
* `generate(sampling float64[5], seed int64[1]) -> chosen int64[1]`: appends the token that it chose
  last, and chooses the next one (generate_method.py).
* `step`, where asked for: rows of many requests over one cache in pages (step_method.py).

Rows of the cache from `position` on are undefined: a padded chunk leaves garbage there, which no
query sees before a later token has overwritten it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from npusim.errors import Error, ExportError, first_line
from npusim.frontends.checkpoints.expansion import Rewritten
from npusim.frontends.checkpoints.folder import stored_in_folder
from npusim.frontends.checkpoints.gguf import stored_in_gguf
from npusim.frontends.decoder_calls import Way, replaced_forward, ways
from npusim.frontends.decoder_state import States
from npusim.frontends.generate_method import generate_method
from npusim.frontends.hollow_model import hollow_model, is_gguf, with_buffers_data
from npusim.frontends.rotary_lengths import frequencies_within
from npusim.frontends.step_method import StepSizes, step_method
from npusim.frontends.torch_export import Progress, extract_ir
from npusim.ir.graph import Graph
from npusim.ir.module import Module, verify_module

logger = logging.getLogger(__name__)


def extract_llm(
    model: nn.Module | str | Path,
    *,
    max_context: int = 4096,
    prefill_chunk: int | Sequence[int] = 128,
    dtype: str | None = None,
    serve: bool | StepSizes = False,
    progress: Progress | None = None,
) -> Module:
    """Extracts a causal language model of `transformers`, without its weights.

    Args:
        model: a model in evaluation mode (on any device, the meta device included), or what
            `AutoConfig.from_pretrained` takes: a folder with `config.json`, or a hub's name; or a
            `.gguf` file. From these the model is built without ever allocating its weights. Where
            its checkpoint holds quantized weights (docs/language-models.md lists the kinds), the
            graphs read those tensors.
        max_context: tokens a session can hold; the size of the cache.
        prefill_chunk: tokens that one call of `prefill` appends. Of several, the smallest; each
            larger one has a method of its own, `prefill_<chunk>`, which long prompts run through.
        dtype: the weights' dtype ("bfloat16"); by default the configuration's. Only for a model
            given by its configuration.
        serve: whether there is a method `step` as well, which takes rows of many requests at a
            time (docs/serving.md); or its sizes.
        progress: called as (method, done, total) before each method is traced.

    Returns:
        A Module with the methods `prefill`, `decode` and `generate`, and under
        `facts["language_model"]` what a runtime needs: max_context, prefill_chunk (and
        larger_chunks, if any), vocab_size, eos_token_ids, the names of the states of the position,
        the token and the history, and the caches' states with the axis along which they grow; and
        under `serve` the sizes of `step` and the states of its pools.

    Raises:
        ExportError: not such a model, it cannot be traced, or a limit makes no sense for it; or
            `serve`, and what it keeps does not lie in pages (recurrent states, a text).
    """
    decoder = hollow_model(model, dtype) if isinstance(model, (str, Path)) else model
    config = _text_config(decoder)
    given = [prefill_chunk] if isinstance(prefill_chunk, int) else prefill_chunk
    max_context, chunks = _limits(config, max_context, given)
    if is_gguf(model):
        rewritten: Rewritten | None = stored_in_gguf(config, Path(str(model)))
    else:
        rewritten = stored_in_folder(decoder.config, model)
    sizes = _step_sizes(serve, max_context)
    with with_buffers_data(decoder), frequencies_within(decoder, max_context):
        way, graphs = _methods(decoder, max_context, chunks, progress or (lambda *_: None))
        if sizes is not None:
            graphs["step"] = _traced_step(decoder, way, max_context, sizes)
    if rewritten is not None:
        graphs = rewritten(graphs)
    name = type(decoder).__name__
    graphs["generate"] = generate_method(
        graphs["decode"], f"{name}.generate", max_context, "position"
    )
    facts = _facts(decoder, config, max_context, [1] if way.recurrent else chunks, way, graphs)
    if sizes is not None:
        graphs["step"] = step_method(graphs["step"], sizes, max_context, "position")
        facts["serve"] = {
            "page_tokens": sizes.page_tokens,
            "max_step_tokens": sizes.max_step_tokens,
            "max_requests": sizes.max_requests,
            "pools": [state.name for state in graphs["step"].states],
        }
    return verify_module(Module(name, graphs, {"language_model": facts}))


def _text_config(model: object) -> Any:
    config = getattr(model, "config", None)
    if not isinstance(model, nn.Module) or config is None or not hasattr(model, "generate"):
        raise ExportError(
            f"extract_llm takes a causal language model of transformers, not "
            f"{type(model).__name__}.",
            hint="Pass an AutoModelForCausalLM, or the folder of its config.json.",
        )
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if getattr(text, "use_bidirectional_attention", None) in (True, "all"):
        raise ExportError(
            f"{type(model).__name__} attends to tokens that come later (its configuration says "
            "use_bidirectional_attention), so there is no cache from which it could go on.",
            hint="Extract it with extract_ir, as a model of whole texts.",
        )
    return text


def _limits(config: Any, max_context: int, chunks: Sequence[int]) -> tuple[int, list[int]]:
    """Returns the context and the distinct chunks, ascending, none of them longer."""
    known = getattr(config, "max_position_embeddings", None)  # -1: as many as one likes
    if max_context < 1 or not chunks or min(chunks) < 1:
        shown = ", ".join(map(str, chunks)) or "none"
        raise ExportError(
            f"max_context is {max_context} and prefill_chunk {shown}; all are 1 or more."
        )
    if isinstance(known, int) and 0 <= known < max_context:
        raise ExportError(
            f"max_context is {max_context}, but the model knows {known} positions.",
            hint="Lower max_context.",
        )
    return max_context, sorted({min(chunk, max_context) for chunk in chunks})


# ---- the methods ----


def _methods(
    model: nn.Module, rows: int, chunks: Sequence[int], progress: Progress
) -> tuple[Way, dict[str, Graph]]:
    """Returns the first way that can be traced, and the graphs.

    Raises:
        ExportError: none can be traced; says what is in the way of the first.
    """
    problems: list[ExportError] = []
    for make in ways(model, rows):
        try:
            way = make()
            found = _traced(model, way, rows, [1] if way.recurrent else chunks, progress)
            logger.info("%s: traced by %s", type(model).__name__, type(way).__name__)
            return way, found
        except ExportError as error:
            logger.info("%s: a way to trace it failed: %s", type(model).__name__, first_line(error))
            problems.append(error)
    raise ExportError(
        f"{type(model).__name__} cannot become a program: {problems[0]}"
    ) from problems[0]


def _traced(
    model: nn.Module,
    way: Way,
    rows: int,
    chunks: Sequence[int],
    progress: Progress,
) -> dict[str, Graph]:
    graphs, prefills = {}, _prefills(chunks)
    with _stateful(model, way, rows):
        for done, (method, chunk) in enumerate(prefills.items()):
            progress(method, done, len(prefills) + 1)
            graphs[method] = _extracted(model, way, method, chunk)
        progress("decode", len(prefills), len(prefills) + 1)
        graphs["decode"] = _extracted(model, way, "decode", None)
    return graphs


def _prefills(chunks: Sequence[int]) -> dict[str, int]:
    """Returns the methods that append chunks, and their sizes."""
    return {f"prefill_{c}" if i else "prefill": c for i, c in enumerate(chunks) if c > 1}


def _extracted(model: Any, way: Way, method: str, chunk: int | None) -> Graph:
    """Returns the graph of a method; `chunk` is None for the one that takes a single token."""

    def prefill(tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        logits = way.run(model, model.cache, tokens, model.position, length - 1)
        model.position.add_(length)
        return {"logits": logits}

    def decode(tokens: Tensor) -> dict[str, Tensor]:
        logits = way.run(model, model.cache, tokens, model.position, None)
        model.position.add_(1)
        return {"logits": logits}

    name = f"{type(model).__name__}.{method}"
    if chunk is None:
        with replaced_forward(model, decode):
            return _checked(extract_ir(model, (_tokens(1),), model_name=name))
    with replaced_forward(model, prefill):
        return extract_ir(
            model, (_tokens(chunk), torch.ones(1, dtype=torch.int64)), model_name=name
        )


def _step_sizes(serve: bool | StepSizes, context: int) -> StepSizes | None:
    if serve is False:
        return None
    return (StepSizes() if serve is True else serve).within(context)


def _traced_step(model: Any, way: Way, rows: int, sizes: StepSizes) -> Graph:
    """Returns what `step` is made of: any number of tokens of one request, any of their logits."""
    name = f"{type(model).__name__}.step"
    if way.recurrent or any(one.axis is None for one in way.kept):
        raise ExportError(
            f"{name}: the decoder keeps recurrent states, which do not lie in pages.",
            hint="Leave serve out; requests are served by sessions then.",
        )

    def step(tokens: Tensor, rows: Tensor) -> dict[str, Tensor]:
        wanted = rows.clamp(min=0)
        logits = way.run(model, model.cache, tokens, model.position, wanted)
        model.position.add_(tokens.shape[1])
        scores = logits[0]
        best = scores.argmax(-1)
        highest = scores.gather(1, best[:, None])[:, 0]
        return {"logits": scores, "best": best, "highest": highest}

    tokens, requests = (
        Dim("tokens", max=sizes.max_step_tokens),
        Dim("requests", max=sizes.max_requests),
    )
    args = (_tokens(2), torch.zeros(2, dtype=torch.int64))
    shapes = ({1: tokens}, {0: requests})
    with _stateful(model, way, rows), replaced_forward(model, step):
        try:
            return extract_ir(model, args, model_name=name, dynamic_shapes=shapes)
        except Error as error:
            why = str(error).removesuffix(error.hint).strip().removeprefix(f"{name} ")
            raise ExportError(
                f"{name}: the decoder is not traced for any number of tokens, so it has no method "
                f"that serves many requests: it {why}",
                hint="Leave serve out; requests are served by sessions then.",
            ) from error


def _checked(decode: Graph) -> Graph:
    """Returns a graph whose logits are those of one token."""
    logits = next(output.value for output in decode.outputs if output.name == "logits")
    shape = decode.types[logits].shape
    if len(shape) != 3 or shape[:2] != (1, 1):
        raise ExportError(f"{decode.name} gives logits {list(shape)} for one token.")
    return decode


def _tokens(count: int) -> Tensor:
    return torch.zeros((1, count), dtype=torch.int64)


@contextmanager
def _stateful(model: nn.Module, way: Way, rows: int) -> Iterator[None]:
    """Gives a model the buffers `cache` and `position` for a while."""
    taken = [name for name in ("cache", "position", "token", "history") if hasattr(model, name)]
    if taken:
        raise ExportError(f"{type(model).__name__} has an attribute {taken[0]!r} of its own.")
    model.cache = States(way.kept, rows).eval()
    model.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)
    try:
        yield
    finally:
        del model.cache, model.position


# ---- what a runtime needs to know ----


def _facts(
    model: nn.Module,
    config: Any,
    max_context: int,
    chunks: Sequence[int],
    way: Way,
    graphs: dict[str, Graph],
) -> dict[str, Any]:
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = getattr(config, "eos_token_id", None) if eos is None else eos
    live = {state.name for graph in graphs.values() for state in graph.states}
    kept = [(f"cache.{one.name}", one.axis) for one in way.kept if f"cache.{one.name}" in live]
    recurrent = [name for name, axis in kept if axis is None]
    return {
        "max_context": max_context,
        "prefill_chunk": chunks[0],
        **({"larger_chunks": list(chunks[1:])} if chunks[1:] else {}),
        "vocab_size": _vocabulary(graphs["decode"]),
        "eos_token_ids": [] if eos is None else [eos] if isinstance(eos, int) else list(eos),
        "position": "position",
        "token": "token",
        "history": "history",
        "caches": [{"state": name, "axis": axis} for name, axis in kept if axis is not None],
        **({"recurrent": recurrent} if recurrent else {}),
    }


def _vocabulary(decode: Graph) -> int:
    """Returns how many tokens the logits are of."""
    logits = next(output.value for output in decode.outputs if output.name == "logits")
    return int(decode.types[logits].shape[-1])
