"""A language model of transformers, built from its configuration without its weights.

Owns the stand-ins for large tensors, on the meta device, and the data of the buffers that follow
from a configuration alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from npusim.errors import ExportError, first_line
from npusim.frontends.checkpoints.gguf import gguf_dtype
from npusim.frontends.checkpoints.gguf_settings import scale_frequencies
from npusim.frontends.weight_free import module_tensors
from npusim.runtime.gguf import SUFFIX as GGUF


def hollow_model(
    source: str | Path, dtype: str | None, kind: str = "AutoModelForCausalLM"
) -> nn.Module:
    """Builds a model from its configuration, with large tensors on the meta device.

    Args:
        source: a folder with `config.json`, a `.gguf` file, or a hub's name.
        dtype: of the weights; None: the configuration's, or what a GGUF file's blocks want.
        kind: which of transformers' classes makes it.

    Raises:
        ExportError: there is no such configuration, or it is none of such a model.
    """
    transformers = _transformers()
    path = Path(source)
    single = is_gguf(source)
    local = isinstance(source, Path) or path.exists()
    if local and not single and not (path / "config.json").is_file():
        raise ExportError(f"{path} has no config.json.", hint="Pass a model's folder.")
    try:
        if single:
            config = transformers.AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        else:
            config = transformers.AutoConfig.from_pretrained(str(source))
        stored = gguf_dtype(path) if single else getattr(config, "dtype", None)
        chosen = _dtype(dtype or stored or torch.float32)
        with _Hollow():
            model = getattr(transformers, kind).from_config(config, dtype=chosen)
        if single:
            scale_frequencies(model, path)
    except ExportError:
        raise
    except Exception as error:  # whatever a hub, a file or a constructor raises
        raise ExportError(
            f"{source} is not a language model that can be built ({kind}): {first_line(error)}"
        ) from error
    model.tie_weights()
    return model.eval()  # type: ignore[no-any-return]


def is_gguf(source: object) -> bool:
    """Tells whether a model is given by a GGUF file."""
    return isinstance(source, (str, Path)) and Path(source).suffix == GGUF


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ExportError(
            "Language models need the package transformers.",
            hint="pip install 'npusim[llm]'",
        ) from None
    return transformers


def _dtype(name: Any) -> torch.dtype:
    value = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise ExportError(f"{name!r} is not a dtype of weights.", hint='Try "bfloat16".')
    return value


# Functions that make tensors with data.
_COMPUTED = (
    *(torch.ones, torch.zeros, torch.full, torch.arange, torch.linspace, torch.eye),
    *(torch.rand, torch.randn, torch.randint),
)


class _Hollow(TorchFunctionMode):
    """Makes large uninitialised tensors, which parameters are made of, without data.

    What a constructor computes (rotary frequencies, scales) keeps its data. A configuration may
    ask for any sizes; more data, or more tensors, than a model has any use for are refused before
    they are made.
    """

    _LARGE = 1 << 16  # elements
    _MOST_BYTES = 1 << 30  # of data, all together
    _MOST_TENSORS = 1 << 18

    def __init__(self) -> None:
        super().__init__()
        self._bytes = self._tensors = 0

    def _count(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        with torch._C.DisableTorchFunction(), contextlib.suppress(TypeError, RuntimeError):
            probe = func(*args, **{**kwargs, "device": "meta"})
            self._bytes += probe.numel() * probe.element_size()
        self._note()

    def _note(self) -> None:
        self._tensors += 1
        if self._bytes > self._MOST_BYTES or self._tensors > self._MOST_TENSORS:
            raise ExportError(
                f"The configuration asks for {self._tensors:,} tensors with {self._bytes:,} bytes "
                "of data besides its weights, more than any model needs.",
                hint="Look at its sizes: hidden_size, num_hidden_layers, max_position_embeddings.",
            )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _COMPUTED and kwargs.get("device") in (None, "cpu", torch.device("cpu")):
            self._count(func, args, kwargs)
        if func is torch.empty and kwargs.get("device") is None:
            with torch._C.DisableTorchFunction():
                probe = torch.empty(*args, **{**kwargs, "device": "meta"})
            self._note()
            if probe.numel() >= self._LARGE:
                return probe
        return func(*args, **kwargs)


@contextmanager
def with_buffers_data(model: nn.Module) -> Iterator[None]:
    """Gives buffers that no checkpoint holds the data they lack on the meta device.

    They follow from the configuration, so a second model built from it has them.
    """
    tensors = module_tensors(model)
    hollow = [
        path
        for path, tensor in tensors.originals.items()
        if path not in tensors.persistent and tensor.device.type == "meta"
    ]
    if hollow:
        config = getattr(model, "config")  # noqa: B009
        with _Hollow():
            twin = type(model)(config)
        owners = [(model.get_submodule(p.rpartition(".")[0]), p) for p in hollow]
        for owner, path in owners:
            setattr(owner, path.rpartition(".")[2], _tensor_at(twin, path))
    try:
        yield
    finally:
        for path in hollow:
            owner = model.get_submodule(path.rpartition(".")[0])
            setattr(owner, path.rpartition(".")[2], tensors.originals[path])


def _tensor_at(model: nn.Module, path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(model.get_submodule(module), name)
