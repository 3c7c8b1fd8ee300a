"""Neural: the distributed method with Bernoulli sketches on a two-layer network, the paper's six panels.

Ten nodes train one student; the loss that is drawn is the standard one, with S = I. The step
size that `mast.nn.advise` proposes is run beside the paper's five, and variance reduction over sketches
beside plain DSGD.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mast.cells import Cell
from mast.experiments.datasets import Dataset
from mast.experiments.experiment import Experiment, Figure, Findings, Request, Results
from mast.experiments.neural import figures, runs, variance
from mast.experiments.neural.claims import claims
from mast.experiments.neural.data import DIGIT_FEATURES, HEAD_RATE, HEAD_STEPS, HEAD_WIDTH, find
from mast.experiments.neural.runs import DIVERGED, HIDDEN, KEEPS, NODES, STEP_SIZES


class Neural(Experiment):
    """The paper's six panels, and what they leave open."""

    name = "neural"
    title = "A neural network, trained sparsely by ten nodes"
    version = 2

    def find(self, effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
        """Digits, or embeddings of CIFAR-10."""
        return find(effort, dataset, data_dir)

    def cells(self, request: Request) -> list[Cell]:
        """The runs of the distributed method, and those of variance reduction."""
        return [*runs.cells(self, request, KEEPS, STEP_SIZES), *variance.cells(self, request)]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figures, numbers and claims."""
        import pandas

        distributed, reduced = results.of(runs.run), results.of(variance.reduce)
        levels = [row for part in distributed.by_dataset().values() for row in figures.level_rows(part)]
        return Findings(
            lead=f"Distributed DSGD with {NODES} nodes: in each round every node draws its own Bernoulli "
            "mask of all weights, and sends the gradient of its submodel on its own rows. A two-layer ReLU "
            "network learns the logits of a fine-tuned head from embeddings. The loss shown is the standard "
            "one: no weight is dropped when it is evaluated.",
            figures=[
                figure
                for name, part in results.by_dataset().items()
                for figure in _figures(part, name, runs.seeds(request))
            ],
            tables={
                "neural": runs.table(distributed),
                "neural_levels": pandas.DataFrame(levels),
                "neural_variance": variance.table(reduced),
            },
            claims=results.claims(lambda part: (*claims(part), *variance.claims(part))),
            choices=choices(),
        )


def over_seeds(count: int) -> str:
    """What a curve shows, for captions."""
    return f"Median over {count} seeds, with the range of all seeds" if count > 1 else "One seed"


def _figures(results: Results, name: str, count: int) -> list[Figure]:
    over = over_seeds(count)
    return [
        Figure(
            f"neural_{name}",
            f"Sparsity and step size ({name})",
            f"{over}. Left: one frame per keep probability, one curve per step size, and the step size that "
            "mast.nn.advise proposes (dashed, black). Right: one frame per step size, one curve per keep "
            "probability; dashed where the step size is longer than the advised one. A curve that leaves the "
            "frame has diverged.",
            partial(figures.panels, results),
        ),
        Figure(
            f"neural_levels_{name}",
            f"Where the runs end ({name})",
            f"{over}. Left: the median loss over the last tenth of each run, with the advised step size "
            "(dotted line and star). Right: the deviation of log f from its linear trend in the last "
            "quarter.",
            partial(figures.levels, results),
        ),
        Figure(
            f"neural_variance_{name}",
            f"Variance reduction over sketches ({name})",
            f"{over}. One node with all rows, keep {variance.KEEP:g}, {variance.N} draws of "
            "the sketch that are sampled once; f_D is the mean over these. Each method at the step size best "
            "for the frame. A gradient is one draw on all rows.",
            partial(variance.draw, results),
        ),
    ]


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
        "curvature as L_f, the limit for one draw per step, without the gain from averaging nodes.",
        f"Variance reduction: N = {variance.N}, refresh probability 1/{variance.N}, S-PAGE "
        "moves with one draw. A step of L-SVRDSG costs 3 gradients on average, one of S-PAGE 2.75, one "
        "of DSGD 1.",
    ]
