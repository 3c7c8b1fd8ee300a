"""ONNX files: onnxruntime computes the same, for any batch size; what it does not is not written."""

from __future__ import annotations

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
pytest.importorskip("onnxruntime", reason="ONNX files need the extra onnx")
pytest.importorskip("onnxscript", reason="ONNX files need the extra onnx")
from torch import nn  # noqa: E402

from mast.nn.files.onnx import runner  # noqa: E402


def run_onnx(path, *inputs):
    return [torch.as_tensor(array) for array in runner(path, inputs)()]


class Pair(nn.Module):
    """Two inputs, several outputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, a, b):
        h = torch.tanh(self.left(a)) + self.right(b)
        return {"h": h, "more": (h.softmax(-1), h.sum(-1)), "rows": a.shape[0]}


@pytest.mark.parametrize(
    ("name", "sketch"),
    [
        ("cnn", mast.nn.Neurons(mast.RandK(0.5))),
        ("transformer", mast.nn.Neurons(mast.RandK(0.5))),
    ],
)
def test_a_submodel(models, tmp_path, name, sketch):
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, sketch)
    sub = sk.submodel(7, calibrate=inputs)
    path = mast.nn.export_onnx(sub, tmp_path / "a.onnx", inputs[0][:1])
    assert b".py" not in path.read_bytes()  # nothing of the code that made it
    for batch in (inputs[1][:1], inputs[1][:7]):
        (found,) = run_onnx(path, batch)
        with torch.no_grad():
            torch.testing.assert_close(found, sub(batch), rtol=1e-5, atol=1e-5)


def test_several_inputs_and_outputs_and_a_model_from_a_file(tmp_path):
    model = Pair().eval()
    again = mast.nn.load_submodel(mast.nn.save_submodel(model, tmp_path / "a"), Pair())
    example = (torch.randn(2, 3), torch.randn(2, 5))
    path = mast.nn.export_onnx(again, tmp_path / "a.onnx", example)
    found = run_onnx(path, *example)
    with torch.no_grad():
        out = model(*example)
    for a, b in zip(found, [out["h"], *out["more"], torch.tensor(2)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Drifting(nn.Module):
    """Something else with each call, as far as a file can know."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * float(self.calls)


def test_a_file_that_computes_something_else_is_not_written(tmp_path):
    with pytest.raises(mast.MastError, match="is not that of the model, and the file was not written"):
        mast.nn.export_onnx(Drifting(), tmp_path / "a.onnx", torch.ones(2, 3))
    assert not list(tmp_path.iterdir())


class OneSize(nn.Module):
    def forward(self, x):
        return x.view(4, 6)


def test_a_fixed_batch(tmp_path):
    with pytest.raises(mast.MastError, match="does not take a batch of 1: it works for batches of one size"):
        mast.nn.export_onnx(OneSize(), tmp_path / "a.onnx", torch.ones(4, 2, 3))
    path = mast.nn.export_onnx(OneSize(), tmp_path / "a.onnx", torch.ones(4, 2, 3), dynamic_batch=False)
    assert run_onnx(path, torch.zeros(4, 2, 3))[0].shape == (4, 6)


@pytest.mark.parametrize(
    "example", [3.0, (), torch.tensor(1.0), torch.ones(0, 3)], ids=["number", "none", "scalar", "empty"]
)
def test_examples_that_are_none(tmp_path, example):
    with pytest.raises(mast.MastError, match="first dimension is the batch"):
        mast.nn.export_onnx(nn.Linear(3, 3), tmp_path / "a.onnx", example)
