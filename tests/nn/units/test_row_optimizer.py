"""Training on submodels: equal to masked training for plain SGD, lazy with momentum and Adam."""

from __future__ import annotations

import copy

import pytest

import mast
from processor import skip_without_bfloat16

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.nn.units.pool import Pool  # noqa: E402
from mast.randomness import Key  # noqa: E402

SKETCHES = {
    "neurons": mast.nn.Neurons(mast.Bernoulli(0.5)),
    "layers": mast.nn.Layers(mast.Bernoulli(0.5)),
}


def loss_of(out, step):
    target = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return (out - target * (1 + step % 3)).square().mean()


@pytest.mark.parametrize("kind", SKETCHES)
@pytest.mark.parametrize("name", ["mlp", "resnet", "gated", "vit post batch first", "grouped", "mixer"])
def test_plain_sgd_equals_masked_training(zoo, name, kind):
    if kind == "layers" and name in ("mlp", "gated", "grouped"):
        return  # no branches, or one weight in two
    a, inputs = zoo.make(name)
    b = copy.deepcopy(a)
    masked, rows = (mast.nn.sparsify(m, SKETCHES[kind], seed=3) for m in (a, b))
    optimizer = torch.optim.SGD(a.parameters(), lr=0.02)
    mine = mast.nn.RowOptimizer(rows, torch.optim.SGD, lr=0.02)
    start = copy.deepcopy(b)
    for t in range(25):
        optimizer.zero_grad()
        theirs = loss_of(a(inputs), t)
        theirs.backward()
        optimizer.step()
        with mine.submodel() as small:
            loss = loss_of(small(inputs), t)
            loss.backward()
        mine.step()
        assert loss.item() == pytest.approx(theirs.item(), rel=1e-9)
    assert rows.step == masked.step == 25
    moved = 0.0
    for (key, p), q, first in zip(a.named_parameters(), b.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-11, msg=lambda m, k=key: f"{k}: {m}")
        moved = max(moved, float((q - first).detach().abs().max()))
    assert moved > 1e-3


