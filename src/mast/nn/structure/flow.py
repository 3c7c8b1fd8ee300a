"""Walking a model's graph: which dimension of each intermediate value holds which units.

A value carries the units of one joint along one dimension, or none that could be dropped. Rules
(`mast.nn.structure.modules` for modules, `mast.nn.structure.functions` for the rest) say what each
operation makes of it. What has no rule, pins: its units are never dropped. If weights follow behind it, so
that it is not just the last touch to an output, the model is refused, by the name of the module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn

from mast.errors import ArgumentError
from mast.nn.structure.carried import Value, sizes_in, values_in
from mast.nn.structure.spaces import Ledger, Role

ModuleRule = Callable[["Flow", str, nn.Module, list[Any], dict[str, Any]], Any]
FunctionRule = Callable[["Flow", str, list[Any], dict[str, Any]], Any]


class Flow:
    """One walk over a graph."""

    def __init__(
        self,
        model: nn.Module,
        graph: fx.Graph,
        module_rules: Callable[[nn.Module], ModuleRule | None],
        function_rules: Mapping[Any, FunctionRule],
        entrywise: Collection[Any],
        opaque: Callable[[str], bool],
    ) -> None:
        self.model = model
        self.graph = graph
        self.module_rule = module_rules
        self.function_rules = function_rules
        self.entrywise = entrywise  # the functions that combine values entry by entry
        self.opaque = opaque  # modules that the user leaves out
        self.ledger = Ledger()
        self.names = {
            id(t): name for name, t in reversed([*model.named_parameters(), *model.named_buffers()])
        }
        self.values: dict[fx.Node, Any] = {}
        self._node: fx.Node | None = None
        self._at = "the model"  # the module that is looked at
        self._weights_follow = _weights_follow(graph, model)

    def walk(self) -> Ledger:
        """All nodes, in order."""
        for node in self.graph.nodes:
            self._node = node
            self.values[node] = self._evaluate(node)
        return self.ledger

    # ---- what rules use --------------------------------------------------------------------

    def name_of(self, tensor: Tensor | None) -> str:
        """The name of a parameter or buffer."""
        name = self.names.get(id(tensor))
        if name is None:
            raise ArgumentError(
                f"{self._at} computes its weights from other tensors (weight_norm, a parametrization), so "
                "their units are not known: remove the parametrization first"
            )
        return name

    def produce(self, where: str, rows: list[tuple[Tensor | None, int]], rank: int | None, dim: int) -> Value:
        """A value with new units, which these (tensor, dimension) pairs produce."""
        present = [(t, d) for t, d in rows if t is not None]
        joint = self.ledger.fresh(present[0][0].shape[present[0][1]])
        for tensor, d in present:
            self.ledger.attach(joint, self.name_of(tensor), d, Role.PRODUCES, where)
        return Value(joint, dim, 1, rank)

    def consume(self, where: str, value: Value, weight: Tensor, weight_dim: int, dim: int) -> None:
        """The weight's columns take what lies along `dim` of the value."""
        name, size = self.name_of(weight), weight.shape[weight_dim]
        if value.joint is None:
            self.ledger.pin_dimension(
                name, weight_dim, size, f"{where} takes the model's input, or what became of it"
            )
            return
        run = self.run(value, size)
        if value.dim != dim or run is None:
            value.joint.refuse(f"{where} takes the units along another dimension than they lie in")
            self.ledger.pin_dimension(name, weight_dim, size, f"{where} mixes units")
            return
        self.ledger.attach(value.joint, name, weight_dim, Role.CONSUMES, where, run)

    def pass_through(self, where: str, value: Value, tensors: list[tuple[Tensor | None, int]]) -> Value:
        """Tensors that act on each unit by itself, such as a norm's weight: cut like its producers."""
        if value.joint is None:
            for t, d in tensors:
                if t is not None:
                    self.ledger.pin_dimension(
                        self.name_of(t), d, t.shape[d], f"{where} acts on units that stay"
                    )
            return value
        for t, d in tensors:
            if t is None:
                continue
            run = self.run(value, t.shape[d])
            if run is None:
                self.refuse(where, value, "acts along another dimension than the units lie in")
                return value.free(value.rank)
            self.ledger.attach(value.joint, self.name_of(t), d, Role.PRODUCES, where, run)
        return value

    def run(self, value: Value, size: int) -> int | None:
        """How many of `size` entries belong to one unit of the value, or None if they do not fit."""
        assert value.joint is not None
        run, rest = divmod(size, value.joint.root().size)
        if rest or (value.run is not None and value.run != run):
            return None
        return run

    def pin(self, value: Value, reason: str) -> Value:
        """All units of this value stay."""
        if value.joint is not None:
            value.joint.pin(reason)
        return value.free(value.rank)

    def refuse(self, where: str, value: Value, problem: str) -> Value:
        """There is no rule: the units stay, and the model is refused if weights follow."""
        if value.joint is not None:
            beside = [] if self._node is None else [n.op for n in self._node.all_input_nodes]
            if self._node in self._weights_follow or "get_attr" in beside:  # a weight that is used directly
                value.joint.refuse(f"{where} {problem}")
                return Value(refused=f"{where} {problem}")
            value.joint.pin(f"{where} makes the model's output of them")
        return value.free()

    def join(self, where: str, values: list[Value]) -> Value:
        """Values that are combined entry by entry: their units are the same units."""
        values = [self._broadcast(where, v, values) for v in values]
        carrying = [v for v in values if v.joint is not None]
        ranks = {v.rank for v in values}
        if not carrying:
            for v in values:
                self._pin_parameter(v, where)
            return Value(rank=ranks.pop() if len(ranks) == 1 else None)
        first = carrying[0]
        assert first.joint is not None
        for other in carrying[1:]:
            assert other.joint is not None
            if (other.dim, other.run) != (
                first.dim,
                first.run,
            ) or other.joint.root().size != first.joint.root().size:
                for v in carrying:
                    self.refuse(where, v, "combines units that lie in different dimensions or numbers")
                return first.free()
            first.joint.join(other.joint, where)
        for v in values:
            if v.refused:
                first.joint.refuse(v.refused)
            elif v.joint is None and v.parameter is None and not v.gate:
                first.joint.pin(f"{where} combines them with the model's input, or what became of it")
            elif v.parameter is not None:
                self._with_parameter(where, first, v)
        known = [v.rank for v in carrying if v.rank is not None]
        return replace(first, rank=max(known, default=None))

    def _broadcast(self, where: str, value: Value, values: list[Value]) -> Value:
        """A gate of one unit beside several ones: it acts on all of them, and stays."""
        several = [v for v in values if v.joint is not None and v.joint.root().size > 1]
        if value.joint is None or value.joint.root().size > 1 or value.run != 1 or not several:
            return value
        if any(v.dim != value.dim for v in several):
            return value
        value.joint.pin(f"{where} applies it to other units")
        return Value(rank=value.rank, gate=True)

    def _with_parameter(self, where: str, value: Value, parameter: Value) -> None:
        assert value.joint is not None
        assert parameter.parameter is not None
        dim = len(parameter.shape) + value.dim
        self._pin_parameter(parameter, where, but=dim)
        if dim < 0 or parameter.shape[dim] == 1:
            return  # broadcast along the units
        run = self.run(value, parameter.shape[dim])
        if run is None:
            self.refuse(where, value, "combines them with a parameter of another size")
        elif not parameter.floating:
            value.joint.pin(f"{where} combines them with {parameter.parameter!r}, which is of whole numbers")
        else:
            self.ledger.attach(value.joint, parameter.parameter, dim, Role.PRODUCES, where, run)

    def _pin_parameter(self, value: Value, where: str, but: int = -1) -> None:
        """A parameter that is used directly: it is not cut, except along one dimension."""
        if value.parameter is not None:
            for dim, size in enumerate(value.shape):
                if dim != but:
                    self.ledger.pin_dimension(value.parameter, dim, size, f"{where} uses them directly")

    # ---- nodes -----------------------------------------------------------------------------

    def _evaluate(self, node: fx.Node) -> Any:
        args = [self._known(a) for a in node.args]
        kwargs = {key: self._known(a) for key, a in node.kwargs.items()}
        if node.op == "placeholder":
            return Value()
        if node.op == "get_attr":
            return self._attribute(str(node.target), node)
        if node.op == "output":
            for value in values_in(args):
                self.pin(value, "they are the model's output")
            return None
        if node.op == "call_module":
            return self._module(str(node.target), args, kwargs)
        rule = self.function_rules.get(node.target)
        where = self.where(node)
        if rule is not None:
            return rule(self, where, args, kwargs)
        return self.without_rule(where, args, kwargs)

    def without_rule(self, where: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Units that get into something unknown."""
        for value in values_in([args, kwargs]):
            self.refuse(where, value, "has no rule that says what becomes of units")
        for size in sizes_in([args, kwargs]):
            if size.changes:
                self.refuse(
                    where, size.value, "computes with the number of units, which differs in a submodel"
                )
        return Value()

    def _module(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        module = self.model.get_submodule(name)
        where = self._at = f"the module {name!r} ({type(module).__name__})"
        if self.opaque(name):
            for value in values_in([args, kwargs]):
                self.pin(value, f"{where} is left out")
            self._pin_parameters(module, f"{where} is left out")
            return Value()
        rule = self.module_rule(module)
        if rule is not None:
            return rule(self, name, module, args, kwargs)
        if any(True for _ in module.parameters()):
            raise ArgumentError(
                f"{where} is of a kind whose units are not known, so structured sketches refuse it: leave it "
                f"out with keep={{'{name}.*': 1}}, or sketch single weights"
            )
        return self.without_rule(where, args, kwargs)

    def _pin_parameters(self, module: nn.Module, reason: str) -> None:
        for p in (*module.parameters(), *module.buffers()):
            for dim, size in enumerate(p.shape):
                self.ledger.pin_dimension(self.name_of(p), dim, size, reason)

    def _attribute(self, target: str, node: fx.Node) -> Value:
        found: Any = self.model
        for part in target.split("."):
            found = getattr(found, part)
        if not isinstance(found, Tensor):
            return Value()
        if id(found) not in self.names:
            return Value(rank=found.ndim)
        value = Value(
            rank=found.ndim,
            parameter=self.name_of(found),
            shape=tuple(found.shape),
            floating=found.is_floating_point(),
        )
        if any(user.target not in self.entrywise for user in node.users):
            self._pin_parameter(value, f"{node.target} in forward()")
        return value

    def where(self, node: fx.Node) -> str:
        """Where the user will find this operation."""
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
        name = next(reversed(list(stack)), "") if stack else ""
        path = stack[name][0] if name else ""
        return f"{target}() in {f'the module {path!r}' if path else 'forward() of the model'}"

    def _known(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda node: self.values[node])


def _weights_follow(graph: fx.Graph, model: nn.Module) -> set[fx.Node]:
    """The nodes whose results reach a module that has parameters, or a parameter used directly."""
    found: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        for user in node.users:
            has_own = user.op == "call_module" and any(
                True for _ in model.get_submodule(str(user.target)).parameters()
            )
            beside = any(other.op == "get_attr" for other in user.all_input_nodes)
            if user in found or has_own or beside:
                found.add(node)
    return found
