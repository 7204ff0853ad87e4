"""GGUF files, written here by the package `gguf`, whose own dequantization is the reference."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import npusim
from npusim.frontends.checkpoints.gguf import gguf_dtype, stored_in_gguf
from npusim.runtime.gguf import BLOCKS, GgufCheckpoint, gguf_tensors
from tests.frontends.checkpoints import models

pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def blocks(kind: str, weight: np.ndarray) -> np.ndarray:
    """Returns a weight as blocks; of kinds that the package only reads, random codes."""
    wanted = gguf.GGMLQuantizationType[kind]
    try:
        return np.asarray(gguf.quants.quantize(weight, wanted))
    except NotImplementedError:
        rng = np.random.default_rng(3)
        size, fields = BLOCKS[kind]
        dtype = np.dtype([(name, form, () if n == 1 else (n,)) for name, form, n in fields])
        rows, k = weight.shape
        data = rng.integers(0, 256, (rows, k // size * dtype.itemsize), dtype=np.uint8)
        filled = data.view(dtype)
        for name in {"d", "dmin"} & set(dtype.names or ()):
            filled[name] = rng.uniform(1e-5, 1e-4, filled[name].shape).astype(np.float16)
        filled["d"][0, 0] = 0
        return data


Settings = Callable[[Any], None]


def write(
    path: Path,
    made: Any,
    kind: str | Sequence[str],
    *,
    vocabulary: bool = False,
    more: Settings | None = None,
) -> None:
    """Writes a model, and gives it the weights that the file stands for.

    Args:
        kind: of blocks; of several, matrices have one after the other in turn.
        more: adds to the file, which it gets.
    """
    kinds = itertools.cycle([kind] if isinstance(kind, str) else kind)
    config, architecture = made.config, made.config.model_type
    layers = config.num_hidden_layers
    file = gguf.GGUFWriter(path, architecture)
    file.add_block_count(layers)
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_vocab_size(config.vocab_size)
    if more is not None:
        more(file)
    if vocabulary:
        _write_vocabulary(file, config.vocab_size)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, layers)
    for key, weight in made.state_dict().items():
        base, _, last = key.rpartition(".")
        name, array = f"{names.get_name(base)}.{last}", weight.float().numpy()
        heads = config.num_key_value_heads if ".attn_k." in name else config.num_attention_heads
        rotary = architecture == "llama" and (".attn_q." in name or ".attn_k." in name)
        if rotary:  # the writer puts the two halves of a head's rows beside each other
            halves = array.reshape(heads, 2, -1, array.shape[-1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        if array.ndim == 2:
            each = next(kinds)
            data = blocks(each, array)
            stored = gguf.GGMLQuantizationType[each]
            file.add_tensor(name, data, raw_dtype=stored)
            array = gguf.quants.dequantize(data, stored).astype(np.float32).reshape(array.shape)
        else:
            file.add_tensor(name, array)
        if rotary:
            pairs = array.reshape(heads, -1, 2, array.shape[-1])
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        made.get_parameter(key).data.copy_(torch.from_numpy(np.ascontiguousarray(array)))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _write_vocabulary(file: Any, size: int) -> None:
    """Writes byte-level pairs: 256 bytes, "he", and tokens that stand for nothing."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = [*bytes_to_unicode().values(), "he", "<s>", "<|endoftext|>"]
    tokens += [f"<unused{i}>" for i in range(size - len(tokens))]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("qwen2")
    file.add_token_list(tokens)
    file.add_token_types([1] * 257 + [3] * (size - 257))
    file.add_token_merges(["h e"])
    file.add_bos_token_id(257)
    file.add_eos_token_id(258)
    file.add_chat_template(TEMPLATE)


@pytest.mark.parametrize("kind", [*BLOCKS, "F32", "F16", "BF16"])
def test_every_kind_of_blocks(tmp_path: Path, kind: str) -> None:
    path, key, (n, k) = tmp_path / "m.gguf", "model.layers.0.mlp.up_proj.weight", (96, 512)
    stored = gguf.GGMLQuantizationType[kind]
    weight = np.random.default_rng(4).normal(0, 0.02, (n, k)).astype(np.float32)
    weight[0, :2] = 0
    data = blocks(kind, weight)
    file = gguf.GGUFWriter(path, "qwen2")
    file.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=stored)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    config = SimpleNamespace(model_type="qwen2", num_hidden_layers=1)
    graphs = stored_in_gguf(config, path)({"forward": models.linear(key, n, k)})
    wanted = gguf.quants.dequantize(data, stored).astype(np.float32).reshape(n, k)
    np.testing.assert_array_equal(models.weight_of(graphs["forward"], path), wanted)


