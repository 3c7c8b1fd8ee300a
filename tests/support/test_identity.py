"""Identities: what tells one thing from another, above all functions of the user's and what they reach."""

import functools
import importlib
import os
import subprocess
import sys
import types
from collections import deque

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch

import mast
from mast.support import files
from mast.support.checkpoint import describe


def power(exponent):
    def loss(x):
        return x**exponent

    return loss


class Loss:
    """Its weight is kept out of sight, as is the function that it calls."""

    def __init__(self, weight, function=np.sin):
        self._weight, self._f, self.calls, self._seen = weight, function, 0, []

    def __call__(self, x):
        self.calls += 1
        self._seen.append(x)
        return self._weight * self._f(x)

    def scaled(self, x):
        return 2 * self(x)


class Slots:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate


class Heavy(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), weight))
        self._f = torch.relu


TABLE = pandas.DataFrame({"a": [1.0, None], "b": ["x", "y"]})
PAIRS = [
    (mast.Bernoulli(0.5), mast.Bernoulli(0.25)),
    (mast.Bernoulli([0.5, 0.25]), mast.Bernoulli([0.25, 0.5])),
    (mast.RandK(1), mast.RandK(2)),
    (mast.PermK(2), mast.PermK(2, seed=1)),
    (mast.PermK(2), mast.PermK(2, redraw=True)),
    (mast.PermK(blocks=[[0], [1]]), mast.PermK(blocks=[[1], [0]])),
    (mast.Gaussian(0.5), mast.Gaussian(0.25)),
    (mast.Matrices([np.eye(2), np.eye(2)]), mast.Matrices([np.eye(2), np.eye(2)], [0.25, 0.75])),
    (mast.Grouped(mast.RandK(1), [0, 1]), mast.Grouped(mast.RandK(1), [1, 0])),
    (mast.Grouped(mast.RandK(1), [0, 1]), mast.Grouped(mast.PermK(1), [0, 1])),
    (mast.Except(mast.RandK(1), [0]), mast.Except(mast.RandK(1), [1])),
    (mast.Mixture([mast.RandK(1)] * 2, [0.5, 0.5]), mast.Mixture([mast.RandK(1)] * 2, [0.25, 0.75])),
    (0.5, 0.25),
    ("a", "b"),
    ({"a": 1}, {"a": 2}),
    (np.zeros(2), np.zeros((2, 1))),
    (files.save, files.load),
    ({"a", 1}, {"a", 2}),
    (deque([1]), deque([2])),
    (b"a", b"b"),
    (np.zeros(5000), np.arange(5000) / 1e6),
    (np.array([None, "a"]), np.array([None, "b"])),
    (torch.zeros(3), torch.ones(3)),
    (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float16)),
    (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
    (scipy.sparse.csr_array(np.eye(3)), scipy.sparse.csr_array(2 * np.eye(3))),
    (scipy.sparse.coo_array(np.eye(3)), scipy.sparse.csc_array(np.eye(3))),
    (TABLE, TABLE.replace("y", "z")),
    (TABLE.a, TABLE.a.astype("float32")),
    (power(2), power(3)),
    (lambda x: x + 1, lambda x: x + 2),
    (functools.partial(power, 2), functools.partial(power, 3)),
    (functools.lru_cache(power(2)), functools.lru_cache(power(3))),
    (Loss(1), Loss(2)),
    (Loss(1, power(2)), Loss(1, power(3))),
    (Loss(1).scaled, Loss(2).scaled),
    (Loss(1).scaled, Loss(1)),
    (Slots(1), Slots(2)),
    (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    (Heavy(1.0), Heavy(2.0)),
    (
        mast.Problem(mast.Quadratic(np.eye(2), [1.0, 1.0]), mast.RandK(1)),
        mast.Problem(mast.Quadratic(np.eye(2), [1.0, 1.0]), mast.RandK(2)),
    ),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda value: type(value).__name__)
def test_descriptions_tell_things_apart(one, other):
    assert describe(one) == describe(one) != describe(other)


def test_numbers_of_numpy_are_numbers():
    assert describe(np.float64(0.5)) == describe(0.5)


def test_names_count_where_they_are_used_and_values_where_they_are_reached():
    a, b = 1.0, np.zeros(2)

    def f(x):
        return x * a

    first = describe(f)
    b += 1
    assert describe(f) == first
    a = 2.0
    assert describe(f) != first


def test_what_a_function_writes_to_is_no_part_of_it():
    calls, seen, cache, state = 0, [], {}, types.SimpleNamespace(steps=0, rate=1.0)

    def f(x):
        nonlocal calls
        calls += 1
        seen.append(x)
        cache[x] = calls
        state.steps += 1
        f.last = x
        return x * state.rate

    loss = Loss(2)
    before = describe([f, loss, loss.scaled])
    f(3), loss(3)
    assert (calls, seen, cache, state.steps, f.last, loss.calls) == (1, [3], {3: 1}, 1, 3, 1)
    assert describe([f, loss, loss.scaled]) == before
    state.rate = 2.0
    assert describe(f) not in before


def test_things_that_reach_themselves():
    values = [1]
    values.append(values)

    def f(x):
        return f(x - 1) + g(x) if x else values

    def g(x):
        return f(x)

    assert describe(f) == describe(f) != describe(g)


# ---- files of the user's -------------------------------------------------------------------------

USERS = {
    "a module": "import helper\ndef f(x): return helper.loss(x)",
    "a function": "from helper import loss\ndef f(x): return loss(x)",
    "a number": "from helper import WEIGHT\ndef f(x): return WEIGHT * x",
    "a default": "import helper\ndef f(x, loss=helper.loss): return loss(x)",
    "when called": "def f(x):\n    from helper import loss\n    return loss(x)",
    "when called, in a function within": "def f(x):\n    def g():\n        import helper\n    return g()",
    "a class": "from helper import Base\nclass f(Base): pass",
    "an object": "from helper import Base\nf = Base()",
    "a method": "from helper import Base\nf = Base().loss",
    "a lambda": "import helper\nf = lambda x: helper.loss(x)",
    "a closure": "import helper\ndef make(h):\n  def f(x): return h(x)\n  return f\nf = make(helper.loss)",
    "a decorator": "import functools, helper\n@functools.lru_cache\ndef f(x): return helper.loss(x)",
    "compiled": "import numba, helper\n@numba.njit\ndef f(x): return helper.loss(x)",
    "a module of a package": "import house.inner\ndef f(x): return house.inner.loss(x)",
    "a module of a package, by a relative import": "from house import near\ndef f(x): return near.loss(x)",
    "a module that imports it": "import between\ndef f(x): return between.loss(x)",
}
MODULES = ("user", "helper", "between", "house", "house.inner", "house.near")
HELPER = """
WEIGHT = 1.0
def scale(x): return 3.0 * x
def loss(x): return WEIGHT * scale(x)
class Base:
    def loss(self, x): return loss(x)
"""
CHANGES = {"its number": ("WEIGHT = 1.0", "WEIGHT = -1.0"), "what it calls": ("3.0 * x", "-3.0 * x")}


def write(folder, helper):
    (folder / "house").mkdir(exist_ok=True)
    (folder / "helper.py").write_text(helper)
    (folder / "between.py").write_text("def loss(x):\n    import helper\n    return helper.loss(x)")
    (folder / "house" / "__init__.py").write_text("")
    (folder / "house" / "inner.py").write_text("from helper import *")
    (folder / "house" / "near.py").write_text("from .inner import loss")


@pytest.fixture
def described(tmp_path, monkeypatch):
    """The description of `f` of a user's file, which is imported afresh."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # bytecode is trusted for a second, by its time

    def describe_f(user, helper):
        for name in MODULES:
            sys.modules.pop(name, None)
        write(tmp_path, helper)
        (tmp_path / "user.py").write_text(user)
        importlib.invalidate_caches()
        return describe(importlib.import_module("user").f)

    yield describe_f
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_a_module_that_a_users_file_imports_counts(described, user, change):
    if change == CHANGES["what it calls"] and user == USERS["a number"]:
        pytest.skip("it does not use the function")
    first = described(user, HELPER)
    assert described(user, HELPER.replace("WEIGHT = 1.0", "WEIGHT  =  1.0  # a remark")) == first
    assert described(user, HELPER.replace(*change)) != first


def test_what_is_not_reached_does_not_count(described):
    user = "from helper import loss\nsteps = 10\ndef f(x): return loss(x)"
    first = described(user, HELPER)
    assert described(user.replace("steps = 10", "steps = 20"), HELPER + "\ndef plot(): pass") == first


TRAIN = """
import sys
import mast
from helper import loss

f = mast.Function(loss, 2, smoothness=1, strong_convexity=1, infimum=0.0)
try:
    problem = mast.Problem(f, mast.RandK(1))
    result = mast.minimize(problem, steps=int(sys.argv[1]), step_size=0.1, checkpoint="run")
    print(result.status, result.steps)
except mast.MastError as error:
    print(error)
"""
LOSS = """
NAMES = {"alpha", "beta", "gamma", "delta"}
def far(x): return 1.0
def loss(x):
    if max(abs(x)) > 1e6 and "beta" in NAMES | {"epsilon", "zeta"}:
        return far(x), x
    return 0.5 * float(x @ x), x.copy()
"""


def test_a_run_with_another_helper_is_not_continued(tmp_path):
    """The loss differs where no probe looks: its source tells."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "helper.py").write_text(LOSS)

    def train(steps, seed):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "train.py", str(steps)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=True
        )
        return done.stdout.strip()

    assert train(20, "1") == "finished 20"
    assert train(40, "2") == "finished 40"
    (tmp_path / "helper.py").write_text(LOSS.replace("return 1.0", "return -1.0"))
    assert "run belongs to another run: its objective is" in train(60, "3")


