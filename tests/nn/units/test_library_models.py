"""Models of transformers, cut in one call."""

from __future__ import annotations

import pytest

import mast

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def ids(length=7):
    return torch.randint(0, 50, (2, length), generator=torch.Generator().manual_seed(0))


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    units = {"attn.c_attn.weight": 4, "mlp.c_fc.weight": 96}
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids()}, units


def bert():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=30
    )
    units = {"attention.self.query.weight": 4, "intermediate.dense.weight": 30}
    return transformers.BertForSequenceClassification(config), {"input_ids": ids()}, units


def llama():
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=16,
    )  # fmt: skip
    units = {"self_attn.q_proj.weight": 4, "mlp.gate_proj.weight": 40}
    return transformers.LlamaForCausalLM(config), {"input_ids": ids()}, units


def mixtral():
    config = transformers.MixtralConfig(
        vocab_size=50, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, num_local_experts=3, max_position_embeddings=16,
    )  # fmt: skip
    units = {"self_attn.q_proj.weight": 4, "mlp.experts.gate_up_proj": 40}  # the same of all experts
    return transformers.MixtralForCausalLM(config), {"input_ids": ids()}, units


def t5():
    config = transformers.T5Config(vocab_size=50, d_model=24, d_kv=6, d_ff=30, num_layers=2, num_heads=4)
    batch = {"input_ids": ids(), "decoder_input_ids": ids(5)}
    # Heads of all layers share their biases of relative positions: one group per stack, others per layer.
    units = {"block.0.layer.0.SelfAttention.q.weight": 4, "layer.1.EncDecAttention.q.weight": 4}
    return transformers.T5ForConditionalGeneration(config), batch, units


SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip


def qwen2():
    config = transformers.Qwen2Config(**SMALL, num_key_value_heads=2)
    units = {"self_attn.q_proj.weight": 2, "mlp.gate_proj.weight": 40}
    return transformers.Qwen2ForCausalLM(config), {"input_ids": ids()}, units


def phi():
    """Half of each head is rotated; attention and MLP are added to the trunk at once."""
    config = transformers.PhiConfig(**SMALL, partial_rotary_factor=0.5, pad_token_id=0)
    units = {"self_attn.q_proj.weight": 4, "mlp.fc1.weight": 40}
    return transformers.PhiForCausalLM(config), {"input_ids": ids()}, units


def gpt_neox():
    """Queries, keys and values of a head lie side by side in one weight."""
    config = transformers.GPTNeoXConfig(**SMALL)
    units = {"attention.query_key_value.weight": 4, "mlp.dense_h_to_4h.weight": 40}
    return transformers.GPTNeoXForCausalLM(config), {"input_ids": ids()}, units


def gptj():
    config = transformers.GPTJConfig(
        vocab_size=50, n_embd=24, n_layer=2, n_head=4, rotary_dim=4, bos_token_id=0, eos_token_id=0
    )
    units = {"attn.k_proj.weight": 4, "mlp.fc_in.weight": 96}  # as many heads as rotated entries
    return transformers.GPTJForCausalLM(config), {"input_ids": ids()}, units


def falcon():
    config = transformers.FalconConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True,
    )  # fmt: skip
    units = {"self_attention.query_key_value.weight": 2, "mlp.dense_h_to_4h.weight": 96}
    return transformers.FalconForCausalLM(config), {"input_ids": ids()}, units


def xlnet():
    """Weights of three dimensions in torch.einsum()."""
    config = transformers.XLNetConfig(vocab_size=50, d_model=24, n_layer=2, n_head=4, d_inner=40)
    units = {"rel_attn.q": 4, "ff.layer_1.weight": 40}
    return transformers.XLNetForSequenceClassification(config), {"input_ids": ids()}, units


def deberta():
    """Scores are gathered by relative positions, and positions go through the layers of words."""
    config = transformers.DebertaV2Config(
        **SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=16
    )
    units = {"attention.self.query_proj.weight": 4, "intermediate.dense.weight": 40}
    return transformers.DebertaV2ForSequenceClassification(config), {"input_ids": ids()}, units


