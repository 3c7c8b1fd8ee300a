"""What MAST computes, frozen: run it before and after a change that should change nothing.

    python tests/frozen.py write build/frozen.json
    python tests/frozen.py compare build/frozen.json [words|sketches|problems|estimators|networks|engines ...]

It covers Philox words, draws and constants of every sketch, exact f_D and minimisers, iterates of every
method with every sketch, estimators, steps and submodels of 24 networks, and the three engines. Numbers are
kept as digests of their bits, with the sum of their magnitudes, so that a difference shows whether it is one
of rounding. Bits depend on the processor and on library versions: write and compare on one machine, in one
environment. `python -m benchmarks` measures the speed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mast
from mast import randomness
from mast.errors import MastError
from mast.methods import METHODS
from mast.randomness import Key, Purpose

TESTS = Path(__file__).parent
Items = Iterator[tuple[str, Callable[[], Any]]]  # a name, and what computes its value


def module_at(path: str) -> Any:
    """A file of the tests as a module: its lists are used here."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the core ------------------------------------------------------------------------------------


def words() -> Items:
    """Philox words of every purpose, at several keys and addresses."""
    for purpose in Purpose:
        for key in (Key(0), Key(1, 2, 3, 4), Key(2**40 + 1, 10**6, 77, 5)):
            yield f"{purpose.name} {key}", lambda key=key, p=purpose: randomness.words(key, p, 3, 40)
    yield "normal", lambda: randomness.normal(Key(5), 0, 101)
    yield "permutation", lambda: randomness.permutation(Key(5), Purpose.BATCH, 1000, 0, 300)


def sketches() -> Items:
    """Draws, constants and moments."""
    samples = module_at("sketches/samples.py")
    d = samples.D
    for name, sketch in samples.SKETCHES.items():
        for key in ((0, 0, 0, 0), (3, 1, 2, 0), (7, 10**5, 1, 4)):
            yield (
                f"draw {name} {key}",
                lambda s=sketch, k=key: s.draw(d, *k[:1], step=k[1], node=k[2], index=k[3]).matrix(),
            )
        yield f"constants {name}", lambda s=sketch: _constants(s, d)
        yield f"second moment {name}", lambda s=sketch: s.second_moment(d)
        yield f"mean {name}", lambda s=sketch: s.mean(d)
    for text in ("bernoulli:0.1", "randk:10%", "permk:7", "nested:.25,.5,1", "rolling:.25"):
        sketch = mast.sketches.parse(text)
        yield f"large draw {text}", lambda s=sketch: s.draw(10_007, 3, step=9).apply(np.arange(1.0, 10_008))


def _constants(sketch: mast.Sketch, d: int) -> list[float]:
    c = sketch.constants(d)
    return [c.L_D, c.mu_D, c.L_max]


def problems() -> Items:
    """f_D, its gradient and minimiser; iterates of every method with every sketch."""
    samples = module_at("sketches/samples.py")
    rng = np.random.default_rng(0)
    d, x = samples.D, rng.normal(size=samples.D)
    A, b = rng.normal(size=(40, d)), np.sign(rng.normal(size=40))
    B = rng.normal(size=(d, d))
    shift = rng.normal(size=d)
    objectives = {
        "quadratic": mast.Quadratic(B @ B.T + np.eye(d), rng.normal(size=d)),
        "logistic": mast.Logistic(A, b, kappa=50),
        "least squares": mast.LeastSquares(A, b, l2=0.1),
        "nonconvex": mast.NonconvexLogistic(A, b, 0.1),
    }
    for name, f in objectives.items():
        for label, sketch in samples.SKETCHES.items():
            where = f"{name} {label}"
            problem = mast.Problem(f, sketch, shift)
            yield f"f_D {where}", lambda p=problem: [p.value(x), *p.gradient(x)]
            yield f"minimizer {where}", lambda p=problem: p.minimizer()
            yield f"estimate {where}", lambda p=problem: p.estimate(x, 50, seed=2).gradient
            for method in METHODS:
                target = mast.Nodes([problem, problem]) if method in ("distributed", "ist_naive") else problem
                yield (
                    f"iterate {method} {where}",
                    lambda t=target, m=method: mast.minimize(t, m, 12, 0.001, seed=4, trace=12).x,
                )
    features, labels = mast.data.load("a1a")
    f = mast.Logistic(features, labels, kappa=100)
    for text in ("permk:10", "bernoulli:.3", "randk:20", "nested:.2,.5,1"):
        problem = mast.Problem(f, mast.sketches.parse(text))
        yield f"a1a f_D {text}", lambda p=problem: p.estimate(np.ones(p.dim) / 9, 20).gradient
        for method in ("dsgd", "dsgd_sampled"):
            yield (
                f"a1a {method} {text}",
                lambda p=problem, m=method: mast.minimize(p, m, 200, 0.01, trace=200, samples=0).x,
            )


