"""The unit spaces of a model, found from its graph."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import replace

from torch import fx, nn

from mast.errors import ArgumentError
from mast.nn.structure import functions, modules
from mast.nn.structure.flow import Flow
from mast.nn.structure.spaces import Axis, Joint, Role, Space
from mast.nn.structure.tracing import refuse_hooks, trace_both_modes


def find_spaces(
    bare: nn.Module, keep: Mapping[str, float] | None = None
) -> tuple[list[Space], dict[str, str]]:
    """The spaces whose units can be dropped, and for all others the reason why not, by name.

    Values that convolutions make are taken to be batches, where dimensions are counted from the front.

    Parameters
    ----------
    bare
        The model, or its skeleton: only shapes are looked at.
    keep
        Keep probabilities by patterns of space names; 1 leaves a space, or a whole module, out.

    >>> from torch import fx, nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> spaces, others = find_spaces(model)
    >>> [(s.name, s.units) for s in spaces], others
    ([('0.weight', 8)], {'2.weight': "they are the model's output"})
    """
    patterns = dict(keep or {})
    order = {name: i for i, (name, _) in enumerate([*bare.named_parameters(), *bare.named_buffers()])}
    left_out = _left_out(bare, patterns)
    graph = graph_of(bare, left_out)
    flow = Flow(bare, graph, modules.rule_for, functions.RULES, functions.ENTRYWISE, left_out.__contains__)
    joints = flow.walk().roots()
    spaces, others = [], {}
    for joint in joints:
        space = _space(joint, order)
        if space is None:
            continue
        own = own_keep(space.name, patterns)
        if own == 1:
            others[space.name] = "keep = 1"
        elif own is None and (stays := _stays(bare, space, patterns)):
            others[space.name] = f"keep = 1 of {stays}, whose units they are too"
        elif reason := _reason(joint, space):
            others[space.name] = reason
        elif joint.refused:
            raise ArgumentError(
                f"the {joint.units()} units of {space.name!r} cannot be dropped: {joint.refused[0]}. Leave "
                f"them "
                f"out with keep={{{space.name!r}: 1}}, or sketch single weights"
            )
        else:
            spaces.append(replace(space, keep=own))
    spaces.sort(key=lambda s: order[s.name])
    return spaces, dict(sorted(others.items(), key=lambda item: order[item[0]]))


def graph_of(bare: nn.Module, left_out: set[str]) -> fx.Graph:
    """The graph of a model; if it is itself one of the modules that have rules, one call."""
    refuse_hooks(bare)
    if modules.rule_for(bare) is None:
        return trace_both_modes(bare, lambda m, name: is_leaf(m, name, left_out))
    graph = fx.Graph()
    graph.output(graph.call_module("", (graph.placeholder("input"),)))
    return graph


def own_keep(name: str, keep: Mapping[str, float]) -> float | None:
    """The keep probability of the last pattern that matches."""
    own = None
    for pattern, share in keep.items():
        if fnmatch.fnmatchcase(name, pattern):
            own = float(share)
    return own


def _left_out(bare: nn.Module, keep: Mapping[str, float]) -> set[str]:
    """The modules all of whose parameters have keep = 1: what they do is not looked at."""
    found: set[str] = set()
    for name, module in bare.named_modules():
        own = [f"{name}.{p}" for p, _ in module.named_parameters()]
        if name and own and all(own_keep(p, keep) == 1 for p in own) and modules.rule_for(module) is None:
            found.add(name)
    return found


def is_leaf(module: nn.Module, name: str, left_out: set[str]) -> bool:
    """Whether tracing stops at this module: it has a rule, or is one of torch that is no container."""
    if modules.rule_for(module) is not None or name in left_out:
        return True
    containers = nn.Sequential | nn.ModuleList | nn.ModuleDict
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, containers)


def _stays(bare: nn.Module, space: Space, keep: Mapping[str, float]) -> str | None:
    """A weight that is left out by name and makes these units together with others."""
    names = {name for name, p in bare.named_parameters() if p.dim() > 1 and own_keep(name, keep) == 1}
    return next((a.tensor for a in space.producers if a.tensor in names), None)


def _space(joint: Joint, order: Mapping[str, int]) -> Space | None:
    """The finished space of a joint; None for one that no parameter produces."""
    runs = [replace(a, run=a.run * joint.block) for a in joint.axes]
    runs.sort(key=lambda a: (order[a.tensor], a.dim, a.offset))
    producers = tuple(a for a in runs if a.role is Role.PRODUCES)
    consumers = tuple(a for a in runs if a.role is Role.CONSUMES)
    if not producers:
        return None
    norms = tuple((name, run * joint.block) for name, run in joint.modules)
    return Space(producers[0].tensor, joint.units(), producers, consumers, norms)


def _reason(joint: Joint, space: Space) -> str:
    if joint.pinned:
        return joint.pinned[0]
    if not space.consumers and not joint.refused:
        return "nothing takes them"
    both = _place(space.producers) & _place(space.consumers)
    if both:
        return f"{min(both)[0]} is tied: it both makes and takes them along one dimension"
    return ""


def _place(axes: tuple[Axis, ...]) -> set[tuple[str, int]]:
    return {(a.tensor, a.dim) for a in axes}