class BesideItsInput(nn.Module):
    """Units of two layers, between and behind entries of a weight that no draw cuts."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.last = nn.Linear(5, 8), nn.Linear(5, 6), nn.Linear(24, 2)

    def forward(self, x):
        return self.last(torch.cat([self.one(x).tanh(), x, self.two(x).relu(), x], 1))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_entries_that_stay_between_units_are_their_own(kind):
    torch.manual_seed(0)
    model, x = BesideItsInput().double(), torch.linspace(-1, 1, 20, dtype=torch.double).view(4, 5)
    twin = copy.deepcopy(model)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Nested([0.5, 1.0], scaled=False)), example=x)
    mine, theirs = sk.optimizer(kind, lr=0.1), kind(twin.parameters(), lr=0.1)
    kept = {"one": range(4), "two": range(3)}
    columns = [*kept["one"], *range(8, 13), *(13 + i for i in kept["two"]), *range(19, 24)]
    with sk.member(0), sk.small() as net:
        assert net.last.weight.equal(twin.last.weight[:, columns])
        loss_of(net(x), 0).backward()
    mine.step()
    parts = [getattr(twin, name) for name in kept]
    hidden = [part(x)[:, list(units)] for part, units in zip(parts, kept.values(), strict=True)]
    inputs = torch.cat([hidden[0].tanh(), x, hidden[1].relu(), x], 1)
    loss_of(nn.functional.linear(inputs, twin.last.weight[:, columns], twin.last.bias), 0).backward()
    theirs.step()  # a gradient of 0 moves nothing, at the first step
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12, msg=name)


def test_accumulation_and_a_scheduler(zoo):
    a, inputs = zoo.make("mlp")
    b = copy.deepcopy(a)
    sketch = mast.nn.Neurons(mast.RandK(0.5))
    mast.nn.sparsify(a, sketch)
    rows = mast.nn.RowOptimizer(mast.nn.sparsify(b, sketch), torch.optim.SGD, lr=0.1)
    optimizer = torch.optim.SGD(a.parameters(), lr=0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, rows.optimizer)]
    for t in range(4):
        optimizer.zero_grad()
        for part in inputs.chunk(2):
            loss_of(a(part), t).backward()
        optimizer.step()
        with rows.submodel() as small:
            for part in inputs.chunk(2):
                loss_of(small(part), t).backward()
        rows.step()
        for schedule in schedules:
            schedule.step()
    assert rows.param_groups[0]["lr"] == pytest.approx(0.1 / 16)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.NAdam])
def test_a_small_network_that_is_used_twice_adds_up(zoo, kind):
    """Gradients, and statistics of norms, as the usual loop accumulates them."""
    a, inputs = zoo.make("resnet")
    b = copy.deepcopy(a)
    handles = [mast.nn.sparsify(m, mast.nn.Neurons(mast.RandK(0.5)), example=inputs) for m in (a, b)]
    mine = [sk.optimizer(kind, lr=0.01) for sk in handles]
    for t in range(3):
        with handles[0].small() as net:
            for part in inputs.chunk(2):
                loss_of(net(part), t).backward()
        for part in inputs.chunk(2):
            with handles[1].small() as net:
                loss_of(net(part), t).backward()
        for optimizer in mine:
            optimizer.step()
    for (name, p), q in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=0, msg=name)


def test_a_gradient_of_another_draw_is_not_lost_silently(zoo):
    model, inputs = zoo.make("mlp")
    nested = mast.nn.Neurons(mast.Nested([0.25, 0.5, 1.0], scaled=False))
    sk = mast.nn.sparsify(model, nested, example=inputs)
    optimizer = sk.optimizer(torch.optim.SGD, lr=0.1)

    def use(number):
        with sk.member(number), sk.small() as net:
            loss_of(net(inputs), 0).backward()

    use(0)
    with pytest.raises(mast.MastError, match=r"optimizer\.step\(\) after each draw"):
        use(2)
    optimizer.zero_grad()
    use(2)
    use(2)
    optimizer.step()
    with sk.member(0), sk.small() as net:
        net(inputs)  # without a gradient nothing is lost
    use(1)
    with pytest.raises(RuntimeError, match="mine"), sk.member(1), sk.small():
        raise RuntimeError("mine")
    use(0)


def test_another_sketch_holds_at_once(zoo):
    model, inputs = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(2)), example=inputs)
    optimizer = sk.optimizer(torch.optim.SGD, lr=0.1)
    for kept in (2, 2, 3, 4, 4, 4):
        if sk.sketch.sketch.k != kept:
            sk.sketch = mast.nn.Neurons(mast.RandK(kept))
        with sk.small() as net:
            assert net[0].out_features == kept
            loss_of(net(inputs), 0).backward()
        optimizer.step()


class Lazy:
    """The lazy variant the long way: the optimizer on whole tensors, then dropped entries are put back."""

    def __init__(self, sk, kind, **options):
        self.sk = sk
        self.parameters = dict(sk.model.named_parameters())
        self.optimizer = kind(self.parameters.values(), **options)

    def step(self, loss):
        cut = self.sk.unit_map.cut(self.sk.draw())
        inside = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in self.parameters.items()}
        cut.place(inside, torch.ones(cut.count, dtype=torch.float64))
        x = {n: p.detach().clone() for n, p in self.parameters.items()}
        state = copy.deepcopy({n: self.optimizer.state[p] for n, p in self.parameters.items()})
        self.optimizer.zero_grad()
        loss(self.sk.model).backward()
        self.optimizer.step()  # which advances the draw
        with torch.no_grad():
            for n, p in self.parameters.items():
                dropped = inside[n] == 0
                p[dropped] = x[n][dropped]
                for key, t in self.optimizer.state[p].items():
                    if isinstance(t, torch.Tensor) and t.shape == p.shape:
                        old = state[n].get(key)
                        t[dropped] = 0.0 if old is None else old[dropped]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.02, "weight_decay": 0.1}),
        (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        # eps: a bias of keys has gradient 0 but for rounding, which should not be blown up
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-4}),
        (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-4}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "eps": 1e-4}),
        (torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-4}),
    ],
    ids=["decay", "momentum", "nesterov", "adamw", "adam", "amsgrad", "rmsprop"],
)
@pytest.mark.parametrize("name", ["mlp", "vit pre batch first"])
def test_lazy_optimizers_equal_the_slow_reference(zoo, name, kind, options):
    a, inputs = zoo.make(name)
    b = copy.deepcopy(a)
    sketch = mast.nn.Neurons(mast.RandK(0.5))
    slow = Lazy(mast.nn.sparsify(a, sketch, seed=1), kind, **options)
    rows = mast.nn.RowOptimizer(mast.nn.sparsify(b, sketch, seed=1), kind, **options)
    for t in range(12):
        slow.step(lambda model, t=t: loss_of(model(inputs), t))
        with rows.submodel() as small:
            loss_of(small(inputs), t).backward()
        rows.step()
    for (key, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-11, msg=lambda m, k=key: f"{k}: {m}")


def test_modules_with_modes_of_their_own(zoo):
    """Fine-tuning with frozen statistics calls eval() on norms alone."""
    model, inputs = zoo.make("resnet")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    rows = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.01)
    for training in (False, True, False):
        model.norm.train(training)
        before = model.norm.running_mean.clone()
        with rows.submodel() as small:
            loss_of(small(inputs), 0).backward()
            assert small.training
            assert small.norm.training == training
        rows.step()
        assert torch.equal(model.norm.running_mean, before) != training


def test_gradients_are_clipped_and_scaled_by_way_of_the_optimizer(zoo):
    """Clipping and gradient scalers find the small network's parameters in `param_groups`."""
    model, inputs = zoo.make("mlp")
    other = copy.deepcopy(model)
    a, b = (mast.nn.sparsify(each, mast.nn.Neurons(mast.RandK(0.4))) for each in (model, other))
    plain, scaled = (mast.nn.RowOptimizer(sk, torch.optim.AdamW, lr=0.1, eps=1.0) for sk in (a, b))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for t in range(4):
        with plain.submodel() as small:
            loss_of(small(inputs), t).backward()
            nn.utils.clip_grad_norm_(small.parameters(), 0.1)
        plain.step()
        with scaled.submodel() as small:
            scaler.scale(loss_of(small(inputs), t)).backward()
        scaler.unscale_(scaled)
        nn.utils.clip_grad_norm_(scaled.param_groups[0]["params"], 0.1)
        scaler.step(scaled)
        scaler.update()
    assert b.step == 4
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.NAdam])
def test_the_optimizer_inside_does_not_step_by_itself(zoo, kind):
    """It would move the small network, whose weights do not come home then."""
    model, inputs = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.4)))
    optimizer = sk.optimizer(kind, lr=0.1)
    for step in (1, 2):
        with sk.small() as small:
            loss_of(small(inputs), 0).backward()
        with pytest.raises(mast.MastError, match=r"call step\(\) of what sk\.optimizer\(\) returned"):
            optimizer.optimizer.step()
        optimizer.step()
        assert sk.step == step


