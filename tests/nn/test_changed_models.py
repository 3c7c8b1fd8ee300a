"""What users do to a model after `sparsify`: it is right, or refused, or warned of, and never silent."""

from __future__ import annotations

import tempfile
import threading
from contextlib import nullcontext

import pytest

import mast
from mast.errors import ArgumentError, MastError
from mast.randomness import Key

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402

X = torch.linspace(-1, 1, 12).view(3, 4)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def half():
    """A model, and its sparsifier."""
    model = mlp()
    return model, mast.nn.sparsify(model, mast.Bernoulli(0.5))


# ---- modules and parameters that are new -----------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda model: model.__setitem__(0, nn.Linear(4, 8)), "'0.weight' was replaced"),
        (lambda model: model.__setitem__(0, nn.Sequential(model[0], nn.Dropout())), "'0.0.weight' was added"),
        (lambda model: model.append(nn.Linear(2, 2)), "'3.weight' was added"),
        (lambda model: model.pop(2), "'2.weight' was removed"),
        (lambda model: parametrizations.weight_norm(model[0]), "'0.parametrizations.weight.* was added"),
        (
            lambda model: setattr(model[2], "weight", nn.Parameter(torch.ones(3, 8))),
            r"'2.weight' had the shape \(2, 8\)",
        ),
    ],
)
@pytest.mark.parametrize("use", ["forward", "submodel", "report", "sample", "save_delta"])
def test_a_changed_model_is_refused(half, change, what, use, tmp_path):
    model, sk = half
    model(X)
    sk.advance()
    change(model)
    uses = {
        "forward": lambda: model(X),
        "submodel": sk.submodel,
        "report": lambda: sk.report(lambda m: 0.0, draws=1),
        "sample": lambda: sk.sample(0).__enter__(),
        "save_delta": lambda: sk.save_delta(tmp_path / "delta"),
    }
    with pytest.raises(MastError, match=what):
        uses[use]()


def test_modules_without_parameters_may_change(half):
    model, sk = half
    model[1] = nn.GELU()
    assert torch.equal(model(X), sk.submodel(Key(0)).train()(X))


def test_a_pruned_weight_is_refused_with_what_to_do(half):
    model, sk = half
    optimizer = torch.optim.SGD(mlp().parameters(), lr=0.1)
    prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(MastError, match=r"'weight' is no longer where .* sk.remove\(\) first"):
        model(X)
    optimizer.step()  # of another model: it is not concerned
    sk.remove()
    assert model(X).shape == (3, 2)


# ---- parametrized weights ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parametrized", "name"),
    [
        (parametrizations.weight_norm, "0.parametrizations.weight.original0"),
        (parametrizations.spectral_norm, "0.parametrizations.weight.original"),
        (parametrizations.orthogonal, "0.parametrizations.weight.original"),
        pytest.param(
            nn.utils.weight_norm,
            "0.weight_g",
            marks=pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning"),
        ),
        pytest.param(
            nn.utils.spectral_norm,
            "0.weight_orig",
            marks=pytest.mark.filterwarnings("ignore:.*spectral_norm:FutureWarning"),
        ),
    ],
)
def test_factors_of_a_parametrized_weight_are_refused(parametrized, name):
    model = mlp()
    parametrized(model[0])
    with pytest.raises(ArgumentError, match=f"'{name}' is a factor of a parametrized weight"):
        mast.nn.sparsify(model, mast.Bernoulli(0.5))
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), keep={"0.*": 1})
    assert [w.name for w in sk.weights] == ["2.weight"]


def test_a_pruned_weight_is_sketched_itself():
    """A mask and S are both diagonal: the sketch of what is masked is the mask of what is sketched."""
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), seed=3)
    kept = torch.as_tensor(sk.kept(Key(3))["0.weight_orig"].diagonal(), dtype=torch.float32)
    weight = model[0].weight_orig.detach() * model[0].weight_mask * kept
    expected = nn.functional.linear(X, weight, model[0].bias)
    assert torch.equal(model[0](X), expected)


def test_weights_that_hooks_compute_are_copied():
    """They are no leaves of a graph after a forward pass, and torch refuses to copy such tensors."""
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    given = model(X).detach()
    mast.nn.sort_units(model, [X])
    torch.testing.assert_close(model(X), given)
    sk = mast.nn.elastic(model, [0.5, 1.0], [X])
    for member in range(2):
        with sk.member(member):
            torch.testing.assert_close(model(X), sk.submodel(member=member)(X))
    sk.remove()
    model(X)
    assert mast.nn.advise(model, nn.functional.mse_loss, [(X, given)], mast.Bernoulli(0.5)).plain > 0
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    model(X)
    assert sk.submodel(1)(X).shape == given.shape


