"""The walks of docs/architecture.md: which files a reader passes, compared with what really runs.

Each walk is run once to warm up (imports, compiled kernels), then again while every call into MAST is
counted. What is called in every round, or at all where there are no rounds, has to be the page's list.
"""

import re
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import mast

SOURCE = Path(mast.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
#: what the walk of `mast reproduce` does not list: the mathematics of f and S, keyed numbers, and checks
BELOW = (
    "sketches/",
    "objectives/",
    "randomness.py",
    "support/philox.py",
    "support/checks.py",
    "errors.py",
)
ROUNDS = 12


def calls_of(walk) -> Counter[tuple[str, str]]:
    """How often each function of MAST is called, by file and name."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)) and code.co_name != "<module>":
            calls[Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_name] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def files_of(walk) -> set[str]:
    """The files that a walk passes."""
    walk()
    return {file for file, _ in calls_of(walk)}


def files_of_a_round(walk) -> set[str]:
    """The files with a function that is called once more for each further round of ``walk(rounds)``."""
    walk(2)
    few, many = calls_of(lambda: walk(ROUNDS)), calls_of(lambda: walk(2 * ROUNDS))
    return {file for (file, name), number in many.items() if number - few[file, name] >= ROUNDS}


def listed(title: str) -> list[str]:
    """The files that the page lists under a heading, in their order."""
    section = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^#|\Z)", PAGE.read_text(), re.M | re.S)
    assert section is not None, f"the page has no walk {title!r}"
    return re.findall(r"^\d+\. `([^`]+)`", section[1], re.M)


def check(title: str, files: set[str], most: int) -> None:
    names = listed(title)
    assert len(names) <= most, f"{title} takes {len(names)} files, more than {most}"
    assert len(set(names)) == len(names)
    assert not files - set(names), f"{title}: run, but not on the page: {files - set(names)}"
    assert not set(names) - files, f"{title}: on the page, but not run: {set(names) - files}"


def test_minimize():
    A, b = mast.data.load("a1a")
    problem = mast.Problem(mast.Logistic(A, b, kappa=100), mast.PermK(10))
    check("`mast.minimize`", files_of(lambda: mast.minimize(problem, "dsgd", steps=1)), 20)


def test_a_training_step():
    torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 3))
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    check("A training step of a network", files_of(step), 8)


def test_a_submodel_of_gpt2():
    torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=4)
    model = transformers.GPT2LMHeadModel(config).eval()
    half = mast.nn.Neurons(mast.RandK(0.5))
    sk = mast.nn.sparsify(model, half, example={"input_ids": torch.arange(12)[None]})
    check("A submodel of GPT-2", files_of(lambda: sk.submodel(seed=7)), 11)


def test_fit_with_missing_values():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 6))
    y = X[:, 0] + X[:, 1] > 0
    X[generator.random(X.shape) < 0.2] = np.nan
    check("`fit` with missing values", files_of(lambda: mast.MastClassifier().fit(X, y)), 17)


def four_nodes() -> list[mast.Problem]:
    """Logistic regression on the rows of four nodes, with Perm-K."""
    A, b = mast.data.load("a1a")
    return [mast.Problem(mast.Logistic(A[i::4], b[i::4], l2=0.1), mast.PermK(4)) for i in range(4)]


def test_a_round_under_torchrun():
    pytest.importorskip("torch", reason="mast.cluster needs PyTorch")
    from mast import cluster

    problems = four_nodes()

    def walk(rounds):
        server = cluster.server_for(problems, step_size="theory")
        workers = {i: cluster.ProblemWorker(problem) for i, problem in enumerate(problems)}
        with tempfile.TemporaryDirectory() as folder:
            cluster.run(server, workers, rounds, checkpoint=Path(folder) / "c", progress=False)

    check("A round under torchrun", files_of_a_round(walk), 18)


def test_a_round_on_flower():
    pytest.importorskip("flwr", reason="the extra `federated` is not installed")
    from mast import federated

    problems = four_nodes()

    def make(context):
        return federated.ProblemWorker(problems[context.node_config["partition-id"]])

    def walk(rounds):
        sketches = [problem.sketch for problem in problems]
        server = federated.server_for(np.zeros(problems[0].dim), sketches, step_size=0.1)
        grid = federated.LocalGrid(federated.client(make), len(problems))
        federated.MastStrategy(server).start(grid, num_rounds=rounds)

    check("A round on Flower", files_of_a_round(walk), 18)


def test_reproduce(tmp_path, monkeypatch):
    from mast.experiments import accuracy
    from mast.experiments.reproduce import reproduce

    monkeypatch.setattr(accuracy, "BLOCKS", (2, 3))
    A, b = mast.data.load("a1a")
    mast.data.save(tmp_path / "rows", A[:200], b[:200])
    counter = iter(range(2))

    def walk():
        reproduce("accuracy", tmp_path / str(next(counter)), "fast", str(tmp_path / "rows"), jobs=1)

    files = {file for file in files_of(walk) if not file.startswith((*BELOW, "data/"))}  # one call reads
    check("`mast reproduce accuracy`", files, 10)
