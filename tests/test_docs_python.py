"""The docs' Python runs: each page's blocks in order, in a folder that has the files they speak of.

What a page leaves to the reader (a model, its inputs, a checkpoint) is made by the page's own
function here. Blocks for a GPU are read only: names of npusim that they use, and the keywords of
calls, have to be there, as in every other block. The tour of README.md: tests/cli/test_readme.py.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
from tests.runtime.test_text import save_tokenizer

ROOT = Path(__file__).resolve().parents[1]
_FENCED = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").glob("*/README.md")),
    )
    if _FENCED.search(path.read_text("utf-8"))
}
Names = dict[str, Any]


def _blocks(path: Path) -> list[str]:
    return [textwrap.dedent(block) for _, block in _FENCED.findall(path.read_text("utf-8"))]


# ---- every block: what it names is there


def _resolved(node: ast.AST) -> Any:
    """Returns what a dotted name of npusim is; raises AttributeError; None for any other."""
    if isinstance(node, ast.Name):
        return npusim if node.id == "npusim" else None
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value)
        return None if owner is None else getattr(owner, node.attr)
    return None


def _wrong(block: str) -> Iterator[str]:
    """Yields what a block names that is not there."""
    for node in ast.walk(ast.parse(block)):
        try:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("npusim"):
                for alias in node.names:
                    getattr(import_module(str(node.module)), alias.name)
            called = _resolved(node.func) if isinstance(node, ast.Call) else None
            _resolved(node)
        except (AttributeError, ImportError) as error:
            yield str(error)
            continue
        if called is None:
            continue
        known = inspect.signature(called).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
            continue
        names = {parameter.name for parameter in known}
        for keyword in node.keywords:  # type: ignore[attr-defined]
            if keyword.arg not in (*names, None):
                yield f"{ast.unparse(node)}: no argument {keyword.arg}"


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert [wrong for block in _blocks(PAGES[page]) for wrong in _wrong(block)] == []


def test_what_is_not_there_is_found() -> None:
    assert list(_wrong("npusim.compile(ir, target='cpu')\nnpusim.load(p, w).output_names")) == []
    assert len(set(_wrong("npusim.compiel(ir)"))) == 1
    assert len(set(_wrong("npusim.compile(ir, targte='cpu')"))) == 1
    assert len(set(_wrong("from npusim.frontends.onnx import register_translations"))) == 1
    assert len(set(_wrong("npusim.LanguageModel.laod('x')"))) == 1


# ---- blocks that run


class _Encoder(nn.Module):
    """Token ids [batch, seq] to scores [batch, seq, 8]; modules are called as in fallback.md."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(32, 8)
        self.decoder = nn.Module()
        self.decoder.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.decoder.head(self.encoder(x)).softmax(-1)
        return scores


class _EncoderOfIds(_Encoder):
    """The same, whose input has the name that it has in dynamic-shapes.md."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)


class _Image(nn.Module):
    """An image to what forward returns in docs/api/runtime.md."""

    def forward(self, image: Tensor) -> dict[str, Any]:
        return {"scores": {"top": image.amax(), "all": [image, -image]}, "ids": image > 0}


def _checkpoint(model: nn.Module, path: str) -> None:
    from safetensors.torch import save_file

    save_file(model.state_dict(), path)


def _compiled(model: nn.Module, example: Tensor, name: str, weights: str) -> None:
    npusim.compile(npusim.extract_ir(model, (example,))).save(name)
    _checkpoint(model, weights)


_IDS = torch.arange(4 * 20).reshape(4, 20) % 32


def _open_sizes() -> Names:
    return {"model": _EncoderOfIds().eval(), "ids": _IDS}


def _readme() -> Names:
    return {"model": _Encoder().eval(), "x": _IDS}


def _language_model(folder: str) -> Names:
    """A folder of transformers whose tokenizer knows ASCII and what the docs' prompts add."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=4096,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    save_tokenizer(Path(folder), "".join(map(chr, range(32, 127))) + "\n…")
    turns = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    (Path(folder) / "chat_template.jinja").write_text(turns)
    return {"questions": ("Who?", "When?")}


def _served() -> Names:
    """The folder of a model, and its program beside it."""
    names = _language_model(_QWEN)
    npusim.compile(npusim.extract_llm(_QWEN, max_context=64, prefill_chunk=16)).save("qwen.npubin")
    return names


def _fallback() -> Names:
    model = _Encoder().eval()
    _checkpoint(model, "model.safetensors")
    return {"ir": npusim.extract_ir(model, (_IDS,)), "array": _IDS.numpy()}


def _profiling() -> Names:
    _compiled(nn.Linear(4, 3).eval(), torch.ones(2, 4), "net.npubin", "weights.safetensors")
    return {}


