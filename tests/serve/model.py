"""A tiny decoder with a tokenizer and a chat template, whose answers are known.

A Llama of which attention and products add nothing: the next token follows from the last one
alone. After a line feed it says SPOKEN and ends; digits are counted without end. A second set of
weights is random: what it says is any bytes, and depends on all that was said.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npusim.frontends.step_method import StepSizes
    from npusim.ir.module import Module

SPOKEN = "Hi 😀é世.ok"  # every byte once, so each one has a single successor
VOCABULARY, CONTEXT, CHUNK = 288, 384, 32
PAGE = 16  # tokens of one, where there are any
END = "<|im_end|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", END)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make(folder: Path, *, serve: Any = False, paged: StepSizes | None = None) -> None:
    """Writes model.npubin, the folders `spoken` and `random` with weights, tokenizer, template.

    Args:
        folder: where.
        serve: as `npusim.extract_llm` takes it.
        paged: sizes of paged.npubin and its graphs, paged.json, the same with a method for steps;
            None: there are none.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    import npusim

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=VOCABULARY, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
        bos_token_id=None, eos_token_id=258, tie_word_embeddings=False, initializer_range=0.4,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    sizes = serve or paged or False
    graphs = npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=CHUNK, serve=sizes)
    if paged is not None:
        graphs.save(folder / "paged.json")
        npusim.compile(graphs).save(folder / "paged.npubin")
        graphs = without_steps(graphs)
    npusim.compile(graphs).save(folder / "model.npubin")
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    for name, values in (("random", weights), ("spoken", _spoken(weights))):
        (folder / name).mkdir()
        save_file(values, folder / name / "model.safetensors")
        save_tokenizer(folder / name)


def without_steps(module: Module) -> Module:
    """Returns the module as it is extracted without `serve`."""
    facts: Any = module.facts["language_model"]
    facts = {name: value for name, value in facts.items() if name != "serve"}
    methods = {name: graph for name, graph in module.methods.items() if name != "step"}
    return replace(module, methods=methods, facts={**module.facts, "language_model": facts})


def save_tokenizer(folder: Path, template: str = TEMPLATE) -> None:
    """Writes a tokenizer of single bytes, and the chat template."""
    import tokenizers

    from npusim.language_model.tokenizer import _BYTES

    vocabulary = dict(_BYTES)
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def _spoken(weights: dict) -> dict:
    """Returns weights with which each token is followed by its successor."""
    import torch

    values = {name: torch.zeros_like(value) for name, value in weights.items()}
    for name, value in values.items():
        if "norm" in name:
            value.fill_(1)
    values["model.embed_tokens.weight"] = torch.eye(VOCABULARY)
    for token, following in successors().items():
        values["lm_head.weight"][following, token] = 2
    return values


def successors() -> dict[int, int]:
    """Returns which token follows which."""
    spoken = [ord("\n"), *SPOKEN.encode(), 256 + SPECIAL.index(END)]
    counted = [*b"0123456789", ord("0")]
    return dict(itertools.pairwise(spoken)) | dict(itertools.pairwise(counted))
