"""A Hugging Face decoder to a Module of methods over one KV cache: prefill, decode, generate.

Owns what turns a causal language model of `transformers` into a program that keeps its cache: the
static cache's tensors and the position become buffers of the model for as long as it is traced,
forward updates them, and the extraction makes states of what forward updates. The model's own
modules are traced unmodified, by torch.export, without their weights.

* `prefill(tokens int64[1, chunk], length int64[1]) -> logits[1, 1, vocab]`: appends a chunk of
  which the first `length` tokens count; the logits are those of the last token that counts.
* `prefill_<chunk>`: the same for each larger chunk that is asked for.
* `decode(tokens int64[1, 1]) -> logits[1, 1, vocab]`: appends one token.
* `generate(sampling float64[5], seed int64[1]) -> chosen int64[1]`: appends the token that it chose
  last, and chooses the next one (generate_method.py).

Rows of the cache from `position` on are undefined: a padded chunk leaves garbage there, which no
query sees before a later token has overwritten it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

from npusim.errors import ExportError
from npusim.frontends.generate_method import generate_method
from npusim.frontends.torch_export import extract_ir
from npusim.frontends.weight_free import module_tensors, weight_free
from npusim.ir.module import Module, verify_module

Forward = Callable[..., dict[str, Tensor]]
Shapes = list[tuple[torch.Size, torch.Size]]  # of each layer's keys and values

_SEQUENCE_AXIS = 2  # of the caches of transformers: [batch, heads, position, dim]


def extract_llm(
    model: nn.Module | str | Path,
    *,
    max_context: int = 4096,
    prefill_chunk: int | Sequence[int] = 128,
    dtype: str | None = None,
) -> Module:
    """Extracts a causal language model of `transformers`, without its weights.

    Args:
        model: a model in evaluation mode (on any device, the meta device included), or what
            `AutoConfig.from_pretrained` takes: a folder with `config.json`, or a hub's name. From
            a configuration the model is built without ever allocating its weights.
        max_context: tokens a session can hold; the size of the cache.
        prefill_chunk: tokens that one call of `prefill` appends. Of several, the smallest; each
            larger one has a method of its own, `prefill_<chunk>`, which long prompts run through.
        dtype: the weights' dtype ("bfloat16"); by default the configuration's. Only for a model
            given by its configuration.

    Returns:
        A Module with the methods `prefill`, `decode` and `generate`, and under
        `facts["language_model"]` what a runtime needs: max_context, prefill_chunk (and
        larger_chunks, if any), vocab_size, eos_token_ids, the names of the states of the position,
        the token and the history, and the caches' states with the axis along which they grow.

    Raises:
        ExportError: not such a model, it cannot be traced, or a limit makes no sense for it.
    """
    decoder = _hollow_model(model, dtype) if isinstance(model, (str, Path)) else model
    config = _text_config(decoder)
    given = [prefill_chunk] if isinstance(prefill_chunk, int) else prefill_chunk
    max_context, chunks = _limits(config, max_context, given)
    model_name = type(decoder).__name__
    with _with_buffers_data(decoder):
        shapes = _cache_shapes(decoder)
        methods: dict[str, tuple[Forward, tuple[Tensor, ...]]] = {
            name: (_prefill, (_tokens(chunk), torch.ones(1, dtype=torch.int64)))
            for name, chunk in _prefills(chunks).items()
        }
        methods["decode"] = (_decode, (_tokens(1),))
        graphs = {}
        for method, (forward, arguments) in methods.items():
            with _stateful(decoder, forward, shapes, max_context):
                graphs[method] = extract_ir(decoder, arguments, model_name=f"{model_name}.{method}")
    graphs["generate"] = generate_method(
        graphs["decode"], f"{model_name}.generate", max_context, "position"
    )
    facts = _facts(decoder, config, max_context, chunks, len(shapes))
    return verify_module(Module(model_name, graphs, {"language_model": facts}))


def _tokens(count: int) -> Tensor:
    return torch.zeros((1, count), dtype=torch.int64)


# ---- the model ----


def _text_config(model: object) -> Any:
    config = getattr(model, "config", None)
    if not isinstance(model, nn.Module) or config is None or not hasattr(model, "lm_head"):
        raise ExportError(
            f"extract_llm takes a causal language model of transformers, not "
            f"{type(model).__name__}.",
            hint="Pass an AutoModelForCausalLM, or the folder of its config.json.",
        )
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _prefills(chunks: Sequence[int]) -> dict[str, int]:
    """Returns the methods that append chunks, and their sizes."""
    return {f"prefill_{chunk}" if i else "prefill": chunk for i, chunk in enumerate(chunks)}


def _limits(config: Any, max_context: int, chunks: Sequence[int]) -> tuple[int, list[int]]:
    """Returns the context and the distinct chunks, ascending, none of them longer."""
    known = getattr(config, "max_position_embeddings", None)
    if max_context < 1 or not chunks or min(chunks) < 1:
        shown = ", ".join(map(str, chunks)) or "none"
        raise ExportError(
            f"max_context is {max_context} and prefill_chunk {shown}; all are 1 or more."
        )
    if isinstance(known, int) and max_context > known:
        raise ExportError(
            f"max_context is {max_context}, but the model knows {known} positions.",
            hint="Lower max_context.",
        )
    return max_context, sorted({min(chunk, max_context) for chunk in chunks})


def _hollow_model(source: str | Path, dtype: str | None) -> nn.Module:
    """Builds a model from its configuration, with large tensors on the meta device."""
    transformers = _transformers()
    if isinstance(source, Path) or Path(source).exists():
        path = Path(source)
        if not (path / "config.json").is_file():
            raise ExportError(f"{path} has no config.json.", hint="Pass a model's folder.")
    try:
        config = transformers.AutoConfig.from_pretrained(str(source))
        chosen = _dtype(dtype or getattr(config, "dtype", None) or torch.float32)
        with _Hollow():
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=chosen)
    except ExportError:
        raise
    except Exception as error:  # whatever a hub, a file or a constructor raises
        raise ExportError(f"{source} is not a language model that can be built: {error}") from error
    model.tie_weights()
    return model.eval()  # type: ignore[no-any-return]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ExportError(
            "extract_llm needs the package transformers.", hint="pip install 'npusim[llm]'"
        ) from None
    return transformers


def _dtype(name: Any) -> torch.dtype:
    value = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise ExportError(f"{name!r} is not a dtype of weights.", hint='Try "bfloat16".')
    return value


class _Hollow(TorchFunctionMode):
    """Makes large uninitialised tensors, which parameters are made of, without data.

    What a constructor computes (rotary frequencies, scales) keeps its data.
    """

    _LARGE = 1 << 16  # elements

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            with torch._C.DisableTorchFunction():
                probe = torch.empty(*args, **{**kwargs, "device": "meta"})
            if probe.numel() >= self._LARGE:
                return probe
        return func(*args, **kwargs)


@contextmanager
def _with_buffers_data(model: nn.Module) -> Iterator[None]:
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


# ---- the cache ----


def _cache_shapes(model: nn.Module) -> Shapes:
    """Returns the shapes one token leaves in the cache, found by tracing a call without data."""
    cache = _transformers().DynamicCache()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with torch.no_grad(), weight_free(model, mode), mode:
            model(input_ids=_tokens(1), past_key_values=cache, use_cache=True)
        return [(layer.keys.shape, layer.values.shape) for layer in cache.layers]
    except Exception as error:  # a model's code may raise anything
        raise ExportError(
            f"{type(model).__name__} does not keep its keys and values in a cache of "
            f"transformers: {error}"
        ) from error


class _Layer(nn.Module):
    """The cache of one layer: two buffers that become states."""

    def __init__(self, keys: torch.Size, values: torch.Size, rows: int, dtype: torch.dtype) -> None:
        super().__init__()
        for name, shape in (("key", keys), ("value", values)):
            full = (*shape[:_SEQUENCE_AXIS], rows, *shape[_SEQUENCE_AXIS + 1 :])
            empty = torch.empty(full, dtype=dtype, device="meta")
            self.register_buffer(name, empty, persistent=False)


@contextmanager
def _stateful(model: nn.Module, forward: Forward, shapes: Shapes, rows: int) -> Iterator[None]:
    """Gives a model the buffers `cache` and `position`, and another forward, for a while."""
    taken = [name for name in ("cache", "position", "token", "history") if hasattr(model, name)]
    if taken:
        raise ExportError(f"{type(model).__name__} has an attribute {taken[0]!r} of its own.")
    dtype = next(model.parameters()).dtype
    model.cache = nn.ModuleList(_Layer(*pair, rows, dtype) for pair in shapes)
    model.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)
    original = type(model).forward
    model.forward = partial(forward, model, original)  # its signature names the inputs
    model.cache.eval()
    try:
        yield
    finally:
        del model.cache, model.position, model.forward


def _static_cache(model: nn.Module) -> Any:
    """Returns a cache of transformers that shows, and updates, the model's buffers."""
    from transformers.cache_utils import Cache, StaticLayer

    layers: list[Any] = []
    for buffers in model.cache:  # type: ignore[union-attr]
        keys, values = buffers.key, buffers.value
        layer = StaticLayer(max_cache_len=keys.shape[_SEQUENCE_AXIS])
        layer.keys, layer.values = keys, values
        layer.dtype, layer.device = keys.dtype, keys.device
        layer.batch_size, layer.num_heads = keys.shape[:2]
        layer.k_head_dim, layer.v_head_dim = keys.shape[-1], values.shape[-1]
        layer.cumulative_length = model.position[0].clone()  # type: ignore[index]
        layer.is_initialized = True
        layers.append(layer)
    return Cache(layers=layers)