class Scale(torch.nn.Module):
    """A parameter that a norm would have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(8, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.parametrize(("kind", "added"), [("gemma2", 1), ("gemma3_text", 1), ("qwen3", 0)])
def test_norms_of_gemma_have_one_added(tmp_path: Path, kind: str, added: int) -> None:
    path, weight = tmp_path / "m.gguf", np.arange(8, dtype=np.float32) - 3
    file = gguf.GGUFWriter(path, kind.removesuffix("_text"))
    file.add_tensor("output_norm.weight", weight + added)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    outer = torch.nn.Module()
    outer.add_module("model", torch.nn.Module())
    outer.get_submodule("model").add_module("norm", Scale())
    outer.forward = outer.get_submodule("model.norm").forward
    graph = npusim.extract_ir(outer.eval(), torch.empty(8))
    config = SimpleNamespace(model_type=kind, num_hidden_layers=1)
    graphs = stored_in_gguf(config, path)({"forward": graph})
    (y,) = npusim.load(npusim.compile(graphs["forward"]), path)(np.ones(8, np.float32))
    np.testing.assert_array_equal(y, weight)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_rotary_rows_of_llama_lie_interleaved(tmp_path: Path, kind: str) -> None:
    made = models.model("llama")
    write(tmp_path / "m.gguf", made, kind)
    models.near(models.computed(tmp_path / "m.gguf", dtype="float32"), models.expected(made))


@pytest.mark.parametrize(
    ("kind", "dtype"), [("Q6_K", "bfloat16"), ("F16", "float16"), ("F32", "float32")]
)
def test_the_dtype_is_that_of_most_bytes(tmp_path: Path, kind: str, dtype: str) -> None:
    write(tmp_path / "m.gguf", models.model(), kind)
    assert gguf_dtype(tmp_path / "m.gguf") == dtype


def test_blocks_are_computed_in_bfloat16(tmp_path: Path) -> None:
    made = models.model()
    write(tmp_path / "m.gguf", made, "Q6_K")
    y, wanted = models.computed(tmp_path / "m.gguf"), models.expected(made)
    assert 1e-5 < np.abs(y - wanted).max() / np.abs(wanted).max() < 0.05


def test_a_file_is_all_that_generating_needs(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, models.model(), "Q8_0", vocabulary=True)
    graphs = npusim.extract_llm(path, max_context=64)
    assert graphs.facts["language_model"]["eos_token_ids"] == [258]
    program = tmp_path / "m.npubin"
    npusim.compile(graphs).save(program)
    loaded = npusim.LanguageModel.load(program, path)
    assert loaded.tokenizer.encode("hey") == [256, loaded.tokenizer.encode("y")[0]]
    assert loaded.tokenizer.decode([256]) == "he"
    assert loaded.chat_template is not None
    told = loaded.chat_template.render([{"role": "user", "content": "hey"}])
    assert told == "<s><user>hey"
    assert len("".join(loaded.generate("hey", max_new_tokens=4, ignore_eos=True))) >= 0


def test_rotary_frequencies_of_a_file(tmp_path: Path) -> None:
    made = models.model("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    (half,) = made.model.rotary_emb.inv_freq.shape
    factors = np.linspace(1, 8, half, dtype=np.float32)
    path = tmp_path / "m.gguf"
    write(path, made, "Q8_0", more=lambda file: file.add_tensor("rope_freqs.weight", factors))
    made.model.rotary_emb.inv_freq /= torch.from_numpy(factors)
    models.near(models.computed(path, dtype="float32"), models.expected(made))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (lambda file: file.add_rope_scaling_type(gguf.RopeScalingType.YARN), "rope.scaling.type"),
        (lambda file: file.add_sliding_window(16), "attention.sliding_window = 16"),
        (lambda file: file.add_key_length(32), "attention.key_length = 32"),
        (lambda file: file.add_logit_scale(0.5), "logit_scale = 0.5, and what it means"),
        (lambda file: file.add_expert_count(4), "expert_count = 4, and what it means"),
        (lambda file: file.add_tensor("blk.0.other.weight", np.ones(4, np.float32)), "not read"),
    ],
)
def test_what_a_configuration_does_not_hold_is_refused(
    tmp_path: Path, more: Settings, message: str
) -> None:
    write(tmp_path / "m.gguf", models.model("llama"), "Q8_0", more=more)
    with pytest.raises(npusim.ExportError, match=message):
        npusim.extract_llm(tmp_path / "m.gguf", max_context=32, dtype="float32")


def test_an_unknown_kind_of_blocks_is_refused(tmp_path: Path) -> None:
    made = models.model()
    path = tmp_path / "m.gguf"
    BLOCKS["TQ1_0"] = (256, (("qs", "u1", 54),))  # for writing alone
    try:
        write(path, made, "TQ1_0")
    finally:
        del BLOCKS["TQ1_0"]
    with pytest.raises(npusim.ExportError, match="of the type TQ1_0"):
        npusim.extract_llm(path, max_context=32, dtype="float32")


@pytest.mark.parametrize("kept", [0, 3, 100, 0.5, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, kept: float) -> None:
    path, part = tmp_path / "m.gguf", tmp_path / "part.gguf"
    write(path, models.model(), "Q8_0")
    image = path.read_bytes()
    cut = int(len(image) * kept) if kept == 0.5 else int(kept)
    part.write_bytes(image[:cut])
    with pytest.raises(npusim.Error, match=r"part\.gguf"):
        gguf_tensors(part)
        GgufCheckpoint(part)
    with pytest.raises(npusim.Error):
        npusim.extract_llm(part, max_context=32)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", models.model(), "Q8_0")
    write(tmp_path / "b.gguf", models.model(), "Q4_0")
    program = npusim.compile(npusim.extract_llm(tmp_path / "a.gguf", max_context=32))
    with pytest.raises(npusim.WeightMismatchError, match=r"\.qs"):
        npusim.LanguageModel.load(program, tmp_path / "b.gguf")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(npusim.Error, match="none"):
        npusim.extract_llm(tmp_path / "none.gguf", max_context=32)
    shutil.copy(__file__, tmp_path / "text.gguf")
    with pytest.raises(npusim.Error, match=r"text\.gguf"):
        npusim.extract_llm(tmp_path / "text.gguf", max_context=32)
