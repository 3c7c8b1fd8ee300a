"""The Lightning callback, with the real library."""

from __future__ import annotations

import copy
import functools
import importlib.util
import logging

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

absent = importlib.util.find_spec("lightning") is None  # importing it takes seconds: left to the tests
pytestmark = [
    pytest.mark.skipif(absent, reason="the callback is for Lightning"),
    # Lightning speaks about the machine and about its own dependencies.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.*treespec.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*tensorboardX.*"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@functools.cache
def module_class():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
            self.dense = []

        def training_step(self, batch, index):
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def validation_step(self, batch, index):
            self.dense.append((self.net(batch[0]), copy.deepcopy(self.net)(batch[0])))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    return Module


@pytest.fixture
def data():
    torch.manual_seed(0)
    rows = torch.utils.data.TensorDataset(torch.randn(48, 5, dtype=torch.float64), torch.arange(48) % 3)
    return torch.utils.data.DataLoader(rows, batch_size=8)


def trainer(tmp_path, callback, **options):
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, callbacks=[callback], **options,
    )  # fmt: skip


@pytest.mark.parametrize("accumulate", [1, 2])
def test_fitting_equals_the_reference(tmp_path, data, reference, same, accumulate):
    torch.manual_seed(1)
    module = module_class()()
    start = copy.deepcopy(module)
    callback = mast.nn.lightning.MastCallback(mast.Bernoulli(0.6), seed=4)
    run = trainer(
        tmp_path, callback, max_epochs=1, accumulate_grad_batches=accumulate, enable_checkpointing=False
    )
    run.fit(module, data, data)
    assert callback.sk.step == 6 // accumulate
    ref = reference(callback.sk, start, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    batches = list(data)
    for step in range(6 // accumulate):
        own = batches[accumulate * step : accumulate * (step + 1)]
        losses = [
            lambda m, b=b: (
                nn.functional.cross_entropy(m.net(b[0]), b[1]) / accumulate
            )  # Lightning takes the mean
            for b in own
        ]
        ref.step(step, losses)
    same(module, ref.x, atol=1e-13)
    assert module.dense
    assert all(torch.equal(a, b) for a, b in module.dense)  # validation saw x


@pytest.mark.parametrize("shift", [None, "init"])
def test_resuming_is_exact(tmp_path, data, same, shift):
    torch.manual_seed(1)
    whole = module_class()()
    part = copy.deepcopy(whole)
    new = lambda: mast.nn.lightning.MastCallback(mast.PermK(3), seed=4, shift=shift)  # noqa: E731
    trainer(tmp_path, new(), max_epochs=2, enable_checkpointing=False).fit(whole, data, data)
    first = trainer(tmp_path, new(), max_epochs=1, enable_checkpointing=False)
    first.fit(part, data, data)
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed, callback = module_class()(), new()
    trainer(tmp_path, callback, max_epochs=2, enable_checkpointing=False).fit(
        resumed, data, data, ckpt_path=tmp_path / "half.ckpt", weights_only=False
    )
    assert callback.sk.step == 12
    same(resumed, whole)


def test_there_is_no_handle_before_fitting():
    with pytest.raises(mast.MastError, match=r"trainer\.fit"):
        _ = mast.nn.lightning.MastCallback(mast.Bernoulli(0.6)).sk
