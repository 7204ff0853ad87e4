"""A small decoder of `transformers` on a device: the tokens the CPU backend chooses, in every way.

Needs the package transformers; a report says so where it is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
_CHUNK = 8
_VOCABULARY = 160


@dataclass(frozen=True, slots=True)
class Decoder:
    """Which decoder it is.

    Attributes:
        dtype: of weights and activations.
        quantization: of weights, as `TargetConfig.weight_quantization`.
        context: rows of its caches.
        prompt: tokens; more than a chunk.
        window: tokens that attention looks back over; 0: all.
    """

    dtype: str = "float32"
    quantization: str = "none"
    context: int = 64
    prompt: int = 12
    window: int = 0


_LONG = Decoder(context=192, prompt=140)  # keys that GPUs share among threadgroups
DECODERS: Mapping[str, Decoder] = {
    "float32": Decoder(),
    "float16": replace(_LONG, dtype="float16"),
    "bfloat16": Decoder("bfloat16"),
    "a window": Decoder(window=9),
    "int8": replace(_LONG, quantization="int8"),
    "int4": Decoder("float16", "int4-g32"),
}


def run_decoder(target: TargetConfig, device: Device, decoder: Decoder) -> dict[str, object]:
    """Generates with the device and the CPU; forks and rewinds. The outcome, as a report has it."""
    if find_spec("transformers") is None:
        return {"left_out": "transformers is not installed: pip install 'npusim[llm]'"}
    on_device = _model(target, device, decoder)
    on_cpu = _model(TargetConfig.named("cpu"), Device("cpu"), decoder)
    prompt = [(place * place * 7 + 3) % _VOCABULARY for place in range(decoder.prompt)]
    failures = []
    if _continued(on_device.new_session(), prompt, TOKENS) != _continued(
        on_cpu.new_session(), prompt, TOKENS
    ):
        failures.append(f"{TOKENS} greedy tokens are others than the CPU's")
    session = on_device.new_session()
    session.append(prompt)
    fork = session.fork()
    first = _continued(session, (), _FEW)
    if _continued(fork, (), _FEW) != first:
        failures.append("a fork goes on otherwise than what it was forked from")
    session.rewind(len(prompt))
    if _continued(session, (), _FEW) != first:
        failures.append("a session goes on otherwise after it was rewound")
    return {"failure": "; ".join(failures)} if failures else {"tokens": TOKENS}


def _continued(session: LanguageSession, prompt: Sequence[int], count: int) -> list[int]:
    options: TokenOptions = {"max_new_tokens": count, "ignore_eos": True}
    return list(session.generate_tokens(prompt, **options))


def _model(target: TargetConfig, device: Device, decoder: Decoder) -> LanguageModel:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        use_sliding_window=decoder.window > 0,
        sliding_window=decoder.window or None,
        max_window_layers=1,  # those after it look through the window
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    model = model.to(getattr(torch, decoder.dtype))
    module = extract_llm(model, max_context=decoder.context, prefill_chunk=_CHUNK)
    target = replace(target, weight_quantization=decoder.quantization)
    return LanguageModel.load(compile(module, target), model.state_dict(), device=device)
