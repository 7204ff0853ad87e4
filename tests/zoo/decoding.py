"""One decoder, generating: extracted, compiled and run natively, against transformers' `generate`.

A prompt of two whole chunks and half of a third goes in; then NEW greedy tokens come out. In
float32 they have to be transformers' own, one for one, and the logits along them within a bound of
transformers'. In bfloat16 the logits are held to a wider bound, and a token may be another one only
where transformers' own logits of the two lie within it. A decoder that chooses experts or rows by
their scores may choose others for a rounding, and transformers' result in bfloat16 is then as good
as others. Such a one is held to what the same weights give in float32: it may be further from it,
by that same bound, than transformers in bfloat16 is, or than transformers in float32 gets when the
results of modules are off by a unit in bfloat16's last place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import DynamicCache, GenerationConfig

import npusim
from npusim.verify import all_weights as weights_of
from tests.zoo.decoder_models import build
from tests.zoo.inputs import VOCAB
from tests.zoo.measure import first_line

CONTEXT, CHUNK, PROMPT, NEW = 48, 8, 20, 16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ROUNDINGS = 8  # that are tried at random
# Of the largest logit.
BOUNDS = {"float32": 1e-4, "bfloat16": 4e-2}


@dataclass(frozen=True)
class Row:
    """What became of a decoder in one dtype.

    Attributes:
        name: of the architecture, as transformers' configurations have it.
        dtype: of its weights.
        generates: whether transformers itself generates with it here.
        state: what the program keeps from call to call.
        tokens: how many greedy tokens are transformers' own, from the first one on.
        excused: whether the first other token is as good as transformers', within the bound.
        error: the largest difference of a logit, relative to the largest one.
        bound: where it is the difference from float32: what roundings make of transformers' logits.
        problem: why there are no numbers, in one line.
        seconds: how long all of it took.
    """

    name: str
    dtype: str
    generates: bool = True
    state: str = ""
    tokens: int = 0
    excused: bool = False
    error: float | None = None
    bound: float = 0.0
    problem: str = ""
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether tokens and logits are transformers'."""
        within = self.error is not None and self.error <= BOUNDS[self.dtype] + self.bound
        return within and (self.tokens == NEW or self.excused)


@dataclass(frozen=True)
class Wanted:
    """What transformers generates: tokens, and the logits that each was chosen from."""

    tokens: list[int]
    logits: NDArray[np.float32]


def measure(name: str, dtype: str) -> Row:
    """Takes an architecture the whole way on the CPU."""
    start = time.perf_counter()
    fields: dict[str, Any] = {"name": name, "dtype": dtype}
    try:
        model = build(name).to(DTYPES[dtype])
        wanted = transformers_answer(model)
    except Exception as error:  # transformers' code may raise anything
        fields |= {"generates": False, "problem": f"{type(error).__name__}: {first_line(error)}"}
        return Row(**fields, seconds=time.perf_counter() - start)
    try:
        module = npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=CHUNK)
        fields["state"] = kept(module.facts["language_model"])
        program = npusim.compile(module)
        lm = npusim.LanguageModel.load(program, all_weights(module, model), threads=2)
        fields |= compared(lm, wanted, dtype)
        by_steps = "recurrent" in fields["state"]
        along = steps if by_steps else whole
        if fields["error"] > BOUNDS[dtype] and fields["state"] != "rows":
            wanted = along(model, wanted)
            fields |= compared(lm, wanted, dtype)
            fields["problem"] = (
                "transformers' own logits differ between a text as a whole and token by token; "
                f"these are compared with the {'latter' if by_steps else 'former'}"
            )
        if fields["error"] > BOUNDS[dtype] and dtype != "float32":
            exact = along(model.float(), wanted)
            fields |= held_to_float32(lm, [wanted, *rounded(model, exact, along)], exact)
    except npusim.Error as error:
        fields["problem"] = first_line(error)
    return Row(**fields, seconds=time.perf_counter() - start)


