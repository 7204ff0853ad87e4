"""Qwen2.5-1.5B on a GPU: tokens chosen on the device beside tokens chosen on the host.

    PYTHONPATH=python:. python benchmarks/llm_generate.py compile FOLDER
    PYTHONPATH=python:. python benchmarks/llm_generate.py run FOLDER

`compile` writes two programs to FOLDER, with and without the method `generate`; it needs no GPU.
`run` makes seeded random weights, checks that both choose the same tokens, and prints the times of
a generated token, of the methods alone, and of the command that chooses. Both programs generate in
turn, several times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npusim
from benchmarks.cuda_sampling import OFF, WAYS
from benchmarks.llm_peers import VOCAB, configuration

CONTEXT, NEW, ROUNDS = 128, 128, 6
PROGRAMS = {"device": "device.npubin", "host": "host.npubin"}


def row(what: str, value: str) -> None:
    print(f"{what:52} {value:>34}", flush=True)


def spread(seconds: list[float], unit: float = 1e3, name: str = "ms") -> str:
    """Returns the median, and the least and the most."""
    middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"{unit * middle:.3f} ({unit * least:.3f} - {unit * most:.3f}) {name}"


def model() -> Any:
    """Returns the model without data."""
    import transformers

    config = configuration("1.5b")
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return built.eval()


def compile_both(folder: Path) -> None:
    """Writes the programs, and the names and shapes of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    built = model()
    shapes = {key: tuple(tensor.shape) for key, tensor in built.state_dict().items()}
    torch.save(shapes, folder / "shapes.pt")
    module = npusim.extract_llm(built, max_context=1024, prefill_chunk=128)
    npusim.compile(module, target="cuda").save(folder / PROGRAMS["device"])
    methods = {name: graph for name, graph in module.methods.items() if name != "generate"}
    facts = {
        key: value
        for key, value in module.facts["language_model"].items()
        if key not in ("token", "history")
    }
    without = npusim.Module(module.name, methods, {"language_model": facts})
    npusim.compile(without, target="cuda").save(folder / PROGRAMS["host"])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Returns seeded random weights in bfloat16."""
    generator = torch.Generator("cuda").manual_seed(0)
    made: dict[str, torch.Tensor] = {}
    for key, shape in torch.load(folder / "shapes.pt").items():
        scale = 0.0 if "norm" in key else 0.02
        noise = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
        made[key] = (noise * scale + (1.0 if "norm" in key else 0.0)).cpu()
    made["lm_head.weight"] = made["model.embed_tokens.weight"]
    return made


def generate(lm: npusim.LanguageModel, prompt: list[int], options: Mapping[str, Any]) -> Any:
    """Returns the tokens, and the seconds each took after the first."""
    generation = lm.generate_tokens(
        prompt, max_new_tokens=NEW, ignore_eos=True, **{"seed": 1, **options}
    )
    tokens = list(generation)
    return tokens, generation.stats.decode_seconds / (NEW - 1)


def choosing(folder: Path, lm: npusim.LanguageModel, made: Any) -> None:
    """Times the command that chooses, and the methods as a whole."""
    program = npusim.CompiledProgram.load(folder / PROGRAMS["device"])
    weights = npusim.load_weights(made, program, lm.device)
    for name, options in WAYS.items():
        numbers = {**OFF, **options}
        profile = npusim.profile_program(
            program,
            weights,
            method="generate",
            inputs={"sampling": np.array([numbers[key] for key in OFF], np.float64)},
            context=CONTEXT,
            device=lm.device,
            repeats=20,
        )
        chosen = next(c for c in profile.commands if c.kernel == "sample")
        row(f"the command alone: {name}", f"{1e6 * chosen.seconds:.1f} us")
        row(f"method generate, one run: {name}", f"{1e3 * profile.run_seconds:.3f} ms")


def run(folder: Path) -> None:
    """Checks and measures."""
    start = time.perf_counter()
    made = weights(folder)
    row("weights made", f"{time.perf_counter() - start:.1f} s")
    models = {
        name: npusim.LanguageModel.load(folder / file, weights=made, device="cuda")
        for name, file in PROGRAMS.items()
    }
    prompt = np.random.default_rng(0).integers(10, VOCAB, CONTEXT).tolist()
    for name, options in WAYS.items():
        seconds: dict[str, list[float]] = {where: [] for where in models}
        tokens = {}
        for _ in range(ROUNDS):
            for where, lm in models.items():
                tokens[where], each = generate(lm, prompt, options)
                seconds[where].append(each)
        same = tokens["device"] == tokens["host"]
        row(f"{name}: the same tokens", f"{'yes' if same else 'NO'}, {len(set(tokens['host']))}")
        for where, values in seconds.items():
            row(f"{name}: a token, chosen on the {where}", spread(values))
    choosing(folder, models["device"], made)


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("compile", "run"))
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    (compile_both if args.what == "compile" else run)(args.folder)


if __name__ == "__main__":
    main()
