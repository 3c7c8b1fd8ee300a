"""The contenders: how each of them trains its network, and the sketch that it is trained and cut with.

A contender is a part of a cell's configuration: its kind, what it is trained for (a structure, a share, a
number of members), and which of its settings are searched for.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from torch import Tensor, nn

from mast.nn import Average, Neurons, Sparsifier, TopShare, keep_probabilities, scale_start, sparsify
from mast.nn.validation import sparsifier_of
from mast.sketches import Bernoulli, Grouped, Nested, PermK, RandK, Rolling, Sampled, Sketch
from studies.density.data import TEXTS, Labelled
from studies.density.networks import (
    DESIGNS,
    Backward,
    Design,
    Recipe,
    add_noise,
    network,
    remove_noise,
    train,
)
from studies.density.search import Setting

PACKET = 16  # units that are lost together
SIZES = (0.1, 0.2, 0.5, 1.0)  # of the nested network
LISTED = (0.1, 0.2, 0.5)  # shares of the units in lists
SEEN = 512  # training rows that keep probabilities and BatchNorm statistics are taken from
FOLLOWED = 8  # how often keep probabilities follow the weights in a run
REFRESHES = 40  # how often the largest weights are chosen in a run
PRETRAINING = 3e-3  # the learning rate of the network that is fine-tuned, which all contenders share
ONLY_DIGITS = ("scaled start", "usual start", "noise", "rolling", "chances")
ADAPTS = ("full", "deltas", "one delta")  # contenders that start from a pretrained network

RANDOM = ["weights 0.5", "weights 0.2"]
CHANCES = ["chances 0.2"]
UNITS, PACKETS = ["units 0.2"], ["packets 0.25"]
DECAY: dict[str, Any] = {"axes": ["rate", "decay"], "scanned": ["decay"]}
SETTINGS: dict[str, Any] = {"axes": ["rate", "keep", "decay"], "scanned": ["decay"]}
PARTS = SETTINGS | {"axes": ["rate", "keep", "decay", "parts"]}  # parts of a batch, with a draw each
FIVE = {"choosing": [100, 101, 102, 103, 104]}  # seeds: one network on 251 rows would choose by chance
MEMBERS: dict[str, Any] = {"axes": ["rate", "decay"], "uses": ["members"], **FIVE}
LONGER = {"longer": 4}  # times as many steps: members share them, and much noise needs them
LONG: dict[str, Any] = {"uses": ["weights 0.2"], "situation": "weights 0.2 longer", **LONGER}
SCANNED = {"scanned": ["decay", "keep"]}
CONTENDERS: list[dict[str, Any]] = [
    {"kind": "plain", **DECAY, "uses": ["whole", *RANDOM, *UNITS, *PACKETS, *CHANCES]},
    {"kind": "dropout", **SETTINGS, "uses": [*RANDOM, *UNITS, *PACKETS]},
    {"kind": "noise", **PARTS, "uses": RANDOM},
    {"kind": "mast", "structure": "weights", **PARTS, "uses": RANDOM},
    {"kind": "plain", **DECAY, **LONG},
    {"kind": "dropout", **SETTINGS, **LONG, **SCANNED},
    {"kind": "noise", **PARTS, **LONG, **SCANNED},
    {"kind": "mast", "structure": "weights", **PARTS, **LONG, **SCANNED},
    {"kind": "chances", "share": 0.2, **DECAY, "uses": CHANCES},
    {"kind": "rolling", **SETTINGS, "uses": UNITS},
    {"kind": "mast", "structure": "units", **PARTS, "uses": UNITS},
    {"kind": "mast", "structure": "packets", **SETTINGS, "uses": PACKETS},
    *(
        {"kind": kind, "structure": "weights", "share": 0.2, "axes": ["rate"], "uses": ["weights 0.2"]}
        for kind in ("scaled start", "usual start")
    ),
    {"kind": "list", "structure": "weights", "share": 0.2, "members": 20, **MEMBERS, **LONGER},
    {"kind": "alone", "structure": "weights", "share": 0.2, "members": 1, **MEMBERS, **LONGER},
    *({"kind": "list", "structure": "units", "share": p, "members": 5, **MEMBERS} for p in LISTED),
    *({"kind": "alone", "structure": "units", "share": p, "members": 1, **MEMBERS} for p in SIZES[:3]),
    {"kind": "nested", "shares": list(SIZES), **MEMBERS},
    *(
        {"kind": kind, "share": 0.2, "axes": ["rate", "decay"], "uses": ["whole"], **FIVE}
        for kind in ("top share", "pruned once")
    ),
    {"kind": "full", "axes": ["rate"], "uses": ["whole"], **LONGER},
    {"kind": "deltas", "share": 0.05, "members": 20, "axes": ["rate"], "uses": ["members"], **LONGER},
    {"kind": "one delta", "share": 0.05, "members": 1, "axes": ["rate"], "uses": ["members"], **LONGER},
]


def contenders(dataset: str) -> Iterator[dict[str, Any]]:
    """All of them on digits; elsewhere without random units, packets, lists of units and small questions.

    Images have no deltas and no longer runs for random weights, to save time. On text the learning rate alone
    is searched for: source code has lists, sizes and cuts, and the manual has deltas.
    """
    for contender in CONTENDERS:
        kind = contender["kind"]
        if dataset == "digits":
            yield contender
            continue
        contender = {name: value for name, value in contender.items() if name not in FIVE}  # more rows choose
        if contender["axes"] == ["rate", "decay"]:
            contender["scanned"] = ["decay"]  # one seed might stop on a hill
        if (
            kind in ONLY_DIGITS
            or (kind == "list" and contender["structure"] == "units")
            or ((kind in ADAPTS or "situation" in contender) and dataset in ("images", "digit-images"))
        ):
            continue
        elif dataset in TEXTS:
            uses = [use for use in contender["uses"] if use in ("whole", "members")]
            if uses and (kind in ADAPTS) == (dataset == "manual"):
                short = {name: value for name, value in contender.items() if name != "longer"}
                yield short | {"axes": ["rate"], "scanned": [], "uses": uses}
        else:
            uses = [use for use in contender["uses"] if use not in (*UNITS, *PACKETS, *CHANCES)]
            if uses:
                yield contender | {"uses": uses}


def random_cut(structure: str, share: float, design: Design) -> Sketch:
    """Each weight by itself; an exact share of the units of each layer; or of its packets of units."""
    if structure == "weights":
        return Bernoulli(share)
    if structure == "units":
        return Neurons(RandK(float(share)))
    (width,) = set(design.widths)
    return Neurons(Grouped(RandK(float(share)), [unit // PACKET for unit in range(width)]))


def sketch_of(config: Mapping[str, Any], setting: Setting, seed: int, design: Design) -> Sketch | None:
    """What a contender is trained with; its list of members, where it has one."""
    kind, share = config["kind"], config.get("share", 1.0)
    if kind in ("mast", "scaled start", "usual start"):
        return random_cut(config["structure"], setting.get("keep", share), design)
    if kind in ("list", "alone"):
        if config["structure"] == "units":
            return Neurons(Sampled(RandK(share), config["members"], seed))
        return Sampled(Bernoulli(share), config["members"], seed)
    if kind == "rolling":
        return Neurons(Rolling(float(setting["keep"])))
    if kind == "chances":
        return Bernoulli(share)
    if kind == "nested":
        return Neurons(Nested(config["shares"], seed=seed))
    if kind in ("top share", "pruned once"):
        return TopShare(1.0, every=1 << 40)
    if kind == "deltas":
        return PermK(config["members"], seed=seed)
    return Sampled(Bernoulli(share), 1, seed) if kind == "one delta" else None


def trained(config: Mapping[str, Any], dataset: Labelled, seed: int, setting: Setting) -> nn.Sequential:
    """The contender's network as a plain one, without dropout layers; cut already where it chooses itself."""
    kind, design = config["kind"], DESIGNS[dataset.name]
    adapts = kind in ADAPTS
    model = network(design, seed, setting["keep"] if kind == "dropout" else None)
    if kind == "noise":
        add_noise(model, setting["keep"], seed)
    batch, epochs = config["batch"], config["adapting" if adapts else "epochs"] * config.get("longer", 1)
    if adapts:
        model = copy.deepcopy(pretrained(dataset, config["epochs"], batch, seed))
    sketch, sk, shift = sketch_of(config, setting, seed, design), None, "init" if adapts else None
    if sketch is not None:
        if kind != "usual start":
            scale_start(model, sketch, shift=shift)
        sk = sparsify(model, sketch, shift=shift, seed=seed, example=dataset.parts().train.x[:2])
    recipe = Recipe(epochs, batch, setting["rate"], seed + 1000 * adapts, setting.get("decay", 0.0))
    with warnings.catch_warnings():
        if kind == "usual start":  # which is what it is here for
            warnings.simplefilter("ignore")
        backward = _backward(sk, int(setting.get("parts", 1)))
        train(model, dataset.parts().train, recipe, _choices(config, dataset, sk), backward)
    if kind == "noise":
        remove_noise(model)
    if sk is not None:
        sk = sparsifier_of(model) or sk
        cut = sk.submodel(calibrate=False) if kind in ("top share", "pruned once") else model
        sk.remove()
        return cut.eval()
    bare = network(design, seed)
    bare.load_state_dict(model.state_dict())
    return bare.eval()