def test_removing_a_parametrization_leaves_no_mask():
    model = mlp()
    parametrizations.weight_norm(model[0])
    mast.nn.sparsify(model, mast.Bernoulli(0.5), keep={"0.*": 1})
    before = model[0].weight.detach().clone()
    model(X)
    parametrize.remove_parametrizations(model[0], "weight")
    assert torch.equal(model[0].weight, before)


# ---- x changed within a draw ---------------------------------------------------------------------------


@pytest.mark.parametrize("sketch", ["bernoulli:.5", "randk:.5", "gaussian:.3", "neurons:.5"])
@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize("edit", ["data", "numpy", "in_place"])
def test_the_next_forward_pass_sees_edits(sketch, shift, edit):
    model = mlp()
    sk = mast.nn.sparsify(model, sketch, shift=shift)
    first = model(X)
    before = first.detach().clone()
    for p in model.parameters():
        if edit == "data":
            p.data.mul_(1.5)
        elif edit == "numpy":
            p.detach().numpy()[...] *= 1.5
        else:
            with torch.no_grad():
                p.mul_(1.5)
    second = model(X).detach()
    with sk.sample(0):
        explicit = model(X).detach()
    assert torch.equal(second, explicit)
    assert not torch.equal(second, before)
    if edit != "in_place":  # which autograd itself refuses
        first.sum().backward()  # the graph of the first pass still has its own weights


def test_a_step_of_sam_has_the_gradient_at_the_moved_point():
    """Sharpness-aware minimisation: the second gradient is S'grad f at y = S(x + e), for the same S."""
    model = mlp().double()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    x = X.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    moves = [0.3 * p.grad for p in model.parameters()]
    for p, e in zip(model.parameters(), moves, strict=True):
        p.data.add_(e)
        p.grad = None
    model(x).square().sum().backward()
    sam = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    with sk.sample(0):
        model(x).square().sum().backward()
    for p, g in zip(model.parameters(), sam, strict=True):
        assert torch.allclose(p.grad, g, rtol=1e-12, atol=0)
    for p, e in zip(model.parameters(), moves, strict=True):
        p.data.sub_(e)
    optimizer.step()
    assert sk.step == 1


def test_two_passes_share_one_graph_while_x_stays(half):
    model, _ = half
    first = model(X)
    numbers = model[0](X)
    (first.sum() + model(X).sum() + numbers.sum()).backward()
    assert model[0].weight.grad is not None


# ---- draws that do not advance -------------------------------------------------------------------------


@pytest.mark.parametrize("through_data", [True, False])
def test_a_loop_of_ones_own_is_told_to_advance(half, through_data):
    model, sk = half
    warned = pytest.warns(UserWarning, match=r"changed three times since the draw did.*sk.advance\(\)")
    for step in range(5):
        with warned if step == 3 else nullcontext():
            model(X).square().sum().backward()
        for p in model.parameters():
            with torch.no_grad():
                (p.data if through_data else p).sub_(0.1 * p.grad)
            p.grad = None
    assert sk.step == 0


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")  # LBFGS of torch 2.8
def test_no_warning_in_loops_that_are_right(half):
    """Accumulated gradients, LBFGS, and a loop of one's own that advances."""
    model, sk = half
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(4):
            model(X).square().sum().backward()
        optimizer.step()
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=6)

    def closure():
        lbfgs.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    lbfgs.step(closure)
    for _ in range(4):
        model(X).square().sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.01 * p.grad)
        sk.advance()
    assert sk.step == 3 + 1 + 4


def test_an_optimizer_without_sketched_parameters(half):
    model, sk = half
    optimizer = torch.optim.SGD([model[0].bias, model[2].bias], lr=0.1)
    for step in range(3):
        model(X).square().sum().backward()
        with (
            pytest.warns(UserWarning, match="SGD has made two steps with one draw")
            if step == 1
            else nullcontext()
        ):
            optimizer.step()
    assert sk.step == 0


