"""What to keep how often: probabilities by name in networks, and one chosen cut."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mast  # noqa: E402
from mast.allocation import allocate  # noqa: E402
from mast.errors import ArgumentError  # noqa: E402
from mast.randomness import Key  # noqa: E402


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()


class TestKeepProbabilities:
    def test_batches_with_nan_are_refused(self):
        with pytest.raises(ArgumentError, match=r"'0.weight'.*NaN"):
            mast.nn.keep_probabilities(mlp(), [torch.full((2, 6), torch.nan, dtype=torch.float64)])

    def test_the_score_is_that_of_wanda(self):
        model, x = mlp(), torch.randn(40, 6, dtype=torch.float64)
        keep = mast.nn.keep_probabilities(model, [x[:25], (x[25:], None)], budget=0.3, floor=0.05)
        hidden = model[1](model[0](x)).detach()
        for name, w, a in (("0.weight", model[0].weight, x), ("2.weight", model[2].weight, hidden)):
            scores = w.detach().abs() * a.square().sum(0).sqrt()
            expected = allocate(scores.reshape(-1).numpy(), 0.3, 0.05).reshape(w.shape)
            np.testing.assert_allclose(keep[name].numpy(), expected, rtol=1e-5)

    def test_layers_may_be_called_with_keywords(self):
        class Keywords(nn.Module):
            def __init__(self):
                super().__init__()
                self.dense = nn.Linear(3, 2)

            def forward(self, x):
                return self.dense(input=x)

        model, x = Keywords(), torch.randn(5, 3)
        ours = mast.nn.keep_probabilities(model, [x])["dense.weight"]
        assert torch.equal(ours, mast.nn.keep_probabilities(model.dense, [x])["weight"])

    def test_it_is_the_root_of_the_curvature_for_squared_loss(self):
        """For one linear layer and |z|²/2, H_jj = |X_j|²: as in the convex problem."""
        rows = np.random.default_rng(0).standard_normal((30, 5))
        target = rows @ np.arange(1.0, 6)
        problem = mast.Problem(mast.LeastSquares(rows, target), mast.Bernoulli(0.4))
        model = nn.Linear(5, 1, bias=False).double()
        ours = mast.nn.keep_probabilities(model, [torch.from_numpy(rows)], budget=0.4)["weight"]
        theirs = mast.keep_probabilities(problem, model.weight.detach().numpy()[0], budget=0.4, floor=0.02)
        np.testing.assert_allclose(ours.numpy()[0], theirs, rtol=1e-5)

    def test_convolutions_with_groups_and_a_shift(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2, bias=False))
        sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), shift="init")
        with torch.no_grad():
            model[0].weight.add_(0.5)  # so that |u| is the same everywhere
        x = torch.randn(8, 4, 5, 5)
        keep = mast.nn.keep_probabilities(model, [x], budget=0.3)["0.weight"]
        sizes = x.square().sum((0, 2, 3)).sqrt()
        for out in range(6):
            inputs = sizes[:2] if out < 3 else sizes[2:]
            torch.testing.assert_close(keep[out, :, 0, 0] / keep[out, 0, 0, 0], inputs / inputs[0])
        sk.remove()

    def test_they_are_drawn_entry_by_entry(self):
        model = mlp()
        keep = mast.nn.keep_probabilities(model, [torch.randn(9, 6, dtype=torch.float64)], budget=0.4)
        sk = mast.nn.sparsify(model, mast.Bernoulli(0.4), keep=keep)
        assert sk.density == pytest.approx(0.4, abs=1e-6)
        n = 4000
        for i, name in enumerate(keep):
            p = keep[name].double().numpy().reshape(-1)
            c = np.stack([sk.bound.kept(i, Key(1, step), model[0].weight).diagonal() for step in range(n)])
            mean = c.reshape(n, -1).mean(0)
            assert (np.abs(mean - 1) <= 5 * np.sqrt((1 / p - 1) / n)).all()

    def test_in_training_files_and_states(self, tmp_path):
        model = mlp()
        keep = {"0.weight": torch.full((8, 6), 0.5), "2.weight": np.linspace(0.1, 1, 24).reshape(3, 8)}
        sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), keep=keep)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
        optimizer.step()
        path = sk.save_delta(tmp_path / "d", seed=3)
        again = mast.nn.apply_delta(mlp(), path)
        assert torch.equal(again[2].weight, sk.submodel(3)[2].weight)
        state = sk.state_dict()
        sk.load_state_dict(state)
        sk.remove()
        other = mast.nn.sparsify(model, mast.Bernoulli(0.5), keep={"2.weight": np.full((3, 8), 0.2)})
        with pytest.raises(ArgumentError, match="keep"):
            other.load_state_dict(state)

    def test_refuses(self):
        model, x = mlp(), torch.ones(1, 6, dtype=torch.float64)
        with pytest.raises(ArgumentError, match="batch"):
            mast.nn.keep_probabilities(model, [])
        with pytest.raises(ArgumentError, match="floor"):
            mast.nn.keep_probabilities(model, [x], budget=0.1, floor=0.2)
        for keep in (torch.zeros(8, 6), torch.full((2, 2), 0.5), torch.full((8, 6), 1.5)):
            with pytest.raises(ArgumentError, match="keep"):
                mast.nn.sparsify(model, mast.Bernoulli(0.5), keep={"0.weight": keep})
        with pytest.raises(ArgumentError, match=r"of its own \(one for each entry\)"):
            mast.nn.sparsify(model, mast.RandK(0.5), keep={"0.weight": torch.full((8, 6), 0.5)})
        for sketch in (mast.Bernoulli(0.5), mast.nn.Neurons(mast.Bernoulli(0.5))):
            with pytest.raises(ArgumentError, match="keep is a dict of names and probabilities"):
                mast.nn.sparsify(model, sketch, keep=["0.weight"])
        with pytest.raises(ArgumentError, match=r"keep\['0.weight'\] is a probability in .*, got 'x'"):
            mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), keep={"0.weight": "x"})
        with pytest.raises(ArgumentError, match="units"):
            mast.nn.sparsify(
                model, mast.nn.Neurons(mast.Bernoulli(0.5)), keep={"0.weight": torch.full((8, 6), 0.5)}
            )


class TestTopShare:
    def test_keeps_the_largest_of_every_weight_times_one(self):
        model = mlp()
        sk = mast.nn.sparsify(model, mast.nn.TopShare(0.25))
        for name, p in sk.submodel().named_parameters():
            x = model.get_parameter(name).detach()
            if p.ndim > 1:
                least = x.abs().flatten().sort(descending=True).values[round(0.25 * x.numel()) - 1]
                assert torch.equal(p, torch.where(x.abs() >= least, x, torch.zeros_like(x)))

    def test_chooses_anew_every_so_many_steps(self):
        model = nn.Linear(4, 1, bias=False)
        model.weight.data.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
        sk = mast.nn.sparsify(model, mast.nn.TopShare(0.5, every=3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        kept = []
        for step in range(6):
            kept.append(sk.kept()["weight"].positions.tolist())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            if step == 1:
                model.weight.data.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        assert kept == [[0, 1]] * 3 + [[2, 3]] * 3
        assert sk.submodel().weight.tolist() == [[0, 0, 3, 4]]

    def test_with_a_shift_it_is_the_change_that_counts(self):
        model = nn.Linear(3, 1, bias=False)
        model.weight.data.copy_(torch.tensor([[9.0, 0.0, 0.0]]))
        sk = mast.nn.sparsify(model, mast.nn.TopShare(1 / 3), shift="init")
        model.weight.data.copy_(torch.tensor([[9.0, 0.1, 1.0]]))
        assert sk.submodel().weight.tolist() == [[9.0, 0.0, 1.0]]

    def test_a_schedule_and_reports_know_the_shift_too(self):
        model = nn.Linear(4, 1, bias=False)
        model.weight.data.copy_(torch.tensor([[9.0, 8.0, 0.0, 0.0]]))
        sk = mast.nn.sparsify(model, mast.nn.TopShare(0.5), shift="init")
        model.weight.data.copy_(torch.tensor([[9.0, 8.0, 1.0, 2.0]]))
        seen = []
        sk.report(lambda m: seen.append(m.weight.tolist()) or 0.0, [0.25], draws=1)
        sk.sketch = mast.nn.TopShare(0.25)
        assert seen == [sk.submodel().weight.tolist()] == [[[9.0, 8.0, 0.0, 2.0]]]

    def test_by_curvature(self):
        """Where an input is large the gradients are, also of entries that are dropped."""
        model = nn.Linear(2, 1, bias=False)
        model.weight.data.copy_(torch.tensor([[2.0, 1.0]]))
        sk = mast.nn.sparsify(model, mast.nn.TopShare(0.5, score="curvature", every=2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        kept = []
        for _ in range(3):
            kept.append(sk.kept()["weight"].positions.tolist())
            model(torch.tensor([[1.0, 10.0]])).sum().backward()
            optimizer.step()
        assert kept == [[0], [0], [1]]

    def test_by_curvature_a_schedule_and_reports_know_the_gradients(self):
        model = nn.Linear(4, 1, bias=False)
        model.weight.data.copy_(torch.tensor([[4.0, 3.0, 2.0, 1.0]]))
        sk = mast.nn.sparsify(model, mast.nn.TopShare(0.75, score="curvature", every=2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(2):
            model(torch.tensor([[1.0, 1.0, 1.0, 10.0]])).sum().backward()
            optimizer.step()
        seen = []
        sk.report(lambda m: seen.append(m.weight.tolist()) or 0.0, [0.25], draws=1)
        assert sk.submodel(density=0.25).weight.tolist() == seen[0] == [[0.0, 0.0, 0.0, 1.0]]
        assert sk.kept()["weight"].positions.tolist() == [0, 1, 3]  # as the whole run has it
        sk.sketch = sk.sketch.at(0.25)
        assert sk.kept()["weight"].positions.tolist() == [3]
        sk.sketch = mast.nn.TopShare(0.25)
        assert sk.kept()["weight"].positions.tolist() == [0]

    def test_it_is_a_schedule_and_no_sketch(self):
        schedule = mast.nn.TopShare(0.5)
        assert not isinstance(schedule, mast.sketches.Sketch)
        assert schedule.at(0.25).share(8) == 0.25
        with pytest.raises(ArgumentError, match="TopShare"):
            mast.Problem(mast.Quadratic(np.eye(2), np.ones(2)), schedule)
        sk = mast.nn.sparsify(torch.nn.Linear(4, 2), schedule)
        assert (sk.constants, sk.members) == (None, None)
        with pytest.raises(ArgumentError, match="no list"):
            sk.submodel(member=0)

    @pytest.mark.parametrize("arguments", [(0.0,), (1.5,), (0.5, "size"), (0.5, "magnitude", 0)])
    def test_refuses(self, arguments):
        with pytest.raises(ArgumentError):
            mast.nn.TopShare(*arguments)
