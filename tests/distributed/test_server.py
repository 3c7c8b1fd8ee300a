"""The server and the nodes without a wire: bits of the in-process method, optimizers, checkpoints, errors."""

import warnings

import numpy as np
import pytest

import mast
from mast.distributed import (
    Participation,
    ProblemWorker,
    Server,
    VectorCapacity,
    adam,
    digest_of_run,
    momentum,
    parse_optimizer,
    parse_sketch,
    run_in_process,
    stride_of,
)
from mast.errors import ArgumentError, CheckpointError, DataError, StepSizeWarning
from mast.randomness import Key, normal
from mast.support import files

D = 12
SHIFT = normal(Key(5), 0, D)


def nodes(shift=SHIFT, sketches=None):
    """Four nodes with rows of their own and sketches of different kinds."""
    A, b = mast.data.load("a1a")
    A = A[:, :D].toarray() + 0.1
    sketches = sketches or [mast.Bernoulli(0.9), mast.RandK(3), mast.PermK(4), mast.Identity()]
    return mast.Nodes(
        [
            mast.Problem(mast.Logistic(A[40 * i : 40 * i + 40], b[40 * i : 40 * i + 40], l2=0.1), s, shift)
            for i, s in enumerate(sketches)
        ]
    )


def server_of(problem, *, seed=3, step_size=0.05, x0=None, run=0, **options):
    participation_options = {
        name: options.pop(name) for name in ("coupling", "participation", "participants") if name in options
    }
    capacities = [VectorCapacity(p.sketch, p.dim) for p in problem.problems]
    participation = Participation(seed, len(capacities), stride_of(capacities), **participation_options)
    start = problem.shift.copy() if x0 is None else x0
    return Server(start, capacities, participation, step_size=step_size, run=run, **options)


def workers_of(problem, run=0):
    return [ProblemWorker(p, run) for p in problem.problems]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"participation": [0.5, 1.0, 0.25, 0.75]},
        {"participants": 2},
        {"local_steps": 3},
        {"coupling": "disjoint"},
        {"coupling": "disjoint", "participants": 3, "local_steps": 2},
        {"coupling": "common"},
        {"aggregation": "mean", "participants": 2, "local_steps": 2},
    ],
    ids=str,
)
def test_bits_of_the_method(options):
    problem = nodes()
    server = server_of(problem, **options)
    run_in_process(server, workers_of(problem), 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)
        inside = mast.minimize(problem, "distributed", 50, 0.05, seed=3, trace=50, samples=0, **options)
    assert (server.x == inside.x).all()
    overhead = 64 * sum(len(server.participation.sample(t)) for t in range(50))
    assert server.state.received.sum() - overhead == inside.state.received.sum()
    assert server.state.sent.sum() - overhead == inside.state.sent.sum()


def test_bits_with_general_matrices():
    S = [np.eye(D) + 0.5 * np.eye(D, k=1), np.eye(D) - 0.5 * np.eye(D, k=1)]
    problem = nodes(sketches=[mast.Matrices(S), mast.Gaussian(0.2)])
    server = server_of(problem)
    run_in_process(server, workers_of(problem), 20)
    inside = mast.minimize(problem, "distributed", 20, 0.05, seed=3, trace=20, samples=0)
    assert (server.x == inside.x).all()


def test_a_node_leaves_its_scratch_memory_as_it_was():
    problem = nodes()
    workers = workers_of(problem)
    run_in_process(server_of(problem, local_steps=2), workers, 10)
    assert all((worker.scratch == SHIFT).all() for worker in workers)


@pytest.mark.parametrize("options", [{"participation": [0.8, 1.0, 0.5, 0.75]}, {"participants": 3}], ids=str)
def test_mean_of_the_aggregated_gradient(options):
    """x0 - x1 over the step size, over many rounds from x0: grad f_D within five standard errors.

    Along grad f_D itself five of them are below 3 % of it, so that a weight or a scale which is wrong by
    more than that is seen.
    """
    d = 4
    shift, x0 = SHIFT[:d], SHIFT[:d] + 1.0
    sketches = [mast.Bernoulli(0.9), mast.RandK(2), mast.PermK(2), mast.Identity()]
    objectives = [mast.Quadratic(np.eye(d) + (0.1 + 0.1 * i) * np.ones((d, d)), shift) for i in range(4)]
    pairs = zip(objectives, sketches, strict=True)
    problem = mast.Nodes([mast.Problem(f, sketch, shift) for f, sketch in pairs])
    gradient, workers = problem.gradient(x0), workers_of(problem)
    server = server_of(problem, step_size=1.0, **options)
    drawn = np.empty((5000, d))
    for t in range(len(drawn)):
        server.x[...] = x0
        run_in_process(server, workers, t + 1)
        drawn[t] = x0 - server.x
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - gradient) <= 5 * error).all()
    along = drawn @ gradient / (gradient @ gradient)
    error = along.std() / np.sqrt(len(along))
    assert abs(along.mean() - 1) <= 5 * error
    assert 5 * error < 0.03