def _backward(sk: Sparsifier | None, parts: int) -> Backward | None:
    """How a batch's gradient is taken if parts of its rows have draws (or noise) of their own."""
    if parts == 1:
        return None
    if sk is not None:
        return Average(sk, draws=parts, split=True).backward

    def part_by_part(loss: Callable[..., Tensor], *batch: Tensor) -> None:
        for part in zip(*(tensor.tensor_split(parts) for tensor in batch), strict=True):
            (loss(*part) * len(part[0]) / len(batch[0])).backward()

    return part_by_part


def chances(model: nn.Module, dataset: Labelled, share: float) -> Any:
    """How often to keep each weight: this share on average, large ones with large inputs more often."""
    return keep_probabilities(model, [dataset.parts().train.x[:SEEN]], budget=share, floor=0.02)


def _choices(
    config: Mapping[str, Any], dataset: Labelled, sk: Sparsifier | None
) -> Callable[[int, int], None] | None:
    """When a sketch follows the weights: again and again, of ever fewer; or once, in the middle."""
    if sk is None or config["kind"] not in ("top share", "pruned once", "chances"):
        return None
    if config["kind"] == "chances":
        return partial(_follow, sk.model, dataset, config["share"], sk.seed)
    share, gradual = config["share"], config["kind"] == "top share"

    def before(t: int, steps: int) -> None:
        every = max(1, steps // REFRESHES)
        if gradual and t % every == 0:
            left = max(0.0, 1 - t / (0.75 * steps))
            sk.sketch = TopShare(share + (1 - share) * left**3, every=every)
        elif not gradual and t == steps // 2:
            sk.sketch = TopShare(share, every=1 << 40)

    return before


def _follow(model: nn.Module, dataset: Labelled, share: float, seed: int, t: int, steps: int) -> None:
    """Keep probabilities from the weights as they are, now and then."""
    if t > 0 and t % max(1, steps // FOLLOWED) == 0:
        keep, sk = chances(model, dataset, share), sparsifier_of(model)
        assert sk is not None
        sk.remove()
        sparsify(model, Bernoulli(share), keep=keep, seed=seed + t)


@lru_cache(maxsize=8)
def pretrained(dataset: Labelled, epochs: int, batch: int, seed: int) -> nn.Sequential:
    """A network that has seen a part: the first half of the classes, or source code."""
    model = network(DESIGNS[dataset.name], seed)
    train(model, dataset.known(), Recipe(epochs, batch, PRETRAINING, seed))
    return model
