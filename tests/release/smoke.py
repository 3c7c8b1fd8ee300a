"""The smoke tests of a release: what a newcomer does first, with the package as it was installed.

    python smoke.py core    everything that needs no extra, and what is said where one is missing
    python smoke.py all     the same and the extras

Run from an empty folder, in an environment without the source.
"""

import importlib.resources
import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np

import mast

COMMAND = str(Path(sysconfig.get_path("scripts")) / "mast")


def run(*arguments: str, code: int = 0) -> str:
    """What the command prints; it must end with this code."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def core() -> None:
    assert "site-packages" in mast.__file__, f"not an installed package: {mast.__file__}"
    assert (importlib.resources.files("mast") / "py.typed").is_file()
    assert run("--version").strip() == mast.__version__
    assert "a1a" in run("data", "list")
    A, b = mast.data.load("a1a")
    problem = mast.Problem(mast.Logistic(A, b, kappa=100), mast.PermK(10))
    result = mast.minimize(problem, "dsgd", 200, checkpoint="run.mast")
    assert result.status == "finished"
    assert mast.minimize(problem, "dsgd", 300, checkpoint="run.mast").steps == 300
    assert result.rows[-1]["f_D"] < result.rows[0]["f_D"]
    assert (
        len(mast.sweep(problem, ["dsgd"], ["theory"], [0, 1], 50, jobs=2, cache="cells")["seed"].unique())
        == 2
    )
    assert mast.theory.dsgd("convex", L_f=3, L_D=4, L_max=16).max_step_size() > 0
    model = mast.MastClassifier().fit(A, b)
    model.save("classifier.mast")
    assert np.array_equal(mast.MastClassifier.load("classifier.mast").predict(A), model.predict(A))
    assert "PermK" in run("advise", "a1a")
    run("train", "a1a", "--out", "model")
    assert len(run("predict", "model", "a1a").splitlines()) >= len(b)
    run("evaluate", "model", "a1a", "--draws", "5", "--no-plot")
    assert "nothing.csv" in run("train", "nothing.csv", "--target", "y", code=2)


def missing_extras() -> None:
    """Where an extra is not installed, one line says how to get it."""
    for module, act in (
        ("matplotlib", lambda: run("reproduce", "accuracy", "--fast", code=2)),
        ("torch", _nn),
    ):
        if importlib.util.find_spec(module) is None:
            assert "pip install" in act(), f"without {module} nobody learns how to get it"


def _nn() -> str:
    try:
        mast.nn.sparsify  # noqa: B018
    except ImportError as error:
        return str(error)
    return ""


def everything() -> None:
    import torch

    assert "report:" in run("reproduce", "accuracy", "--fast")
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    sk = mast.nn.sparsify(network, mast.Bernoulli(0.5))
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.ones(4, 8)).square().sum().backward()
        optimizer.step()
    assert sk.submodel(seed=7)(torch.ones(1, 8)).shape == (1, 2)
    for extra in ("flwr", "matplotlib", "safetensors"):
        assert importlib.util.find_spec(extra), f"the extra [all] does not bring {extra}"


if __name__ == "__main__":
    core()
    if sys.argv[1] == "all":
        everything()
    else:
        missing_extras()
    print("all is well")
