"""A token of a mixture of experts reads the experts chosen, however many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import npusim
from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS
from npusim.targets import TargetConfig

HIDDEN, INNER, CHOSEN = 64, 128, 2
_EXPERT = 3 * HIDDEN * INNER * 2  # bytes of bfloat16: gate, up and down


def _bytes_by_stem(experts: int, quantize: str) -> dict[str, int]:
    """Returns what the commands of `decode` move, of a layer with so many experts."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=64,
        num_local_experts=experts, num_experts_per_tok=CHOSEN,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16().eval()
    target = replace(TargetConfig.named("cuda:sm_90a"), code_format="")
    made = npusim.extract_llm(model, max_context=64, prefill_chunk=8)
    program = npusim.compile(made, target, quantize=quantize)
    (decode,) = (method for method in program.methods if method.name == "decode")
    moved: dict[str, int] = {}
    for command in decode.commands:
        stem = program.kernels[command.kernel].name
        cost = kernel_cost(stem, KERNELS[stem].unpack(command.params))
        moved[stem] = moved.get(stem, 0) + sum(cost.operand_bytes)
    return moved


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_token_reads_the_experts_chosen(quantize: str) -> None:
    """Experts stay as they are when linears are quantized: no command makes floats of codes."""
    few, many = (_bytes_by_stem(experts, quantize) for experts in (4, 16))
    assert CHOSEN * _EXPERT <= many["grouped_matmul"] < (CHOSEN + 1) * _EXPERT
    assert many.keys() == few.keys()
    router = 12 * HIDDEN * 2  # rows of the router, for the experts that there are more
    assert sum(many.values()) - sum(few.values()) < 2 * router
