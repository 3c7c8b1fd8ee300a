"""A resumed run equals the uninterrupted one bit for bit; another setup is refused by name."""

from __future__ import annotations

import copy
import io
import json

import numpy as np
import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")

from mast.nn.files import state as saved_state  # noqa: E402

SKETCHES = [
    mast.Bernoulli(0.6),
    mast.Gaussian(0.3),
    mast.RandK(0.3),
    mast.PermK(4),
    mast.PermK(3, redraw=True),
]
make = lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0)  # noqa: E731


def train(model, optimizer, loss_on, inputs):
    for x in inputs:
        loss_on(x)(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize("sketch", SKETCHES)
def test_resuming_is_exact(models, loss_on, same, sketch, shift):
    model, inputs = models.cnn()
    sk = mast.nn.sparsify(model, sketch, shift=shift, seed=11, node=1)
    optimizer = make(model.parameters())
    train(model, optimizer, loss_on, inputs[:2])
    buffer = io.BytesIO()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "mast": sk.state_dict()}, buffer
    )
    train(model, optimizer, loss_on, inputs[2:])

    buffer.seek(0)
    saved = torch.load(buffer)  # plain data and tensors: no pickled classes
    again, _ = models.cnn()
    again.load_state_dict(saved["model"])
    resumed = mast.nn.sparsify(again, sketch, shift=shift)
    other = make(again.parameters())
    other.load_state_dict(saved["optimizer"])
    resumed.load_state_dict(saved["mast"])
    assert (resumed.seed, resumed.step, resumed.node) == (11, 2, 1)
    train(again, other, loss_on, inputs[2:])
    same(again, model)


@pytest.mark.parametrize("score", ["magnitude", "curvature"])
@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_chosen_cut_goes_on_inside_its_period(models, loss_on, same, tmp_path, score, through_a_file):
    sketch = mast.nn.TopShare(0.3, score=score, every=4)
    model, inputs = models.cnn()
    inputs = [*inputs, *inputs][:7]
    sk = mast.nn.sparsify(model, sketch)
    optimizer = make(model.parameters())
    train(model, optimizer, loss_on, inputs[:2])  # the cut was chosen at step 0, the next is due at step 4
    model_state, optimizer_state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    state = copy.deepcopy(sk.state_dict())
    saved_state.write_state(sk, tmp_path)
    train(model, optimizer, loss_on, inputs[2:])

    again, _ = models.cnn()
    resumed = mast.nn.sparsify(again, sketch)
    resumed.submodel()  # looks at other weights
    again.load_state_dict(model_state)
    other = make(again.parameters())
    other.load_state_dict(optimizer_state)
    if through_a_file:
        saved_state.read_state(resumed, tmp_path)
    else:
        resumed.load_state_dict(state)
    train(again, other, loss_on, inputs[2:])
    same(again, model)


@pytest.mark.parametrize("entry", [-1, 10**6])
def test_a_choice_of_entries_that_are_not_there_is_refused(models, entry):
    model, x = models.mlp()
    sk = mast.nn.sparsify(model, mast.nn.TopShare(0.3))
    model(x)
    state = sk.state_dict()
    name = next(name for name in state["choice"] if name.startswith("entries/"))
    state["choice"][name][0] = entry
    with pytest.raises(mast.MastError, match="does not fit"):
        sk.load_state_dict(state)


def test_a_state_of_before_choices_were_saved_chooses_anew(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.nn.TopShare(0.3))
    sk.submodel()
    state = {name: value for name, value in sk.state_dict().items() if name != "choice"}
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p))
    sk.load_state_dict(state)
    for w in sk.weights:
        smallest = sk.kept()[w.name].gather(w.parameter.detach()).abs().min()
        assert (w.parameter.abs() >= smallest).sum() == round(0.3 * w.count)


