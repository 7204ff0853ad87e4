"""Which composite operators stay whole, and how PyTorch's calls become the graph's dialect.

Owns the policy: everything is decomposed to Core ATen, except the composites below, for which
backends have kernels. The rewrites here undo what torch.export takes apart although a kernel
exists for it (batch norm), or express one operator by another that has kernels (instance norm).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from npusim.frontends import (  # noqa: F401  (enter theirs in WRITTEN)
    gradients,
    resampling,
    sliding_blocks,
    special_functions,
)
from npusim.frontends.composites import WRITTEN
from npusim.frontends.quantized import quantization_operators

aten = torch.ops.aten

# Overload packets; every functional overload of each is kept.
KEPT = (
    *(aten.conv1d, aten.conv2d, aten.conv3d),
    *(aten.conv_transpose1d, aten.conv_transpose2d, aten.conv_transpose3d),
    *(aten.linear, aten.matmul, aten.mm, aten.bmm, aten.addmm, aten.baddbmm),
    *(aten.scaled_dot_product_attention, aten.embedding),
    *(aten.layer_norm, aten.rms_norm, aten.group_norm),
    *(aten.softmax, aten.log_softmax),
    *(aten.gelu, aten.silu, aten.mish, aten.hardswish, aten.hardsigmoid, aten.hardtanh),
    *(aten.relu6, aten.leaky_relu, aten.elu, aten.softplus, aten.threshold),
    *(aten.max_pool1d, aten.max_pool2d, aten.max_pool3d),
    *(aten.max_pool2d_with_indices, aten.max_pool3d_with_indices),
    *(aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d),
    *(aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d),
    *(aten.adaptive_max_pool1d, aten.adaptive_max_pool2d, aten.adaptive_max_pool3d),
    *(aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d),
    *(aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d),
    *(aten._upsample_nearest_exact3d, aten.upsample_linear1d, aten.upsample_bilinear2d),
    *(aten.upsample_trilinear3d, aten.upsample_bicubic2d),
    *(aten.pixel_shuffle, aten.pixel_unshuffle),
)

# Operators that torch.export leaves whole although PyTorch knows them in terms of others.
_TAKEN_APART = (
    *(aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_functional),
    *(aten.max_pool2d_with_indices_backward, aten.ldexp),
)


def decompositions() -> Any:
    """Returns the table for `ExportedProgram.run_decompositions`."""
    table = torch.export.default_decompositions()
    table.update(get_decompositions(_TAKEN_APART))
    table.update(WRITTEN)
    table.update(quantization_operators())
    for packet in KEPT:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    for dimensions, packet in enumerate((aten.conv1d, aten.conv2d, aten.conv3d), 1):
        table[packet.padding] = _convolution_of_mode(dimensions, packet.default)
    return table


def _convolution_of_mode(dimensions: int, convolution: Any) -> Callable[..., Tensor]:
    """Returns the decomposition of a convolution whose padding is the word "same" or "valid"."""

    def decomposed(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: str = "valid",
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        stride, dilation = _spread(stride, dimensions), _spread(dilation, dimensions)
        total = [0] * dimensions
        if padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        # PyTorch puts the odd element after; what is left in front and behind is symmetric.
        extra = [amount % 2 for amount in total]
        if any(extra):
            behind = [side for amount in reversed(extra) for side in (0, amount)]
            input = aten.constant_pad_nd.default(input, behind, 0.0)
        symmetric = [amount // 2 for amount in total]
        return convolution(input, weight, bias, stride, symmetric, dilation, groups)

    return decomposed


def _spread(value: Any, count: int) -> list[int]:
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    return items * count if len(items) == 1 else items


def keep_instance_norm(graph: torch.fx.Graph) -> None:
    """Replaces instance norms by the operator that is the same thing, before decomposition.

    With the input's own statistics it is a group norm of one channel a group; with running
    statistics it is a batch norm.
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target is not aten.instance_norm.default:
            continue
        x, weight, bias, mean, var, use_input_stats, momentum, eps, _ = node.args
        if use_input_stats:
            if mean is not None:
                continue  # updates its statistics: refused as a mutation later
            channels = x.meta["val"].shape[1]
            node.target, node.args = (
                aten.group_norm.default,
                (x, channels, weight, bias, eps, False),
            )
        else:
            node.target = aten.batch_norm.default
            node.args = (x, weight, bias, mean, var, False, momentum, eps, False)


