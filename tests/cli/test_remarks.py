"""What `extract` says beside its answer, and what verbs say of files of another kind."""

from __future__ import annotations

import json

import pytest

from npusim.cli import main

MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x, scale=2.0, flag=True):
        return x * scale

def net():
    return Net().train(), (torch.zeros(2, 4), 3.0)

def plain():
    return Net().eval(), (torch.zeros(2, 4),)
"""


@pytest.fixture(autouse=True)
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL)


def test_extract_tells_of_the_mode_and_of_fixed_arguments(capsys):
    assert main(["extract", "m.py:net", "-o", "g.json", "--json"]) == 0
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    assert len(remarks) == 2
    assert "training mode" in remarks[0]
    assert "scale=3.0" in remarks[1] and "x=" not in remarks[1]
    assert main(["extract", "m.py:plain", "-o", "g.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["remarks"] == []


@pytest.mark.parametrize("verb", ["info", "compile", "partition", "check", "view"])
def test_an_onnx_model_is_taken_as_it_is(verb, tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    assert main(["extract", "m.py:plain", "-o", "g.json"]) == 0
    assert main(["export-onnx", "g.json", "-o", "n.onnx"]) == 0
    capsys.readouterr()
    weights = ("--weights", "n.safetensors")
    options = {"view": ("-o", "n.svg"), "compile": weights, "partition": weights}
    assert main([verb, "n.onnx", *options.get(verb, ())]) == 0
    model = onnx.load("n.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, "open.onnx")
    assert main(["import", "open.onnx", "-o", "o.json"]) == 2
    said = capsys.readouterr().err
    assert "--shape x=1x4" in said and "--dynamic batch=1:8" in said