def test_a_method_with_another_option_is_not_continued(tmp_path):
    class Scaled(mast.methods.SingleMethod):
        name = "scaled"

        def __init__(self, rule):
            self.rule, self._half = rule, 0.5

        def step(self, state, t, step_size):
            state.x -= step_size * self.rule(t) * self.problem.gradient(state.x)

    problem = mast.Problem(mast.Quadratic(np.eye(2), [1.0, 1.0]), mast.RandK(1))
    options = {"steps": 5, "step_size": 0.1, "checkpoint": tmp_path / "run"}
    mast.minimize(problem, Scaled(lambda t: 1.0), **options)
    assert mast.minimize(problem, Scaled(lambda t: 1.0), **options).status == "finished"
    with pytest.raises(mast.errors.CheckpointError, match=r"another run: its options is rule=.*lambda"):
        mast.minimize(problem, Scaled(lambda t: 2.0), **options)
    other = Scaled(lambda t: 1.0)
    other._half = 0.25
    with pytest.raises(mast.errors.CheckpointError, match=r"its method of one's own is .*Scaled"):
        mast.minimize(problem, other, **options)


def test_what_has_moved_keeps_the_name_that_checkpoints_know():
    """Files that were written before a module moved have its old name: these runs go on."""
    pytest.importorskip("flwr", reason="the extra `federated` is not installed")
    from mast import cluster, federated
    from mast.nn.nodes import cross_entropy

    assert describe(cluster.ProblemWorker) == "mast.methods.distributed.nodes.ProblemWorker"
    assert describe(cluster.NetworkWorker) == "mast.nn.nodes.worker.NetworkWorker"
    assert describe(federated.TrainingWorker) == "mast.federated.training.TrainingWorker"
    assert describe(federated.Client) == "mast.federated.clients.Client"
    assert describe(cross_entropy) == "mast.nn.nodes.worker.cross_entropy"
