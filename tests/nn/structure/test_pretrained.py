"""Small models of transformers are saved and read again by their own class."""

from __future__ import annotations

import pytest

import mast

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 40}


def ids(length=7):
    return torch.arange(2 * length).view(2, length) % 50


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=4, n_inner=40, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids()}


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **WIDTHS)), {
        "input_ids": ids()
    }


def llama():
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=4, head_dim=4, **WIDTHS)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids()}


def t5():
    config = transformers.T5Config(vocab_size=50, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=4)
    batch = {"input_ids": ids(), "decoder_input_ids": ids(5)}
    return transformers.T5ForConditionalGeneration(config), batch


def vit():
    config = transformers.ViTConfig(image_size=16, patch_size=8, **WIDTHS)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.ones(2, 3, 16, 16)}


# Where a class derives the size of a head from the width, no configuration has fewer heads: they stay.
HEADS_STAY = {gpt2: "*attn.c_attn*", bert: "*.attention.self.*"}
if any(name.endswith("attention.attention") for name, _ in vit()[0].named_modules()):  # before 5.22, ViT too
    HEADS_STAY[vit] = "*.attention.attention.*"


@pytest.mark.parametrize("make", [gpt2, bert, llama, t5, vit])
def test_a_round_trip(make, tmp_path):
    torch.manual_seed(0)
    model, batch = make()
    keep = {HEADS_STAY[make]: 1.0} if make in HEADS_STAY else {}
    sketch = mast.nn.Neurons(mast.Bernoulli(0.5), uniform=True)
    sk = mast.nn.sparsify(model, sketch, example=batch, keep=keep)
    small = sk.submodel(3)
    small.save_pretrained(tmp_path)
    again, problems = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(problems.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    sizes = [sum(p.numel() for p in m.parameters()) for m in (again, small, model)]
    assert sizes[0] == sizes[1] < sizes[2]
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(**batch).logits, small(**batch).logits)
    assert again.config.to_dict() == small.config.to_dict() | {
        key: value for key, value in again.config.to_dict().items() if key in ("_name_or_path", "dtype")
    }


@pytest.mark.parametrize("make", [gpt2, bert])
def test_heads_that_no_configuration_has(make, tmp_path):
    torch.manual_seed(0)
    model, batch = make()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
    with pytest.raises(mast.MastError, match="loadable=True"):
        sk.submodel(3).save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