def prompt() -> list[int]:
    """Returns seeded tokens, none of them special."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(5, VOCAB, (PROMPT,), generator=generator).tolist()


def transformers_answer(model: nn.Module) -> Wanted:
    """Returns what transformers' own `generate` gives for the prompt."""
    # Not the model's own settings: some force or forbid tokens.
    model.generation_config = GenerationConfig(pad_token_id=0, guidance_scale=1.0)
    rows = len(getattr(model, "lm_heads", (None,)))  # of several codebooks
    result = model.generate(  # type: ignore[operator]
        torch.tensor([prompt()] * rows),
        max_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logits = torch.cat(result.logits).float().numpy()
    tokens = result.sequences[0, PROMPT:].tolist()
    if len(tokens) != NEW or logits.shape[0] != NEW:
        raise AssertionError(f"generate gives {len(tokens)} tokens and logits {logits.shape}")
    return Wanted(tokens, logits)


def steps(model: nn.Module, wanted: Wanted) -> Wanted:
    """Returns what transformers gives along the same tokens when they come one by one."""
    cache = DynamicCache(config=model.config)
    name = "cache_params" if "cache_params" in signature(model.forward).parameters else None
    logits = []
    with torch.no_grad():
        for token in (*prompt(), *wanted.tokens[:-1]):
            given = {name or "past_key_values": cache, "use_cache": True}
            logits.append(model(torch.tensor([[token]]), **given).logits[0, -1:])
    return Wanted(wanted.tokens, torch.cat(logits[PROMPT - 1 :]).float().numpy())


def whole(model: nn.Module, wanted: Wanted) -> Wanted:
    """Returns what transformers gives along the same tokens when they come all at once."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt(), *wanted.tokens[:-1]]])).logits[0, PROMPT - 1 :]
    return Wanted(wanted.tokens, logits.float().numpy())


def kept(facts: Mapping[str, Any]) -> str:
    """Returns what a program keeps from call to call, in a word or two."""
    caches = [cache["state"] for cache in facts["caches"]]
    rows = "the text" if caches == ["cache.text.tokens"] else "rows" if caches else ""
    return " and ".join(filter(None, (rows, "recurrent" if facts.get("recurrent") else "")))


def all_weights(module: npusim.Module, model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a model's weights, and large tables that its state_dict() leaves out."""
    weights: dict[str, torch.Tensor] = {}
    for graph in module.methods.values():
        weights |= weights_of(graph, model.state_dict(), model)
    return weights


def compared(lm: npusim.LanguageModel, wanted: Wanted, dtype: str) -> dict[str, Any]:
    """Returns how a compiled model differs from transformers, as fields of a Row."""
    greedy = list(lm.generate_tokens(prompt(), max_new_tokens=NEW, ignore_eos=True))
    differing = [
        i for i, pair in enumerate(zip(greedy, wanted.tokens, strict=True)) if pair[0] != pair[1]
    ]
    scale = float(np.abs(wanted.logits[np.isfinite(wanted.logits)]).max())
    fields: dict[str, Any] = {"tokens": NEW, "error": _largest(_logits(lm, wanted), wanted) / scale}
    if differing:
        step = differing[0]
        row = wanted.logits[step]
        loss = float(row[wanted.tokens[step]] - row[greedy[step]])
        excused = dtype != "float32" and loss <= BOUNDS[dtype] * scale
        fields |= {"tokens": step, "excused": excused}
    return fields


def rounded(
    model: nn.Module, exact: Wanted, along: Callable[[nn.Module, Wanted], Wanted]
) -> Iterator[Wanted]:
    """Yields what a model gives when modules' results are off by a unit in bfloat16's last place.

    Args:
        model: in float32.
        exact: what it gives otherwise.
        along: runs a model along the same tokens.
    """
    generator = torch.Generator().manual_seed(11)

    def off(module: nn.Module, args: Any, result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or result.dtype != torch.float32:
            return result
        return result * (1 + (torch.rand(result.shape, generator=generator) * 2 - 1) * 2**-8)

    handles = [module.register_forward_hook(off) for module in model.modules()]
    try:
        for _ in range(_ROUNDINGS):
            yield along(model, exact)
    finally:
        for handle in handles:
            handle.remove()


def held_to_float32(
    lm: npusim.LanguageModel, rounded: Iterable[Wanted], exact: Wanted
) -> dict[str, Any]:
    """Returns how a compiled model differs from what its weights give in float32, as fields.

    Tokens need no bound of their own: where both logits are near the exact ones, the token that one
    of them has as the largest is, in the other, as near to its largest as twice both distances.

    Args:
        rounded: what transformers gives along the same tokens, with roundings.
        exact: what it gives in float32.
    """
    scale = float(np.abs(exact.logits[np.isfinite(exact.logits)]).max())
    bound = max(_largest(each.logits, exact) for each in rounded) / scale
    return {
        "error": _largest(_logits(lm, exact), exact) / scale,
        "bound": bound,
        "excused": True,
        "problem": f"roundings move transformers' own logits by {bound:.0e} from those in float32, "
        "by other choices of experts or rows; these are compared with float32",
    }


def _logits(lm: npusim.LanguageModel, wanted: Wanted) -> NDArray[np.float32]:
    """Returns a compiled model's logits along the tokens that transformers chose."""
    session = lm.new_session()
    session.append(prompt())
    logits = [session.logits]
    for token in wanted.tokens[:-1]:
        session.append([token])
        logits.append(session.logits)
    return np.stack(logits)


def _largest(got: NDArray[np.float32], wanted: Wanted) -> float:
    """Returns the largest difference of finite logits; infinite where others differ."""
    want = wanted.logits
    if got.shape != want.shape:
        return float("inf")
    finite = np.isfinite(want)
    if not np.isfinite(got[finite]).all() or not np.array_equal(got[~finite], want[~finite]):
        return float("inf")
    return float(np.abs(got[finite] - want[finite]).max())
