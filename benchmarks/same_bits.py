"""Are draws and iterates what they were? Digests of both, to compare two versions of MAST on one machine.

    PYTHONPATH=old/src python benchmarks/same_bits.py old.json
    PYTHONPATH=new/src python benchmarks/same_bits.py new.json old.json

The second command names every digest that differs, and exits with 1 if there is one. Only public names are
used, so that the same file runs with both versions. Bits of sums depend on the processor and its libraries:
digests of two machines do not compare.
"""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import mast

D = 24
ROTATION = np.eye(D)
ROTATION[:2, :2] = [[0.6, -0.8], [0.8, 0.6]]
SKETCHES = {
    "identity": mast.Identity(),
    "bernoulli": mast.Bernoulli(0.7),
    "bernoulli each": mast.Bernoulli(np.linspace(0.1, 1, D)),
    "unscaled": mast.UnscaledBernoulli(0.6),
    "rand-5": mast.RandK(5),
    "rand half": mast.RandK(0.5),
    "perm-4": mast.PermK(4, seed=3),
    "perm-5 redrawn": mast.PermK(5, redraw=True),
    "gaussian": mast.Gaussian(0.5),
    "matrices": mast.Matrices([ROTATION, 2 * np.eye(D) - ROTATION]),
    "grouped": mast.Grouped(mast.Bernoulli(0.5), np.arange(D) % 7),
    "grouped perm": mast.Grouped(mast.PermK(3), np.arange(D) // 2),
    "except": mast.Except(mast.RandK(6), [-1]),
    "mixture": mast.Mixture([mast.Bernoulli(0.5), mast.RandK(6), mast.PermK(4)], [0.5, 0.3, 0.2]),
}
LARGE = {
    name: SKETCHES[name]
    for name in ("bernoulli", "rand half", "perm-4", "perm-5 redrawn", "gaussian", "mixture")
}
UNBIASED = {name: s for name, s in SKETCHES.items() if s.unbiased}
FOUND: dict[str, str] = {}


def record(name: str, *arrays) -> None:
    """Remember the bits of these arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(np.asarray(array)).tobytes())
    FOUND[name] = digest.hexdigest()[:16]


def draws() -> None:
    for name, sketch in SKETCHES.items():
        keys = [(0, 0, 0, 0), (1, 2, 3, 4), (7, 10**6, 5, 0), (2**40, 3, 1, 9)]
        drawn = [sketch.draw(D, *key) for key in keys]
        record(f"draw {name}", *(S.matrix() for S in drawn), *(S.apply(np.ones(D)) for S in drawn))
    for name, sketch in LARGE.items():
        S = sketch.draw(70_001, 3, 4, 5, 6)
        record(f"large draw {name}", S.indices, S.scales)


def objectives() -> dict[str, mast.Problem]:
    rng = np.random.Generator(np.random.Philox(1))
    dense = rng.normal(size=(90, D))
    sparse = np.where(rng.random((90, D)) < 0.2, dense, 0.0)
    labels = np.where(dense[:, 0] + 0.3 * rng.normal(size=90) > 0, 1.0, -1.0)
    from scipy.sparse import csr_matrix

    quadratic = dense.T @ dense / 90 + 0.1 * np.eye(D)
    return {
        "quadratic": mast.Quadratic(quadratic, dense[0]),
        "logistic dense": mast.Logistic(dense, labels, kappa=50),
        "logistic sparse": mast.Logistic(csr_matrix(sparse), labels, kappa=50),
        "least squares": mast.LeastSquares(csr_matrix(sparse), dense[:, 1], l2=0.1),
        "nonconvex": mast.NonconvexLogistic(dense, labels, 0.1),
    }


def problems() -> None:
    shift = np.linspace(-1, 1, D)
    x = np.cos(np.arange(D))
    for f_name, f in objectives().items():
        record(f"value {f_name}", f.value(x), f.gradient(x), f.smoothness)
        for s_name, sketch in UNBIASED.items():
            for v_name, v in (("0", None), ("v", shift)):
                problem = mast.Problem(f, sketch, v)
                name = f"{f_name}, {s_name}, shift {v_name}"
                estimate = problem.estimate(x, samples=20, seed=3)
                record(f"estimate {name}", estimate.value, estimate.gradient)
                try:
                    record(f"f_D {name}", problem.value(x), problem.gradient(x))
                except mast.MastError:
                    record(f"f_D {name}", 0)
    for name in ("quadratic", "logistic sparse", "least squares"):
        for sketch in ("perm-4", "rand-5"):
            try:
                record(
                    f"minimizer {name}, {sketch}",
                    mast.Problem(objectives()[name], SKETCHES[sketch]).minimizer(),
                )
            except mast.MastError:
                continue


def runs() -> None:
    functions = objectives()
    for f_name in ("quadratic", "logistic sparse", "logistic dense"):
        for s_name in ("bernoulli", "perm-4", "rand-5", "matrices", "mixture", "grouped", "except"):
            problem = mast.Problem(functions[f_name], SKETCHES[s_name], np.linspace(-1, 1, D))
            for method in ("gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg", "s_page", "gdci", "dcgd"):
                name = f"{method} on {f_name}, {s_name}"
                reduced = method in ("l_svrdsg", "s_page")
                if s_name not in ("perm-4", "matrices") and (reduced or method in ("gd", "agd")):
                    continue  # these need a small support
                options = {"p": 0.2} if reduced else {}
                try:
                    result = mast.minimize(problem, method, 60, 0.01, seed=5, trace=60, **options)
                    record(name, result.x)
                except mast.MastError as error:
                    record(name + " refused", type(error).__name__.encode())
    terms = [functions["quadratic"], functions["logistic sparse"], functions["least squares"]]
    for options in (
        {}, {"coupling": "disjoint"}, {"participation": 0.5}, {"participants": 2}, {"local_steps": 3},
    ):  # fmt: skip
        for s_name in ("bernoulli", "perm-4", "mixture", "matrices"):
            nodes = mast.Nodes([mast.Problem(f, SKETCHES[s_name]) for f in terms])
            record(
                f"distributed {options} {s_name}",
                mast.minimize(nodes, "distributed", 40, 0.01, seed=2, trace=40, **options).x,
            )
    diagonal = mast.Nodes([mast.Problem(f, SKETCHES["perm-4"]) for f in terms])
    record("ist_naive", mast.minimize(diagonal, "ist_naive", 40, 0.01, seed=2, trace=40).x)


def estimators() -> None:
    rng = np.random.Generator(np.random.Philox(2))
    X = rng.normal(size=(120, D))
    y = X[:, 0] + 0.5 * rng.normal(size=120)
    for name in ("bernoulli", "perm-4", "rand-5"):
        for kind, target in ((mast.MastClassifier, y > 0), (mast.MastRegressor, y)):
            model = kind(SKETCHES[name], kappa=100.0, random_state=0)
            if "missing" in model.get_params():  # 0.1 had one way of serving missing cells
                model.set_params(missing="scale")
            model.fit(X, target)
            record(f"{kind.__name__} {name}", model.coef_, model.intercept_)


def networks() -> None:
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def mlp() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))

    def cnn() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(64, 3),
        )  # fmt: skip

    def transformer() -> nn.Module:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return nn.Sequential(
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(32, 3)
        )

    torch.manual_seed(1)
    inputs = {
        mlp: torch.randn(5, 10, 8),
        cnn: torch.randn(5, 10, 1, 8, 8),
        transformer: torch.randn(5, 10, 4, 8),
    }
    sketches = {
        name: s for name, s in LARGE.items() if name != "rand half"
    } | {
        "unscaled": SKETCHES["unscaled"], "rand": mast.RandK(0.3), "identity": mast.Identity(),
        "neurons": mast.nn.Neurons(mast.RandK(0.5)), "neurons perm": mast.nn.Neurons(mast.PermK(2)),
        "neurons mixture": mast.nn.Neurons(mast.Mixture([mast.RandK(0.5), mast.RandK(0.25)])),
        "layers": mast.nn.Layers(mast.Bernoulli(0.5)),
    }  # fmt: skip
    state = lambda model: [t.detach().numpy() for t in model.state_dict().values()]  # noqa: E731
    loss = lambda out: nn.functional.cross_entropy(out, torch.arange(10) % 3)  # noqa: E731
    for make, batches in inputs.items():
        for s_name, sketch in sketches.items():
            for shift in (None, "init"):
                name = f"{make.__name__}, {s_name}, shift {shift}"
                model = make()
                base = copy.deepcopy(model)
                try:
                    sk = mast.nn.sparsify(model, sketch, shift=shift, seed=3)
                except mast.MastError:
                    continue
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
                for x in batches:
                    loss(model(x)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                record(f"trained {name}", *state(model))
                try:
                    record(f"submodel {name}", *state(sk.submodel(seed=7)))
                except mast.MastError:
                    record(f"submodel {name}", 0)
                with tempfile.TemporaryDirectory() as folder:
                    delta = mast.nn.save_delta(sk, Path(folder) / "a.delta", seed=7)
                    record(f"delta {name}", *state(mast.nn.apply_delta(base, delta)))
        for kind, options in ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.AdamW, {"lr": 0.01})):
            for s_name in ("neurons", "neurons perm"):
                model = make()
                rows = mast.nn.RowOptimizer(
                    mast.nn.sparsify(model, sketches[s_name], seed=3), kind, **options
                )
                for x in batches:
                    with rows.submodel() as small:
                        loss(small(x)).backward()
                    rows.step()
                record(f"rows {make.__name__}, {s_name}, {kind.__name__}", *state(model))


def engines() -> None:
    """Four ranks under torchrun, with a linear model and with networks."""
    examples = Path(__file__).parents[1] / "examples" / "cluster"
    for settings in ("linear", "network", "subnetworks"):
        with tempfile.TemporaryDirectory() as folder:
            text = (examples / f"{settings}.toml").read_text()
            rounds = next(line for line in text.splitlines() if line.startswith("rounds"))
            for file in examples.glob("*.py"):
                (Path(folder) / file.name).write_text(file.read_text())
            train = Path(folder) / "train.toml"
            train.write_text(text.replace(rounds, "rounds = 12"))
            command = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "mast.cluster", str(train)]
            subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", *command[1:]],
                cwd=folder, check=True, capture_output=True,
            )  # fmt: skip
            out = Path(folder) / f"out-{settings}"
            for file in sorted(out.rglob("*")):
                if file.suffix in (".npy", ".npz", ".safetensors"):
                    record(
                        f"cluster {settings} {file.name}", np.frombuffer(file.read_bytes(), dtype=np.uint8)
                    )


def main() -> int:
    warnings.simplefilter("ignore")
    for part in (draws, problems, runs, estimators, networks, engines):
        part()
        print(f"{part.__name__}: {len(FOUND)} digests so far", file=sys.stderr)
        Path(sys.argv[1]).write_text(json.dumps(FOUND, indent=1))
    if len(sys.argv) < 3:
        return 0
    before = json.loads(Path(sys.argv[2]).read_text())
    changed = [name for name, digest in FOUND.items() if before.get(name) != digest]
    changed += [name for name in before if name not in FOUND]
    print("\n".join(f"differs: {name}" for name in changed) or f"all {len(FOUND)} digests are the same")
    return 1 if changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
