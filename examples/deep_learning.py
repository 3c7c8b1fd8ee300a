"""For deep-learning engineers: a pretrained network in four sizes: pruned, fine-tuned alone, or from one run.

    python examples/deep_learning.py        about a minute, needs transformers

stories260K, a Llama of 260 thousand weights (docs/notebooks/stories260K), learns from stories that it
samples itself. Three smaller sizes are cut from it by structured pruning, then trained by distillation:
each alone, as usual, and all of them in one run of `mast.nn.elastic`, which ends with four files.
"""

import copy
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

import mast

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks" / "stories260K"
SIZES, STEPS = [0.25, 0.5, 0.75], 60


def fine_tune(net: nn.Module, inputs: Tensor, wanted: Tensor, steps: int) -> float:
    """A plain loop, in which nothing knows about MAST; the CPU seconds that it took."""
    begun = time.process_time()
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(net.train().parameters(), lr=3e-3, weight_decay=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    for rows in torch.randint(0, len(inputs), (steps, 16)):
        output, target = net(inputs[rows]).logits.log_softmax(-1).flatten(0, 1), wanted[rows].flatten(0, 1)
        F.kl_div(output, target, log_target=True, reduction="batchmean").backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return time.process_time() - begun


def main() -> None:
    model = LlamaForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    torch.manual_seed(0)
    start = torch.ones(512, 1, dtype=torch.long)  # token 1 begins a story
    stories = model.generate(start, do_sample=True, top_k=0, max_length=64, use_cache=True, pad_token_id=0)
    train, test = stories[:400], stories[400:]
    with torch.no_grad():
        wanted = model(train).logits.log_softmax(-1)

    @torch.no_grad()
    def accuracy(net: nn.Module) -> float:
        """Of the next token."""
        return (net.eval()(test).logits[:, :-1].argmax(-1) == test[:, 1:]).float().mean().item()

    elastic = copy.deepcopy(model)
    sk = mast.nn.elastic(elastic, SIZES, [train[:32]])
    nets = [sk.submodel(member=i) for i in range(3)]
    columns = {"cut": [accuracy(net) for net in nets]}
    spent = sum(fine_tune(net, train, wanted, STEPS) for net in nets)
    columns[f"alone, {spent:.0f} s"] = [accuracy(net) for net in nets]
    spent = fine_tune(elastic, train, wanted, 3 * STEPS)
    columns[f"one run, {spent:.0f} s"] = [accuracy(sk.submodel(member=i)) for i in range(3)]

    given = accuracy(model)
    print("next-token accuracy" + "".join(f"{name:>14}" for name in columns))
    with tempfile.TemporaryDirectory() as folder:
        for i, share in enumerate([*SIZES, 1.0]):
            file = Path(folder, f"{i}.safetensors")
            sk.save_submodel(file, member=i) if i < 3 else save_model(model, file)
            scores = [column[i] if i < 3 else given for column in columns.values()]
            cells = "".join(f"{score:14.3f}" for score in scores)
            print(f"{share:7.0%} {file.stat().st_size / 1e3:8.0f} kB{cells}")


if __name__ == "__main__":
    main()