def test_state_of_dropped_units_rests(zoo):
    model, inputs = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.4)))
    rows = mast.nn.RowOptimizer(sk, torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    for t in range(6):
        before = copy.deepcopy((dict(model.named_parameters()), rows.state))
        kept = sk.draw()["0.weight"].indices
        with rows.submodel() as small:
            loss_of(small(inputs), t).backward()
        rows.step()
        dropped = torch.ones(9, dtype=torch.bool)
        dropped[kept] = False
        assert torch.equal(model[0].weight[dropped], before[0]["0.weight"][dropped])
        assert not torch.equal(model[0].weight[~dropped], before[0]["0.weight"][~dropped])
        if t:
            own, old = rows.state["0.weight"], before[1]["0.weight"]
            assert torch.equal(own["exp_avg"][dropped], old["exp_avg"][dropped])
            assert own["step"].item() == t + 1


def test_running_statistics_of_kept_channels_move(zoo):
    model, inputs = zoo.make("resnet")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    rows = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.01)
    before = model.norm.running_mean.clone()
    kept = sk.draw()["stem.weight"].indices
    expected = 0.9 * before[kept] + 0.1 * model.stem(inputs).mean((0, 2, 3))[kept]
    with rows.submodel() as small:
        loss_of(small(inputs), 0).backward()
    rows.step()
    torch.testing.assert_close(model.norm.running_mean[kept], expected.detach())
    rest = [i for i in range(8) if i not in kept]
    assert torch.equal(model.norm.running_mean[rest], before[rest])
    assert model.norm.num_batches_tracked == 1


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_run_resumes_bit_for_bit(zoo, kind):
    options = {"lr": 0.01} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})

    def run(model, sk, rows, steps):
        for _ in range(steps):
            with rows.submodel() as small:
                loss_of(small(inputs), sk.step).backward()
            rows.step()

    def begin(model, seed):
        sk = mast.nn.sparsify(model, SKETCHES["neurons"], seed=seed)
        return sk, mast.nn.RowOptimizer(sk, kind, **options)

    model, inputs = zoo.make("resnet")
    whole = copy.deepcopy(model)
    run(whole, *begin(whole, 5), 6)
    sk, rows = begin(model, 5)
    run(model, sk, rows, 3)
    rows.param_groups[0]["lr"] = 0.01
    saved = copy.deepcopy((model.state_dict(), sk.state_dict(), rows.state_dict()))
    run(model, sk, rows, 2)  # the saved state is a copy
    other, _ = zoo.make("resnet")
    sk, rows = begin(other, 0)
    other.load_state_dict(saved[0])
    sk.load_state_dict(saved[1])
    rows.load_state_dict(saved[2])
    run(other, sk, rows, 3)
    assert all(
        torch.equal(p, q)
        for p, q in zip(whole.state_dict().values(), other.state_dict().values(), strict=True)
    )
    with pytest.raises(mast.MastError, match="no 'format'"):
        rows.load_state_dict({})
    with pytest.raises(mast.MastError, match="NAdam"):
        rows.load_state_dict(saved[2] | {"kind": "NAdam"})
    wrong = copy.deepcopy(saved[2])
    wrong["state"] = {"stem.weight": {"x": torch.zeros(3)}}
    with pytest.raises(mast.MastError, match=r"stem\.weight.*shape"):
        rows.load_state_dict(wrong)
    wrong["state"] = {"nothing": {}}
    with pytest.raises(mast.MastError, match="nothing"):
        rows.load_state_dict(wrong)