def estimators() -> Items:
    """Coefficients and answers of scikit-learn estimators with and without blanks."""
    from sklearn import datasets

    for name in ("breast_cancer", "wine", "diabetes"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        X = (X - X.mean(0)) / X.std(0)
        kind = mast.MastRegressor if name == "diabetes" else mast.MastClassifier
        blank = X.copy()
        blank[np.random.default_rng(1).random(X.shape) < 0.4] = np.nan
        for sketch in ("auto", "permk:3", "bernoulli:.6"):
            for missing in ("conditional", "scale"):

                def fitted(
                    kind: Any = kind,
                    s: str = sketch,
                    m: str = missing,
                    X: Any = X,
                    y: Any = y,
                    z: Any = blank,
                ) -> Any:
                    model = kind(s, missing=m, random_state=0).fit(X, y)
                    return np.concatenate([np.ravel(model.coef_), np.asarray(model.predict(z), float)])

                yield f"{name} {sketch} {missing}", fitted


# ---- networks ------------------------------------------------------------------------------------


def networks() -> Items:
    """Outputs of submodels and training steps of the tests' models and of small transformers."""
    import torch

    zoo = module_at("nn/units/conftest.py")
    library = module_at("nn/units/test_library_models.py")

    def submodel(make: Callable[[], Any], sketch: Any, **options: Any) -> list[Any]:
        model, inputs = make()
        sk = mast.nn.sparsify(model.eval(), sketch, seed=3, example=inputs, **options)
        sub = sk.submodel(seed=7)
        with torch.no_grad():
            return [sum(p.numel() for p in sub.parameters()), _output(sub, inputs)]

    def trained(make: Callable[[], Any], sketch: Any) -> list[Any]:
        model, inputs = make()
        mast.nn.sparsify(model.train(), sketch, seed=3, example=inputs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            torch.manual_seed(0)
            _output(model, inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()]

    makers = {name: (lambda n=name: zoo.make(n)) for name in zoo.MODELS}
    for name in ("gpt2", "bert", "llama", "mixtral", "t5", "qwen2", "phi", "gpt_neox"):

        def make(name: str = name) -> Any:
            torch.manual_seed(1)
            return getattr(library, name)()[:2]

        makers[name] = make
    kinds = {
        "neurons": mast.nn.Neurons(mast.RandK(0.5)),
        "nested": mast.nn.Neurons(mast.Nested([0.25, 0.5, 1.0])),
        "bernoulli": mast.Bernoulli(0.7),
    }
    for name, make_model in makers.items():
        for kind, sketch in kinds.items():
            yield f"submodel {name} {kind}", lambda m=make_model, s=sketch: submodel(m, s)
            yield f"trained {name} {kind}", lambda m=make_model, s=sketch: trained(m, s)
    yield "row optimizer", _row_optimizer


def _output(model: Any, inputs: Any) -> Any:
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return out if not hasattr(out, "logits") else out.logits


def _row_optimizer() -> Any:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    x = torch.randn(16, 8)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.25)), example=x)
    optimizer = mast.nn.RowOptimizer(sk, torch.optim.AdamW, lr=0.01)
    for _ in range(5):
        with optimizer.submodel() as small:
            small(x).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


# ---- engines -------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, numpy as np, mast.cluster
sys.path.insert(0, {tests!r})
from frozen import federation
from mast.cluster import my_nodes, run
for kind in ("linear", "network"):
    server, worker, rounds = federation(kind)
    result = run(server, {{i: worker(i) for i in my_nodes(4)}}, rounds=rounds)
    if os.environ["RANK"] == "0":
        np.save({out!r} + kind + ".npy", result.x)