def test_frozen_sketched_weights_are_drawn_anew_for_what_is_trained_beside_them():
    model = mlp()
    for p in (model[0].weight, model[2].weight):
        p.requires_grad_(False)
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), where="*.weight")
    optimizer = torch.optim.SGD([model[0].bias, model[2].bias], lr=0.1)
    for _ in range(3):
        model(X).square().sum().backward()
        optimizer.step()
    assert sk.step == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own, of torch
def test_an_optimizer_that_wraps_another_is_one_step(half):
    from torch import distributed
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, sk = half
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(X).square().sum().backward()
                optimizer.step()
        finally:
            distributed.destroy_process_group()
    assert sk.step == 3


# ---- sharded parameters --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["flat", "original", "per_parameter"])
def test_sharding_after_sparsify_is_refused(half, kind):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    model, _ = half
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            if kind == "per_parameter":
                sharded = fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
                with pytest.raises(MastError, match="sharded DTensor"):
                    mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
            else:
                cpu = torch.device("cpu")
                sharded = FullyShardedDataParallel(model, use_orig_params=kind == "original", device_id=cpu)
            reason = "or sharded since" if kind == "flat" else "Use DistributedDataParallel"
            with pytest.raises(MastError, match=reason):
                sharded(X)
        finally:
            distributed.destroy_process_group()


# ---- threads -------------------------------------------------------------------------------------------


class ReadsItself(nn.Module):
    """Reads its parameters slowly, so that other threads come in between."""

    def __init__(self):
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(20):
            x = torch.tanh(self.layer(x @ self.weight))
        return x


@pytest.mark.parametrize("with_graph", ["all", "none", "some"])
def test_threads_compute_what_one_computes(with_graph):
    torch.manual_seed(0)
    model = ReadsItself()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    expected, part = model(X).detach(), model.layer(X).detach()
    wrong = []

    def work(number):
        graph = with_graph == "all" or (with_graph == "some" and number % 2 == 0)
        for _ in range(20):
            with nullcontext() if graph else torch.no_grad():
                out, own = model(X), model.layer(X)
            if not (torch.equal(out, expected) and torch.equal(own, part) and out.requires_grad == graph):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert isinstance(model.weight, nn.Parameter)


# ---- the sketch, and what the first step says ----------------------------------------------------------


def test_another_sketch_in_the_middle_of_training():
    model, other = mlp(), mlp()
    sk = mast.nn.sparsify(model, "bernoulli:.9", seed=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    optimizer.step()
    sk.sketch = "bernoulli:.3"
    assert (sk.step, sk.seed) == (1, 2)
    assert sk.density == pytest.approx(0.3)
    other.load_state_dict(model.state_dict())
    mast.nn.sparsify(other, mast.Bernoulli(0.3), seed=2).advance()
    assert torch.equal(model(X), other(X))


@pytest.mark.parametrize(
    ("before", "after"), [("neurons:.5", "bernoulli:.5"), ("bernoulli:.5", "neurons:.5")]
)
def test_units_stay_units(before, after):
    sk = mast.nn.sparsify(mlp(), before)
    with pytest.raises(ArgumentError, match="has to be over the same units"):
        sk.sketch = after
    assert repr(sk.sketch) == repr(mast.nn.parse(before))


def test_the_first_step_warns_of_certain_harm():
    model = mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5), shift="init")
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    model(X).sum().backward()
    with pytest.warns(UserWarning, match="weight decay pulls x towards 0"):
        optimizer.step()
    model(X).sum().backward()
    optimizer.step()  # and says it once
    repaired = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    mast.nn.validate(model, repaired, fix=True)
    repaired.step()


def test_submodels_with_batch_norm_want_calibration():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    sk.submodel(calibrate=[X])
    with pytest.warns(UserWarning, match="pass calibrate=batches"):
        sk.submodel()
    sk.report(lambda m: 0.0, [0.5], draws=1)  # said once
    other = mast.nn.sparsify(mlp(), mast.Bernoulli(0.5))
    other.submodel()


def test_the_report_names_its_draws(half):
    _, sk = half

    def score(small):
        return small(X).sum().item()

    report = sk.report(score, [0.5, 1], draws=3)
    assert report.scores["density"].tolist() == [0.5] * 3 + [1]
    for row in report.scores[:3].itertuples():
        assert score(sk.submodel(Key(row.seed, row.step))) == row.score
    assert report["mean"].tolist()[0] == pytest.approx(report.scores["score"][:3].mean())
