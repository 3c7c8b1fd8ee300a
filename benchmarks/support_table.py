"""Which models of other libraries `mast.nn.Neurons` cuts in one call: makes docs/support.md from real runs.

    pip install "mast-train[models]"
    python benchmarks/support_table.py            # all models, a few minutes
    python benchmarks/support_table.py gpt2 t5    # some of them, printed only

Weights are random and nothing is downloaded; the models of transformers, peft and diffusers have small
configurations of their usual architecture. For each model: one call of `sparsify` with an example, one
submodel that keeps half of the units of each group, its largest difference from the whole model with
the weights of the same draw (in training and in eval mode, relative to the largest output), and the time of
its forward pass beside that of the whole model.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mast
from mast.nn.units.dependencies.examples import Example, compare_outputs, masked_weights

PAGE = Path(__file__).parents[1] / "docs" / "support.md"
Made = tuple[nn.Module, Any]


def image(size: int = 64) -> Tensor:
    """Two images."""
    return torch.randn(2, 3, size, size)


def tokens(length: int = 8) -> Tensor:
    """Two texts."""
    return torch.randint(0, 90, (2, length))


def torchvision(name: str, size: int = 64, **options: Any) -> Callable[[], Made]:
    """A model of torchvision."""

    def make() -> Made:
        from torchvision import models

        if name.startswith("lraspp"):
            options["weights_backbone"] = None
            return getattr(models.segmentation, name)(weights=None, **options), image(size)
        return getattr(models, name)(weights=None, **options), image(size)

    return make


def timm(name: str, size: int = 64) -> Callable[[], Made]:
    """A model of timm."""

    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False), image(size)

    return make


def transformer(name: str, example: Callable[[], dict[str, Tensor]], **config: Any) -> Callable[[], Made]:
    """A model of transformers with a small configuration."""

    def make() -> Made:
        import transformers

        kind = getattr(transformers, name)
        return kind(kind.config_class(**config)), example()

    return make


def lora(base: Callable[[], Made], targets: list[str]) -> Callable[[], Made]:
    """LoRA of peft on another model."""

    def make() -> Made:
        from peft import LoraConfig, get_peft_model

        model, example = base()
        return get_peft_model(model, LoraConfig(r=4, target_modules=targets)), example

    return make


def unet() -> Made:
    """A U-Net of diffusers."""
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64),
        norm_num_groups=8, attention_head_dim=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return model, {"sample": image(16), "timestep": torch.tensor([3, 5])}


def text() -> dict[str, Tensor]:
    """What language models take."""
    return {"input_ids": tokens()}


def two_texts() -> dict[str, Tensor]:
    """What an encoder and a decoder take."""
    return {"input_ids": tokens(), "decoder_input_ids": tokens(5)}


def picture() -> dict[str, Tensor]:
    """What vision models of transformers take."""
    return {"pixel_values": image(32)}


def speech() -> dict[str, Tensor]:
    """What Whisper takes."""
    return {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": tokens(5)}


_BERT = {"vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 96}  # fmt: skip
_LLAMA = _BERT | {"num_attention_heads": 8, "max_position_embeddings": 64}
GPT2 = transformer("GPT2LMHeadModel", text, vocab_size=100, n_positions=32, n_embd=48, n_layer=2, n_head=4,
                   bos_token_id=0, eos_token_id=0)  # fmt: skip
LLAMA_GROUPED = transformer("LlamaForCausalLM", text, num_key_value_heads=4, **_LLAMA)

MODELS: dict[str, Callable[[], Made]] = {
    "torchvision resnet18": torchvision("resnet18"),
    "torchvision resnet50": torchvision("resnet50"),
    "torchvision mobilenet_v2": torchvision("mobilenet_v2"),
    "torchvision mobilenet_v3_small": torchvision("mobilenet_v3_small"),
    "torchvision vgg11_bn": torchvision("vgg11_bn"),
    "torchvision mnasnet1_0": torchvision("mnasnet1_0"),
    "torchvision lraspp_mobilenet_v3_large": torchvision("lraspp_mobilenet_v3_large"),
    "torchvision regnet_y_400mf": torchvision("regnet_y_400mf"),
    "torchvision vit_b_16": torchvision("vit_b_16", 224),
    "torchvision swin_t": torchvision("swin_t"),
    "torchvision efficientnet_b0": torchvision("efficientnet_b0"),
    "torchvision convnext_tiny": torchvision("convnext_tiny"),
    "torchvision squeezenet1_0": torchvision("squeezenet1_0"),
    "torchvision shufflenet_v2_x1_0": torchvision("shufflenet_v2_x1_0"),
    "torchvision googlenet": torchvision("googlenet", 96, init_weights=False),
    "torchvision densenet121": torchvision("densenet121"),
    "timm resnet18": timm("resnet18"),
    "timm vit_tiny_patch16_224": timm("vit_tiny_patch16_224", 224),
    "timm swin_tiny_patch4_window7_224": timm("swin_tiny_patch4_window7_224", 224),
    "timm convnext_atto": timm("convnext_atto"),
    "timm mobilenetv3_small_100": timm("mobilenetv3_small_100"),
    "timm regnety_002": timm("regnety_002"),
    "timm efficientnet_lite0": timm("efficientnet_lite0"),
    "transformers GPT-2": GPT2,
    "transformers BERT, classifier": transformer("BertForSequenceClassification", text, **_BERT),
    "transformers BERT, masked words": transformer("BertForMaskedLM", text, **_BERT),
    "transformers DistilBERT": transformer(
        "DistilBertForSequenceClassification", text, vocab_size=100, dim=48, n_layers=2, n_heads=4,
        hidden_dim=96,
    ),
    "transformers LLaMA": transformer("LlamaForCausalLM", text, num_key_value_heads=8, **_LLAMA),
    "transformers LLaMA, grouped heads": LLAMA_GROUPED,
    "transformers T5": transformer(
        "T5ForConditionalGeneration", two_texts, vocab_size=100, d_model=48, d_kv=8, d_ff=96, num_layers=2,
        num_heads=6,
    ),
    "transformers Mamba": transformer(
        "MambaForCausalLM", text, vocab_size=100, hidden_size=32, state_size=8, num_hidden_layers=2
    ),
    "transformers ViT": transformer(
        "ViTForImageClassification", picture, image_size=32, patch_size=8,
        **{key: value for key, value in _BERT.items() if key != "vocab_size"},
    ),
    "transformers Mixtral": transformer(
        "MixtralForCausalLM", text, num_key_value_heads=4, num_local_experts=4, **_LLAMA
    ),
    "transformers Whisper": transformer(
        "WhisperForConditionalGeneration", speech, vocab_size=100, d_model=48, encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
        num_mel_bins=16, max_source_positions=20, max_target_positions=16, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    ),
    "transformers ResNet": transformer(
        "ResNetForImageClassification", picture, embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2]
    ),
    "peft LoRA on GPT-2": lora(GPT2, ["c_attn", "c_proj"]),
    "peft LoRA on LLaMA": lora(LLAMA_GROUPED, ["q_proj", "v_proj"]),
    "diffusers UNet2DModel": unet,
}  # fmt: skip


def ratio_of_times(small: nn.Module, model: nn.Module, example: Example) -> float:
    """Of the shortest times of forward passes in eval mode; the models take turns."""
    found: dict[nn.Module, list[float]] = {small.eval(): [], model.eval(): []}
    with torch.no_grad():
        end = time.perf_counter() + 1
        while len(found[model]) < 7 or time.perf_counter() < end:
            for one, times in found.items():
                start = time.perf_counter()
                example.call(one)
                times.append(time.perf_counter() - start)
    return min(found[small]) / min(found[model])


def without_zeros(model: nn.Module) -> None:
    """Give parameters that begin at 0, or next to it, other values: zeros would hide differences."""
    with torch.no_grad():
        for p in model.parameters():
            if p.abs().max() < 1e-4:
                p.normal_(0, 0.1)


def row(name: str) -> tuple[str, ...]:
    """What the page says of one model."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    without_zeros(model)
    try:
        sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
        small = sk.submodel(seed=1, calibrate=False)
    except mast.MastError as error:
        return name, f"no: {str(error).splitlines()[0][:80]}", "", "", "", ""
    unit_map = sk.unit_map
    assert unit_map is not None
    example, draw = Example.of(batch), sk.draw(1)
    sk.remove()
    left = sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in model.parameters())
    ratio = ratio_of_times(small, model, example)
    gap = math.inf
    for exact in (torch.float64, torch.float32):  # kernels for experts know the latter only
        if gap == math.inf:
            model, small, example = model.to(exact), small.to(exact), example.to(model, exact)
            gap, _ = compare_outputs(model, masked_weights(unit_map, model, draw), small, [example])
    units = sum(group.units for group in unit_map.groups)
    return name, "yes", f"{units:,} in {len(unit_map.groups)}", f"{left:.0%}", f"{gap:.0e}", f"{ratio:.2f}"


