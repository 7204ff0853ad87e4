"""`torch.cond` as a choice: both branches are computed, and each result is taken from one of them.

Owns putting the branches' calls where the choice stands, branches within branches first. What stays
a call of `cond` is refused by the translation: one whose branches have constants of their own, or
give something else than tensors.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

aten = torch.ops.aten

_COND = torch.ops.higher_order.cond


def write_as_choices(module: fx.GraphModule) -> None:
    """Replaces each `cond` of an exported graph, as far as its branches are calls on tensors."""
    graph = module.graph
    choices = [node for node in graph.nodes if node.target is _COND]
    for node in choices:
        condition, *branches, operands = node.args
        bodies = [getattr(module, branch.target) for branch in branches]
        for body in bodies:
            write_as_choices(body)
        if isinstance(condition.meta["val"], Tensor) and all(map(_is_plain, bodies)):
            _choose(node, condition, [body.graph for body in bodies], operands)
    if choices:
        for node in [n for n in graph.nodes if n.op == "get_attr" and not n.users]:
            graph.erase_node(node)
        module.delete_all_unused_submodules()
        module.recompile()


def _is_plain(body: fx.GraphModule) -> bool:
    """Tells whether a branch is calls and tensors alone."""
    nodes = list(body.graph.nodes)
    results = nodes[-1].args[0]
    return all(n.op in ("placeholder", "call_function", "output") for n in nodes) and all(
        isinstance(x, fx.Node) and isinstance(x.meta.get("val"), Tensor) for x in results
    )


def _choose(
    node: fx.Node, condition: fx.Node, bodies: list[fx.Graph], operands: tuple[fx.Node, ...]
) -> None:
    graph = node.graph
    with graph.inserting_before(node):
        if condition.meta["val"].dim():  # of one element; `where` would spread it
            condition = _call(node, aten.view.default, condition, [])
        yes, no = (
            graph.graph_copy(
                body, dict(zip(body.find_nodes(op="placeholder"), operands, strict=True))
            )
            for body in bodies
        )
        results = [
            _call(node, aten.where.self, condition, *pair) for pair in zip(yes, no, strict=True)
        ]
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _call(place: fx.Node, target: torch._ops.OpOverload, *args: object) -> fx.Node:
    """Adds a call where a choice stands, with its result on tensors without data."""
    made = place.graph.call_function(target, args)
    made.meta = {k: v for k, v in place.meta.items() if k != "val"}
    values = [x.meta["val"] if isinstance(x, fx.Node) else x for x in args]
    made.meta["val"] = target(*values)
    return made
