"""What cannot fit, overflow or be meant is refused before any work, in one line."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

import mast
from mast.data.unpack import unpack
from mast.errors import ArgumentError, CheckpointError, DataError, MastError
from mast.support import checks

PROBLEM = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.PermK(2))
GIBIBYTE = 1 << 30


@pytest.fixture
def small_machine(monkeypatch):
    """One gibibyte of memory, whatever there is."""
    for module in ("mast.support.checks", "mast.data.unpack"):
        monkeypatch.setattr(f"{module}.memory_limit", lambda: GIBIBYTE)


@pytest.mark.usefixtures("small_machine")
def test_models_that_are_wider_than_the_memory_are_refused():
    A = scipy.sparse.csr_array(([1.0, 1.0], ([0, 1], [0, 10**9 - 1])), shape=(2, 10**9))
    with pytest.raises(ArgumentError, match=r"a model of 1,000,000,000 features would take 89.4 GiB"):
        mast.Logistic(A, [1.0, -1.0], l2=0.1)
    with pytest.raises(ArgumentError, match="a model of 1,000,000,000 features"):
        mast.MastClassifier().fit(A, [1, 0])


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("arguments", [["train", "wide", "--out", "m"], ["advise", "wide"]])
def test_files_that_are_wider_than_the_memory_are_refused(arguments, tmp_path, capfd, monkeypatch):
    """`mast train` took 5 GB for the names of the columns, and no end."""
    from mast import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide").write_text("1 1000000000:1\n-1 1:1\n")
    with pytest.raises(ArgumentError, match=r"wide: a model of 1,000,000,000 features would take 89.4 GiB"):
        mast.data.load("wide")
    with pytest.raises(SystemExit) as end:
        cli.app(arguments)
    assert end.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "wide: a model of 1,000,000,000 features would take 89.4 GiB" in line


@pytest.mark.usefixtures("small_machine")
def test_draws_that_are_larger_than_the_memory_are_refused():
    for sketch in (mast.Bernoulli(0.5), mast.Gaussian(0.1), mast.Identity()):
        with pytest.raises(ArgumentError, match=r"a draw of .* in 1,000,000,000 dimensions would take"):
            sketch.draw(10**9)
        with pytest.raises(ArgumentError, match=r"the 100,000,000 x 100,000,000 matrix E\[c c'\]"):
            sketch.second_moment(10**8)
    for sketch in (mast.Nested([0.5, 1.0]), mast.Rolling(3), mast.Except(mast.RandK(3), [-1])):
        with pytest.raises(ArgumentError, match=r"the 1,000,000 x 1,000,000 matrix E\[c c'\]"):
            sketch.second_moment(10**6)
    assert mast.Nested([0.5]).expected_square(10**6).sum() == 5e5  # no matrix is made for its diagonal
    assert mast.RandK(3).draw(10**12).indices.size == 3  # costs what it keeps


def test_the_memory_is_at_most_that_of_the_process():
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from mast.support import checks
print(checks.memory_limit() <= 8 << 30)
"""
    if sys.platform == "win32":
        pytest.skip("processes have no such limit on Windows")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert checks.memory_limit() > 1 << 20


@pytest.mark.usefixtures("small_machine")
def test_a_text_that_unpacks_to_more_than_the_load_could_hold_is_refused(monkeypatch):
    monkeypatch.setattr("mast.data.unpack.memory_limit", lambda: 4_000_000)
    bomb = gzip.compress(b"1 1:1\n" * 200_000)
    assert len(bomb) < 10_000
    with pytest.raises(DataError, match="unpacks to more than a quarter of this machine's memory"):
        unpack(bomb, "rows.gz")


@pytest.mark.parametrize("large", [1e308, -1e200])
@pytest.mark.parametrize("kind", [np.array, scipy.sparse.csr_array])
def test_values_whose_squares_overflow_are_refused(kind, large):
    A, b = kind([[1.0, large], [2.0, 0.0], [0.0, 1.0]]), [1.0, -1.0, 1.0]
    for use in (
        lambda: mast.Logistic(A, b, l2=0.1),
        lambda: mast.LeastSquares(A, b),
        lambda: mast.MastClassifier().fit(A, b),
        lambda: mast.MastRegressor().fit(A, b),
    ):
        with pytest.raises(DataError, match="so large that their squares overflow"):
            use()


def test_seeds_are_not_negative():
    for seed in (-1, 2**32):
        with pytest.raises(ArgumentError, match="random_state must lie in 0"):
            mast.MastClassifier(random_state=seed).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize(
    "use",
    [
        lambda: mast.sweep(PROBLEM, seeds=[0], steps=3, cache=""),
        lambda: mast.MastClassifier().fit(np.eye(4), [0, 1, 0, 1]).save(""),
        lambda: mast.MastClassifier.load(""),
        lambda: mast.data.load(""),
        lambda: mast.data.save("", np.eye(2), [1.0, -1.0]),
    ],
)
def test_empty_paths_are_refused(use):
    with pytest.raises(MastError):
        use()


