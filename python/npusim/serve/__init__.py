"""Serving language models: many requests at once, over HTTP, from files, or in Ray.

Owns what stands between requests and the runtime: queues, the OpenAI-compatible interface, metrics,
batch files and load tests. What computes lies below, in `_runtime` and `language_model`.
"""

from npusim.serve.embedding_engine import EmbeddingEngine
from npusim.serve.engine import Engine, Stream
from npusim.serve.requests import BusyError, Piece, Sampling, TokenLogprob

__all__ = ["BusyError", "EmbeddingEngine", "Engine", "Piece", "Sampling", "Stream", "TokenLogprob"]
