"""What is drawn as one box: nodes in the groups of their modules, and what flows between boxes.

Nodes that depend on weights alone run once, at load: they are folded into the boxes that read what
they make, which name the weights instead. Modules become groups. A group is split in two where
something outside depends on it and it on that, so that boxes of one level never form a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from npusim.ir.graph import Graph, Node
from npusim.ir.printer import format_node
from npusim.ir.types import TensorType

INPUT, OUTPUT, NODE, GROUP = "input", "output", "node", "group"
_SHOWN_WEIGHTS = 2  # by shape in a box; the details name all
_SHOWN_NODES = 40  # in the details of a group


@dataclass(frozen=True)
class Marks:
    """What is known of a graph's nodes beside the graph, by node name.

    Attributes:
        executors: who runs a node, "native" or "pytorch", or a unit of a machine.
        seconds: how long its commands took, or would take.
        notes: lines that stand in its box.
    """

    executors: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(eq=False)
class Box:
    """One box: an input, an output, a node, or a group with boxes inside.

    Attributes:
        kind: INPUT, OUTPUT, NODE or GROUP.
        title, lines: what stands in it.
        details: what a click or a tooltip shows.
        reads: the values that come from outside of it.
        makes: the values that others read.
        inside: of a group, its boxes in the order of execution.
        executors: who runs its nodes, most of them first.
        seconds: of its commands; 0 where nothing was measured.
    """

    kind: str
    title: str
    lines: list[str] = field(default_factory=list)
    details: str = ""
    reads: list[str] = field(default_factory=list)
    makes: list[str] = field(default_factory=list)
    inside: list[Box] = field(default_factory=list)
    executors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def walk(self) -> Iterator[Box]:
        """Yields the box and all boxes inside it, outer ones first."""
        yield self
        for box in self.inside:
            yield from box.walk()


@dataclass(frozen=True)
class Outline:
    """A graph as boxes.

    Attributes:
        root: the group of everything; neither it nor what it holds reads from outside.
        labels: what a line says, by value: its sizes, and its dtype where most have another.
        folded: how many nodes run at load and are not drawn.
        seconds: of all boxes together.
    """

    root: Box
    labels: Mapping[str, str]
    folded: int
    seconds: float


def outline(graph: Graph, marks: Marks | None = None, *, load_time: bool = False) -> Outline:
    """Returns the boxes of a graph.

    Args:
        graph: what to draw.
        marks: who runs its nodes, and for how long.
        load_time: also draw the nodes that depend on weights alone.
    """
    marks = marks or Marks()
    origins = {} if load_time else _weights_after(graph)
    nodes = [node for node in graph.nodes if not (origins and _is_static(node, origins))]
    leaves = [_node_box(node, graph, origins, marks) for node in nodes]
    inside = _grouped(list(zip(map(_path, nodes), leaves, strict=True)), 0)
    used = {name for box in leaves for name in box.reads}
    used |= {result.value for result in (*graph.outputs, *graph.updates)}
    first = [
        Box(INPUT, value.name, details=f"{what} {value.name}: {value.type}", makes=[value.name])
        for what, values in (("input", graph.inputs), ("state", graph.states))
        for value in values
        if value.name in used or what == "input"
    ]
    last = [
        _result_box(what, result.name, result.value, graph, origins)
        for what, results in (("output", graph.outputs), ("update", graph.updates))
        for result in results
    ]
    root = Box(GROUP, graph.name, inside=[*first, *inside, *last])
    _settle(root, set())
    return Outline(root, _labels(graph), len(graph.nodes) - len(nodes), root.seconds)


# ---- nodes ----


def _weights_after(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Returns the static values, each with the values of weights and constants it comes from."""
    origins: dict[str, tuple[str, ...]] = {w.name: (w.name,) for w in graph.weights}
    origins |= {constant.name: (constant.name,) for constant in graph.constants}
    for node in graph.nodes:
        if _is_static(node, origins):
            roots = dict.fromkeys(r for i in node.inputs if i is not None for r in origins[i])
            origins |= {value.name: tuple(roots) for value in node.outputs}
    return origins


def _is_static(node: Node, origins: Mapping[str, object]) -> bool:
    return all(name is None or name in origins for name in node.inputs)


def _node_box(node: Node, graph: Graph, origins: Mapping[str, Sequence[str]], marks: Marks) -> Box:
    reads = list(dict.fromkeys(i for i in node.inputs if i is not None and i not in origins))
    static = dict.fromkeys(r for i in node.inputs if i in origins for r in origins[i or ""])
    weights = {w.name: w for w in graph.weights}
    read = [weights[name] for name in static if name in weights]
    shapes = [sizes(weight.type) for weight in read[:_SHOWN_WEIGHTS]]
    rest = f" +{len(read) - _SHOWN_WEIGHTS}" if len(read) > _SHOWN_WEIGHTS else ""
    details = [format_node(node, static=set(origins))]
    details += [f"weight {weight.key}: {weight.type}" for weight in read]
    if node.source and node.source.file:
        details.append(f"{node.source.module} {node.source.file}:{node.source.line}".strip())
    executor = marks.executors.get(node.name)
    notes = marks.notes.get(node.name, ())
    return Box(
        NODE,
        short_name(node.op),
        lines=[*([f"w {', '.join(shapes)}{rest}"] if shapes else []), *notes],
        details="\n".join(details),
        reads=[name for name in reads if name not in {w.name for w in read}],
        makes=[value.name for value in node.outputs],
        executors=[executor] if executor else [],
        seconds=marks.seconds.get(node.name, 0.0),
    )