PATHS = {
    "a number": 3,
    "a zero": "a\0b",
    "bytes": b"a",
    "half a letter": "\ud800",
    "too long": "a" * 10_000,
    "a list": [],
}
DOORS = {
    "minimize": lambda path: mast.minimize(PROBLEM, steps=3, checkpoint=path),
    "sweep": lambda path: mast.sweep(PROBLEM, seeds=[0], steps=3, cache=path),
    "Server.save": lambda path: server().save(path),
    "Server.load": lambda path: server().load(path),
    "MastStrategy": lambda path: strategy(path),
    "Result.save": lambda path: mast.minimize(PROBLEM, steps=3).save(path or [[]]),
    "Result.load": lambda path: mast.Result.load(path),
    "MastClassifier.save": lambda path: mast.MastClassifier().fit(np.eye(4), [0, 1, 0, 1]).save(path),
    "MastClassifier.load": lambda path: mast.MastClassifier.load(path),
    "data.load": lambda path: mast.data.load(path),
    "data.load, its folder": lambda path: mast.data.load("a1a", data_dir=path),
    "data.save": lambda path: mast.data.save(path, np.eye(2), [1.0, -1.0]),
    "save_submodel": lambda path: mast.nn.save_submodel(network(), path),
    "load_submodel": lambda path: mast.nn.load_submodel(path, network()),
}


def server():
    from mast.distributed import Participation, Server, VectorCapacity

    return Server(np.zeros(2), [VectorCapacity(mast.RandK(1), 2)], Participation(0, nodes=1), step_size=0.1)


def strategy(path):
    pytest.importorskip("flwr")
    from mast.federated import MastStrategy

    return MastStrategy(server(), checkpoint=path)


def network():
    return pytest.importorskip("torch").nn.Linear(2, 2)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_what_is_not_a_path_is_refused_at_every_door(door, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MastError):
        door(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: mast.Function(lambda x: (0.0, x), 10**10),
            "a function of 10,000,000,000 variables would take",
        ),
        (lambda: mast.PermK(10**10).partition(10), "a list of 10,000,000,000 blocks"),
        (lambda: mast.Bernoulli(0.5).mean(10**12), "the mean of .* in 1,000,000,000,000 dimensions"),
        (lambda: mast.RandK(3).draw(10**12).diagonal(), "the diagonal of"),
        (lambda: mast.RandK(3).draw(10**6).matrix(), "the 1,000,000 x 1,000,000 matrix of a draw"),
        (lambda: mast.minimize(PROBLEM, steps=10**15, trace=1), "a trace of 1,000,000,000,000,000 rows"),
        (
            lambda: mast.minimize(PROBLEM, steps=10**15, trace=range(10**12)),
            "a trace of 1,000,000,000,000 rows",
        ),
        (lambda: mast.sweep(PROBLEM, seeds=range(10**12)), "a sweep over 1,000,000,000,000 seeds"),
    ],
)
def test_what_would_fill_the_memory_is_refused(use, message):
    with pytest.raises(ArgumentError, match=message):
        use()


def test_blocks_that_are_empty_cost_nothing():
    """Their number appears in no array: with 2^50 of them there is a draw, and f_D, at once."""
    many, few = mast.PermK(2**50), mast.PermK(40)
    f = mast.Quadratic(np.diag(np.arange(1.0, 11)), np.ones(10))
    assert many.draw(10).indices.size <= 1
    assert many.constants(10).L_max == 2.0**100
    assert [len(block) for block in few.partition(10)] == [1] * 10 + [0] * 30
    assert sorted(np.concatenate(few.partition(10))) == list(range(10))
    logistic = mast.Logistic(np.eye(10), [1.0, -1.0] * 5, l2=0.1)
    assert np.isfinite(mast.Problem(logistic, many).value(np.ones(10)))
    for sketch in (many, few):
        problem, x = mast.Problem(f, sketch), np.arange(10.0)
        kept = sketch.k * np.diag(x)  # one coordinate survives, times K, with probability 1/K
        expected = sum(f.value(row) for row in kept) / sketch.k
        assert problem.value(x) == pytest.approx(expected, rel=1e-12)


def test_a_checkpoint_needs_a_name(tmp_path):
    with pytest.raises(CheckpointError, match="not the name of a file"):
        mast.minimize(PROBLEM, steps=3, checkpoint="")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "ROWS", "--out", "OUT", "--seed", "-1"], "must lie in 0 .. 4294967295, got -1"),
        (["train", "ROWS", "--out", ""], "an argument is empty"),
        (["train", "", "--out", "OUT"], "an argument is empty"),
        (["train", "LARGE", "--out", "OUT"], "squares overflow"),
        (["reproduce", "accuracy", "--fast", "--dataset", "ROWS", "--out", ""], "an argument is empty"),
    ],
)
def test_commands_say_it_in_one_line(arguments, message, tmp_path, capfd):
    from mast import cli

    places = {"ROWS": tmp_path / "rows", "LARGE": tmp_path / "large", "OUT": tmp_path / "out"}
    places["ROWS"].write_text("1 1:1 2:1\n-1 1:2\n1 1:1.5 2:.3\n-1 2:2\n1 1:3\n-1 2:1\n")
    places["LARGE"].write_text("1 1:1 2:1e308\n-1 1:2\n1 1:1.5 2:.3\n-1 2:2\n1 1:3\n-1 2:1\n")
    with pytest.raises(SystemExit) as end:
        cli.app([str(places.get(word, word)) for word in arguments])
    assert end.value.code == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