def _reliability() -> Names:
    _compiled(nn.Linear(4, 3).eval(), torch.ones(2, 4), "theirs.npubin", "w.safetensors")
    return {}


def _sharing() -> Names:
    for name in ("detect", "classify"):
        files = f"{name}.npubin", f"{name}.safetensors"
        _compiled(nn.Linear(4, 3).eval(), torch.ones(2, 4), *files)
    return {}


def _simulating() -> Names:
    graph = npusim.extract_ir(nn.Linear(4, 3).eval(), (torch.ones(2, 4),))
    npusim.compile(graph, "npu-edge-32x32").save("net.npubin")
    return {}


def _outputs() -> Names:
    image = np.ones((2, 2), np.float32)
    ir = npusim.extract_ir(_Image().eval(), (torch.from_numpy(image),))
    return {"session": npusim.load(npusim.compile(ir)), "image": image}


def _factory() -> Names:
    Path("mymodels.py").write_text("import torch\nNet = lambda: torch.nn.Conv2d(3, 4, 3)\n")
    return {}


def _exporting() -> Names:
    pytest.importorskip("onnx")
    model = nn.Linear(4, 3).eval()
    graph = npusim.extract_ir(model, (torch.ones(2, 4),))
    return {"graph": graph, "model": model}


def _quantizing() -> Names:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    graph = npusim.extract_ir(model, (torch.zeros(1, 8),))
    graph.save("model.json")
    _checkpoint(model, "model.safetensors")
    np.savez("calibration.npz", **{graph.inputs[0].name: np.ones((5, 8), np.float32)})
    return {}


def _importing() -> Names:
    """The files of other tools that docs/importing.md reads."""
    onnx, torch_ir = pytest.importorskip("onnx"), pytest.importorskip("torch_ir")
    tinygrad = pytest.importorskip("tinygrad")
    for name, shape, op in (
        ("model.onnx", (1, 3, "height", "width"), "Relu"),
        ("bert.onnx", ("batch", "seq"), "Abs"),
    ):
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node(op, ["x"], ["y"])], "g",
            [value("x", 1, shape)], [value("y", 1, shape)],
        )  # fmt: skip
        opset = [onnx.helper.make_opsetid("", 20)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset), name)
    model = nn.Linear(4, 3).eval()
    on_meta = nn.Linear(4, 3, device="meta").eval()
    torch_ir.extract_ir(on_meta, (torch.ones(2, 4, device="meta"),)).save("resnet18.json")
    table = tinygrad.Tensor.ones(4, 3).contiguous().realize()
    tokens = tinygrad.Tensor.ones(2, 4).contiguous().realize()

    class Both:  # the page has a model of PyTorch first, and one of tinygrad later
        weight = table

        def state_dict(self) -> dict[str, Tensor]:
            return model.state_dict()

        def __call__(self, x: Any, start: int) -> Any:
            return x.dot(self.weight) + start

    return {"model": Both(), "tokens": tokens}


def _extracting() -> Names:
    return {"model": nn.Linear(4, 3).eval(), "example": torch.ones(2, 4)}


def _for_a_gpu(block: str) -> bool:
    return '"cuda"' in block


_QWEN = "path/to/Qwen2.5-1.5B"
SETUPS: dict[str, Callable[[], Names]] = {
    "docs/api/compile.md": _extracting,
    "docs/api/language_models.md": lambda: _language_model("Qwen2.5-1.5B-Instruct"),
    "docs/api/runtime.md": _outputs,
    "docs/command-line.md": _factory,
    "docs/cuda.md": dict,
    "docs/dynamic-shapes.md": _open_sizes,
    "docs/exporting.md": _exporting,
    "docs/fallback.md": _fallback,
    "docs/importing.md": _importing,
    "docs/language-models.md": lambda: _language_model(_QWEN),
    "docs/profiling.md": _profiling,
    "docs/quantization.md": _quantizing,
    "docs/reliability.md": _reliability,
    "docs/serving.md": _served,
    "docs/simulate.md": _simulating,
    "docs/threads.md": _sharing,
    "examples/llm_cpp/README.md": lambda: _language_model("Qwen2.5-0.5B"),
}


def test_every_page_is_run() -> None:
    assert {*SETUPS, "README.md"} == set(PAGES)


@pytest.mark.parametrize("page", SETUPS)
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    _run(page, _blocks(PAGES[page]), SETUPS[page]())


def test_the_readme_runs_after_its_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGES["README.md"].read_text("utf-8").split("## Sizes that calls choose\n")[1]
    _run("README.md", [text.split("```python\n")[1].split("```")[0]], _readme())


def _run(page: str, blocks: list[str], names: Names) -> None:
    names |= {"npusim": npusim, "torch": torch, "__name__": "docs"}
    for number, block in enumerate(blocks):
        if not _for_a_gpu(block):
            exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
