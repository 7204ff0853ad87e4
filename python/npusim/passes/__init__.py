"""The pipeline: which passes run, in which order, and why there. One file is one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from npusim.ir.graph import Graph
from npusim.passes.apply_precision import apply_precision
from npusim.passes.assign_layout import assign_layout
from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.center_pooled import center_pooled
from npusim.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from npusim.passes.eliminate_dead_code import eliminate_dead_code
from npusim.passes.fold_batch_norm import fold_batch_norm
from npusim.passes.fold_constants import fold_constants
from npusim.passes.fold_scale import fold_scale
from npusim.passes.fuse_all_reduce import fuse_all_reduce
from npusim.passes.fuse_attention_step import fuse_attention_step
from npusim.passes.fuse_epilogues import fuse_epilogues
from npusim.passes.fuse_gated_linear import fuse_gated_linear
from npusim.passes.fuse_norms import fuse_norms
from npusim.passes.fuse_paged_append import fuse_paged_append
from npusim.passes.fuse_pointwise import fuse_pointwise
from npusim.passes.fuse_rope_append import fuse_rope_append
from npusim.passes.merge_convolutions import merge_convolutions
from npusim.passes.merge_linears import merge_linears
from npusim.passes.move_permutations import move_permutations
from npusim.passes.move_products_before_resizes import move_products_before_resizes
from npusim.passes.move_repetition import move_repetition
from npusim.passes.promote_operands import promote_operands
from npusim.passes.quantize_weights import quantize_weights
from npusim.passes.recognize_activations import recognize_activations
from npusim.passes.recognize_attention import recognize_attention
from npusim.passes.recognize_cache_append import recognize_cache_append
from npusim.passes.recognize_cached_attention import recognize_cached_attention
from npusim.passes.recognize_int8 import recognize_int8
from npusim.passes.recognize_norms import recognize_norms
from npusim.passes.recognize_outer_products import recognize_outer_products
from npusim.passes.recognize_recurrences import recognize_recurrences
from npusim.passes.recognize_recurrent_steps import recognize_recurrent_steps
from npusim.passes.recognize_rope import recognize_rope
from npusim.passes.recognize_softmax import recognize_softmax
from npusim.passes.recognize_token_mixing import recognize_token_mixing
from npusim.passes.remove_noops import remove_noops
from npusim.passes.select_kernels import select_kernels
from npusim.passes.sign_bytes import sign_bytes
from npusim.passes.simplify_views import simplify_views
from npusim.targets.target_config import TargetConfig

Pass = Callable[[Graph, TargetConfig], Graph]

PIPELINE: tuple[Pass, ...] = (
    eliminate_dead_code,  # first: nobody else should spend time on what is not used
    promote_operands,  # while ranks are those of the model
    recognize_outer_products,  # before whatever asks what is pointwise
    remove_noops,  # patterns below need not look through clones and dropouts
    move_repetition,  # before folding, which then repeats what is known
    fold_constants,  # masks and literals become constants that patterns can read
    remove_noops,  # again: ranges and masks that turned out to be 0 or 1
    eliminate_common_subexpressions,  # so that "one user" means one user in all patterns
    simplify_views,  # after folding, which takes views of constants with it
    recognize_activations,  # before anything takes their pieces apart
    recognize_softmax,
    recognize_norms,
    recognize_rope,
    recognize_cache_append,
    recognize_attention,  # after softmax, around which it is built
    recognize_cached_attention,  # after appends, which its keys and values come from
    fuse_rope_append,  # after it: what one attention over a cache needs done first
    fuse_paged_append,  # likewise, of steps over pages
    canonicalize_conv,  # one spelling, which everything about weights below matches
    canonicalize_linear,
    move_permutations,  # after it, around the products it found
    simplify_views,  # again: permutations moved next to others
    recognize_int8,  # after all of them: one spelling of products
    sign_bytes,  # after it: what is no operand of a product of bytes stays as it is
    center_pooled,  # before batch norms are folded: it looks for them
    fold_batch_norm,  # before epilogues: it must see the bare convolution
    fold_scale,  # likewise; after batch norm, which may stand before the factor
    merge_convolutions,  # likewise; before epilogues, which would take one sum into another
    fuse_gated_linear,  # before epilogues, which would take its activation
    fuse_epilogues,  # before pointwise fusion, which would swallow activations and additions
    recognize_token_mixing,  # after epilogues, which move permutations behind what they take
    move_products_before_resizes,  # after it: what it adds stays apart from what comes behind
    simplify_views,  # again: folding and fusing moved views next to each other
    recognize_recurrent_steps,  # after epilogues: what a step adds is in its product
    recognize_recurrences,  # after it: chains of steps
    fuse_all_reduce,  # before pointwise fusion; after epilogues, which are nearer to a product
    fuse_pointwise,  # after every pattern that reads single pointwise ops
    merge_linears,  # after epilogues: a linear that has one is not merged
    assign_layout,  # needs the final set of pointwise nodes; changes no node but its type
    quantize_weights,  # after everything that joins or scales weights
    apply_precision,  # after all that folds weights: they are rounded once, when they are final
    fuse_norms,  # after both: products over quantized weights take norms of one row alone
    fuse_attention_step,  # after merging, which looks for the op it takes apart
    select_kernels,  # shapes and epilogues are final
    eliminate_dead_code,  # drops the weights that patterns left without users
)

# Kernels that what a pass makes cannot be lowered without: a target that lacks one of them has the
# op's pieces lowered instead. A pass that has more to ask of a target does it itself.
NEEDS: Mapping[Pass, tuple[str, ...]] = {
    recognize_softmax: ("softmax",),
    recognize_norms: ("norm",),
    recognize_rope: ("rope",),
    recognize_cache_append: ("rope",),
    recognize_attention: ("attention",),
    recognize_cached_attention: ("attention",),
    fuse_rope_append: ("rope",),
    fuse_paged_append: ("paged_rope_append",),
    fuse_gated_linear: ("linear",),
    recognize_recurrent_steps: ("recurrent_step",),
    recognize_recurrences: ("recurrence",),
    recognize_token_mixing: ("token_mixing",),
    fuse_all_reduce: ("all_reduce",),
    fuse_attention_step: ("attention_step",),
    merge_linears: ("copy",),  # that concatenates weights
}