def wav2vec2():
    """In training mode it hides spans that it draws with NumPy."""
    config = transformers.Wav2Vec2Config(
        **SMALL, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    units = {"attention.k_proj.weight": 4, "feed_forward.intermediate_dense.weight": 40}
    batch = {"input_values": torch.linspace(-1, 1, 2 * 400).view(2, 400)}
    return transformers.Wav2Vec2ForCTC(config), batch, units


def mamba():
    """Its blocks ask their norms for the type of their weights."""
    config = transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4)
    return transformers.MambaForCausalLM(config), {"input_ids": ids()}, {}


OLD_SCRIPT = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
OTHERS = [
    qwen2, phi, gpt_neox, gptj, falcon, xlnet, pytest.param(deberta, marks=OLD_SCRIPT), wav2vec2
]  # fmt: skip


@pytest.mark.parametrize("make", [gpt2, bert, llama, mixtral, t5, *OTHERS])
def test_heads_and_mlp_units(make):
    torch.manual_seed(0)
    model, batch, units = make()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
    found = {group.name: group.units for group in sk.unit_map.groups}
    for end, count in units.items():
        assert [n for name, n in found.items() if name.endswith(end)] == [count, count]
    small = sk.submodel(1)
    assert type(small) is type(model)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    model.eval()
    kept = sk.kept(mast.randomness.Key(1))
    with torch.no_grad():
        for w in sk.weights:
            w.parameter.mul_(torch.from_numpy(kept[w.name].diagonal()).to(w.parameter))
        torch.testing.assert_close(small(**batch).logits, model(**batch).logits, rtol=0, atol=1e-5)


def phi3():
    """It slices its fused qkv by numbers of the configuration."""
    config = transformers.Phi3Config(**SMALL, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    return transformers.Phi3ForCausalLM(config), {"input_ids": ids()}


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(
        **SMALL, head_dim=6, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2
    )
    return transformers.Qwen3MoeForCausalLM(config), {"input_ids": ids()}


def test_what_stays_whole_has_a_reason_in_words():
    torch.manual_seed(0)
    model, batch = phi3()
    unit_map = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch).unit_map
    reason = unit_map.excluded["model.layers.0.self_attn.qkv_proj.weight"]
    assert "the code of Phi3Attention works with all of them only, perhaps because it reads their" in reason
    assert reason.endswith("which all layers share")  # and not with an error of torch's
    assert [s.name.split(".")[-2] for s in unit_map.groups] == ["gate_up_proj", "gate_up_proj"]


def test_experts_whose_kernel_takes_round_numbers_only():
    torch.manual_seed(0)
    model, batch = qwen3_moe()
    name = "model.layers.0.mlp.experts.gate_up_proj"
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
    assert "set_experts_implementation" in sk.unit_map.excluded.get(name, "set_experts_implementation")
    sk.remove()
    model.set_experts_implementation("eager")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
    assert {s.name: s.units for s in sk.unit_map.groups}[name] == 24


def test_sizes_that_a_kernel_does_not_take_are_known_before_training():
    """Ten numbers are no multiple of 16 bytes; four and sixteen are."""
    torch.manual_seed(0)
    model, batch, _ = mixtral()
    name = "model.layers.0.mlp.experts.gate_up_proj"
    sk = mast.nn.elastic(model, [0.25, 1.0], [batch])
    assert "a kernel that takes multiples of 16 bytes only" in sk.unit_map.excluded[name]
    for member in range(2):
        with sk.member(member):
            model(**batch).logits.sum().backward()
    sk.remove()
    sk = mast.nn.elastic(model, [0.1, 0.4, 1.0], [batch])
    assert name in {group.name for group in sk.unit_map.groups}


def convnext_v2():
    config = transformers.ConvNextV2Config(hidden_sizes=[8, 8], depths=[1, 1], num_stages=2, num_labels=3)
    batch = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)}
    return transformers.ConvNextV2ForImageClassification(config), batch


def mamba2():
    config = transformers.Mamba2Config(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, head_dim=8, num_heads=4, state_size=4, n_groups=1,
        chunk_size=4,
    )  # fmt: skip
    return transformers.Mamba2ForCausalLM(config), {"input_ids": ids()}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (convnext_v2, r"pwconv1\.weight: mean\(\) in the module '.*grn' \(ConvNextV2GRN\) sums or compares"),
        (mamba2, r"in_proj\.weight: mul\(\) in the module '.*mixer' \(Mamba2Mixer\) combines them"),
    ],
)
def test_models_whose_units_all_depend_on_each_other(make, reason):
    torch.manual_seed(0)
    model, batch = make()
    with pytest.raises(mast.MastError, match=reason):
        mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
    sk = mast.nn.sparsify(model, mast.nn.Layers(mast.RandK(0.5)), example=batch)
    assert sk.unit_map.branches


