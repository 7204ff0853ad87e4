"""A small decoder of `transformers` on a device: the tokens the CPU backend chooses, in every way.

Needs the package transformers; a report says so where it is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from npusim.compile import compile
from npusim.frontends.language_model import extract_llm
from npusim.language_model.generation import TokenOptions
from npusim.language_model.model import LanguageModel
from npusim.language_model.session import LanguageSession
from npusim.runtime.device import Device
from npusim.targets import TargetConfig

TOKENS = 32
_FEW = 8
_PROMPT = [3, 1, 4, 15, 9, 2, 65, 35, 8, 97, 93, 23]  # more than a chunk, and not a multiple of it
_CHUNK = 8


def run_decoder(target: TargetConfig, device: Device) -> dict[str, object]:
    """Generates with the device and the CPU; forks and rewinds. The outcome, as a report has it."""
    if find_spec("transformers") is None:
        return {"left_out": "transformers is not installed: pip install 'npusim[llm]'"}
    on_device, on_cpu = _model(target, device), _model(TargetConfig.named("cpu"), Device("cpu"))
    failures = []
    if _continued(on_device.new_session(), _PROMPT, TOKENS) != _continued(
        on_cpu.new_session(), _PROMPT, TOKENS
    ):
        failures.append(f"{TOKENS} greedy tokens are others than the CPU's")
    session = on_device.new_session()
    session.append(_PROMPT)
    fork = session.fork()
    first = _continued(session, (), _FEW)
    if _continued(fork, (), _FEW) != first:
        failures.append("a fork goes on otherwise than what it was forked from")
    session.rewind(len(_PROMPT))
    if _continued(session, (), _FEW) != first:
        failures.append("a session goes on otherwise after it was rewound")
    return {"failure": "; ".join(failures)} if failures else {"tokens": TOKENS}


def _continued(session: LanguageSession, prompt: Sequence[int], count: int) -> list[int]:
    options: TokenOptions = {"max_new_tokens": count, "ignore_eos": True}
    return list(session.generate_tokens(prompt, **options))


def _model(target: TargetConfig, device: Device) -> LanguageModel:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=160,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    module = extract_llm(model, max_context=64, prefill_chunk=_CHUNK)
    return LanguageModel.load(compile(module, target), model.state_dict(), device=device)
