"""What `npusim verify --quant` measures: noise of layers, or perplexity of a language model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import npusim
from npusim.cli.answer import Answer
from npusim.cli.artifact import readable
from npusim.cli.context import known_positions
from npusim.cli.factory import Made
from npusim.cli.weights import Weights
from npusim.errors import Error

_MOST_SCORED = 512  # tokens of a text, unless the caller says otherwise

Report = Callable[..., None]


def layer_quality(made: Made, state: dict[str, Any], scheme: str, report: Report) -> Answer:
    """Measures every layer of a model that the scheme quantizes."""
    from npusim.verify import tensor_leaves
    from npusim.verify_quantization import verify_quantization

    report("extracting")
    graph = npusim.extract_ir(made.model, made.args, made.kwargs or None, model_name=made.name)
    report("quantizing")
    found = verify_quantization(graph, scheme, state, tensor_leaves(made.args, made.kwargs))
    return Answer({"quantization": found.to_json()}, found.lines(), ok=bool(found.layers))


def perplexities(
    folder: Path,
    scheme: str,
    text: Path,
    *,
    weights: Weights,
    tokenizer: Path | None,
    target: str,
    threads: int | None,
    max_context: int | None,
    report: Report,
) -> Answer:
    """Scores a text with a language model as it is and quantized.

    `max_context` tokens of it at most; by default 512, or as many as the model knows positions.
    """
    from npusim.language_model import LanguageModel

    context = max_context or known_positions(folder, _MOST_SCORED)
    report("extracting")
    graphs = npusim.extract_llm(folder, max_context=context, prefill_chunk=min(128, context))
    scores, tokens = [], 0
    for quantize in ("none", scheme):
        report(f"compiling ({quantize})")
        program = npusim.compile(graphs, target=target, quantize=quantize)
        report("loading")
        model = LanguageModel.load(
            program, weights or folder, tokenizer or folder, threads=threads or 0
        )
        ids = model.tokenizer.encode(readable(text).read_text("utf-8"))[:context]
        tokens = len(ids)
        if tokens < 2:
            raise Error(f"{text} has {tokens} tokens.", hint="Give a text of some sentences.")
        report("scoring")
        scores.append(model.score(ids).perplexity)
    before, after = scores
    change = 100 * (after / before - 1)
    data = {"scheme": scheme, "tokens": tokens, "before": before, "after": after}
    line = f"perplexity of {tokens} tokens: {before:.3f}, {scheme} {after:.3f} ({change:+.1f} %)"
    return Answer({"perplexity": data}, [line])