class Experts(torch.nn.Module):
    """Each half of the rows goes through an expert, by the operation of transformers."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(2, 8, 12))
        self.down = torch.nn.Parameter(torch.randn(2, 12, 3))

    def forward(self, x):
        ends = torch.tensor([len(x) // 2, len(x)], dtype=torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback
        return product(product(x, self.up, ends).relu(), self.down, ends)


def test_experts_where_pytorch_has_no_kernel_for_them():
    """Such as torch 2.8 on processors: transformers has an operation of its own."""
    pytest.importorskip("transformers.integrations.moe")
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        pytest.skip("this version of transformers does not have it")
    torch.manual_seed(0)
    model, batch = Experts().double(), torch.randn(6, 8).double()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
    assert [group.units for group in sk.unit_map.groups] == [12]
    small = sk.submodel(1)  # which checks itself
    assert (small.up.shape, small.down.shape) == ((2, 8, 6), (2, 6, 3))


@pytest.mark.parametrize("make", [gpt2, bert, llama, t5, gpt_neox])
def test_sizes_are_computed_with_slices(make):
    """Each size, in place, computes what its submodel does, and has the gradients of its submodel."""
    torch.manual_seed(0)
    model, batch, _ = make()
    model.eval()
    sk = mast.nn.elastic(model, [0.25, 0.5, 1.0], [batch])
    whole = dict(model.named_parameters())
    for member in range(3):
        small = sk.submodel(member=member).requires_grad_().eval()
        out = small(**batch).logits
        out.square().sum().backward()
        with sk.member(member):
            assert sk.calls.slices.of(sk.draw()) is not None
            mine = model(**batch).logits
        mine.square().sum().backward()
        torch.testing.assert_close(mine, out, rtol=0, atol=1e-5)
        for name, p in small.named_parameters():
            if p.grad is not None:
                found, expected = (float(g.abs().sum()) for g in (whole[name].grad, p.grad))
                assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), name
        model.zero_grad()


@pytest.mark.parametrize("make", [gpt2, bert, llama, mixtral, t5, gpt_neox])
def test_units_are_sorted(make):
    """Fused and interleaved qkv, grouped heads, gated MLPs, experts: the function stays."""
    torch.manual_seed(0)
    model, batch, units = make()
    model.eval()
    with torch.no_grad():
        before = model(**batch).logits
    orders = mast.nn.sort_units(model, [batch])
    for end in units:
        assert [len(o) for name, o in orders.items() if name.endswith(end)] == [units[end]] * 2
    assert sum(list(o) != sorted(o) for o in orders.values()) > len(orders) / 2
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, before, rtol=0, atol=1e-5)


def test_decoder_layers_of_t5_can_keep_different_numbers_of_heads():
    """They add the zeros of the first one's heads: where fewer are kept, others stay beside them, times 0."""
    torch.manual_seed(0)
    model, batch, _ = t5()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), example=batch)
    names = [f"decoder.block.{i}.layer.1.EncDecAttention.q.weight" for i in (0, 1)]
    different = False
    for seed in range(4):
        small = sk.submodel(seed)  # which checks itself
        kept = [sk.draw(seed)[name].count for name in names]
        rows = [small.get_parameter(name).shape[0] // 6 for name in names]
        assert rows == [max(*kept, 1)] * 2
        different |= kept[0] != kept[1]
    assert different


def test_a_decoder_whose_inputs_are_made_of_labels():
    model, batch, _ = t5()
    labels = batch.pop("decoder_input_ids")
    with pytest.raises(mast.MastError, match=r"labels were left out: .* such as decoder_input_ids"):
        mast.nn.elastic(model, [0.5, 1.0], [batch | {"labels": labels}])
    with pytest.raises(mast.MastError, match="cannot be run on the example") as error:
        mast.nn.elastic(model, [0.5, 1.0], [batch])
    assert "labels" not in str(error.value)
    other, wrong = bert()[0], {"input_ids": ids().float(), "labels": labels}
    with pytest.raises(mast.MastError, match="cannot be run on the example") as error:
        mast.nn.elastic(other, [0.5, 1.0], [wrong])
    assert "labels" not in str(error.value)
    given = batch | {"labels": labels, "decoder_input_ids": labels}
    assert mast.nn.elastic(model, [0.5, 1.0], [given]).unit_map.groups


def test_a_class_that_derives_the_size_of_heads_is_told_it(tmp_path):
    torch.manual_seed(0)
    model, batch, _ = qwen2()
    small = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch).submodel(3)
    small.save_pretrained(tmp_path)
    again = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path).eval()
    assert (again.config.num_attention_heads, again.config.head_dim) == (2, 8)
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).logits, small(**batch).logits)


