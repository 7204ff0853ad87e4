"""What transformers takes for the steps of benchmarks/llm_batches.py, with the same weights."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

BEHIND, ROUNDS = 1024, 15
WAYS = ("eager", "compiled", "batches")  # steps over a static cache, and generate_batch


def transformers_model(config: Any, state: dict[str, torch.Tensor]) -> Any:
    """Returns the model on the GPU, with these weights."""
    import transformers

    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.eval()


def report(
    config: Any, state: dict[str, torch.Tensor], counts: Sequence[int], ways: Sequence[str]
) -> None:
    """Prints a line for each of these ways of running, for each number of requests."""
    model = transformers_model(config, state)
    compiled = torch.compile(model.forward, mode="reduce-overhead", dynamic=False)
    for way, forward in (("eager", model.forward), ("compiled", compiled)):
        for rows in counts if way in ways else ():
            start = time.perf_counter()
            times = _ms(_steps(model, forward, rows))
            took = time.perf_counter() - start
            print(f"peer, {way}, {rows:4}: {times}; {took:.0f} s with starting", flush=True)
    if "batches" not in ways:
        return
    try:
        _continuous(model, max(counts))
    except Exception as error:  # whatever it is, the run goes on
        print(f"peer, generate_batch: {type(error).__name__}: {str(error)[:200]}", flush=True)


def _ms(seconds: list[float]) -> str:
    tenths = statistics.quantiles(seconds, n=10)
    return (f"{1e3 * statistics.median(seconds):7.3f} ({1e3 * tenths[0]:.3f} - "
            f"{1e3 * tenths[-1]:.3f})")  # fmt: skip


def _steps(model: Any, forward: Callable[..., Any], rows: int) -> list[float]:
    """Times steps over a static cache with BEHIND tokens in it."""
    import transformers

    config = model.config
    cache = transformers.StaticCache(config, max_cache_len=BEHIND + 64)
    wide = config.hidden_size // config.num_attention_heads
    # Else its tensors are made in the compiled call, in memory that the next call overwrites.
    cache.early_initialization(rows, config.num_key_value_heads, wide, model.dtype, model.device)
    token = torch.full((rows, 1), 7, device="cuda")
    place = torch.full((rows, 1), BEHIND, device="cuda")
    given = {"past_key_values": cache, "use_cache": True, "position_ids": place}
    found = []
    for _ in range(ROUNDS + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.compiler.cudagraph_mark_step_begin()
        forward(token, **given).logits.argmax(-1)
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return found[3:]


def _continuous(model: Any, rows: int, prompt: int = 161, new: int = 64) -> None:
    """Prints tokens a second of continuous batching, short answers for its sake, twice."""
    import transformers

    asked = transformers.GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1,
                                          pad_token_id=0)  # fmt: skip
    prompts = torch.randint(10, 30000, (rows, prompt)).tolist()
    for start_up in (" with starting", ""):
        start = time.perf_counter()
        answers = model.generate_batch(inputs=prompts, generation_config=asked, progress_bar=False)
        took = time.perf_counter() - start
        made = sum(len(answer.generated_tokens) for answer in answers.values())
        print(f"peer, generate_batch, {rows} requests of {prompt} in and {new} out: "
              f"{made / took:.0f} tokens a second{start_up}", flush=True)  # fmt: skip