def test_who_takes_part_is_asked_once_a_round(monkeypatch):
    """Not once an answer, which would make a round of M nodes cost M^2."""
    problem = mast.Nodes([nodes().problems[3]] * 30)
    server, workers, asked = server_of(problem, participation=0.5), workers_of(problem), []
    plain = Participation.sample
    monkeypatch.setattr(Participation, "sample", lambda self, t: asked.append(t) or plain(self, t))
    run_in_process(server, workers, 3)
    assert asked == [0, 1, 2]


def test_what_is_aggregated_is_the_formula():
    """Given the draws, to rounding: the mean over all nodes of weight times S' grad f(v + S(x - v))."""
    problem, x0 = nodes(), SHIFT + 0.5
    options = {"participation": [0.5, 1.0, 0.25, 0.75]}
    server, workers = server_of(problem, step_size=1.0, **options), workers_of(problem)
    for t in range(40):
        server.x[...] = x0
        expected = np.zeros(D)
        for i, weight in server.participation.sample(t).items():
            p = problem.problems[i]
            S = p.sketch.sample(D, server.participation.key(t, i)).matrix()
            assert weight == 1 / options["participation"][i]
            expected += weight / 4 * S.T @ p.objective.gradient(SHIFT + S @ (x0 - SHIFT))
        run_in_process(server, workers, t + 1)
        np.testing.assert_allclose(x0 - server.x, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["momentum:0.8", "adam:0.8:0.95"])