def test_frozen_parameters_stay(zoo):
    model, inputs = zoo.make("mlp")
    model[2].weight.requires_grad_(False)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    before = model[2].weight.clone()
    for kind in (torch.optim.SGD, torch.optim.Adam):
        rows = mast.nn.RowOptimizer(sk, kind, lr=0.1)
        with rows.submodel() as small:
            loss_of(small(inputs), 0).backward()
        rows.step()
    assert torch.equal(model[2].weight, before)


def test_refusals(zoo):
    model, _ = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    rows = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.1)
    with pytest.raises(mast.MastError, match="after"):
        rows.step()
    with pytest.raises(RuntimeError, match="mine"), rows.submodel():
        raise RuntimeError("mine")
    with pytest.raises(mast.MastError, match="after"):
        rows.step()
    with pytest.raises(mast.MastError, match="each weight by itself"):
        mast.nn.RowOptimizer(sk, torch.optim.LBFGS)
    for options, message in (({"lr": -1}, "Invalid learning rate"), ({"rate": 1}, "'rate'")):
        with pytest.raises(mast.MastError, match=f"SGD does not take these options: .*{message}"):
            mast.nn.RowOptimizer(sk, torch.optim.SGD, **options)
    sk.remove()
    plain = mast.nn.sparsify(model, mast.RandK(0.5))
    with pytest.raises(mast.MastError, match="Neurons or Layers"):
        mast.nn.RowOptimizer(plain, torch.optim.SGD, lr=0.1)
    plain.remove()
    shifted = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), shift="init")
    with pytest.raises(mast.MastError, match="shift=None"):
        mast.nn.RowOptimizer(shifted, torch.optim.SGD, lr=0.1)


