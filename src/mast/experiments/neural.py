"""Neural: the distributed method with Bernoulli sketches on a two-layer network, the paper's six panels.

Ten nodes train one student; the loss that is drawn is the standard one, with S = I. The step
size that `mast.nn.advise` proposes is run beside the paper's five, and variance reduction over sketches
beside plain DSGD.
"""

from __future__ import annotations

from typing import Any

from mast.experiments import neural_claims, neural_figures, neural_runs, neural_variance
from mast.experiments.cells import Cell, Done
from mast.experiments.findings import Experiment, Figure, Findings, Plan
from mast.experiments.neural_data import DIGIT_FEATURES, HEAD_RATE, HEAD_STEPS, HEAD_WIDTH, find
from mast.experiments.neural_runs import DIVERGED, HIDDEN, KEEPS, NAME, NODES, STEP_SIZES


def cells(plan: Plan) -> list[Cell]:
    """The runs of the distributed method, and those of variance reduction."""
    return [*neural_runs.cells(plan), *neural_variance.cells(plan)]


def findings(plan: Plan, done: list[Done]) -> Findings:
    """Figures, numbers and claims."""
    names = [dataset.name for dataset in plan.datasets]
    config = next(d.cell.config for d in done if d.cell.compute is neural_runs.run)
    count = neural_runs.seeds(plan)
    return Findings(
        lead=(
            f"Distributed DSGD with {NODES} nodes: in each round every node draws its own Bernoulli mask of "
            "all weights, and sends the gradient of its submodel on its own rows. A two-layer ReLU network "
            "learns the logits of a fine-tuned head from embeddings. The loss shown is the standard one: "
            "no weight is dropped when it is evaluated."
        ),
        figures=[figure for name in names for figure in _figures(done, name, count)],
        tables={
            "neural": table(done),
            "neural_levels": _levels(done, names),
            "neural_variance": neural_variance.table(done),
        },
        claims=[
            claim
            for name in names
            for claim in (*neural_claims.claims(done, name), *neural_variance.claims(done, name))
        ],
        choices=choices(),
        configuration={
            "nodes": NODES,
            "hidden": HIDDEN,
            "keep": list(KEEPS),
            "step_sizes": list(STEP_SIZES),
            "rounds": config["rounds"],
            "rows": config["rows"],
            "seeds": count,
            "accuracy_of_the_head": {n: _first(done, n)["accuracy"] for n in names},
        },
    )


def _figures(done: list[Done], name: str, count: int) -> list[Figure]:
    over = f"Median over {count} seeds, with the range of all seeds" if count > 1 else "One seed"
    return [
        Figure(
            f"neural_{name}",
            f"Sparsity and step size ({name})",
            f"{over}. Left: a keep probability a frame, a curve a step size, and the step size that "
            "mast.nn.advise proposes (dashed, black). Right: a step size a frame, a curve a keep "
            "probability; dashed where the step size is longer than the advised one. A curve that leaves the "
            "frame has diverged.",
            lambda: neural_figures.panels(done, name),
        ),
        Figure(
            f"neural_levels_{name}",
            f"Where the runs end ({name})",
            f"{over}. Left: the median loss over the last tenth of each run, with the advised step size "
            "(dotted line and star). Right: the deviation of log f from its linear trend in the last "
            "quarter.",
            lambda: neural_figures.levels(done, name),
        ),
        Figure(
            f"neural_variance_{name}",
            f"Variance reduction over sketches ({name})",
            f"{over}. One node with all rows, keep {neural_variance.KEEP:g}, {neural_variance.N} draws of "
            "the sketch that are sampled once; f_D is the mean over these. Each method at the step size best "
            "for the frame. A gradient is one draw on all rows.",
            lambda: neural_variance.draw(done, name),
        ),
    ]


def _first(done: list[Done], name: str) -> Done:
    return next(d for d in done if d.cell.compute is neural_runs.run and d.cell.dataset.name == name)


def choices() -> list[str]:
    """What the paper leaves open, for this experiment and for `dropout`."""
    return [
        "Inputs: ResNet-50 embeddings of CIFAR-10 where --data-dir has them. By default scikit-learn's "
        f"digits: {DIGIT_FEATURES} fixed random ReLU features of the centred pixels play the frozen network. "
        "Either way each embedding is scaled to norm 1.",
        f"Targets: a two-layer ReLU head ({HEAD_WIDTH} hidden units) is tuned on the labels of all rows "
        f"({HEAD_STEPS} steps of Adam at {HEAD_RATE:g}); its logits, each standardised to mean 0 and "
        "variance 1, are the targets. All seeds have the same targets.",
        f"Student: inputs - {HIDDEN} ReLU units - outputs, without biases, so that every weight is sketched; "
        f"weights start at N(0, 2/{HIDDEN}) and N(0, 1/{HIDDEN}). Loss: the squared distance to the "
        "targets, averaged over rows. v = 0. (With half of it, every step would be half as long, and the "
        "grid would end before dense training becomes unstable: so it was at first, and the best step size "
        "was often the longest.)",
        f"Rows are shuffled and spread evenly over {NODES} nodes; a node uses all its rows in every round, "
        "so sketches are the only randomness of a run. A seed decides the start and all masks.",
        "Node i's mask in round t is that of mast.nn.sparsify(student, sketch, seed=seed, node=i) at step t; "
        "runs that differ in their step size alone see the same masks.",
        f"A run has diverged when a measured loss is not finite or above {DIVERGED:g} times its start; it "
        "may also end as a network whose units are all dead, at the loss of the zero function. A level is "
        "the median over the last tenth of a run; a claim speaks of the median level over seeds.",
        "Advice is asked for at the start of each run, on all its rows: 1/(L_f L_max) with the measured "
        "curvature as L_f, the limit for one draw a step, without the gain from averaging nodes.",
        f"Variance reduction: N = {neural_variance.N}, refresh probability 1/{neural_variance.N}, S-PAGE "
        "moves with one draw. A step of L-SVRDSG costs 3 gradients on average, one of S-PAGE 2.75, one "
        "of DSGD 1.",
    ]


def table(done: list[Done]) -> Any:
    """One row a measured point of the distributed runs."""
    import pandas

    parts = []
    for d in done:
        if d.cell.compute is not neural_runs.run:
            continue
        for lane, size in enumerate(d["step_size"].tolist()):
            columns = {
                "dataset": d.cell.dataset.name,
                "keep": d["keep"],
                "scaled": d["scaled"],
                "step_size": size,
                "advised": lane >= len(d["step_sizes"]),
                "seed": d["seed"],
                "status": d["status"][lane],
                "round": d["round"],
                "loss": d["loss"][lane],
            }
            parts.append(pandas.DataFrame(columns))
    return pandas.concat(parts, ignore_index=True)


def _levels(done: list[Done], names: list[str]) -> Any:
    import pandas

    return pandas.DataFrame([row for name in names for row in neural_figures.end_table(done, name)])


EXPERIMENT = Experiment(
    name=NAME,
    title="A neural network, trained sparsely by ten nodes",
    datasets=("digits",),
    fast_datasets=("digits",),
    cells=cells,
    findings=findings,
    find=find,
)