_ABOUT = """\
Units are hidden features, channels, attention heads (groups of heads where they share keys and values),
groups of grouped convolutions, and LoRA ranks. A *group* is a set of slices that are cut together. Half of
the units of each group are kept. The width of a transformer's residual stream stays whole, because its
norms average over it.

*Difference* is the largest one between the submodel and the whole model with the same draw, relative to the
largest output, in training and eval mode and in double precision (Mixtral's experts: single precision).
*Time* is that of a forward pass, relative to the whole model. Weights are random and nothing is downloaded.
Models of transformers, peft and diffusers have small configurations, so their times say little. `python
benchmarks/support_table.py` makes the table.

These are cut only in part, or not at all. `print(sk)` or the error says why:

| model of transformers | what stays whole | what to do |
|---|---|---|
| Phi-3 | heads: its fused qkv is sliced by the configuration | MLP units are cut |
| Qwen 3 MoE | experts: its kernel needs multiples of 16 bytes | `model.set_experts_implementation("eager")` |
| ConvNeXt V2 | all units: its GRN normalises over them | `Layers` drops residual branches |
| Mamba 2 | all units: its heads share factors | `Layers` drops residual branches |
"""


def page(rows: list[tuple[str, ...]]) -> str:
    """The page of the documentation."""
    accepted = sum(r[1] == "yes" for r in rows)
    lines = [
        "# Supported models",
        "",
        "`mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)` cuts "
        f"{accepted} of {len(rows)} models of other libraries.",
        "",
        _ABOUT,
        "| model | units | groups | parameters left | difference | time |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, cut, units, *numbers in rows:
        cells = [*units.split(" in "), *numbers] if cut == "yes" else [cut, "", "", "", ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    _, title, versions = PAGE.read_text().partition("\n## Versions")  # written by hand
    return "\n".join(lines) + "\n" + title + versions


def main() -> None:
    """Try the models, and write the page if they are all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", help="parts of names; all by default")
    wanted = [part.lower() for part in parser.parse_args().models]
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about their own configurations
        for name in MODELS:
            if not wanted or any(part in name.lower() for part in wanted):
                rows.append(row(name))
                print(" | ".join(rows[-1]), flush=True)
    if not wanted:
        PAGE.write_text(page(rows))
        print(f"written: {PAGE.name}")


if __name__ == "__main__":
    main()