def test_optimizers_are_torch_s(optimizer):
    torch = pytest.importorskip("torch")
    problem = nodes()
    server = server_of(problem, optimizer=optimizer, participation=0.5)
    plain = server_of(problem, step_size=1.0, participation=0.5)
    x = torch.nn.Parameter(torch.from_numpy(SHIFT.copy()))
    theirs = (
        torch.optim.SGD([x], lr=0.05, momentum=0.8)
        if optimizer.startswith("momentum")
        else torch.optim.Adam([x], lr=0.05, betas=(0.8, 0.95))
    )
    for t in range(30):
        before = x.detach().numpy().copy()
        plain.x[...] = before
        run_in_process(plain, workers_of(problem), t + 1)
        x.grad = torch.from_numpy(before - plain.x)
        theirs.step()
        run_in_process(server, workers_of(problem), t + 1)
    np.testing.assert_allclose(server.x, x.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_optimizers(dtype):
    """Momentum and Adam as their formulas are written with vectors."""
    tolerance = 8 * np.finfo(dtype).eps
    x = normal(Key(1), 0, 500).astype(dtype)
    ours, theirs, m, s = x.copy(), x.copy(), np.zeros_like(x), np.zeros_like(x)
    optimizer = adam(0.8, 0.95, 1e-6)
    optimizer.start(ours)
    for t in range(4):
        h = normal(Key(2, t), 0, 500).astype(dtype)
        optimizer.step(ours, h.copy(), 0.1, t)
        m = dtype(0.8) * m + dtype(1 - 0.8) * h
        s = dtype(0.95) * s + dtype(1 - 0.95) * h**2
        root = np.sqrt(s) / dtype(np.sqrt(1 - 0.95 ** (t + 1))) + dtype(1e-6)
        theirs -= dtype(0.1 / (1 - 0.8 ** (t + 1))) * m / root
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    ours, theirs, m = x.copy(), x.copy(), np.zeros_like(x)
    heavy = momentum(0.7)
    heavy.start(ours)
    for t in range(4):
        h = normal(Key(3, t), 0, 500).astype(dtype)
        heavy.step(ours, h.copy(), 0.1, t)
        m = dtype(0.7) * m + h
        theirs -= dtype(0.1) * m
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("aggregation", ["unbiased", "mean"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_checkpoint_continues_with_the_same_bits(tmp_path, optimizer, aggregation):
    problem, options = nodes(), {"optimizer": optimizer, "aggregation": aggregation, "participation": 0.5}
    whole = server_of(problem, **options)
    run_in_process(whole, workers_of(problem), 30)
    first = server_of(problem, **options)
    run_in_process(first, workers_of(problem), 13)
    first.save(tmp_path / "at13", {"seconds": 1.5})
    second = server_of(problem, **options)
    assert second.load(tmp_path / "at13") == {"seconds": 1.5}
    assert second.t == 13
    run_in_process(second, workers_of(problem), 30)
    assert (second.x == whole.x).all()
    assert (second.state.received == whole.state.received).all()
    assert server_of(problem).load(tmp_path / "nothing") is None


@pytest.mark.parametrize("aggregation", ["unbiased", "mean"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_step_sizes_along_a_cosine(tmp_path, optimizer, aggregation):
    """Those of the server and of the nodes, round for round, also after a stop."""
    problem = nodes()
    options = {"optimizer": optimizer, "aggregation": aggregation, "step_size": 0.1, "local_steps": 2}
    falling, by_hand = server_of(problem, **options, cosine=6), server_of(problem, **options)
    for t in range(8):
        size = 0.1 * max(1e-3, (1 + np.cos(np.pi * min(t, 6) / 6)) / 2)
        by_hand.step_size = by_hand.local_step_size = size
        assert falling.header(0).step_size == pytest.approx(size, rel=1e-12)
        for server in (falling, by_hand):
            run_in_process(server, workers_of(problem), t + 1)
        falling.save(tmp_path / "c")
        falling = server_of(problem, **options, cosine=6)
        falling.load(tmp_path / "c")
        np.testing.assert_allclose(falling.x, by_hand.x, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 4}, "seed"),
        ({"step_size": 0.06}, "step_size"),
        ({"cosine": 9}, "step_size"),
        ({"optimizer": "momentum"}, "optimizer"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"participation": 0.5}, "participation"),
        ({"local_steps": 2}, "local_steps"),
        ({"run": 9}, "run"),
        ({"wire": "float32"}, "dtype"),
    ],
    ids=str,
)
def test_the_checkpoint_of_another_run_is_refused_by_its_field(tmp_path, change, field):
    problem = nodes()
    server_of(problem).save(tmp_path / "c")
    with pytest.raises(CheckpointError, match=f"its {field} is"):
        server_of(problem, **change).load(tmp_path / "c")


def test_sketches_that_look_alike_are_told_apart(tmp_path):
    halves = [
        mast.PermK(blocks=[range(6), range(6, 12)]),
        mast.PermK(blocks=[range(1, 7), [0, *range(7, 12)]]),
    ]
    server_of(nodes(sketches=halves[:1])).save(tmp_path / "c")
    with pytest.raises(CheckpointError, match="its sketches is"):
        server_of(nodes(sketches=halves[1:])).load(tmp_path / "c")


def test_draws_made_ahead_change_nothing():
    problem = nodes()
    plain, ahead = server_of(problem, participation=0.5), server_of(problem, participation=0.5)
    run_in_process(plain, workers_of(problem), 20)
    workers = workers_of(problem)
    for t in range(20):
        answers = [workers[m.header.node].answer(m, ahead.part(m.header.node)) for m in ahead.messages()]
        for node in ahead.participation.sample(t + 1):
            ahead.part(node, t + 1)
        for answer in answers:
            ahead.aggregate(answer)
        ahead.finish_round()
        assert all(round > t for round, _ in ahead._parts)
    assert (ahead.x == plain.x).all()


def test_float32_on_the_wire():
    problem = nodes()
    narrow = server_of(problem, wire="float32")
    wide = server_of(problem)
    run_in_process(narrow, workers_of(problem), 20)
    run_in_process(wide, workers_of(problem), 20)
    assert 0 < np.abs(narrow.x - wide.x).max() < 1e-5
    values = 80 * 64  # bytes of the 80 headers
    assert 2 * (narrow.state.received.sum() - values) == wide.state.received.sum() - values


def test_mixed_up_messages_are_refused(tmp_path):
    problem = nodes()
    server, workers = server_of(problem), workers_of(problem)
    messages = list(server.messages())
    answers = [workers[m.header.node].answer(m) for m in messages]
    with pytest.raises(DataError, match="kind"):
        server.aggregate(messages[0])
    with pytest.raises(DataError, match="kind"):
        workers[0].answer(answers[0])
    server.aggregate(answers[1])
    with pytest.raises(ArgumentError, match="order of the nodes"):
        server.aggregate(answers[0])
    with pytest.raises(ArgumentError, match="being summed up"):
        server.message(3)
    with pytest.raises(CheckpointError, match="under way"):
        server.save(tmp_path / "c")
    server.finish_round()
    with pytest.raises(DataError, match="key"):
        server.aggregate(answers[2])  # of the round before


def test_a_node_of_another_run_refuses():
    problem = nodes()
    server = server_of(problem, run=digest_of_run(SHIFT))
    other = ProblemWorker(nodes(shift=None).problems[0], digest_of_run(np.zeros(D)))
    with pytest.raises(DataError, match="same shift"):
        other.answer(server.message(0))


def test_a_node_with_another_sketch_refuses():
    problem = nodes()
    server = server_of(problem)
    worker = ProblemWorker(problem.problems[1])
    with pytest.raises(ArgumentError, match="different sketches"):
        worker.answer(server.message(3))


def test_x_alone_says_whether_a_run_has_diverged():
    problem = nodes()
    server, workers = server_of(problem), workers_of(problem)
    before = server.x.copy()
    answer = workers[3].answer(server.message(3))
    answer.values[2] = np.nan
    server.aggregate(answer)
    assert server.diverged
    server.x[...] = before
    assert not server.diverged  # nothing remembers it
    server.x[0] = 1e200  # finite, but beyond what a run survives
    assert server.diverged
    single = server_of(problem)
    single.state.x = np.full(len(single.x), 1e18, dtype=np.float32)
    assert not single.diverged
    single.x[0] = 1e20  # losses, which have squares, are infinite there
    assert single.diverged


def test_a_large_x_is_looked_at_now_and_then(tmp_path):
    """NaN in a large x is noticed within eight rounds, and by whoever asks."""
    d = (1 << 20) + 3
    capacity = VectorCapacity(mast.Identity(), d)
    server = Server(np.zeros(d), [capacity], Participation(0, 1), step_size=0.5)
    server.finish_round()
    server.x[7] = np.nan
    while server.should_continue(100):
        server.finish_round()
    assert server.t == 8
    assert server.diverged
    server.save(tmp_path / "c")
    other = Server(np.zeros(d), [capacity], Participation(0, 1), step_size=0.5)
    other.load(tmp_path / "c")
    assert other.diverged


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round", "3"),
        ("round", -1),
        ("round", True),
        ("seconds", None),
        ("seconds", float("nan")),
        ("extra", []),
    ],
)
def test_wrong_numbers_in_a_checkpoint_are_refused(tmp_path, name, value):
    server = server_of(nodes())
    server.save(tmp_path / "c", {"note": "none"})
    description, arrays = files.load(tmp_path / "c")
    description["numbers"][name] = value
    files.save(tmp_path / "c", description, arrays)
    with pytest.raises(CheckpointError, match=f"its '{name}' is not right"):
        server_of(nodes()).load(tmp_path / "c")


