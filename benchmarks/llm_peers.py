"""The peers of the language model benchmark: how each loads the weights, prefills and decodes.

All of them read one folder: `config.json` and `model.safetensors` with seeded random weights in the
architecture of Qwen2.5. What another format needs is written from these weights beside them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from npusim.peers.process import answer
from npusim.profile.memory import peak_rss

CONTEXT, CHUNK = 4608, 128
SIZES = {  # hidden, intermediate, layers, heads, key/value heads
    "0.5b": (896, 4864, 24, 14, 2),
    "1.5b": (1536, 8960, 28, 12, 2),
}
VOCAB = 151936


class Prompted(Protocol):
    """A loaded language model that reads prompts."""

    def prefill(self, tokens: list[int]) -> np.ndarray | None:
        """Forgets everything, appends tokens, returns the last one's logits."""


class Model(Prompted, Protocol):
    """A loaded language model with one conversation."""

    def decode(self, token: int) -> None:
        """Appends one token and computes its logits."""


@dataclass(frozen=True)
class Peer:
    """A way to run the model: the package it needs, and how it prepares and loads."""

    package: str
    load: Callable[[Path, int], Any]  # a Model, or something Prompted where `decodes` is False
    prepare: Callable[[Path], None] | None = None
    decodes: bool = True


def configuration(size: str) -> Any:
    """Returns the configuration of Qwen2.5 in a size."""
    import transformers

    hidden, intermediate, layers, heads, kv_heads = SIZES[size]
    return transformers.Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        dtype="bfloat16",
        architectures=["Qwen2ForCausalLM"],
    )


def write_model(size: str, folder: Path) -> None:
    """Writes configuration and seeded weights."""
    import torch
    import transformers
    from safetensors.torch import save_file

    config = configuration(size)
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    torch.manual_seed(0)
    weights = {}
    for key, tensor in model.state_dict().items():
        if "norm" in key:
            weights[key] = torch.ones(tensor.shape, dtype=torch.bfloat16)
        elif key != "lm_head.weight":
            weights[key] = (torch.randn(tensor.shape) * 0.02).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


# npusim


def _npusim(quantize: str) -> Peer:
    name = f"npusim-{quantize}.npubin"

    def prepare(folder: Path) -> None:
        import npusim

        ir = folder / "model.json"
        if not ir.exists():
            npusim.extract_llm(folder, max_context=CONTEXT, prefill_chunk=CHUNK).save(ir)
        npusim.compile(ir, quantize=quantize).save(folder / name)

    def load(folder: Path, threads: int) -> Model:
        import npusim

        lm = npusim.LanguageModel.load(folder / name, weights=folder, threads=threads)
        return _Npusim(lm.new_session())

    return Peer("npusim", load, prepare)


class _Npusim:
    def __init__(self, session: Any) -> None:
        self.session = session

    def prefill(self, tokens: list[int]) -> np.ndarray | None:
        self.session.reset()
        self.session.append(tokens)
        return self.session.logits  # type: ignore[no-any-return]

    def decode(self, token: int) -> None:
        self.session.append([token])


# llama.cpp


def _llama(kind: str) -> Peer:
    def prepare(folder: Path) -> None:
        write_gguf(folder, kind)

    def load(folder: Path, threads: int) -> Model:
        return _Llama(gguf_path(folder, kind), threads)

    return Peer("llama_cpp", load, prepare)


def gguf_path(folder: Path, kind: str) -> Path:
    """Returns where the weights lie as a GGUF file of such numbers."""
    return folder / f"model-{kind}.gguf"