def _prefill(model: Any, forward: Any, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
    return _append(model, forward, tokens, length, length - 1)


def _decode(model: Any, forward: Any, tokens: Tensor) -> dict[str, Tensor]:
    return _append(model, forward, tokens, 1, 1)


def _append(model: Any, forward: Any, tokens: Tensor, length: Any, keep: Any) -> dict[str, Tensor]:
    positions = torch.arange(tokens.shape[1]) + model.position
    output = forward(
        model,
        input_ids=tokens,
        position_ids=positions.unsqueeze(0),
        past_key_values=_static_cache(model),
        use_cache=True,
        logits_to_keep=keep,
    )
    model.position.add_(length)
    return {"logits": output.logits}


# ---- what a runtime needs to know ----


def _facts(
    model: nn.Module, config: Any, max_context: int, chunks: Sequence[int], layers: int
) -> dict[str, Any]:
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = getattr(config, "eos_token_id", None) if eos is None else eos
    names = [f"cache.{i}.{name}" for i in range(layers) for name in ("key", "value")]
    return {
        "max_context": max_context,
        "prefill_chunk": chunks[0],
        **({"larger_chunks": list(chunks[1:])} if chunks[1:] else {}),
        "vocab_size": config.vocab_size,
        "eos_token_ids": [] if eos is None else [eos] if isinstance(eos, int) else list(eos),
        "position": "position",
        "token": "token",
        "history": "history",
        "caches": [{"state": name, "axis": _SEQUENCE_AXIS} for name in names],
    }