def test_a_small_llama_is_saved_and_read_again(tmp_path):
    torch.manual_seed(0)
    model, batch, _ = llama()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5), uniform=True), example=batch)
    small = sk.submodel(3)
    sizes = {group.units: sk.draw(3)[group.name].count for group in sk.unit_map.groups}
    assert small.config.num_key_value_heads == sizes[4]
    assert small.config.num_attention_heads == 2 * sizes[4]
    assert small.config.intermediate_size == sizes[40]
    assert model.config.intermediate_size == 40
    small.save_pretrained(tmp_path)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).logits, small(**batch).logits)


@pytest.mark.parametrize("make", [bert, gpt2, qwen2])
def test_loadable_submodels_are_read_bit_for_bit(make, tmp_path):
    """Heads whose size follows from their number, and BERT's pooler, stay whole; Qwen can say its heads."""
    torch.manual_seed(0)
    model, batch, units = make()
    model.eval()
    sk = mast.nn.elastic(model, [0.5, 1.0], [batch], loadable=True)
    cut = {group.units for group in sk.unit_map.groups}
    assert cut == ({2, 40} if make is qwen2 else {max(units.values())})
    whole = [reason for reason in sk.unit_map.excluded.values() if "cannot say their number" in reason]
    assert len(whole) == {bert: 2, gpt2: 2, qwen2: 0}[make]
    small = sk.submodel(member=0)
    small.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, small(**batch).logits)


def test_a_pooler_is_a_part_of_the_head():
    torch.manual_seed(0)
    model, batch, _ = bert()
    name = "bert.pooler.dense.weight"
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=batch)
    (finding,) = [f for f in mast.nn.validate(model) if f.where == name]
    assert "they are the model's head" in finding.problem
    assert finding.fix.startswith("leave them whole with keep={'bert.pooler.dense.weight': 1.0}")
    sk.remove()
    sk = mast.nn.elastic(model, [0.5, 1.0], [batch])
    assert name not in [group.name for group in sk.unit_map.groups]
    assert "the pooler, a part of the head" in sk.unit_map.excluded[name]
    assert "the pooler, a part of the head" in str(sk)
    assert not [f for f in mast.nn.validate(model) if f.where == name]
    sk.remove()
    sk = mast.nn.elastic(model, [0.5, 1.0], [batch], keep={})
    assert name in [group.name for group in sk.unit_map.groups]


def test_other_models_have_no_configuration():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with pytest.raises(mast.MastError, match="loadable=True is for models of transformers"):
        mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5), loadable=True), example=torch.ones(1, 3))


def test_sizes_without_a_configuration_are_refused(tmp_path):
    torch.manual_seed(0)
    model, batch, _ = llama()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), example=batch)
    with pytest.raises(mast.MastError, match="loadable=True"):
        sk.submodel(3).save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [gpt2, bert, llama, t5, phi, falcon, wav2vec2, mamba])
def test_branches_are_really_removed(make):
    torch.manual_seed(0)
    model, batch, _ = make()
    sk = mast.nn.sparsify(model, mast.nn.Layers(mast.RandK(0.5)), example=batch)
    branches = sk.unit_map.groups[0].units
    assert branches == {t5: 10, wav2vec2: 5, mamba: 2}.get(make, 4)
    small = sk.submodel(1)  # which checks itself
    left = dict(small.named_parameters())
    kept = sk.draw(1)[sk.unit_map.groups[0].name].indices
    gone = [b.name for number, b in enumerate(sk.unit_map.branches) if number not in kept]
    assert len(gone) == branches // 2
    assert not set(gone) & set(left)
    with pytest.raises(mast.MastError, match="branches were taken out"):
        small.save_pretrained("nowhere")
