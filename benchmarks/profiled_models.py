"""Models of which `device_profiles.py` makes profiles, beside those of the tests.

Decoders of known models' sizes: the first layers of some, to fit to, and two whole ones, an encoder
and a U-Net that are kept out of fits. `unseen` are models that a preset was compared with when its
classes and numbers were there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import npusim
from npusim.ir.graph import Graph

Sizes = dict[str, int]
Made = tuple[nn.Module, tuple[Tensor, ...]]


def sizes(hidden: int, between: int, layers: int, heads: int, kv_heads: int, words: int) -> Sizes:
    """Returns a decoder's sizes by their names in a configuration."""
    return {
        "hidden_size": hidden, "intermediate_size": between, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": words,
    }  # fmt: skip


# With the tokens in the cache.
PARTS = {
    "part_qwen05": (sizes(896, 4864, 6, 14, 2, 151936), 512),
    "part_tinyllama": (sizes(2048, 5632, 6, 32, 4, 32000), 200),
    "part_smollm": (sizes(960, 2560, 6, 15, 5, 49152), 900),
    "part_llama1b": (sizes(2048, 8192, 6, 32, 8, 128256), 64),
    "part_qwen3b": (sizes(2048, 11008, 6, 16, 2, 151936), 1500),
    "part_phi": (sizes(3072, 8192, 4, 24, 8, 32064), 300),
}
WHOLE = {
    "llama1b": (sizes(2048, 8192, 16, 32, 8, 128256), 700),
    "smollm": (sizes(576, 1536, 30, 9, 3, 49152), 400),
}


class Block(nn.Module):
    """Two convolutions with norms over groups."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, out, 3, 1, 1), nn.Conv2d(out, out, 3, 1, 1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, out), nn.GroupNorm(8, out)])

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to [batch, out, height, width]."""
        x = nn.functional.silu(self.norms[0](self.first(x)))
        return nn.functional.silu(self.norms[1](self.second(x)))


class UNet(nn.Module):
    """Two levels down and up again, beside each other."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        w = width
        self.down = nn.ModuleList([Block(4, w), Block(w, 2 * w), Block(2 * w, 4 * w)])
        self.middle = Block(4 * w, 4 * w)
        self.up = nn.ModuleList([Block(6 * w, 2 * w), Block(3 * w, w)])
        self.out = nn.Conv2d(w, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps [batch, 4, height, width]."""
        near = self.down[0](x)
        far = self.down[1](nn.functional.max_pool2d(near, 2))
        x = self.middle(self.down[2](nn.functional.max_pool2d(far, 2)))
        x = self.up[0](torch.cat((nn.functional.interpolate(x, scale_factor=2.0), far), 1))
        x = self.up[1](torch.cat((nn.functional.interpolate(x, scale_factor=2.0), near), 1))
        out: Tensor = self.out(x)
        return out


class Encoder(nn.Module):
    """An encoder of MiniLM-L6's sizes, whose tokens' mean is the result."""

    def __init__(self, width: int = 384, heads: int = 12, between: int = 1536) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        kinds = {"dropout": 0.0, "activation": "gelu", "batch_first": True}
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, heads, between, **kinds) for _ in range(6)]
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps [batch, length] to [batch, width]."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


class Recurrent(nn.Module):
    """Two layers of an LSTM or a GRU over a sequence."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int) -> None:
        super().__init__()
        self.layers = kind(width, width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps [batch, steps, width]."""
        out: Tensor = self.layers(x)[0]
        return out


class Mixer(nn.Module):
    """A block of an MLP-Mixer (Tolstikhin et al., arXiv:2105.01601): patches, then channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.across, self.along = _mlp(patches, width // 2), _mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps [batch, patches, width]."""
        x = x + self.across(self.norms[0](x).mT).mT
        out: Tensor = x + self.along(self.norms[1](x))
        return out


def _mlp(width: int, between: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, between), nn.GELU(), nn.Linear(between, width))