def keep_replaced_buffers(graph: torch.fx.Graph) -> None:
    """Has what shows a buffer's old tensor keep it where forward assigns another one.

    `old = self.h; self.h = new; return old`: torch.export copies the new tensor into the old one at
    the end, so that results that are the old one, or a view of it, would show the new one.
    """
    copies = [node for node in graph.nodes if _replaces_buffer(node)]
    old: dict[Any, torch.fx.Node] = {}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for buffer in {node.args[0]: None for node in copies}:
        with graph.inserting_before(first):
            old[buffer] = graph.call_function(aten.clone.default, (buffer,))
        old[buffer].meta = dict(buffer.meta)
        buffer.replace_all_uses_with(
            old[buffer], lambda user: user not in copies and user not in old.values()
        )
    for node in copies:
        node.update_arg(1, old.get(node.args[1], node.args[1]))


def _replaces_buffer(node: torch.fx.Node) -> bool:
    """Tells torch.export's own copy into a buffer, which has its source's value, from a model's."""
    if node.target is not aten.copy_.default:
        return False
    buffer, source = node.args[:2]
    return buffer.op == "placeholder" and node.meta.get("val") is source.meta.get("val")


def batch_norm_arguments(node: torch.fx.Node) -> tuple[Any, ...] | None:
    """Returns the arguments of the `aten.batch_norm` a decomposed node stands for, or None.

    torch.export always takes batch norm apart into an operator with two more results; they are
    statistics that only training reads.
    """
    if node.target is not aten._native_batch_norm_legit_no_training.default:
        return None
    if any(user.args[1] != 0 for user in node.users):
        return None
    x, weight, bias, mean, var, momentum, eps = node.args
    return (x, weight, bias, mean, var, False, momentum, eps, False)


# Values have neither strides nor aliases, so these give their first operand unchanged.
_COPIES = frozenset(
    (
        aten.alias.default,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
        aten.lift_fresh_copy.default,
        aten.lift.default,
        aten.dropout.default,
    )
)

# Checks that hold by construction once shapes and dtypes are static, and checks of values, after
# which a run goes on with the infinities and NaNs that the checked operator gives.
ASSERTIONS = frozenset(
    (
        aten._assert_tensor_metadata.default,
        aten._assert_async.msg,
        aten._assert_async.default,
        aten._assert_scalar.default,
        aten._linalg_check_errors.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    )
)


def drop_assertions(graph: torch.fx.Graph) -> None:
    """Removes checks, and the numbers read from tensors that nothing but a check wants."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and _is_for_a_check(node):
            graph.erase_node(node)


def _is_for_a_check(node: torch.fx.Node) -> bool:
    number = isinstance(node.meta.get("val"), (bool, int, float, *torch.types.py_sym_types))
    return number or node.target in ASSERTIONS


def shape_bags(graph: torch.fx.Graph) -> None:
    """Gives the indices of bags that are all as long, which 2-D indices are, a row for each bag.

    PyTorch flattens them and writes the offsets as a range, which says so; what computes a bag
    then needs no offsets.
    """
    for node in list(graph.nodes):
        if node.target is not aten.embedding_bag.padding_idx:
            continue
        indices, offsets = node.args[1:3]
        if offsets.target is not aten.arange.start_step:
            continue
        start, end, length = (*offsets.args, 1)[:3]
        count = end.meta["val"] if isinstance(end, torch.fx.Node) else end
        # By text: comparing open sizes themselves would fix them.
        covered = str(count) == str(indices.meta["val"].numel())
        if start != 0 or not isinstance(length, int) or not covered:
            continue
        with graph.inserting_before(node):
            rows = graph.call_function(aten.reshape.default, (indices, [-1, length]))
        rows.meta["val"] = indices.meta["val"].reshape(-1, length)
        node.update_arg(1, rows)


def write_through_masks(graph: torch.fx.Graph) -> None:
    """Has `x[torch.where(mask)] = y` write through the mask, as `x[mask] = y` does.

    The positions of a mask's ones have a shape that depends on data; the mask does not.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is aten.index_put.default:
            mask = _mask_of(node.args[1])
            if mask is not None:
                node.update_arg(1, [mask])
    links = (aten.squeeze.dims, aten.slice.Tensor, aten.nonzero.default)
    for node in reversed(list(graph.nodes)):
        if node.target in links and not node.users:
            graph.erase_node(node)


