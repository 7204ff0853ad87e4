"""Where each node is to run: what the target can, what the caller wants, and what pays.

Owns the order of these. The target's limits come first; a predicate may keep nodes off the device;
a pin places a whole module, by its path, and what contradicts it is refused; the cost model then
keeps islands off the device that would cost more than they save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from npusim.errors import Error, TargetConstraintError, UnsupportedOpError, at
from npusim.ir.graph import Attr, Graph, Node
from npusim.partition.cost import CostModel, Work, works
from npusim.partition.grouping import Cut, cut, demote
from npusim.partition.plan import NATIVE, PYTORCH
from npusim.partition.support import FALLBACK, UNSUPPORTED, Verdict, host_refusal, kept_off
from npusim.targets import TargetConfig

Predicate = Callable[[str, Mapping[str, Attr]], bool]


@dataclass(frozen=True)
class Placement:
    """Every node's verdict, the work it does, and the cut that follows."""

    verdicts: Mapping[str, Verdict]
    work: Mapping[str, Work]
    cut: Cut


def place(
    graph: Graph,
    target: TargetConfig,
    verdicts: Mapping[str, Verdict],
    predicate: Predicate | None,
    pin: Mapping[str, str],
    costs: CostModel,
) -> Placement:
    """Returns where the nodes of a graph run.

    Args:
        verdicts: on what the target can run.
        predicate, pin, costs: see `npusim.partition`.

    Raises:
        Error: the predicate contradicts itself or a pin, or a pin names no module.
        UnsupportedOpError: a module is pinned to the device, which cannot run all of it.
    """
    chosen = dict(verdicts)
    pins = _pins(graph, pin)
    _apply_predicate(graph, chosen, predicate, pins)
    _apply_pins(graph, chosen, pins, target)
    work = works(graph, target)
    random = _random(graph, chosen)
    native = {name: verdict.is_native for name, verdict in chosen.items()}
    runnable = all(verdict.status != UNSUPPORTED for verdict in chosen.values())
    if runnable and not all(native.values()):
        ops = {node.name: node.op for node in graph.nodes}
        movable = {n: n not in pins and host_refusal(op) is None for n, op in ops.items()}
        worth = _Worth(graph, native, work, costs)
        why = "an island too small for what crossing to it costs"
        for name in demote(graph, native, worth, movable.__getitem__, random):
            chosen[name] = Verdict(FALLBACK, "cost", why)
    result = cut(graph, native, random)
    _mark_load(graph, chosen, result)
    return Placement(chosen, work, result)


def _apply_predicate(
    graph: Graph,
    chosen: dict[str, Verdict],
    predicate: Predicate | None,
    pins: Mapping[str, tuple[str, str]],
) -> None:
    if predicate is None:
        return
    answers = {node.name: _ask(predicate, node) for node in graph.nodes}
    for node in reversed(graph.nodes):  # another order, so that what it counted shows
        if _ask(predicate, node) != answers[node.name]:
            raise Error(
                f"is_supported contradicts itself: {node.op}{at(node.source)} is supported the "
                "first time it is asked and not the second, or the other way round.",
                hint="Let it depend on its arguments alone.",
            )
    for node in graph.nodes:
        if answers[node.name]:
            continue
        path, executor = pins.get(node.name, ("", PYTORCH))
        if executor == NATIVE:
            raise Error(
                f"{path!r} is pinned to the device, but is_supported keeps {node.op}"
                f"{at(node.source)} in it off.",
                hint="Change one of them.",
            )
        if chosen[node.name].is_native:
            chosen[node.name] = kept_off(node, "predicate", "is_supported says no")


def _ask(predicate: Predicate, node: Node) -> bool:
    answer = predicate(node.op, node.attrs)
    if not isinstance(answer, bool):
        raise Error(
            f"is_supported gives a {type(answer).__name__} for {node.op}, not True or False."
        )
    return answer


