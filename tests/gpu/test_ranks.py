"""Programs of several ranks on GPUs: on one that the ranks share, and on two where there are two.

Ranks that share a GPU exchange values as others do, but for where the memory lies, so one GPU shows
that results are right.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import npusim
from npusim import _runtime
from npusim.codegen.generate import generate
from npusim.errors import DeviceError
from npusim.frontends.step_method import StepSizes
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.runtime.native import native_program
from npusim.targets.target_config import TargetConfig
from tests.end_to_end.architectures import small_model
from tests.end_to_end.decoding import BFLOAT16_TOLERANCE, prompt_of
from tests.gpu.device import require_gpu, run
from tests.runtime.test_ranks import given, integers, mlp

require_gpu()


def gpus() -> list[Any]:
    """Returns devices that ranks take in turn: one, and all there are where there are several."""
    count = min(torch.cuda.device_count(), 8)
    devices = [pytest.param("cuda:0", id="shared")]
    if count > 1:
        devices.append(pytest.param("cuda:" + ",".join(map(str, range(count))), id="apart"))
    return devices


def of_ranks(device: str, ranks: int = 2) -> str:
    """Returns the name of the devices of so many ranks."""
    numbers = device.partition(":")[2].split(",")
    return "cuda:" + ",".join(numbers[rank % len(numbers)] for rank in range(ranks))


@pytest.mark.parametrize("device", gpus())
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("widths", [(24, 48, 24), (1536, 4800, 1530)])
def test_integers_are_exact(device: str, ranks: int, widths: tuple[int, ...]) -> None:
    """Sums of whole numbers, small enough to be exact in any order."""
    for rows in (1, 300):
        graph = mlp(widths, rows)
        weights = integers(graph)
        program = npusim.compile(graph, "cuda", tensor_parallel=ranks)
        session = npusim.load(program, weights=weights, device=of_ranks(device, ranks))
        wanted = npusim.load(npusim.compile(graph), weights=weights)
        for seed in range(6):  # a replay must not take what the run before has left
            x = given(graph, seed)
            assert np.array_equal(session(x)[0], wanted(x)[0])


def summed(sizes: Sequence[int], ranks: int, times: int) -> npusim.CompiledProgram:
    """Compiles sums of ranks' inputs of several sizes, in turn, each so many times."""
    b = GraphBuilder("summed")
    types = [TensorType("float32", (size,)) for size in sizes]
    values = [b.input(f"x{i}", type) for i, type in enumerate(types)]
    for _ in range(times):
        for i, type in enumerate(types):
            values[i] = b.node("npu.all_reduce", (values[i],), type, {"ranks": ranks})
    for i, value in enumerate(values):
        b.output(f"y{i}", value)
    target = TargetConfig.named("cuda")
    return generate(assemble(b.build(), target), target)


@pytest.mark.parametrize("device", gpus())
@pytest.mark.parametrize("ranks", [2, 4])
def test_exchanges_of_all_sizes_follow_each_other(device: str, ranks: int) -> None:
    """Each size has blocks, and ways, of its own; rounds are counted by block."""
    sizes = [1, 7, 1000, 2048, 16384, 16386, 65536, 65537, 300_001, 2_000_000, 3]
    times = 4
    session = npusim.load(summed(sizes, ranks, times), weights={}, device=of_ranks(device, ranks))
    chance = np.random.default_rng(0)
    for _ in range(8):
        given = [chance.integers(-99, 99, size).astype(np.float32) for size in sizes]
        for x, y in zip(given, session(*given), strict=True):
            assert np.array_equal(y, x * ranks**times)


def how_values_go(ranks: _runtime.Device) -> str:
    """Returns the value of NPUSIM_CUDA_EXCHANGE that asks for what is done."""
    said = ranks.description.rpartition("; they exchange values ")[2]
    ways = {"by peer access": "peers", "by NCCL": "nccl", "through the host's memory": "host"}
    (way,) = (way for text, way in ways.items() if said.startswith(text))
    return way


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="ranks that share a device need no way")
@pytest.mark.parametrize("way", ["nccl", "host"])
def test_other_ways_apart_make_the_same_bits(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """As between devices that do not reach each other."""
    device = gpus()[1].values[0]
    ranks = min(torch.cuda.device_count(), 4)
    sizes, made = [7, 2048, 65537, 2_000_000], []
    for asked in ("peers", way):
        monkeypatch.setenv("NPUSIM_CUDA_EXCHANGE", asked)
        session = npusim.load(summed(sizes, ranks, 3), weights={}, device=of_ranks(device, ranks))
        assert how_values_go(session.device) == asked
        chance = np.random.default_rng(0)
        for _ in range(4):
            given = [chance.standard_normal(size).astype(np.float32) for size in sizes]
            made.append([y.tobytes() for y in session(*given)])
        lm = decoder("qwen3", 2, torch.bfloat16, of_ranks(device))
        assert lm._parts is not None
        # The model's own ranks: a device has those of a number once.
        assert how_values_go(npusim.Executor(lm._parts[0], lm.device).device) == asked
        options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True}
        made.append(list(lm.generate_tokens(prompt_of(130), **options)))
    assert made[:5] == made[5:]


