"""Operators: one OpDef each, in families; importing this package registers all of them."""

from npusim.ops import (  # noqa: F401  (imported for their registrations)
    attention,
    attention_step,
    conv,
    creation,
    grouped_matmul,
    indexing,
    int8_matmul,
    linear,
    normalization,
    normed_linear,
    normed_quantized_linear,
    paged,
    paged_rope,
    pointwise,
    pooling,
    quantized_linear,
    reduction,
    rope,
    sampling,
    views,
)