def _pins(graph: Graph, pin: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns, by node, the pin that holds for it: of those around it, the innermost module's."""
    for path, executor in pin.items():
        if executor not in (NATIVE, PYTORCH):
            raise Error(f"pin[{path!r}] is {executor!r}; it is '{NATIVE}' or '{PYTORCH}'.")
    found: dict[str, tuple[str, str]] = {}
    used = set()
    for node in graph.nodes:
        module = node.source.module if node.source is not None else ""
        around = [p for p in pin if p == "" or module == p or module.startswith(f"{p}.")]
        used.update(around)
        if around:
            innermost = max(around, key=len)
            found[node.name] = innermost, pin[innermost]
    if unknown := sorted(set(pin) - used):
        raise Error(
            f"pin names {unknown[0]!r}, in which no node of '{graph.name}' is.",
            hint="Paths are those of the model's submodules, such as 'layer1.0.conv1'.",
        )
    return found


def _apply_pins(
    graph: Graph,
    chosen: dict[str, Verdict],
    pins: Mapping[str, tuple[str, str]],
    target: TargetConfig,
) -> None:
    refused = []
    for node in graph.nodes:
        path, executor = pins.get(node.name, ("", ""))
        verdict = chosen[node.name]
        if executor == PYTORCH and verdict.is_native:
            chosen[node.name] = kept_off(node, "pin", f"{path!r} is pinned to PyTorch")
        elif executor == NATIVE and not verdict.is_native:
            refused.append((node, path, verdict))
    if refused:
        lines = (f"  {n.op}{at(n.source)} in {p!r}: {v.reason}" for n, p, v in refused)
        raise UnsupportedOpError(
            f"Modules are pinned to target '{target.name}', which cannot run all of them:\n"
            + "\n".join(lines),
            nodes=tuple(n.name for n, _, _ in refused),
        )


def _random(graph: Graph, chosen: Mapping[str, Verdict]) -> frozenset[str]:
    """Returns the nodes of PyTorch that give something else on each call."""
    others = [n for n in graph.nodes if chosen[n.name].status == FALLBACK]
    if not others:
        return frozenset()
    from npusim.ir.opdef import find
    from npusim.ops.schema import is_random, resolve

    def random(op: str) -> bool:
        definition = find(op)
        own = definition is not None and definition.reference is not None
        return not own and is_random(resolve(op))

    return frozenset(n.name for n in others if random(n.op))


@dataclass(frozen=True)
class _Worth:
    """Tells whether a native group takes less time than its nodes would in PyTorch."""

    graph: Graph
    native: Mapping[str, bool]
    work: Mapping[str, Work]
    costs: CostModel

    def __call__(self, names: tuple[str, ...]) -> bool:
        costs, works = self.costs, [self.work[name] for name in names]
        crossing = sum(costs.transfer(self.graph.types[v].nbytes) for v in self._crossing(names))
        native = costs.run_seconds + crossing + sum(map(costs.native, works))
        return native <= sum(map(costs.host, works))

    def _crossing(self, names: tuple[str, ...]) -> set[str]:
        """Returns the values that would cross on account of the group being native."""
        graph, inside = self.graph, set(names)
        nodes = [graph.nodes[graph.positions[name]] for name in names]
        crossing = set()
        for value in {i for node in nodes for i in node.inputs if i is not None}:
            producer = graph.producers.get(value)
            if producer is not None and not self.native[producer.name]:
                crossing.add(value)
        for value in (v.name for node in nodes for v in node.outputs):
            outside = (user.name for user in graph.users[value] if user.name not in inside)
            if any(not self.native[user] for user in outside):
                crossing.add(value)
        return crossing


def _mark_load(graph: Graph, chosen: dict[str, Verdict], result: Cut) -> None:
    """Says of nodes that could be native, and that no program computes, that PyTorch does at load.

    A program has copies of the shared ones that it reads, itself or through other copies.
    """
    load, copied = set(result.load), set[str]()
    for node in reversed(graph.nodes):
        if node.name not in load or not chosen[node.name].is_native:
            continue
        users = {u.name for v in node.outputs for u in graph.users[v.name]}
        running = any(chosen[u].is_native and u not in load for u in users)
        if node.name in result.shared and (running or users & copied):
            copied.add(node.name)
        else:
            chosen[node.name] = kept_off(node, "neighbours", "only PyTorch reads its result")


def refuse_unsupported(graph: Graph, verdicts: Mapping[str, Verdict]) -> None:
    """Raises UnsupportedOpError that lists the nodes nobody can run."""
    _refuse(graph, verdicts, (UNSUPPORTED,), "can be run neither natively nor by PyTorch")


def refuse_fallback(graph: Graph, verdicts: Mapping[str, Verdict], target: str) -> None:
    """Raises UnsupportedOpError that lists the nodes the target does not run."""
    kinds = (FALLBACK, UNSUPPORTED)
    _refuse(graph, verdicts, kinds, f"cannot run on target '{target}', and fallback is an error")


def _refuse(
    graph: Graph, verdicts: Mapping[str, Verdict], kinds: tuple[str, ...], what: str
) -> None:
    found = [node for node in graph.nodes if verdicts[node.name].status in kinds]
    if not found:
        return
    lines = []
    for node in found:
        types = ", ".join("none" if i is None else str(graph.types[i]) for i in node.inputs)
        lines.append(f"  {node.op}({types}){at(node.source)}: {verdicts[node.name].reason}")
    noun = "node" if len(found) == 1 else "nodes"
    raise UnsupportedOpError(
        f"{len(found)} {noun} of '{graph.name}' {what}:\n" + "\n".join(lines),
        nodes=tuple(node.name for node in found),
    )


def check_pins(pin: Mapping[str, str] | None) -> Mapping[str, str]:
    """Returns the pins; TargetConstraintError when they are no mapping."""
    if pin is not None and not isinstance(pin, Mapping):
        raise TargetConstraintError(f"pin must map module paths, not be a {type(pin).__name__}.")
    return pin or {}
