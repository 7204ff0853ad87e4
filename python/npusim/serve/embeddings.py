"""From a body of /v1/embeddings to its answer.

https://platform.openai.com/docs/api-reference/embeddings. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error
from npusim.serve.answers import to_json
from npusim.serve.embedding_engine import EmbeddingEngine
from npusim.serve.fields import Fields, RequestError, are_tokens
from npusim.serve.generation import Record, check_name, refusal_of
from npusim.serve.openai import Prompt, refuse_what_is_not_there
from npusim.serve.requests import TooLongError

_MOST_INPUTS = 2048  # OpenAI's
_REFUSED: dict[str, tuple[Any, ...]] = {
    "messages": (),
    "truncate": (),
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "input_type": (),
    "prompt_name": (),
    "normalize": (True,),
    "embed_dtype": ("float32",),
}


@dataclass(frozen=True)
class EmbeddingRequest:
    """A body of /v1/embeddings.

    Attributes:
        model: the name that was asked for, or None.
        inputs: texts or tokens.
        base64: whether vectors are told as the base64 of float32, little-endian.
        dimensions: how many elements vectors are to have, or None.
    """

    model: str | None
    inputs: tuple[Prompt, ...]
    base64: bool
    dimensions: int | None


def parse_embedding(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Returns what a body asks for; RequestError names the field that is wrong."""
    fields = Fields(body)
    refuse_what_is_not_there(fields, _REFUSED)
    form = fields.text("encoding_format") or "float"
    if form not in ("float", "base64"):
        fields.refuse("encoding_format", '"float" or "base64"')
    return EmbeddingRequest(
        model=fields.text("model"),
        inputs=_inputs(fields),
        base64=form == "base64",
        dimensions=fields.integer("dimensions", 1, 2**31),
    )


def _inputs(fields: Fields) -> tuple[Prompt, ...]:
    given = fields.raw("input")
    single = isinstance(given, str) or (isinstance(given, list) and given and are_tokens(given))
    many = [given] if single else given
    if not isinstance(many, list) or not 0 < len(many) <= _MOST_INPUTS:
        fields.refuse("input", f"a text, a list of tokens, or a list of 1 to {_MOST_INPUTS} of one")
    are_texts = all(isinstance(one, str) and one for one in many)
    if not are_texts and not all(isinstance(one, list) and one and are_tokens(one) for one in many):
        fields.refuse("input", "of texts alone or of lists of tokens alone, none of them empty")
    return tuple(one if isinstance(one, str) else tuple(one) for one in many)


class Embedder:
    """Answers requests for vectors with one engine.

    Args:
        engine: what computes.
        name: what the model is called; requests may name it.
    """

    def __init__(self, engine: EmbeddingEngine, name: str) -> None:
        self.engine, self.name = engine, name
        self.created = int(time.time())

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.engine.encoder.vocab_size

    def check_name(self, name: str | None) -> None:
        """Raises RequestError if a request names another model."""
        check_name(self.name, name)

    def close(self) -> None:
        """Nothing is its own; the engine is its owner's."""

    async def answer(self, body: Mapping[str, Any], record: Record) -> bytes:
        """Returns the answer to a body of /v1/embeddings, as JSON; keeps the record.

        Raises:
            RequestError: it is refused, with the status to answer.
        """
        request = parse_embedding(body)
        self.check_name(request.model)
        size = self.engine.encoder.size
        if request.dimensions not in (None, size):
            raise RequestError(
                f"The model's vectors have {size} dimensions; this server does not shorten them.",
                param="dimensions",
                code="unsupported_parameter",
            )
        texts = await asyncio.to_thread(self._tokens, request)
        try:
            vectors = await self.engine.embed(texts)
        except Error as error:
            raise refusal_of(error, self.engine) from error
        record.usage.prompt = sum(map(len, texts))
        return await asyncio.to_thread(self._told, vectors, record.usage.prompt, request.base64)

    def _tokens(self, request: EmbeddingRequest) -> list[list[int]]:
        texts = []
        for place, given in enumerate(request.inputs):
            try:
                tokens = self.engine.encode(given) if isinstance(given, str) else list(given)
                self.engine.check_tokens(tokens)  # before more is made of what is refused
            except Error as error:
                code = "context_length_exceeded" if isinstance(error, TooLongError) else None
                where = f"input[{place}]"
                raise RequestError(f"{where}: {error}", param="input", code=code) from error
            texts.append(tokens)
        return texts

    def _told(self, vectors: NDArray[np.float32], tokens: int, as_base64: bool) -> bytes:
        if not np.isfinite(vectors).all():
            raise RequestError(
                "The model made a vector with numbers that are not finite.",
                status=500,
                type="server_error",
            )
        data = [
            {"object": "embedding", "index": index, "embedding": _shown(vector, as_base64)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return to_json({"object": "list", "data": data, "model": self.name, "usage": usage})


def _shown(vector: NDArray[np.float32], as_base64: bool) -> list[float] | str:
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    return list(map(float, vector))
