"""Equal layers of a model, traced once.

A decoder runs tens of layers that differ in nothing but their weights and their place in a cache.
The first call of each kind is traced. Where a later call would be traced to the same, what the
first one put into the graph is put in again, over the later one's weights, arguments and place.

Owns that proof; what it does not cover is traced as ever:

* Both layers are of one class, at every depth: with equal attributes, tensors of equal types, and
  no hooks or forward of their own. Numbers that count the layers of a list are the exception: the
  traced layer sees a stand-in for such a number (`Place`), which notes every use of its value but
  one, to choose a layer of a cache.
* The arguments are equal, tensors by type and by which of them are the same or share memory.
* The traced call was told the value of no tensor (constant_values.py): another may hold another.
* All that the traced call read is a weight of the layer, an argument, or a tensor of the cache's
  layer; and all that it left is what it returned, in memory of its own, and what it wrote into
  tensors: layer, arguments and cache have the attributes they had, and so have the objects that
  are the layer's attributes, its classes, and the files that these are of.

What a layer does besides is not seen: it may ask for the type of its number, or change what it
reaches by more steps than that. So the second call of each trace, and the last layer of each kind,
are traced as ever, with their numbers, and compared node by node; where one differs, the model is
traced again, each layer. Layers between these that alone differ, by such means, are beyond this.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor
from torch.fx.experimental import proxy_tensor

from npusim.frontends.constant_values import decisions_made
from npusim.frontends.layer_kinds import Held, Key, Layer, Unproved, equal_layers, plain
from npusim.frontends.layer_places import Place, Slots

ALIASES = "npusim_aliases"  # in a node's meta: the operands that its result may be another name of

Role = tuple[Any, ...]  # what a tensor is to a layer

_STOOD_IN = "npusim_stood_in"  # an attribute of errors in layers that saw a stand-in


class Differs(Exception):
    """A layer is not traced to what its equal was; all that was put in is in doubt."""

    npusim_stood_in = True


def saw_a_stand_in(error: BaseException | None) -> bool:
    """Tells whether an error of a trace may be due to what stands for the number of a layer."""
    while error is not None:
        if hasattr(error, _STOOD_IN):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def traced_once(model: nn.Module) -> Iterator[None]:
    """Puts the nodes of a layer's trace in again for equal layers, while a model is traced.

    For traces of torch.export that run forward itself, of fixed sizes.
    """
    layers = _Layers(model)
    owners = {type(one.module) for one in layers.known.values()}
    own = {owner: vars(owner).get("forward") for owner in owners}
    try:
        for owner in owners:
            owner.forward = layers.watched(owner.forward)
        yield
    finally:
        for owner, forward in own.items():
            if forward is None:
                del owner.forward
            else:
                owner.forward = forward


class _Layers:
    """The layers of a model that have equals, and what was traced of them."""

    def __init__(self, model: nn.Module) -> None:
        self.known: dict[int, Layer] = {}  # by the identity of their attributes
        self._traces: dict[Key, list[_Trace]] = {}
        self._last: set[int] = set()  # of `known`, of each kind in a list
        self._within = False
        for container in model.modules():
            if isinstance(container, (nn.ModuleList, nn.Sequential)):
                layers = {id(one.module.__dict__): one for one in equal_layers(list(container))}
                self.known |= layers
                self._last |= set({one.key: name for name, one in layers.items()}.values())

    def watched(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a forward that is run or, where it was traced before, put in again."""

        @functools.wraps(forward)
        def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            layer = self.known.get(id(module.__dict__))
            mode = proxy_tensor.get_proxy_mode()
            if layer is None or self._within or mode is None:
                return forward(module, *args, **kwargs)
            self._within = True
            try:
                return self._call(layer, mode.tracer, forward, module, args, kwargs)
            finally:
                self._within = False

        return run

    def _call(
        self, layer: Layer, tracer: Any, forward: Any, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        try:
            call = _Call(layer, tracer, (args, kwargs))
        except Unproved:
            return forward(module, *args, **kwargs)
        traces = self._traces.setdefault(call.key, [])
        for trace in traces:
            try:
                tensors, now = trace.operands(call)
            except Unproved:
                continue
            if trace.checked and id(module.__dict__) not in self._last:
                return trace.again(call, tensors, now)
            run = functools.partial(forward, module, *args, **kwargs)
            return trace.check(call, tensors, now, run)
        trace = _Trace(call)
        result = trace.run(forward, module, args, kwargs)
        if trace.proved:
            traces.append(trace)
        return result


# ---- a call ----


class _Call:
    """A call of a layer in a trace.

    Attributes:
        layer, tracer: what is called, and who traces it.
        cache: the cache of transformers among the arguments, or None.
        key: equal for calls of equal layers on equal arguments.
        tensors: what each of the layer's weights and arguments is.
        path: of the layer in the stack of modules: its key there, and its path.

    Raises:
        Unproved: an argument is none of those that are compared.
    """

    def __init__(self, layer: Layer, tracer: Any, arguments: Any) -> None:
        self.layer, self.tracer = layer, tracer
        self.cache: Any = None
        self.tensors: dict[Role, Tensor] = {}
        self._containers: list[Any] = []
        shown = self._argument(arguments)
        given = list(self.tensors.values())
        same = tuple([id(x) for x in given].index(id(x)) for x in given)
        memory = [x.untyped_storage()._cdata for x in given]
        self.key = (layer.key, shown, same, tuple(map(memory.index, memory)))
        for prefix, part in layer.module.named_modules():
            for name, tensor in (*part._parameters.items(), *part._buffers.items()):
                if tensor is not None:
                    self.tensors["weight", prefix, name] = tensor
        stack = tracer.module_stack
        if not stack:
            raise Unproved
        self.path = next(reversed(stack.items()))[0], next(reversed(stack.values()))[0]

    def _argument(self, value: Any) -> Key:
        if isinstance(value, Tensor):
            self.tensors["argument", len(self.tensors)] = value
            return self.kind(value)
        if type(value) in (tuple, list):
            self._containers.append(value)
            return type(value), tuple(map(self._argument, value))
        if type(value) is dict:
            self._containers.append(value)
            return dict, tuple((plain(k), self._argument(v)) for k, v in value.items())
        if value is None or type(value) in (bool, int, float, str):
            return plain(value)
        if isinstance(value, (torch.dtype, torch.device)):
            return value
        if self.cache is not None and value is not self.cache:
            raise Unproved
        if not type(value).__module__.endswith(".cache_utils") or type(value).__name__ != "Cache":
            raise Unproved
        self.cache = value
        return "cache", id(value), Held(value), plain(dict(vars(value), layers=None))

    def node(self, tensor: Tensor) -> fx.Node | None:
        """Returns the node that stands for a tensor in the trace."""
        found = proxy_tensor.get_proxy_slot(tensor, self.tracer, None)
        return None if found is None or found.constant is not None else found.proxy.node

    def kind(self, x: Tensor) -> Key:
        """Returns what a trace may ask of a tensor.

        Raises:
            Unproved: it has data, or a size that is a symbol.
        """
        if not isinstance(x, FakeTensor) or self.node(x) is None or x.layout != torch.strided:
            raise Unproved
        sizes = (*x.shape, *x.stride(), x.storage_offset())
        if not all(type(n) is int for n in sizes):
            raise Unproved
        bits = x.requires_grad, x.is_conj(), x.is_neg(), isinstance(x, nn.Parameter)
        return type(x), tuple(x.shape), sizes, x.dtype, x.device, bits

    def slot(self, place: str) -> tuple[Key, dict[Role, Tensor]]:
        """Returns what the cache's layer at the value of a place is, and its tensors."""
        layer = self.cache.layers[self.layer.places[place]]
        tensors = {("cache", place, k): v for k, v in vars(layer).items() if isinstance(v, Tensor)}
        kinds = tuple(
            (k, self.kind(v) if isinstance(v, Tensor) else plain(v)) for k, v in vars(layer).items()
        )
        return (type(layer), kinds), tensors

    def state(self) -> Key:
        """Returns what a call must leave as it is, but for values in tensors."""
        parts = [part for _, part in self.layer.module.named_modules()]
        things: list[Any] = list(parts)
        if self.cache is not None:
            things += [self.cache, *self.cache.layers]
        held = [value for thing in things for value in vars(thing).values()]
        things += {id(x): x for x in held if _has_state(x)}.values()
        classes = list(dict.fromkeys(map(type, parts)))
        files = dict.fromkeys(one.__module__ for one in classes)
        things += [*classes, *(sys.modules[name] for name in files if name in sys.modules)]
        kept = [(thing, tuple(vars(thing).items())) for thing in things]
        kept += [(thing, (("", thing),)) for thing in self._containers]
        return [
            (id(thing), [(name, id(value), _items(value)) for name, value in items], items)
            for thing, items in kept
        ]


def _has_state(value: Any) -> bool:
    """Tells whether a value is an object whose attributes a layer may change."""
    known = (Tensor, nn.Module, dict, type, ModuleType)
    return not isinstance(value, known) and hasattr(value, "__dict__")


def _items(value: Any) -> Any:
    """Returns what shows that a container was changed."""
    if isinstance(value, dict):
        return [(k, id(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [id(v) for v in value]
    return None


def _unchanged(before: Any, after: Any) -> bool:
    return [one[:2] for one in before] == [one[:2] for one in after]


# ---- what was traced ----


@dataclass
class _Trace:
    """What a call of a layer put into the graph.

    Attributes:
        call: which was traced.
        proved: whether all of it follows from what calls compare.
        checked: whether another call was traced to the same: others need not be.
        nodes: in order.
        roles: of the nodes before it that it read.
        changed: the nodes that stand for weights, arguments and tensors of the cache afterwards.
        slots: what the cache's layers that it chose were, by place.
        result: with a role or a node for each tensor.
    """

    call: _Call
    proved: bool = False
    checked: bool = False
    nodes: list[fx.Node] = field(default_factory=list)
    roles: dict[fx.Node, Role] = field(default_factory=dict)
    changed: dict[Role, fx.Node] = field(default_factory=dict)
    slots: dict[str, Key] = field(default_factory=dict)
    result: Any = None
    _before: dict[Role, tuple[Tensor, fx.Node | None]] = field(default_factory=dict)

    def run(self, forward: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Runs a layer and notes what it did."""
        call, graph = self.call, self.call.tracer.graph
        before, seen, decided = call.state(), self._seen(), decisions_made(call.tracer)
        last = next(iter(reversed(graph.nodes)))
        places, slots = self._stand_in(), None
        layers = None if call.cache is None else call.cache.layers
        if layers is not None:
            slots = call.cache.layers = Slots(layers)
        try:
            result = forward(module, *args, **kwargs)
        except Exception as error:
            if places:
                vars(error)[_STOOD_IN] = True
            raise
        finally:
            if layers is not None:
                call.cache.layers = layers
            for owner, name, place in places:
                vars(owner)[name] = place.value
        chosen = set() if slots is None else slots.chosen
        used = any(vars(place)["used"] for _, _, place in places)
        if used or not _unchanged(before, call.state()):
            return result
        if decisions_made(call.tracer) != decided:
            return result
        if slots is not None and list.__ne__(slots, layers):
            return result
        try:
            self._note(last, seen, chosen, result)
        except Unproved:
            return result
        self.proved = True
        return result

    def _stand_in(self) -> list[tuple[nn.Module, str, Place]]:
        made = []
        for path, value in self.call.layer.places.items():
            prefix, _, name = path.rpartition(".")
            owner = self.call.layer.module.get_submodule(prefix)
            place = Place(path, value)
            vars(owner)[name] = place
            made.append((owner, name, place))
        return made

    def _seen(self) -> dict[str, tuple[Key, dict[Role, Tensor]]]:
        """Returns what the cache's layers are that the call may choose, by place."""
        found = {}
        for place, number in self.call.layer.places.items():
            if self.call.cache is not None and number < len(self.call.cache.layers):
                with suppress(Unproved):
                    found[place] = self.call.slot(place)
        for _, tensors in (("", self.call.tensors), *found.values()):
            for role, tensor in tensors.items():
                self._before[role] = tensor, self.call.node(tensor)
        return found

    def _note(self, last: fx.Node, seen: Any, chosen: set[str], result: Any) -> None:
        call = self.call
        if chosen - set(seen):
            raise Unproved
        self.slots = {place: seen[place][0] for place in sorted(chosen)}
        given = {r: x for r, x in self._before.items() if r[0] != "cache" or r[1] in chosen}
        node = last.next
        while node.op != "root":
            if node.op != "call_function":
                raise Unproved
            self.nodes.append(node)
            node = node.next
        own = set(self.nodes)
        known = {at: role for role, (_, at) in reversed(given.items()) if at is not None}
        for one in self.nodes:
            for operand in one.all_input_nodes:
                if operand not in own:
                    if operand not in known:
                        raise Unproved
                    self.roles[operand] = known[operand]
        chosen_from = {id(tensor) for tensor, _ in given.values()}
        for role, (tensor, at) in self._before.items():
            after = call.node(tensor)
            if after is at or (role not in given and id(tensor) in chosen_from):
                continue  # not changed, or the same layer of the cache by another place
            if after is None or after not in own or role not in given:
                raise Unproved
            self.changed[role] = after
        memory = {x.untyped_storage()._cdata for x, _ in given.values()}
        self.result = self._noted(result, own, known, memory)

    def _noted(self, value: Any, own: Any, known: Any, memory: set[int]) -> Any:
        """Returns a result with what stands for each tensor."""
        if isinstance(value, Tensor):
            node = self.call.node(value)
            if node in own:
                self.call.kind(value)
                if value.untyped_storage()._cdata in memory:
                    raise Unproved
                memory.add(value.untyped_storage()._cdata)
                return _Made(node, value)
            if node not in known:
                raise Unproved
            return _Given(known[node])
        if type(value) is tuple:
            return tuple(self._noted(x, own, known, memory) for x in value)
        if value is None:
            return None
        raise Unproved

    def operands(self, call: _Call) -> tuple[dict[Role, Tensor], dict[fx.Node, fx.Node]]:
        """Returns the tensors of another call, and its nodes for those that this one read.

        Raises:
            Unproved: its place in the cache is of another kind.
        """
        tensors = dict(call.tensors)
        for place, kind in self.slots.items():
            found, more = call.slot(place)
            if found != kind:
                raise Unproved
            tensors |= more
        now = {node: call.node(tensors[role]) for node, role in self.roles.items()}
        if None in now.values() or len(set(now.values())) != len(now):
            raise Unproved
        return tensors, {old: new for old, new in now.items() if new is not None}

    def check(
        self, call: _Call, tensors: dict[Role, Tensor], now: dict[fx.Node, fx.Node], run: Any
    ) -> Any:
        """Runs another call as it is, and compares what it did; returns its result.

        Raises:
            Differs: it put other nodes into the graph, wrote or returned other tensors.
        """
        graph, before = call.tracer.graph, call.state()
        last = next(iter(reversed(graph.nodes)))
        wanted = {role: call.node(tensor) for role, tensor in tensors.items()}
        result = run()
        node, same = last, True
        for one in self.nodes:
            node = node.next
            same = same and node.op != "root" and _same(one, node, now)
            now[one] = node
        wanted |= {role: now[one] for role, one in self.changed.items()}
        left = {role: call.node(tensor) for role, tensor in tensors.items()}
        same = same and node.next.op == "root" and left == wanted
        if not (same and self._like(self.result, result, call, now, tensors)):
            raise Differs(f"{call.path[1]} is not traced to what {self.call.path[1]} was.")
        if not _unchanged(before, call.state()):
            raise Differs(f"{call.path[1]} changes itself or what it is given.")
        self.checked = True
        return result

    def _like(self, value: Any, found: Any, call: _Call, now: Any, tensors: Any) -> bool:
        """Tells whether a result is what the one noted here is for another call."""
        if isinstance(value, (_Made, _Given)):
            if not isinstance(found, Tensor):
                return False
            if isinstance(value, _Given):
                return call.node(found) is call.node(tensors[value.role])
            if call.node(found) is not now[value.node]:
                return False
            try:
                return bool(call.kind(found) == self.call.kind(value.tensor))
            except Unproved:
                return False
        if type(value) is tuple:
            return (
                type(found) is tuple
                and len(found) == len(value)
                and all(
                    self._like(x, y, call, now, tensors) for x, y in zip(value, found, strict=True)
                )
            )
        return found is value

    def again(self, call: _Call, tensors: Any, now: dict[fx.Node, fx.Node]) -> Any:
        """Puts the nodes in for another call; returns its result."""
        graph, renamed = call.tracer.graph, self._renamed(call)
        for node in self.nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), now.__getitem__)
            name = node.name.rstrip("0123456789").rstrip("_")
            copy = graph.create_node(node.op, node.target, args, kwargs, name=name)
            copy.meta = {**node.meta, ALIASES: aliases(node)}
            if "nn_module_stack" in node.meta:
                copy.meta["nn_module_stack"] = renamed(node.meta["nn_module_stack"])
            now[node] = copy
        for role, node in self.changed.items():
            proxy = proxy_tensor._ProxyTensor(fx.Proxy(now[node], call.tracer), None)
            proxy_tensor.set_proxy_slot(tensors[role], call.tracer, proxy)
        return self._made(self.result, call, now, tensors)

    def _made(self, value: Any, call: _Call, now: Any, tensors: Mapping[Role, Tensor]) -> Any:
        if type(value) is tuple:
            return tuple(self._made(x, call, now, tensors) for x in value)
        if isinstance(value, _Given):
            return tensors[value.role]
        if value is None:
            return None
        like, node = value.tensor, now[value.node]
        with proxy_tensor.disable_proxy_modes_tracing(), like.fake_mode:
            fresh = torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=like.device
            )
            node.meta["val"] = proxy_tensor.extract_val(fresh)
        proxy = fx.Proxy(node, call.tracer)
        proxy_tensor.track_tensor_tree(fresh, proxy, constant=None, tracer=call.tracer)
        return fresh

    def _renamed(self, call: _Call) -> Callable[[Any], Any]:
        """Returns what writes a stack of modules of this call as another's."""
        pairs = tuple(zip(self.call.path, call.path, strict=True))
        done: dict[int, Any] = {}

        def moved(text: str) -> str:
            for old, new in pairs:
                if text == old or text.startswith((f"{old}.", f"{old}@")):
                    return new + text[len(old) :]
            return text

        def renamed(stack: Any) -> Any:
            if id(stack) not in done:
                done[id(stack)] = {
                    moved(key): (moved(path), kind) for key, (path, kind) in stack.items()
                }
            return done[id(stack)]

        return renamed


def _same(one: fx.Node, other: fx.Node, now: Mapping[fx.Node, fx.Node]) -> bool:
    """Tells whether two calls are of one function on operands that stand for each other."""
    given = fx.map_arg((one.args, one.kwargs), now.__getitem__)
    return (
        one.op == other.op
        and one.target is other.target
        and repr(given) == repr((other.args, other.kwargs))
    )


@dataclass(frozen=True)
class _Made:
    node: fx.Node
    tensor: Tensor


@dataclass(frozen=True)
class _Given:
    role: Role


def aliases(node: fx.Node) -> tuple[int, ...]:
    """Returns the numbers of a call's operands whose memory its result may lie in."""
    if ALIASES in node.meta:
        found: tuple[int, ...] = node.meta[ALIASES]
        return found
    results = _memory(node)
    return tuple(i for i, x in enumerate(node.all_input_nodes) if _memory(x) & results)


def _memory(node: fx.Node) -> set[int]:
    values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return {x.untyped_storage()._cdata for x in values if isinstance(x, Tensor)}