@pytest.mark.parametrize(
    ("setup", "field"),
    [
        (
            {"sketch": mast.Bernoulli(0.5)},
            r"another sketch: it was Bernoulli\(.*0\.6.*, is Bernoulli\(.*0\.5.*or set sk\.sketch first",
        ),
        ({"sketch": mast.UnscaledBernoulli(0.6)}, "another sketch: .*, is UnscaledBernoulli"),
        ({"keep": {"0.*": 0.3}}, "another keep: 0.weight was None"),
        ({"where": "0.*"}, "another parameters: 2.weight"),
        ({"shift": "init"}, "another shift: it had none"),
    ],
)
def test_another_setup_is_refused_by_name(models, setup, field):
    model, _ = models.mlp()
    state = mast.nn.sparsify(model, mast.Bernoulli(0.6)).state_dict()
    other, _ = models.mlp()
    sk = mast.nn.sparsify(other, **{"sketch": mast.Bernoulli(0.6)} | setup)
    with pytest.raises(mast.MastError, match=field):
        sk.load_state_dict(state)


def test_damaged_states_are_refused(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    state = sk.state_dict()
    for field in state:
        partial = {name: value for name, value in state.items() if name != field}
        with pytest.raises(mast.MastError, match=field):
            sk.load_state_dict(partial)
    with pytest.raises(mast.MastError, match="layout"):
        sk.load_state_dict(state | {"layout": 0})
    with pytest.raises(mast.MastError, match="step"):
        sk.load_state_dict(state | {"step": -1})
    with pytest.raises(mast.MastError, match="is a dict, got NoneType"):
        sk.load_state_dict(None)


def test_sketches_are_described_by_their_content():
    from mast.support.checkpoint import describe

    sketches = [
        mast.Bernoulli(0.5),
        mast.UnscaledBernoulli(0.5),
        mast.Bernoulli([0.5, 0.5]),
        mast.Bernoulli([0.5, 0.25]),
        mast.RandK(3),
        mast.RandK(0.3),
        mast.PermK(3),
        mast.PermK(3, seed=1),
        mast.PermK(3, redraw=True),
        mast.PermK(blocks=[[0, 1], [2]]),
        mast.PermK(blocks=[[0], [1, 2]]),
        mast.Gaussian(0.5),
        mast.Identity(),
        mast.Mixture([mast.PermK(3), mast.PermK(4)]),
        mast.Mixture([mast.PermK(3), mast.PermK(4)], [0.25, 0.75]),
        mast.Grouped(mast.PermK(2), [0, 0, 1]),
        mast.Grouped(mast.PermK(2), [0, 1, 1]),
    ]
    texts = [json.dumps(describe(s)) for s in sketches]
    assert len(set(texts)) == len(sketches)
    used = mast.PermK(3)
    used.draw(10)
    assert json.dumps(describe(used)) == json.dumps(describe(mast.PermK(3)))


def test_files(models, tmp_path, loss_on):
    from mast.nn.files import state

    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Mixture([mast.Bernoulli(0.5), mast.RandK(0.5)]), shift="init", seed=2)
    v = copy.deepcopy(dict(sk.shift))
    optimizer = make(model.parameters())
    train(model, optimizer, loss_on, inputs)
    state.write_state(sk, tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["mast.safetensors"]
    sk.remove()
    again = mast.nn.sparsify(model, sk.sketch, shift="init")
    state.read_state(again, tmp_path, node=5)
    assert (again.seed, again.step, again.node) == (2, 4, 5)
    assert all(torch.equal(again.shift[name], v[name]) for name in v)
    file = tmp_path / "mast.safetensors"
    file.write_bytes(file.read_bytes().replace(b'\\"step\\":4', b'\\"step\\":5'))
    with pytest.raises(mast.MastError, match="damaged"):
        state.read_state(again, tmp_path)
    with pytest.raises(mast.MastError, match=r"has no .*mast\.safetensors"):
        state.read_state(again, tmp_path / "absent")
    assert np.isfinite(again.density)