def test_an_old_graph_may_live_on(zoo):
    """A loss that is kept, say for a log, holds the last small model's graph: the next has other shapes."""
    model, inputs = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)))
    rows = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.1)
    losses = []
    for t in range(8):
        with rows.submodel() as small:
            losses.append(loss_of(small(inputs), t))
            losses[-1].backward()
        rows.step()
    assert len({tuple(sk.draw(t).shares.values()) for t in range(8)}) > 2
    assert isinstance(small, nn.Sequential)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_quick_way_equals_the_cut(zoo, unit_model, dtype):
    """One call for all tensors against slices one by one: the same bits there, and but for rounding back."""
    model, _ = zoo.make(unit_model)
    model = model.to(dtype)
    sketch = mast.nn.Neurons(mast.Bernoulli(0.6))
    unit_map = mast.nn.find_units(model, sketch)
    pool = Pool(unit_map, model)
    for seed in range(3):
        draw = unit_map.bind(sketch).draw(Key(seed))
        small = pool.model(draw, pool.units_of(draw))
        assert pool._views is not None
        cut = unit_map.cut(draw)
        y = cut.scaled(cut.gather(model))
        assert torch.equal(nn.utils.parameters_to_vector(small.parameters()).detach(), y)
        expected = {n: p.detach().clone() for n, p in model.named_parameters()}
        for i, p in enumerate(small.parameters()):
            if (i + seed) % 4:  # some have no gradient
                p.grad = torch.randn_like(p)
        cut.add(expected, cut.gradient(small), -0.3)
        pool.add(-0.3)
        for n, p in model.named_parameters():
            # torch may round once where x + factor * g is rounded twice: numbers are below 8 here
            atol = 8 * torch.finfo(dtype).eps
            torch.testing.assert_close(p.detach(), expected[n], rtol=0, atol=atol, msg=n)


@pytest.mark.parametrize("how", ["half", "strided", "gradient"])
def test_other_tensors_go_one_by_one(how):
    """What the compiled way cannot take is trained all the same: the result is that of masked training."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    if how == "half":
        skip_without_bfloat16("linear")
        a = a.to(torch.bfloat16)
    elif how == "strided":
        a[0].weight = nn.Parameter(torch.randn(6, 16, dtype=torch.float64).t())
    b = copy.deepcopy(a)
    sketch = mast.nn.Neurons(mast.RandK(0.5))
    mast.nn.sparsify(a, sketch)
    optimizer = torch.optim.SGD(a.parameters(), lr=0.125)
    rows = mast.nn.RowOptimizer(mast.nn.sparsify(b, sketch), torch.optim.SGD, lr=0.125)
    inputs = torch.randn(5, 6, dtype=a[0].bias.dtype)
    for t in range(3):
        optimizer.zero_grad()
        loss_of(a(inputs), t).backward()
        optimizer.step()
        with rows.submodel() as small:
            loss_of(small(inputs), t).backward()
        if how == "gradient":
            g = small[0].weight.grad
            small[0].weight.grad = g.t().contiguous().t()
        assert (rows._pool._views is not None) == (how == "gradient")
        rows.step()
    # Three steps with numbers of order one: an eps each in bfloat16, where weights and updates are rounded;
    # in double precision the sums of up to 16 products, in any order, of forward, backward and update.
    tolerance = torch.finfo(inputs.dtype).eps * 3 * (1 if how == "half" else 100)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=tolerance)


def test_draws_made_ahead_are_those_of_their_steps():
    """Whatever happens to the step meanwhile: going on, going back, another seed."""
    model = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 2))
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), seed=2)
    rows = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.0)

    def check():
        kept = sk.draw(Key(sk.seed, sk.step, sk.node))["0.weight"].indices
        for again in (False, True):  # entering again is the same step
            with rows.submodel() as small:
                assert torch.equal(small[0].weight, model[0].weight[kept])
                assert all((p.grad is None) != again for p in small.parameters())
                small(torch.ones(1, 3)).sum().backward()
        rows.step()

    for _ in range(40):
        check()
    sk.load_state_dict(sk.state_dict() | {"step": 5})
    check()
    assert sk.step == 6
    sk.advance()
    check()
    assert sk.step == 8


def test_parameters_may_be_replaced_frozen_and_thawed():
    """Looked at anew at every step: their memory, their type, and whether they are trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        rows = mast.nn.RowOptimizer(sk, kind, lr=0.1)
        for frozen in (False, True, False):
            model[0].weight.requires_grad_(not frozen)
            model[0].weight.data = model[0].weight.data.clone()
            before = model[0].weight.detach().clone()
            with rows.submodel() as small:
                small(torch.ones(4, 3)).square().sum().backward()
            rows.step()
            assert torch.equal(model[0].weight, before) == frozen


