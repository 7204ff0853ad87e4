"""One token's rotation, append and attention in one command: the bits of `rope` and `attention`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npusim.abi.kernels import KERNELS
from npusim.codegen.metal.attention import attention_step
from tests.softmetal import metal
from tests.softmetal.matrix import CODES, kernels, random
from tests.softmetal.programs import KernelFailure, Kernels

__all__ = ["kernels"]
F16, BF16 = torch.float16, torch.bfloat16


class Token:
    """A token, its angles, and caches that are NaN from its position on."""

    def __init__(
        self,
        position: int,
        dtype: torch.dtype = F16,
        *,
        heads: tuple[int, int] = (6, 2),
        dims: tuple[int, int] = (16, 32),
        rows: int = 300,
        batch: int = 1,
        rotary: int = 0,
        **fields: object,
    ) -> None:
        (self.heads, kv), (d, dv) = heads, dims
        self.batch, self.position, self.rotary = batch, position, rotary or d
        self.q = random(batch, self.heads, 1, d, dtype=dtype, seed=1)
        self.k = random(batch, kv, 1, d, dtype=dtype, seed=2)
        self.v = random(batch, kv, 1, dv, dtype=dtype, seed=3)
        self.angles = [random(batch, 1, self.rotary, seed=s) for s in (4, 5)]
        self.keys = random(batch, kv, rows, d, dtype=dtype, seed=6)
        self.values = random(batch, kv, rows, dv, dtype=dtype, seed=7)
        for cache in (self.keys, self.values):
            cache[:, :, max(position, 0) :] = float("nan")
        self.y = torch.full((batch, self.heads, 1, dv), 7.0, dtype=dtype)
        numbers = {"interleaved": 0, "scale": 0.3, "softcap": 0.0, "window": 0}
        self.numbers: dict[str, Any] = {**numbers, **fields}

    def step(self) -> dict[str, Any]:
        """The parameters of `attention_step`."""
        strides = {
            f"{name}_strides": list(t.stride()[:count])
            for name, t, count in (
                *(("q", self.q, 2), ("k", self.k, 2), ("v", self.v, 2), ("y", self.y, 2)),
                *(("k_cache", self.keys, 3), ("v_cache", self.values, 3)),
            )
        }
        return {
            **strides,
            "cs_strides": [a.stride(0) for a in self.angles],
            "rotary_dim": self.rotary,
            "limit": self.keys.shape[2],
            **self._sizes(),
            **self.numbers,
            "cs_dtype": 0,
        }

    def _sizes(self) -> dict[str, int]:
        return {
            "batch": self.batch,
            "heads": self.heads,
            "kv_heads": self.k.shape[1],
            "head_dim": self.q.shape[3],
            "v_dim": self.v.shape[3],
            "dtype": CODES[self.q.dtype],
        }

    def at_once(self, kernels: Kernels) -> list[torch.Tensor]:
        """The caches and y behind `attention_step`."""
        results = [self.keys.clone(), self.values.clone(), self.y.clone()]
        self.attend(kernels, results)
        return results

    def attend(self, kernels: Kernels, results: list[torch.Tensor]) -> None:
        """Runs `attention_step` into the caches and y."""
        at = torch.tensor([self.position])
        given = [self.q, self.k, self.v, *self.angles, at]
        kernels.call("attention_step", [*given, *results], **self.step())

    def apart(self, kernels: Kernels) -> list[torch.Tensor]:
        """The same behind `rope` and `attention`."""
        keys, values, y = self.keys.clone(), self.values.clone(), self.y.clone()
        turned, at = torch.zeros_like(self.q), torch.tensor([self.position])
        sources, results = (self.q, self.k, self.v), (turned, keys, values)
        kernels.call(
            "rope",
            [*sources, *self.angles, at, *results],
            batch=self.batch,
            length=1,
            rotary_dim=self.rotary,
            heads=[t.shape[1] for t in sources],
            head_dim=[t.shape[3] for t in sources],
            limit=[0, keys.shape[2], keys.shape[2]],
            x_strides=[s for t in sources for s in t.stride()[:3]],
            y_strides=[s for t in results for s in t.stride()[:3]],
            cs_strides=[s for a in self.angles for s in a.stride()[:2]],
            rotate=[1, 1, 0],
            at_position=[0, 1, 1],
            parts=3,
            has_position=1,
            interleaved=self.numbers["interleaved"],
            dtype=CODES[self.q.dtype],
            cs_dtype=0,
        )
        numbers = {k: v for k, v in self.numbers.items() if k != "interleaved"}
        kernels.call(
            "attention",
            [turned, keys, values, at, y],
            q_len=1,
            kv_len=keys.shape[2],
            q_strides=turned.stride()[:3],
            k_strides=keys.stride()[:3],
            v_strides=values.stride()[:3],
            y_strides=y.stride()[:3],
            mask_strides=[0] * 4,
            causal_offset=0,
            has_mask=0,
            mask_dtype=0,
            causal=1,
            has_position=1,
            **self._sizes(),
            **numbers,
        )
        return [keys, values, y]

    def check(self, kernels: Kernels) -> None:
        """Compares both, bit by bit, in every order of threads."""
        metal.set_option("ORDER", "forward")
        want = [t.view(torch.uint8) for t in self.apart(kernels)]
        for order in metal.ORDERS:
            metal.set_option("ORDER", order)
            got = self.at_once(kernels)
            assert got[2].isfinite().all()
            assert all(a.view(torch.uint8).equal(b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("position", [0, 1, 127, 128, 255, 256, 299])
def test_positions_at_the_seams_of_parts(kernels: Kernels, position: int) -> None:
    token = Token(position)
    assert attention_step(KERNELS["attention_step"].unpack(_packed(token))).defines["PARTS"] == 3
    token.check(kernels)
    Token(position, BF16, window=130).check(kernels)


@pytest.mark.parametrize(
    "token",
    [
        Token(40, heads=(16, 1), dims=(128, 64), rows=41),
        Token(5, heads=(3, 3), dims=(256, 256), rows=6),
        Token(140, BF16, heads=(9, 1), dims=(32, 16), rotary=16, interleaved=1, softcap=0.5),
        Token(280, heads=(4, 2), batch=3),
        Token(0, heads=(1, 1), dims=(16, 16), rows=1),
        Token(250, window=1),
    ],
)
def test_sizes(kernels: Kernels, token: Token) -> None:
    token.check(kernels)


def test_a_position_outside_of_the_cache_is_reported(device: metal.Device) -> None:
    for rows in (9, 300):
        for position in (-1, rows):
            token = Token(position, rows=rows)
            results = [torch.full_like(t, 7) for t in (token.keys, token.values, token.y)]
            with pytest.raises(KernelFailure) as found:
                token.attend(Kernels(device), results)
            assert found.value.args == (1, position, rows - 1)
            assert all((t == 7).all() for t in results), "something was written"


def _packed(token: Token) -> bytes:
    return KERNELS["attention_step"].pack(token.step())