def test_missing_answers_and_given_weights():
    problem = nodes()
    server, workers = server_of(problem, step_size=1.0), workers_of(problem)
    x0 = server.x.copy()
    answers = [workers[m.header.node].answer(m) for m in server.messages()]
    for i in (0, 3):
        server.aggregate(answers[i], weight=2.0)
    server.finish_round()
    expected = x0.copy()
    for i in (0, 3):
        draw = problem.problems[i].sketch.sample(D, server.participation.key(0, i))
        expected[draw.indices] -= 0.5 * answers[i].values
    assert (server.x == expected).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step_size": 0.0}, "step_size must be a positive"),
        ({"step_size": "fast"}, "step_size must be a positive"),
        ({"local_steps": 0}, "local_steps"),
        ({"optimizer": "adamw"}, "examples are"),
        ({"optimizer": "momentum:1.5"}, "beta"),
        ({"optimizer": "adam:.9:x"}, "bad number"),
        ({"participation": 0.0}, "participation"),
        ({"participants": 5}, "participants"),
        ({"coupling": "loose"}, "coupling"),
        ({"wire": "int32"}, "float32 or float64"),
        ({"x0": np.zeros(3)}, "x has 3"),
    ],
    ids=str,
)
def test_arguments(options, said):
    with pytest.raises(ArgumentError, match=said):
        server_of(nodes(), **options)


def test_spelling():
    assert repr(parse_sketch("bernoulli:.9")) == repr(mast.Bernoulli(0.9))
    with pytest.raises(ArgumentError, match="whole units"):
        parse_sketch("neurons:.5")
    with pytest.raises(ArgumentError, match="spelled as text"):
        parse_sketch(0.5)
    assert parse_optimizer("momentum").label == momentum().label
    assert parse_optimizer(adam(0.5)).label == "adam:0.5:0.999:1e-08"


def test_identity_of_a_worker_names_what_is_another():
    def identity(b=1.0, sketch=None, shift=None):
        f = mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [b, 1.0])
        return ProblemWorker(mast.Problem(f, sketch or mast.RandK(1), shift)).identity()

    once = identity()
    assert identity() == once
    for name, other in {
        "objective and data": identity(b=3.0),
        "sketch": identity(sketch=mast.Bernoulli(0.5)),
        "shift": identity(shift=[1.0, 0.0]),
    }.items():
        assert [field for field in once if once[field] != other[field]] == [name]
