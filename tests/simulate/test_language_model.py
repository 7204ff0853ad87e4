"""Language models on a machine: which runs a prompt takes, batches, cores, and what is refused."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import npusim
from npusim.errors import Error
from npusim.simulate.batched import batched
from npusim.simulate.language_model import generation, prompt_runs

from .nets import net


@cache
def decoder_module() -> npusim.ir.module.Module:
    """Returns a decoder of one layer, with chunks of 8 and 32 tokens and a cache of 128."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
    return npusim.extract_llm(model, max_context=128, prefill_chunk=(8, 32))


@cache
def decoder(target: str = "npu-edge-32x32") -> npusim.CompiledProgram:
    """Returns that decoder, compiled for a target."""
    return npusim.compile(decoder_module(), target)


FACTS = {"max_context": 128, "prefill_chunk": 8, "larger_chunks": [32]}


@pytest.mark.parametrize(
    ("tokens", "runs"),
    [
        (0, []),
        (1, [("decode", 0)]),
        (2, [("prefill", 0)]),
        (9, [("prefill", 0), ("decode", 8)]),
        (15, [("prefill", 0), ("prefill", 8)]),
        (16, [("prefill_32", 0)]),  # no more than half is padding
        (40, [("prefill_32", 0), ("prefill", 32)]),
        (127, [*(("prefill_32", at) for at in (0, 32, 64, 96))]),
    ],
)
def test_a_prompt_runs_in_chunks(tokens: int, runs: list[tuple[str, int]]) -> None:
    assert list(prompt_runs(FACTS, tokens)) == runs


def test_where_no_chunk_has_room_tokens_run_alone() -> None:
    facts = {"max_context": 20, "prefill_chunk": 8}
    runs = [("prefill", 0), ("prefill", 8), *(("decode", at) for at in (16, 17, 18))]
    assert list(prompt_runs(facts, 19)) == runs
    alone = {"max_context": 4, "prefill_chunk": 1}
    assert list(prompt_runs(alone, 3)) == [("decode", 0), ("decode", 1), ("decode", 2)]


def test_no_padding_reaches_recurrent_states() -> None:
    runs = [("prefill_32", 0), ("prefill", 32), *(("decode", at) for at in range(40, 45))]
    assert list(prompt_runs({**FACTS, "recurrent": ["state"]}, 45)) == runs


def test_each_point_is_the_sum_of_its_runs() -> None:
    found = generation(decoder(), contexts=[1, 40, 100], mode="loose")
    for point in found.points:
        runs = [
            npusim.simulate(decoder(), method=method, context=at, mode="loose").seconds
            for method, at in prompt_runs(FACTS, point.context)
        ]
        token = npusim.simulate(decoder(), method="decode", context=point.context, mode="loose")
        assert point.first_s == pytest.approx(sum(runs)) and point.token_s == token.seconds
        assert point.tokens_per_second == pytest.approx(1 / token.seconds)
    assert [p.first_s for p in found.points] == sorted(p.first_s for p in found.points)
    assert [p.token_s for p in found.points] == sorted(p.token_s for p in found.points)


@pytest.mark.parametrize("method", ["decode", "prefill"])
@pytest.mark.parametrize("target", ["npu-edge-32x32", "cpu"])
def test_sequences_share_weights_alone(target: str, method: str) -> None:
    """Operations grow with the batch; bytes less, by the weights that are read once."""
    program = decoder(target)
    one = npusim.simulate(program, method=method, context=64)
    eight = npusim.simulate(batched(program, 8), method=method, context=64)
    weights = sum(program.buffers[spec.buffer].bytes for spec in program.weights)
    for a, b in zip(one.layers, eight.layers, strict=True):
        assert b.facts.operations == 8 * a.facts.operations
        assert a.facts.bytes_read <= b.facts.bytes_read <= 8 * a.facts.bytes_read
        assert b.facts.bytes_written <= 8 * a.facts.bytes_written
    read = [sum(layer.facts.bytes_read for layer in run.layers) for run in (one, eight)]
    assert read[1] <= 8 * read[0] - 6 * weights
    assert one.seconds < eight.seconds < 8 * one.seconds
    state = one.report["memories"][-1]["peak_bytes"], eight.report["memories"][-1]["peak_bytes"]
    assert state[1] - state[0] >= 7 * program.state_bytes * 0.9