"""


def federation(kind: str) -> tuple[Any, Callable[[int], Any], int]:
    """A server, how the worker of a node is made, and how many rounds they train."""
    from mast.distributed import Participation, ProblemWorker, Server, VectorCapacity, stride_of

    rng = np.random.default_rng(3)
    if kind == "linear":
        found = []
        for sketch in (mast.Bernoulli(0.9), mast.RandK(3), mast.PermK(2, seed=1), mast.PermK(4, seed=2)):
            B = rng.normal(size=(24, 8))
            found.append(mast.Problem(mast.Quadratic(B.T @ B / 24, rng.normal(size=8)), sketch, np.ones(8)))
        capacities = [VectorCapacity(p.sketch, p.dim) for p in found]
        server = Server(np.ones(8), capacities, Participation(7, 4, stride_of(capacities)), step_size=0.02)
        return server, lambda i: ProblemWorker(found[i]), 40
    import torch

    from mast.nn.nodes import NetworkWorker, NodeRows, VectorLayout, capacity_of, cross_entropy

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
    sizes = [capacity_of(model, t) for t in ("neurons:.25", "neurons:.5", "bernoulli:.5", "identity")]
    participation = Participation(1, 4, stride_of(sizes))
    server = Server(
        VectorLayout(model).read(model),
        sizes,
        participation,
        step_size=0.5,
        local_steps=2,
        local_step_size=0.1,
    )
    X, y = (
        torch.from_numpy(rng.normal(size=(4, 30, 6))).float(),
        torch.from_numpy(rng.integers(0, 3, (4, 30))),
    )
    return (
        server,
        lambda i: NetworkWorker(sizes[i], model, cross_entropy, NodeRows(X[i], y[i], batch_size=8)),
        12,
    )


def engines() -> Items:
    """The same federations in one process, through Flower's strategy, and under torchrun with two ranks."""
    for kind in ("linear", "network"):

        def in_process(kind: str = kind) -> Any:
            from mast.distributed import run_in_process

            server, worker, rounds = federation(kind)
            run_in_process(server, [worker(i) for i in range(4)], rounds)
            return server.x

        def flower(kind: str = kind) -> Any:
            from mast.federated import LocalGrid, MastStrategy, client

            server, worker, rounds = federation(kind)
            app = client(lambda context: worker(int(context.node_config["partition-id"])))
            MastStrategy(server).start(LocalGrid(app, 4), num_rounds=rounds)
            return server.x

        yield f"in process {kind}", in_process
        yield f"flower {kind}", flower

    def torchrun() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            file, out = Path(folder, "train.py"), f"{folder}/x-"
            file.write_text(SCRIPT.format(tests=str(TESTS), out=out))
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            subprocess.run([*command, str(file)], check=True, timeout=120, capture_output=True)
            return np.concatenate([np.load(f"{out}{kind}.npy") for kind in ("linear", "network")])

    yield "torchrun", torchrun


# ---- writing and comparing -----------------------------------------------------------------------

SECTIONS = {
    "words": words,
    "sketches": sketches,
    "problems": problems,
    "estimators": estimators,
    "networks": networks,
    "engines": engines,
}


def numbers_of(value: Any) -> list[np.ndarray]:
    """A value as arrays."""
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    if isinstance(value, list | tuple):
        return [array for part in value for array in numbers_of(part)]
    return [np.asarray(value)]


def frozen(sections: tuple[str, ...]) -> dict[str, list[Any]]:
    """Name -> the digest of the bits, and the sum of the magnitudes; an error is frozen by its kind."""
    found: dict[str, list[Any]] = {}
    for section in sections or SECTIONS:
        for name, compute in SECTIONS[section]():
            try:
                arrays = numbers_of(compute())
                bits = hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()
                magnitude = float(sum(np.abs(a.astype(float)).sum() for a in arrays))
                found[f"{section}: {name}"] = [bits[:16], magnitude]
            except (MastError, AttributeError) as error:
                found[f"{section}: {name}"] = [type(error).__name__, 0.0]
        print(f"{section}: {len(found)} so far", file=sys.stderr, flush=True)
    return found


def main(command: str, file: str, *sections: str) -> int:
    """Write the file, or say what differs from it."""
    warnings.simplefilter("ignore")
    path = Path(file)
    now = frozen(sections)
    errors = sum(not size and not bits.islower() for bits, size in now.values())
    print(f"{errors} of {len(now)} are refusals")
    if command == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(now, indent=0))
        print(f"{len(now)} results in {path}")
        return 0
    before = json.loads(path.read_text())
    if sections:
        before = {name: value for name, value in before.items() if name.startswith(sections)}
    for name in before.keys() - now.keys():
        print(f"not computed any more: {name}")
    changed = [name for name in before if name in now and now[name] != before[name]]
    for name in changed:
        (old, old_size), (new, new_size) = before[name], now[name]
        print(f"{name}: {old} -> {new}, magnitude {old_size!r} -> {new_size!r}")
    print(f"{len(before.keys() & now.keys())} compared, {len(changed)} differ")
    return bool(changed)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(*sys.argv[1:]))
