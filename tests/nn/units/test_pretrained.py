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
    with pytest.raises(mast.MastError, match="loadable=True") as error:
        sk.submodel(3).save_pretrained(tmp_path)
    assert "uniform" not in str(error.value)  # which does not help here
    assert not list(tmp_path.iterdir())


IMAGES = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)}
PATCHES = {"image_size": 16, "patch_size": 8}
TOKENS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def modernbert():
    config = transformers.ModernBertConfig(**TOKENS, cls_token_id=3, sep_token_id=4, **WIDTHS)
    return transformers.ModernBertForSequenceClassification(config), {"input_ids": ids()}


def dinov2():
    """Its MLPs have a multiple of the width."""
    config = transformers.Dinov2Config(
        **PATCHES, hidden_size=32, num_hidden_layers=2, num_attention_heads=8, mlp_ratio=4
    )
    return transformers.Dinov2ForImageClassification(config), IMAGES


def siglip():
    """Two configurations in one, and a pooling head whose MLP is as wide as those of the layers."""
    text = {**TOKENS, "max_position_embeddings": 16, "projection_size": 32, **WIDTHS}
    config = transformers.SiglipConfig(text_config=text, vision_config=PATCHES | WIDTHS)
    return transformers.SiglipModel(config), {"input_ids": ids()} | IMAGES


def clip():
    text = {**TOKENS, "max_position_embeddings": 16, **WIDTHS, "intermediate_size": 56}
    config = transformers.CLIPConfig(text_config=text, vision_config=PATCHES | WIDTHS, projection_dim=16)
    return transformers.CLIPModel(config), {"input_ids": ids()} | IMAGES


def deberta():
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 16}
    config = transformers.DebertaV2Config(vocab_size=50, **relative, **WIDTHS)
    return transformers.DebertaV2ForSequenceClassification(config), {"input_ids": ids()}


def bert_classifier():
    config = transformers.BertConfig(vocab_size=50, **WIDTHS)
    return transformers.BertForSequenceClassification(config), {"input_ids": ids()}


def llama():
    """Six of its eight heads would work, and its configuration refuses them: they do not divide the width."""
    config = transformers.LlamaConfig(**TOKENS, **WIDTHS, num_key_value_heads=4, use_cache=False)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids()}


def mamba():
    """It has inner units, and ranks of the projection that makes its steps."""
    config = transformers.MambaConfig(**TOKENS, hidden_size=32, num_hidden_layers=2, state_size=4)
    return transformers.MambaForCausalLM(config), {"input_ids": ids(), "use_cache": False}


def swin():
    """One ratio says how wide the MLPs of all stages are, and the stages differ."""
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4
    )
    return transformers.SwinForImageClassification(config), IMAGES


def segformer():
    """It has a ratio for each stage."""
    config = transformers.SegformerConfig(
        num_encoder_blocks=2, depths=[1, 2], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3],
        strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[4, 4],
    )  # fmt: skip
    return transformers.SegformerForImageClassification(config), IMAGES


def llama_with_two_groups():
    """Some draws keep none of them, and small models one."""
    config = transformers.LlamaConfig(**TOKENS, **WIDTHS, num_key_value_heads=2, use_cache=False)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids()}


def tensors(output):
    return [t for t in output.values() if isinstance(t, torch.Tensor)]


OLD_SCRIPT = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


