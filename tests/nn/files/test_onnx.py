"""The recipe for ONNX files: what the page shows is run, and onnxruntime computes what the submodel does."""

from __future__ import annotations

import pytest

import mast
from documentation.blocks import ROOT, blocks_of

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"the recipe for ONNX files needs {package}")

# Parts of PyTorch that its exporter uses say that they will change.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_the_recipe_of_the_page(models, tmp_path, monkeypatch, name):
    (recipe,) = [b for b in blocks_of(ROOT / "docs" / "submodels.md") if "torch.onnx.export" in b.text]
    monkeypatch.chdir(tmp_path)
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=inputs[0])
    known = {"sk": sk, "torch": torch, "batch": inputs[0]}
    exec(recipe.text, known)  # which compares the outputs for this batch itself
    small, session = known["small"], known["session"]
    assert small.state_dict().keys() == model.state_dict().keys()
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    for rows in (inputs[1][:1], inputs[1][:7]):  # batches of other sizes
        (found,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), small(rows), rtol=1e-5, atol=1e-5)
