"""A small Qwen2 and a small Llama with seeded weights, one linear, and what is compared of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import npusim
from npusim.ir.graph import Graph
from npusim.targets import TargetConfig

SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
PROMPT = [1, 2, 3, 319, 0]


def model(kind: str = "qwen2", **changed: Any) -> Any:
    """Returns a model in evaluation mode."""
    import transformers

    config = {"qwen2": transformers.Qwen2Config, "llama": transformers.LlamaConfig}[kind]
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(config(**{**SIZES, **changed}))
    for parameter in made.parameters():  # norms and biases, too, which begin as ones and zeros
        parameter.data += 0.02 * torch.randn_like(parameter)
    return made.eval()


def expected(made: Any) -> npt.NDArray[np.float32]:
    """Returns the logits behind the prompt, by transformers in float32."""
    with torch.no_grad():
        logits: Tensor = made.float()(torch.tensor([PROMPT])).logits[0, -1]
    return logits.numpy()


def computed(source: Path, **options: Any) -> npt.NDArray[Any]:
    """Returns them by npusim, from what lies on disk."""
    graphs = npusim.extract_llm(source, max_context=32, prefill_chunk=1, **options)
    loaded = npusim.LanguageModel.load(npusim.compile(graphs), source)
    session = loaded.new_session()
    session.append(PROMPT)
    return np.asarray(session.logits, np.float32).reshape(-1)


def write(
    folder: Path,
    made: Any,
    quantization: Mapping[str, Any],
    store: Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]],
) -> None:
    """Writes a checkpoint whose projections are stored by `store`.

    Args:
        store: (key without "weight", weight [n, k]) -> the tensors in its place, and the weight
            that they stand for, which the model gets.
    """
    from safetensors.torch import save_file

    state: dict[str, Tensor] = {}
    for key, weight in made.state_dict().items():
        if key.endswith("proj.weight"):
            tensors, value = store(key.removesuffix("weight"), weight.float())
            made.get_parameter(key).data.copy_(value)
            state.update(tensors)
        else:
            state[key] = weight.clone()
    save_file(
        {name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors"
    )
    config = {**made.config.to_dict(), "quantization_config": dict(quantization)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def linear(key: str, n: int, k: int) -> Graph:
    """Returns the graph of a linear without bias, whose weight has that key."""
    made = torch.nn.Module()
    owner, path = made, key.removesuffix(".weight").split(".")
    for name in path[:-1]:
        owner.add_module(name, torch.nn.Module())
        owner = owner.get_submodule(name)
    inner = torch.nn.Linear(k, n, bias=False, device="meta")
    owner.add_module(path[-1], inner)
    made.forward = inner.forward
    return npusim.extract_ir(made.eval(), torch.empty(k, k))


def weight_of(graph: Graph, checkpoint: Any) -> npt.NDArray[Any]:
    """Returns the weight of a linear, as a program computes it: the product with ones.

    The target has no products over codes, so that the weight is computed from them.
    """
    cpu = TargetConfig.named("cpu")
    target = replace(cpu, kernels=tuple(k for k in cpu.kernels if k != "quantized_linear"))
    session = npusim.load(npusim.compile(graph, target=target), checkpoint)
    k = graph.inputs[0].type.shape[-1]
    (y,) = session(np.eye(k, dtype=np.float32))
    return y.T


def near(y: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    """Compares logits in float32: what differs is the order of sums."""
    assert np.isfinite(wanted).all() and np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
