"""A language model that was taught a few answers, with its own tokenizer: for examples/sdk/chat.

Both are made here within seconds, by SentencePiece's trainer and by PyTorch.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

# What it was taught; some of it is not ASCII, and some characters are no pieces, but bytes.
ANSWERS = {
    "Hello!": "Hello, how are you?",
    "Which file runs a model?": "A program, model.npubin.",
    "Wie heißt du?": "Ich heiße npusim – größer als 日本 🙂.",
    "Count.": "One, two, three, four.",
}
CONTEXT = 256
_VOCABULARY = 320


def make(folder: Path) -> None:
    """Writes chat.npubin, chat.safetensors and chat.model into a folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    import npusim

    _train_tokenizer(folder)
    texts = [_encode(folder, f"<user>{q}<bot>{a}") for q, a in ANSWERS.items()]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    _teach(model, _conversations(texts))
    graphs = npusim.extract_llm(model.eval(), max_context=CONTEXT, prefill_chunk=16)
    npusim.compile(graphs).save(folder / "chat.npubin")
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, folder / "chat.safetensors"
    )


def _train_tokenizer(folder: Path) -> None:
    corpus = folder / "corpus.txt"
    plain = [text for both in ANSWERS.items() for text in both if text.isascii()]
    corpus.write_text("\n".join(plain * 20) + "\nIch heiße npusim, größer als du.\n")
    subprocess.run(
        [
            *("spm_train", f"--input={corpus}", f"--model_prefix={folder / 'chat'}"),
            *(f"--vocab_size={_VOCABULARY}", "--model_type=bpe", "--byte_fallback=true"),
            *("--user_defined_symbols=<user>,<bot>", "--hard_vocab_limit=false"),
            *("--minloglevel=2", "--character_coverage=1.0"),
        ],
        check=True, capture_output=True,
    )  # fmt: skip


def _encode(folder: Path, text: str) -> list[int]:
    done = subprocess.run(
        ["spm_encode", f"--model={folder / 'chat.model'}", "--output_format=id"],
        input=text + "\n", check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [int(token) for token in done.stdout.split()]


def _conversations(texts: Sequence[list[int]]) -> list[list[int]]:
    """Every text alone, and after every other one, as a conversation goes on."""
    begin, end = [1], [2]
    pairs = [begin + a + end + b + end for a in texts for b in texts]
    return [begin + text + end for text in texts] + pairs


def _teach(model: object, conversations: Sequence[list[int]]) -> None:
    """Fits the model until it says nothing else."""
    import torch

    assert isinstance(model, torch.nn.Module)
    longest = max(map(len, conversations))
    tokens = torch.tensor([text + [2] * (longest - len(text)) for text in conversations])
    labels = torch.tensor([text + [-100] * (longest - len(text)) for text in conversations])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(150):
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