def _result_box(
    what: str, name: str, value: str, graph: Graph, origins: Mapping[str, object]
) -> Box:
    reads = [] if value in origins else [value]
    return Box(OUTPUT, name, details=f"{what} {name} = {value}: {graph.types[value]}", reads=reads)


def short_name(op: str) -> str:
    """Returns an operator's name without what all names share: `conv2d`, `npu.conv`."""
    return op.removeprefix("aten.").removesuffix(".default")


def sizes(type: TensorType) -> str:
    """Returns a shape as people write it, `1×64×56×56`; `scalar` where there are no sizes."""
    return "×".join(map(str, type.shape)) if type.shape else "scalar"


def _labels(graph: Graph) -> dict[str, str]:
    usual = Counter(value.type.dtype for node in graph.nodes for value in node.outputs)
    common = usual.most_common(1)[0][0] if usual else "float32"
    return {
        name: sizes(type) if type.dtype == common else f"{type.dtype} {sizes(type)}"
        for name, type in graph.types.items()
    }


# ---- groups ----


def _path(node: Node) -> tuple[str, ...]:
    return tuple(node.source.module.split(".")) if node.source and node.source.module else ()


def _grouped(leaves: Sequence[tuple[tuple[str, ...], Box]], depth: int) -> list[Box]:
    """Returns the boxes of one level: leaves of no deeper module, and groups of the others."""
    level = _Level()
    for path, box in leaves:
        level.add(path[depth] if len(path) > depth else None, path, box)
    boxes = []
    for key, members in level.items:
        if len(members) == 1:
            ((path, box),) = members
            if key is not None:
                box.title = f"{'.'.join(path[depth:])} · {box.title}"
            boxes.append(box)
            continue
        inside = _grouped(members, depth + 1)
        if len(inside) == 1 and inside[0].kind == GROUP:  # a module with nothing but one module
            inside[0].title = f"{key}.{inside[0].title}"
            boxes.append(inside[0])
            continue
        boxes.append(Box(GROUP, key or "", inside=inside))
    return boxes


class _Level:
    """The items of one level while nodes are added in order: each a leaf, or a module's nodes.

    A node joins its module's latest item unless it reads something that depends on that item,
    itself left aside: a circle. `above` has the items that an item depends on, as bits.
    """

    def __init__(self) -> None:
        self.items: list[tuple[str | None, list[tuple[tuple[str, ...], Box]]]] = []
        self.above: list[int] = []
        self.latest: dict[str, int] = {}
        self.maker: dict[str, int] = {}

    def add(self, key: str | None, path: tuple[str, ...], box: Box) -> None:
        sources = {self.maker[name] for name in box.reads if name in self.maker}
        place = self.latest.get(key) if key is not None else None
        if place is None or self._closes_circle(place, sources):
            place = len(self.items)
            self.items.append((key, []))
            self.above.append(0)
            if key is not None:
                self.latest[key] = place
        self.items[place][1].append((path, box))
        self.maker.update(dict.fromkeys(box.makes, place))
        before = self.above[place]
        for source in sources - {place}:
            self.above[place] |= self.above[source] | (1 << source)
        if self.above[place] != before:
            for item, above in enumerate(self.above):
                if above >> place & 1:
                    self.above[item] |= self.above[place]

    def _closes_circle(self, place: int, sources: Iterable[int]) -> bool:
        return any(s != place and self.above[s] >> place & 1 for s in sources)


def _settle(group: Box, wanted: set[str]) -> None:
    """Fills in what a group reads, makes and takes from what stands inside; `wanted` by others."""
    for box in group.inside:
        if box.kind == GROUP:
            others = {n for b in group.inside if b is not box for n in _needed(b)}
            _settle(box, wanted | others)
    made = {name for box in group.inside for name in box.makes}
    read = dict.fromkeys(name for box in group.inside for name in box.reads)
    group.reads = [name for name in read if name not in made]
    group.makes = [n for box in group.inside for n in box.makes if n in wanted]
    group.seconds = sum(box.seconds for box in group.inside)
    tally = Counter(e for box in group.walk() if box.kind == NODE for e in box.executors)
    group.executors = [executor for executor, _ in tally.most_common()]
    nodes = [box for box in group.walk() if box.kind == NODE]
    group.lines = [f"{len(nodes)} nodes"]
    texts = [box.details.splitlines()[0] for box in nodes[:_SHOWN_NODES]]
    if len(nodes) > _SHOWN_NODES:
        texts.append(f"… and {len(nodes) - _SHOWN_NODES} more")
    group.details = "\n".join(texts)


def _needed(box: Box) -> Iterator[str]:
    for inner in box.walk():
        if inner.kind != GROUP:
            yield from inner.reads