def _mask_of(indices: Any) -> torch.fx.Node | None:
    """Returns the mask of whose ones the indices are the positions, one index a dimension."""
    found = [_column(index) for index in indices]
    positions = {source for source, _ in found}
    (source,) = positions if len(positions) == 1 else (None,)
    if source is None or source.target is not aten.nonzero.default:
        return None
    mask = source.args[0]
    rank = mask.meta["val"].dim()
    in_order = [at for _, at in found] == list(range(rank))
    return mask if in_order and mask.meta["val"].dtype == torch.bool else None


def _column(index: Any) -> tuple[Any, int]:
    """Returns the matrix of which a vector is a column, and which one; (None, 0) of no other."""
    if getattr(index, "target", None) is not aten.squeeze.dims or index.args[1] != [1]:
        return None, 0
    part = index.args[0]
    if part.target is not aten.slice.Tensor or part.args[1] != 1:
        return None, 0
    source, _, start, end = part.args
    return (source, start) if end == start + 1 else (None, 0)


def is_copy(node: torch.fx.Node) -> bool:
    """Tells whether a call's result is its first operand, as far as values go."""
    if node.target is aten.dropout.default:
        return not node.args[2]
    if node.target is aten._to_copy.default:
        return node.meta["val"].dtype == node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    return node.target in _COPIES


def reads_memory_layout(node: torch.fx.Node) -> bool:
    """Tells whether a call depends on strides other than those of a dense row-major tensor."""
    if node.target is not aten.as_strided.default:
        return False
    x = node.args[0].meta["val"]  # type: ignore[union-attr]
    return not x.is_contiguous() or x.storage_offset() != 0


def scalar_overload(
    target: torch._ops.OpOverload, scalars: frozenset[str]
) -> torch._ops.OpOverload | None:
    """Returns the overload that takes numbers for the named arguments, or None.

    torch.export writes `x + 1` as `aten.add.Tensor(x, 1)`, a number where the schema says tensor;
    `aten.add.Scalar` is what that means.
    """
    wanted = [
        (a.name, "number" if a.name in scalars else _type(a)) for a in target._schema.arguments
    ]
    for overload in _overloads(target):
        if [(a.name, _type(a)) for a in overload._schema.arguments] == wanted:
            return overload
    return None


def tensor_overload(
    target: torch._ops.OpOverload, tensors: frozenset[str]
) -> torch._ops.OpOverload | None:
    """Returns the overload that takes tensors for the named arguments, or None.

    It may take tensors for other numbers as well.
    """
    own = target._schema.arguments
    for overload in _overloads(target):
        others = overload._schema.arguments
        if [a.name for a in others] != [a.name for a in own]:
            continue
        pairs = [(a.name, _type(a), _type(b)) for a, b in zip(own, others, strict=True)]
        if all(
            found == "Tensor" if name in tensors else found == type or _widens(type, found)
            for name, type, found in pairs
        ):
            return overload
    return None


def _overloads(target: torch._ops.OpOverload) -> Iterator[torch._ops.OpOverload]:
    packet = target._overloadpacket
    return (getattr(packet, name) for name in packet.overloads())


def _type(argument: Any) -> str:
    """Returns the type of an argument of a schema, whether it may be left out or not."""
    text = str(argument.real_type)
    return text[len("Optional[") : -1] if text.startswith("Optional[") else text


def _widens(type: str, found: str) -> bool:
    return type == "number" and found == "Tensor"