def test_a_parameter_of_another_shape_never_reaches_the_kernels():
    """They are given bare addresses, so a weight that shrank must be an error, not a read past its end."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    rows = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.1)
    model[0].weight.data = torch.zeros(1, 3)
    with pytest.raises(mast.MastError, match="shape"), rows.submodel():
        pass


def test_hooks_end_with_the_step():
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    rows = mast.nn.RowOptimizer(
        mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5))), torch.optim.SGD, lr=0.1
    )
    called = []
    for _ in range(3):
        with rows.submodel() as small:
            small[2].bias.register_hook(lambda g: called.append(1))
            small(torch.ones(4, 3)).square().sum().backward()
        rows.step()
    assert len(called) == 3


def test_the_loop_of_small_networks(zoo):
    """sk.optimizer and sk.small are RowOptimizer in the shape of a loop; a member may be asked for."""
    a, inputs = zoo.make("resnet")
    b = copy.deepcopy(a)
    nested = mast.nn.Neurons(mast.Nested([0.25, 0.5, 1.0], scaled=False))
    plain, own = (mast.nn.sparsify(m, nested, seed=1, example=inputs) for m in (a, b))
    with pytest.raises(mast.errors.MastError, match=r"sk\.optimizer"), own.small():
        pass
    theirs = torch.optim.SGD(a.parameters(), lr=0.02)
    mine = own.optimizer(torch.optim.SGD, lr=0.02)
    assert isinstance(mine, mast.nn.RowOptimizer)
    widths = set()
    for t in range(8):
        theirs.zero_grad()
        loss_of(a(inputs), t).backward()
        theirs.step()
        with own.small() as net:
            widths.add(net.blocks[0].first.out_channels)
            loss_of(net(inputs), t).backward()
        mine.step()
        mine.zero_grad()
    assert widths == {2, 4, 8}
    for (name, p), q in zip(a.named_parameters(), b.named_parameters(), strict=True):
        torch.testing.assert_close(q[1], p, rtol=0, atol=1e-11, msg=name)
    for (name, p), q in zip(a.named_buffers(), b.named_buffers(), strict=True):  # of kept channels only
        torch.testing.assert_close(q[1], p, rtol=0, atol=1e-11, msg=name)
    before = b.blocks[0].first.weight.detach().clone()
    for _ in range(3):
        with own.member(0), own.small() as net:
            assert net.blocks[0].first.out_channels == 2
            loss_of(net(inputs), 0).backward()
        mine.step()
    changed = (b.blocks[0].first.weight != before).flatten(1).any(1)
    assert changed.tolist() == [True] * 2 + [False] * 6
    assert own.step == plain.step + 3