class Encoder(nn.Module):
    """Every kind of command that has a rule for several sequences, but for caches."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.places = nn.Parameter(torch.zeros(12, 32))
        self.gain = nn.Parameter(torch.ones(32))
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.conv = nn.Conv1d(32, 8, 3)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.tokens(tokens) + self.places
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        z = nn.functional.gelu(self.up(x)) * torch.sigmoid(self.up(x))
        out = torch.softmax((x + self.down(z)) * self.gain + self.gain.exp(), -1)
        alike = x @ out.mT
        best, at = torch.topk(alike, 3)
        spread = (alike * 0).scatter_add(-1, at, best)
        drawn = self.conv(out.mT).mean(-1)
        return out.cumsum(1), spread, drawn, nn.functional.group_norm(out.mT, 4).amax(1)


@pytest.mark.parametrize("target", ["npu-edge-32x32", "cpu"])
def test_a_batch_has_the_times_of_a_program_for_it(target: str) -> None:
    """Compiled for four sequences, or for one and batched: the same commands at the same cost."""
    one, four = (
        npusim.compile(
            npusim.extract_ir(Encoder().eval(), (torch.zeros(n, 12, dtype=torch.int64),)), target
        )
        for n in (1, 4)
    )
    a, b = npusim.simulate(batched(one, 4)), npusim.simulate(four)
    kernels = {layer.facts.kernel for layer in a.layers}
    assert kernels >= {"attention", "conv", "matmul", "reduce", "scan", "scatter", "sort", "norm"}
    for x, y in zip(a.layers, b.layers, strict=True):
        assert (x.facts.kernel, x.facts.operations) == (y.facts.kernel, y.facts.operations)
        assert (x.facts.bytes_read, x.facts.bytes_written) == (
            y.facts.bytes_read,
            y.facts.bytes_written,
        )
    # A copy that is compiled for four has one row where a batch has four.
    assert a.seconds == pytest.approx(b.seconds, rel=1e-9 if target != "cpu" else 1e-3)


def test_a_batch_of_one_is_the_program() -> None:
    assert batched(decoder(), 1) is decoder()
    with pytest.raises(Error, match="batch of 0"):
        batched(decoder(), 0)
    with pytest.raises(Error, match="not known for several sequences"):
        batched(resized(), 2)


def resized() -> npusim.CompiledProgram:
    """Returns a program with a kernel that no language model has."""
    layer = nn.Upsample(scale_factor=2.0, mode="bilinear").eval()
    return npusim.compile(npusim.extract_ir(layer, (torch.zeros(1, 2, 4, 4),)), "npu-edge-32x32")


@cache
def mixture(dtype: str, target: str) -> npusim.CompiledProgram:
    """Returns a decoder whose feed-forward part is a mixture of four experts, two a token."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        max_position_embeddings=128, dtype=getattr(torch, dtype),
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config).to(getattr(torch, dtype)).eval()
    return npusim.compile(npusim.extract_llm(model, max_context=128, prefill_chunk=16), target)


@pytest.mark.parametrize("target", ["npu-edge-32x32", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mixtures_of_several_sequences(dtype: str, target: str) -> None:
    """Operations grow with the batch, and experts' matrices are read once, as far as they are."""
    program = mixture(dtype, target)
    one, eight = (npusim.simulate(batched(program, n), method="decode", context=64) for n in (1, 8))
    for a, b in zip(one.layers, eight.layers, strict=True):
        assert b.facts.operations == 8 * a.facts.operations
        assert a.facts.bytes_read <= b.facts.bytes_read <= 8 * a.facts.bytes_read
    pairs = zip(one.layers, eight.layers, strict=True)
    experts = [(a, b) for a, b in pairs if a.facts.kernel == "grouped_matmul"]
    assert experts and all(b.facts.bytes_read < 4 * a.facts.bytes_read for a, b in experts)
    assert one.seconds < eight.seconds < 8 * one.seconds
    assert [p.batch for p in generation(program, contexts=[16], batches=[1, 4]).points] == [1, 4]


def test_batches_and_cores_are_points() -> None:
    found = generation(decoder(), contexts=[64], batches=[4, 1], cores=[2, 1])
    assert [(p.cores, p.batch) for p in found.points] == [(1, 1), (1, 4), (2, 1), (2, 4)]
    alone = generation(decoder(), contexts=[64], overrides=["cores.count=2"])
    assert replace(alone.points[0], cores=2) == found.points[2]
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["batch"] for row in table] == ["1", "4", "1", "4"]
    assert float(table[1]["tokens/s"]) == pytest.approx(found.points[1].tokens_per_second)
    image = ElementTree.fromstring(found.to_svg())
    circles = image.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 8  # two charts


def test_a_roofline_has_no_energy() -> None:
    calls: list[Any] = []
    found = generation(
        decoder("cpu"), contexts=[1, 64], progress=lambda *call: calls.append(call[1:])
    )
    assert found.target == "cpu" and calls == [(1, 2), (2, 2)]
    assert all(p.token_j is None and p.first_j is None for p in found.points)
    assert "tokens/s" in found.to_svg()


def test_contexts_that_do_not_fit_are_left_out() -> None:
    assert [p.context for p in generation(decoder(), contexts=[1, 127, 128]).points] == [1, 127]
    for wrong, why in (
        ({"contexts": [128]}, "No context fits"),
        ({"contexts": []}, "No context fits"),
        ({"contexts": [0]}, "context of 0"),
        ({"contexts": [1], "batches": [0]}, "batch of 0"),
        ({"contexts": [1], "batches": []}, "No context fits"),
        ({"contexts": [1], "cores": [0]}, "number of cores of 0"),
    ):
        with pytest.raises(Error, match=why):
            generation(decoder(), **wrong)  # type: ignore[arg-type]


def test_what_is_no_language_model_is_refused() -> None:
    with pytest.raises(Error, match="no language model"):
        generation(net())
    facts = dict(decoder().metadata["language_model"])  # type: ignore[call-overload]
    for damage in (
        {"prefill_chunk": 0},
        {"prefill_chunk": "8"},
        {"max_context": None},
        {"larger_chunks": [4]},
    ):
        metadata = {**decoder().metadata, "language_model": {**facts, **damage}}
        with pytest.raises(Error, match="damaged"):
            generation(replace(decoder(), metadata=metadata))


def test_caches_of_a_batch_have_to_fit() -> None:
    small = ["dram.capacity_mib=2"]
    assert generation(decoder(), contexts=[1], overrides=small).points
    with pytest.raises(Error, match="too many"):
        generation(decoder(), contexts=[1], batches=[64], overrides=small)