def mixer(width: int = 512, patch: int = 16, size: int = 224) -> Made:
    """Returns an MLP-Mixer, S/16 unless told otherwise, up to its last block, with an image."""
    patches = (size // patch) ** 2
    stem = nn.Sequential(nn.Conv2d(3, width, patch, patch), nn.Flatten(2), Swapped())
    blocks = (Mixer(patches, width) for _ in range(8))
    return nn.Sequential(stem, *blocks), (torch.zeros(1, 3, size, size),)


class Swapped(nn.Module):
    """The last two dimensions, one for the other."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., m, n] to [..., n, m]."""
        return x.mT


def others() -> dict[str, Made]:
    """Returns models that no test has, with their inputs."""
    tokens = torch.zeros(1, 64, dtype=torch.int64)
    return {"unet": (UNet(), (torch.zeros(1, 4, 64, 64),)), "minilm": (Encoder(), (tokens,))}


# ---- models that no fit and no choice of classes has seen ----


@dataclass(frozen=True)
class Unseen:
    """A model to be compiled in a precision.

    Attributes:
        made: makes it with its inputs.
        precision: as `npusim.compile` takes it; "int8": quantized before.
    """

    made: Callable[[], Made]
    precision: str = "float32"

    def graph(self) -> tuple[Graph, str]:
        """Returns what is compiled, and in which precision."""
        net, inputs = self.made()
        graph = npusim.extract_ir(net.eval(), inputs)
        if self.precision != "int8":
            return graph, self.precision
        calls = {spec.name: x.numpy() for spec, x in zip(graph.inputs, inputs, strict=True)}
        return npusim.quantize(graph, net.state_dict(), calls).graph, "float32"


def _of_tests(name: str) -> Made:
    from tests.models import build

    return build(name)


def _of_transformers(name: str) -> Made:
    from benchmarks.transformers_models import build

    return build(name)


def _of_architectures(name: str) -> Made:
    from benchmarks.architectures import build

    return build(name, 1)


def unseen() -> dict[str, Unseen]:
    """Returns them by name: those of the first comparison, and of the second."""

    def of_tests(name: str, precision: str = "float32") -> Unseen:
        return Unseen(partial(_of_tests, name), precision)

    def of_transformers(name: str) -> Unseen:
        return Unseen(partial(_of_transformers, name))

    def of_architectures(name: str) -> Unseen:
        return Unseen(partial(_of_architectures, name))

    return {
        "efficientnet_b0": of_tests("efficientnet_b0"),
        "densenet121": of_tests("densenet121"),
        "vgg11_bn": of_tests("vgg11_bn"),
        "swin_t": of_transformers("swin_t"),
        "distilbert": of_transformers("distilbert_384"),
        "t5_encoder": of_transformers("t5_small_encoder"),
        "whisper_encoder": of_transformers("whisper_tiny_encoder"),
        "segformer_b0": of_transformers("segformer_b0"),
        "lstm": Unseen(lambda: (Recurrent(nn.LSTM, 512), (torch.zeros(1, 64, 512),))),
        "gru": Unseen(lambda: (Recurrent(nn.GRU, 768), (torch.zeros(1, 32, 768),))),
        "resnet50_bfloat16": of_tests("resnet50", "bfloat16"),
        "bert_base_bfloat16": of_tests("bert_base", "bfloat16"),
        "resnet50_int8": of_tests("resnet50", "int8"),
        "mobilenet_v2_int8": of_tests("mobilenet_v2", "int8"),
        "detector": of_architectures("detector"),
        "unet_256": of_architectures("unet"),
        "vgg16": of_tests("vgg16"),
        "mixer": Unseen(mixer),
        "super_resolution": of_architectures("super_resolution"),
        "autoencoder": of_architectures("autoencoder"),
        "speech_lstm": of_architectures("lstm"),
        "rt_detr": of_transformers("rt_detr"),
        "gpt2": of_transformers("gpt2"),
        "hifigan": of_transformers("hifigan"),
        "diffusion_unet": of_architectures("diffusion_unet"),
        "regnet_y": of_architectures("regnet_y"),
        "poolformer": of_transformers("poolformer"),
        "dpt": of_transformers("dpt"),
        "mobilevit": of_transformers("mobilevit"),
        "bart": of_transformers("bart"),
    }
