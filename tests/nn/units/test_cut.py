"""A cut: values out of the whole model, a small model and its gradient out of the values, and back."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.randomness import Key  # noqa: E402
from mast.sketches.draws import GridDraw  # noqa: E402

KINDS = [mast.nn.Neurons(mast.Bernoulli(0.6)), mast.nn.Layers(mast.Bernoulli(0.5))]
NAMES = ["resnet", "vit pre batch first", "mixer"]


def kept_by_hand(unit_map, draw, name, shape):
    """Index arrays along each dimension, from the definition of an axis."""
    index = [np.arange(n) for n in shape]
    for group in unit_map.groups:
        for axis in group.slices:
            if axis.tensor == name:
                units = draw[group.name].indices if draw[group.name].indices.size else np.array([0])
                own = [axis.offset + u * axis.run + j for u in units for j in range(axis.run)]
                before = index[axis.dim] if len(index[axis.dim]) < shape[axis.dim] else np.empty(0, int)
                index[axis.dim] = np.sort(np.concatenate([before, own]).astype(int))
    return np.ix_(*index) if index else ()


def test_the_order_of_values(zoo, unit_model):
    """Parameters as named_parameters gives them, each the kept entries in row-major order."""
    model, _ = zoo.make(unit_model)
    unit_map = mast.nn.find_units(model, KINDS[0])
    draw = unit_map.bind(KINDS[0]).draw(Key(4))
    cut = unit_map.cut(draw)
    expected = [
        p.detach().numpy()[kept_by_hand(unit_map, draw, name, p.shape)].reshape(-1)
        for name, p in model.named_parameters()
    ]
    values = cut.gather(model)
    assert values.is_contiguous()
    assert values.dim() == 1
    assert np.array_equal(values.numpy(), np.concatenate(expected))
    assert cut.count == len(values)


@pytest.mark.parametrize("sketch", KINDS, ids=["neurons", "layers"])
@pytest.mark.parametrize("name", NAMES)
def test_a_node_with_a_skeleton_trains_its_part(zoo, name, sketch):
    """Only shapes, a key and values: the small model's loss and S'grad are those of masked training."""
    model, inputs = zoo.make(name)
    skeleton = copy.deepcopy(model).to("meta")
    there = mast.nn.find_units(skeleton, sketch)
    key = Key(7, step=3, node=1)
    cut = there.cut(there.bind(sketch).draw(key))
    values = cut.gather(dict(model.named_parameters()))
    small = cut.module(values, cut.gather_buffers(model))
    assert small.training
    assert not any(t.is_meta for t in (*small.parameters(), *small.buffers()))
    loss = small(inputs).square().mean()
    loss.backward()
    g = cut.gradient(small)

    sk = mast.nn.sparsify(model, sketch, seed=7, node=1)
    sk.load_state_dict(sk.state_dict() | {"step": 3})
    reference = model.train()(inputs).square().mean()
    reference.backward()
    assert loss.item() == pytest.approx(reference.item(), rel=1e-12)
    whole = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    torch.testing.assert_close(g, cut.gather(whole), rtol=0, atol=1e-12)
    # and there is no gradient elsewhere, so that adding it back is the whole of a step
    target = {n: torch.zeros_like(p) for n, p in whole.items()}
    cut.add(target, g, -0.5)
    for n in whole:
        torch.testing.assert_close(target[n], -0.5 * whole[n], rtol=0, atol=1e-12)


def test_values_come_home(zoo, unit_model):
    model, _ = zoo.make(unit_model)
    unit_map = mast.nn.find_units(model, KINDS[0])
    cut = unit_map.cut(unit_map.bind(KINDS[0]).draw(Key(1)))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    ones = {n: torch.zeros_like(p) for n, p in before.items()}
    cut.place(ones, torch.ones(cut.count, dtype=torch.float64))
    assert sum(int(t.sum()) for t in ones.values()) == cut.count
    values = torch.randn(cut.count, dtype=torch.float64)
    cut.add(model, values, 2.0)
    after = dict(model.named_parameters())
    torch.testing.assert_close(cut.gather(after), cut.gather(before) + 2 * values, rtol=1e-15, atol=1e-15)
    for n, p in after.items():
        outside = ones[n] == 0
        assert torch.equal(p.detach()[outside], before[n][outside])


def test_buffers(zoo):
    model, inputs = zoo.make("resnet")
    unit_map = mast.nn.find_units(copy.deepcopy(model).to("meta"), KINDS[0])
    cut = unit_map.cut(unit_map.bind(KINDS[0]).draw(Key(2)))
    values = cut.gather(model)
    fresh = cut.module(values)
    assert torch.equal(fresh.norm.running_mean, torch.zeros_like(fresh.norm.running_mean))
    assert torch.equal(fresh.norm.running_var, torch.ones_like(fresh.norm.running_var))
    small = cut.module(values, cut.gather_buffers(model))
    assert len(small.norm.running_mean) == fresh.norm.num_features
    small(inputs)
    cut.place_buffers(model, cut.buffers_of(small))
    assert torch.equal(cut.gather_buffers(model), cut.buffers_of(small))

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(4))
            self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.down(torch.relu(self.up(x + self.table)))

    bare = mast.nn.find_units(Positions().to("meta"), KINDS[0])
    cut = bare.cut(bare.bind(KINDS[0]).draw(Key(2)))
    with pytest.raises(mast.MastError, match="'table'"):
        cut.module(torch.zeros(cut.count))
    assert cut.module(torch.zeros(cut.count), torch.ones(4)).table.sum() == 4


def test_wrong_values_are_refused(zoo):
    model, _ = zoo.make("mlp")
    unit_map = mast.nn.find_units(model, KINDS[0])
    cut = unit_map.cut(unit_map.bind(KINDS[0]).draw(Key(2)))
    for wrong in (torch.zeros(cut.count + 1), torch.zeros(cut.count, 1), torch.zeros(2 * cut.count)[::2]):
        for use in (cut.module, lambda v: cut.add(model, v), lambda v: cut.place(model, v)):
            with pytest.raises(mast.MastError, match=f"{cut.count} values"):
                use(wrong)
    with pytest.raises(mast.MastError, match=r"0\.weight"):
        cut.gather({})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("full", "kept"),
    [
        ((7,), {0: [1, 4, 6]}),
        ((7, 40), {0: [0, 3]}),
        ((7, 40), {1: [0, 3, 39]}),
        ((7, 40), {0: [2, 5], 1: [1, 2, 30]}),
        ((6, 5, 3, 3), {0: [2, 5], 1: [0, 4]}),
        ((6, 5, 7, 7), {0: [2, 5], 1: [0, 4]}),
        ((2, 3, 5), {2: [1, 4]}),
        ((2, 3), {}),
        ((), {}),
    ],
)
def test_grids_equal_indexing(full, kept, dtype):
    """The fast paths against indexing entry by entry, bit for bit."""
    grid = GridDraw(full, {dim: np.array(index) for dim, index in kept.items()})
    x = torch.arange(1, 1 + int(np.prod(full)), dtype=torch.float64).view(full).sqrt().to(dtype)
    index = np.ix_(*(kept.get(d, range(n)) for d, n in enumerate(full))) if full else ()
    assert torch.equal(grid.gather(x), x[index])
    values = torch.full(grid.kept_shape, 0.25, dtype=dtype)
    for name in ("place", "add"):
        fast, slow = x.clone(), x.clone()
        if name == "place":
            grid.place(fast, values)
            slow[index] = values
        else:
            grid.add(fast, values, 0.5)
            slow[index] += 0.5 * values
        assert torch.equal(fast, slow)
    view = torch.zeros((*full, 2), dtype=dtype)[..., 0] if full else torch.zeros((), dtype=dtype)
    view.copy_(x)
    grid.place(view, values)  # not contiguous
    assert torch.equal(grid.gather(view), values)


def test_half_precision_keeps_its_type(zoo):
    model, _ = zoo.make("mlp")
    model = model.to(torch.bfloat16)
    sk = mast.nn.sparsify(model, KINDS[0])
    small = sk.submodel(0)
    assert all(p.dtype == torch.bfloat16 for p in small.parameters())
    kept = sk.draw(0)["2.weight"]
    expected = (model[5].weight.float()[:, kept.indices] * torch.from_numpy(kept.scales).float()).bfloat16()
    assert torch.equal(small[5].weight, expected)