@pytest.mark.parametrize(
    ("make", "cut", "whole"),
    [
        (modernbert, ["mlp.Wi"], ["attn.Wqkv"]),
        (dinov2, ["attention.q_proj", "mlp.fc1"], []),
        (siglip, ["mlp.fc1"], ["attention.in_proj_weight", "self_attn.k_proj"]),
        (swin, ["mlp.fc1"], ["attention.q_proj"]),
        (segformer, ["mlp.fc1"], ["attention.q_proj"]),
        (mamba, ["mixer.A_log", "mixer.x_proj"], []),
        (clip, ["mlp.fc1"], ["self_attn.k_proj"]),
        pytest.param(deberta, ["intermediate.dense"], ["pooler.dense", "self.query_proj"], marks=OLD_SCRIPT),
        (bert_classifier, ["intermediate.dense"], ["pooler.dense", "self.query"]),
        (llama, ["mlp.gate_proj"], ["self_attn.q_proj"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_loadable_size_is_read_bit_for_bit(make, cut, whole, tmp_path):
    torch.manual_seed(0)
    model, batch = make()
    model.eval()
    sketch = mast.nn.Neurons(mast.Nested([0.25, 0.5, 0.75, 1.0], scaled=False), loadable=True)
    sk = mast.nn.sparsify(model, sketch, example=batch)

    def ends(names):
        return sorted({".".join(name.removesuffix(".weight").split(".")[-2:]) for name in names})

    assert ends(group.name for group in sk.unit_map.groups) == sorted(cut)
    kept = [name for name, reason in sk.unit_map.excluded.items() if "cannot say their number" in reason]
    assert ends(kept) == sorted(whole)
    assert all(name in str(sk) for name in kept)
    sizes = []
    for member in range(4):
        small, folder = sk.submodel(member=member), tmp_path / str(member)
        small.save_pretrained(folder)
        again, problems = type(model).from_pretrained(folder, output_loading_info=True)
        assert not any(problems.values())
        with torch.no_grad():
            for read, made in zip(*(tensors(m(**batch)) for m in (again.eval(), small)), strict=True):
                assert torch.equal(read, made)
        sizes.append(sum(p.numel() for p in again.parameters()))
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == sum(p.numel() for p in model.parameters())


def test_sizes_that_the_configuration_cannot_say_stay_whole():
    """A ratio of 4 has no 30 per cent in whole numbers."""
    torch.manual_seed(0)
    model, batch = dinov2()
    sketch = mast.nn.Neurons(mast.Nested([0.3, 1.0], scaled=False), loadable=True)
    unit_map = mast.nn.sparsify(model, sketch, example=batch).unit_map
    assert all("q_proj" in group.name for group in unit_map.groups)
    assert sum("cannot say their number" in reason for reason in unit_map.excluded.values()) == 2


@pytest.mark.parametrize(
    ("make", "sketch", "cut"),
    [
        (llama, mast.RandK(0.75), ["mlp"]),
        (llama, mast.Bernoulli(0.6), ["mlp"]),
        (llama, mast.RandK(0.5), ["mlp", "self_attn"]),
        (llama_with_two_groups, mast.Bernoulli(0.5), ["mlp", "self_attn"]),
        (dinov2, mast.RandK(0.5), ["attention", "mlp"]),
        (dinov2, mast.RandK(0.75), ["attention", "mlp"]),
        (dinov2, mast.RandK(0.3), ["attention"]),
    ],
)
def test_the_sizes_of_a_random_sketch_are_tried(make, sketch, cut, tmp_path):
    """Six heads do not divide the width of Llama, and three tenths of 4 are no whole number."""
    torch.manual_seed(0)
    model, batch = make()
    model.eval()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(sketch, loadable=True), example=batch)
    assert sorted({group.name.split(".")[-3] for group in sk.unit_map.groups}) == cut
    for seed in range(3):
        small = sk.submodel(seed)
        small.save_pretrained(tmp_path / str(seed))
        again = type(model).from_pretrained(tmp_path / str(seed)).eval()
        with torch.no_grad():
            assert torch.equal(again(**batch).logits, small(**batch).logits)


def test_a_model_whose_configuration_can_say_nothing():
    """The MLPs of ConvNeXt have four times the width, whatever its configuration says."""
    config = transformers.ConvNextConfig(hidden_sizes=[8, 8], depths=[1, 1], num_stages=2)
    model = transformers.ConvNextForImageClassification(config)
    with pytest.raises(mast.MastError, match="its configuration cannot say how many are left"):
        mast.nn.elastic(model, [0.5, 1.0], [{"pixel_values": torch.ones(2, 3, 16, 16)}], loadable=True)