def decoder(name: str, ranks: int, dtype: torch.dtype, device: str) -> npusim.LanguageModel:
    model = small_model(name, dtype)
    module = npusim.extract_llm(model, max_context=400, prefill_chunk=128)
    options: Any = {"tensor_parallel": ranks} if ranks > 1 else {}
    program = npusim.compile(module, "cuda", **options)
    at = of_ranks(device, ranks) if ranks > 1 else device
    return npusim.LanguageModel.load(program, model.state_dict(), device=at)


@pytest.mark.parametrize("device", gpus())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_decoder_says_what_one_rank_says(device: str, dtype: torch.dtype) -> None:
    allowed = 1e-4 if dtype == torch.float32 else BFLOAT16_TOLERANCE
    one, two = (decoder("qwen2-tied", n, dtype, d) for n, d in ((1, "cuda"), (2, device)))
    for length in (1, 7, 128, 300):
        sessions = [model.new_session() for model in (one, two)]
        for session in sessions:
            session.append(prompt_of(length))
        for _ in range(12):
            a, b = (session.logits for session in sessions)
            np.testing.assert_allclose(a, b, rtol=0, atol=allowed * np.abs(a).max())
            for session in sessions:
                session.append([int(a.argmax())])
    if dtype == torch.float32:
        made = [list(m.generate_tokens(prompt_of(60), max_new_tokens=60)) for m in (one, two)]
        assert made[0] == made[1]


@pytest.mark.parametrize("device", gpus())
def test_the_host_would_choose_what_the_ranks_choose(device: str) -> None:
    lm = decoder("qwen2-tied", 2, torch.bfloat16, device)
    options: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True}
    chosen = list(lm.generate_tokens(prompt_of(60), **options))
    assert list(lm.generate_tokens(prompt_of(60), return_logits=True, **options)) == chosen
    session = lm.new_session()
    session.append(prompt_of(60))
    fork = session.fork()
    first = list(session.generate_tokens(**options))
    assert list(fork.generate_tokens(**options)) == first == chosen
    session.rewind(60)
    assert list(session.generate_tokens(**options)) == first


@pytest.mark.parametrize("device", gpus())
def test_all_ranks_have_the_same_bits(device: str) -> None:
    """Rank 1's logits, seen as rank 0's where the devices are named the other way round.

    Each rank takes the part of its number, so these are the same sums on another device.
    """
    device = of_ranks(device)
    other = "cuda:" + ",".join(reversed(device.partition(":")[2].split(",")))
    digests = []
    for name in (device, other, device):
        session = decoder("qwen3", 2, torch.bfloat16, name).new_session()
        session.append(prompt_of(130))
        rows = [session.logits.copy()]
        for _ in range(20):
            session.append([int(rows[-1].argmax())])
            rows.append(session.logits.copy())
        digests.append(b"".join(row.tobytes() for row in rows))
    assert len(set(digests)) == 1


@pytest.mark.parametrize("device", gpus())
def test_requests_get_the_same_tokens_alone_and_among_others(device: str) -> None:
    model = small_model("qwen2-tied", torch.bfloat16)
    sizes = StepSizes(max_step_tokens=64, max_requests=8, pages=64)
    module = npusim.extract_llm(model, max_context=400, prefill_chunk=128, serve=sizes)
    program = npusim.compile(module, "cuda", tensor_parallel=2)
    on = npusim.Device(of_ranks(device))
    weights = npusim.load_weights(model.state_dict(), program, on)
    engine = _runtime.Engine(native_program(program), on, weights)
    prompts = [prompt_of(length) for length in (1, 7, 30, 100, 5, 64)]

    def answers(some: list[list[int]]) -> list[list[int]]:
        options = {"max_tokens": 12, "ignore_eos": True}
        numbers = [engine.submit(tokens, options) for tokens in some]
        made: dict[int, list[int]] = {number: [] for number in numbers}
        waiting = set(numbers)
        while waiting:
            for number, tokens, _, _, ending, error, _ in engine.poll(10):
                assert error is None, error
                made[number].extend(tokens)
                waiting -= {number} if ending else set()
        return [made[number] for number in numbers]

    together = answers(prompts)
    assert [answers([prompt])[0] for prompt in prompts] == together


FAULT = """
import numpy as np, npusim, time
from tests.runtime.test_ranks import given, integers, mlp
from npusim import _runtime
graph = mlp((24, 48, 24), 3)
program = npusim.compile(graph, "cuda", tensor_parallel=2)
session = npusim.load(program, weights=integers(graph), device="cuda:0,0")
x = given(graph)
wanted = session(x)[0].copy()
print(npusim.Device("cuda:0,0").description)
assert np.array_equal(session(x)[0], wanted)
print("done")
"""


def test_a_process_ends_with_ranks_open() -> None:
    start = time.perf_counter()
    assert run(FAULT).endswith("done\n")
    assert time.perf_counter() - start < 100


def test_more_ranks_than_devices_are_refused() -> None:
    graph = mlp((240, 720, 240))
    devices = torch.cuda.device_count()
    ranks = devices + 1
    if 720 % ranks or ranks > 8:
        pytest.skip("the model has no so many parts")
    program = npusim.compile(graph, "cuda", tensor_parallel=ranks)
    with pytest.raises(DeviceError, match=f"among {ranks} ranks, and this machine has {devices} "):
        npusim.load(program, weights=integers(graph), device="cuda")