def write_gguf(folder: Path, kind: str, vocabulary: bool = False) -> None:
    """Writes the weights as a GGUF file; with a `vocabulary` of words for servers."""
    import gguf
    import torch
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(gguf_path(folder, kind), "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(1000000.0)
    writer.add_vocab_size(VOCAB)
    if vocabulary:
        _add_words(writer)
    else:
        writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config["num_hidden_layers"])
    wanted = gguf.GGMLQuantizationType[kind]
    with safe_open(folder / "model.safetensors", "pt") as file:
        for key in file.keys():  # noqa: SIM118
            tensor = file.get_tensor(key).to(torch.float32).numpy()
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            if tensor.ndim == 1:
                writer.add_tensor(name, tensor)
                continue
            embedding = "embed_tokens" in key and kind == "Q4_0"  # tied: also the output's weight
            form = gguf.GGMLQuantizationType.Q8_0 if embedding else wanted
            writer.add_tensor(name, gguf.quants.quantize(tensor, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_words(writer: Any) -> None:
    import gguf
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "ab", *(f"\u0120{i}" for i in range(VOCAB - len(alphabet) - 1))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(VOCAB - 1)


class _Llama:
    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self.api = llama_cpp
        self.silence = llama_cpp.llama_log_callback(lambda *_: None)  # kept: C holds it
        llama_cpp.llama_log_set(self.silence, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)

    def prefill(self, tokens: list[int]) -> np.ndarray | None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        for start in range(0, len(tokens), CHUNK):
            self._run(tokens[start : start + CHUNK])
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (VOCAB,)).copy()

    def decode(self, token: int) -> None:
        self._run([token])
        self.api.llama_get_logits_ith(self.context, -1)

    def _run(self, tokens: list[int]) -> None:
        array = (self.api.llama_token * len(tokens))(*tokens)
        status = self.api.llama_decode(
            self.context, self.api.llama_batch_get_one(array, len(tokens))
        )
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")


# torch


class _Torch:
    def __init__(
        self, folder: Path, threads: int, compiled: bool = False, dtype: str = "bfloat16"
    ) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch, self.transformers = torch, transformers
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype)
        ).eval()
        self.forward = torch.compile(self.model.forward) if compiled else self.model.forward
        self.cache: Any = None

    def prefill(self, tokens: list[int]) -> np.ndarray | None:
        self.cache = self.transformers.StaticCache(self.model.config, max_cache_len=512)
        for start in range(0, len(tokens), CHUNK):
            output = self._run(tokens[start : start + CHUNK])
        return output.logits[0, -1].float().numpy()  # type: ignore[no-any-return]

    def decode(self, token: int) -> None:
        self._run([token])

    def _run(self, tokens: list[int]) -> Any:
        ids = self.torch.tensor([tokens])
        return self.forward(ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)


# OpenVINO: the prompt only. A decode with a cache needs a converter of its own (optimum).


class _OpenVino:
    def __init__(self, folder: Path, threads: int) -> None:
        import openvino as ov

        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16",
        }
        self.request = (
            ov.Core().compile_model(folder / "prefill.xml", "CPU", settings).create_infer_request()
        )

    def prefill(self, tokens: list[int]) -> np.ndarray | None:
        self.request.infer([np.array([tokens], np.int64)])
        return np.array(self.request.get_output_tensor(0).data).reshape(-1).astype(np.float32)


def _prepare_openvino(folder: Path) -> None:
    import openvino as ov
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    class Prefill(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(tokens, use_cache=False, logits_to_keep=1).logits.float()

    exported = torch.export.export(Prefill().eval(), (torch.zeros((1, CHUNK), dtype=torch.int64),))
    ov.save_model(ov.convert_model(exported), folder / "prefill.xml", compress_to_fp16=False)


PEERS: dict[str, Peer] = {
    "npusim bf16": _npusim("none"),
    "npusim int8": _npusim("int8"),
    "npusim int4-g32": _npusim("int4-g32"),
    "llama.cpp bf16": _llama("BF16"),
    "llama.cpp Q8_0": _llama("Q8_0"),
    "llama.cpp Q4_0": _llama("Q4_0"),
    "torch eager bf16": Peer("torch", lambda f, t: _Torch(f, t)),
    "torch.compile bf16": Peer("torch", lambda f, t: _Torch(f, t, compiled=True)),
    "openvino bf16": Peer("openvino", _OpenVino, _prepare_openvino, decodes=False),
}


def serve(peer: str, folder: Path, threads: int, contexts: list[int], steps: int) -> None:
    """Loads one peer and answers `prefill`, `decode CONTEXT` and `memory`."""

    def load() -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
        start = time.perf_counter()
        model = PEERS[peer].load(folder, threads)
        prompt = np.random.default_rng(0).integers(10, VOCAB, max(contexts)).tolist()
        logits = model.prefill(prompt[:CHUNK])
        ready = time.perf_counter() - start

        def answered(request: str) -> dict[str, Any]:
            name, *arguments = request.split()
            if name == "prefill":
                return {"seconds": [_timed(lambda: model.prefill(prompt[:CHUNK]))]}
            if name == "decode":
                model.prefill(prompt[: int(arguments[0])])
                model.decode(11)
                return {"seconds": [_timed(lambda: model.decode(12)) for _ in range(steps)]}
            return {"peak_mb": peak_rss() / 2**20}

        error = _error(logits, folder / "expected.npy")
        return {"first_logits_s": ready, "max_rel_err": error}, answered

    answer(load)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _error(logits: np.ndarray | None, path: Path) -> float | None:
    if logits is None or not path.exists():
        return None
    want = np.load(path)
    return float(np.abs(logits.reshape(-1) - want).max() / np.abs(want).max())


def write_expected(folder: Path) -> None:
    """Writes the logits after the prompt, computed in float32 from the same weights."""
    prompt = np.random.default_rng(0).integers(10, VOCAB, CHUNK).tolist()
    np.save(folder / "expected.npy", _Torch(folder, 2, dtype="float32").prefill(prompt))
