"""The standard models: extracted without data, run through PyTorch, compared with the model."""

from __future__ import annotations

import pytest

import npusim
from npusim.ops.reference import check_node
from tests.models import MODELS, build, build_meta


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_computes_what_the_model_computes(name: str) -> None:
    model, inputs = build(name, small=True)
    graph = npusim.extract_ir(model, inputs, model_name=name)
    ok, report = npusim.verify_ir_with_state_dict(
        ir=graph, state_dict=model.state_dict(), original_model=model, test_inputs=inputs
    )
    assert ok, report
    for node in graph.nodes:
        check_node(node, graph.types)
        assert node.source is not None


@pytest.mark.parametrize("name", ["resnet50", "bert_base", "vit_b_16"])
def test_full_models_are_extracted_from_the_meta_device(name: str) -> None:
    model, inputs = build_meta(name)
    graph = npusim.extract_ir(model, inputs)
    parameters = sum(w.type.numel for w in graph.weights if w.persistent)
    statistics = sum(p.numel() for k, p in model.named_buffers() if "running" in k)
    assert parameters == sum(p.numel() for p in model.parameters()) + statistics
    assert {w.key for w in graph.weights if w.persistent} <= model.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as published
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("mobilenet_v2", 3_504_872),
        ("mobilenet_v3_large", 5_483_032),
        ("efficientnet_b0", 5_288_548),
        ("vgg11_bn", 132_868_840),
        ("vgg16", 138_357_544),
        ("densenet121", 7_978_856),
        ("convnext_tiny", 28_589_128),
        ("vit_b_16", 86_567_656),
        ("bert_base", 109_482_240),
    ],
)
def test_models_have_the_published_size(name: str, parameters: int) -> None:
    model, _ = build_meta(name)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_equal_seeds_give_equal_models() -> None:
    (a, x), (b, y), (c, _) = (build("resnet18", seed, small=True) for seed in (1, 1, 2))
    assert all(v.equal(b.state_dict()[k]) for k, v in a.state_dict().items())
    assert x[0].equal(y[0])
    assert not a.fc.weight.equal(c.fc.weight)  # type: ignore[union-attr,operator]


def test_batch_norms_have_seen_data() -> None:
    model, _ = build("resnet18", small=True)
    state = model.state_dict()
    assert state["bn1.running_mean"].abs().max() > 0
    assert (state["bn1.running_var"] - 1).abs().max() > 0.1
