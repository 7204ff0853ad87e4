"""Operators: one OpDef each, in families; importing this package registers all of them."""

from npusim.ops import (  # noqa: F401  (imported for their registrations)
    attention,
    conv,
    creation,
    indexing,
    linear,
    normalization,
    pointwise,
    pooling,
    quantized_linear,
    reduction,
    rope,
    views,
)
