"""A Hugging Face model with random weights, and the Trainer callback, with the real library."""

from __future__ import annotations

import copy
import importlib.util

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")

absent = importlib.util.find_spec("transformers") is None  # importing it takes seconds: left to the tests
pytestmark = [
    pytest.mark.skipif(absent, reason="the callback is for Transformers"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the library's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),  # on machines without an accelerator
    pytest.mark.filterwarnings("ignore:.*None of the inputs have requires_grad.*"),  # reentrant checkpoints
]


def gpt2():
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=37, n_positions=12,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config).train()


def bert():
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=24, vocab_size=37,
        max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(config).train()


@pytest.fixture
def tokens():
    return torch.randint(0, 37, (3, 4, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("checkpointing", [None, False, True])
@pytest.mark.parametrize("make", [gpt2, bert])
@pytest.mark.parametrize("sketch", [mast.Bernoulli(0.6), mast.PermK(4)])
def test_training_equals_the_reference(reference, same, tokens, make, sketch, checkpointing):
    model = make()
    start = copy.deepcopy(model)
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    sk = mast.nn.sparsify(model, sketch, seed=2)
    sgd = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    ref, opt = reference(sk, start, sgd), sgd(model.parameters())
    for step, t in enumerate(tokens):
        loss = lambda m, t=t: m(input_ids=t, labels=t).loss  # noqa: E731
        loss(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss])
    same(model, ref.x, atol=2e-6)  # the tied embedding's gradients may add in another order


def test_checkpoints_of_several_members_go_back_one_by_one(tokens):
    model, gradients = bert(), []
    sk = mast.nn.elastic(model, [0.5, 1.0], [{"input_ids": tokens[0]}])
    model.train()

    def loss(number):
        with sk.member(number):
            return model(input_ids=tokens[1], labels=tokens[1]).loss

    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        for number in range(2):
            with sk.member(number):
                loss(number).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        model.zero_grad()
    for name, g in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], g, msg=name)
    both = loss(0) + loss(1)
    with pytest.raises(mast.MastError, match=r"inside the same `with sk\.member"), sk.member(1):
        both.backward()


def arguments(folder, **options):
    import transformers

    return transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, learning_rate=0.05, optim="sgd", report_to=[],
        lr_scheduler_type="constant", max_grad_norm=0.0, use_cpu=True, disable_tqdm=True, seed=3,
        logging_strategy="no", dataloader_pin_memory=False, **options,
    )  # fmt: skip


def train(model, tokens, callback, folder, resume=None, **options):
    import transformers

    rows = [{"input_ids": t, "labels": t} for t in tokens.flatten(0, 1)]
    trainer = transformers.Trainer(
        model=model, args=arguments(folder, **options), train_dataset=rows, callbacks=[callback]
    )
    trainer.train(resume_from_checkpoint=resume)


def test_the_trainer_trains_with_the_draws(reference, same, tokens, tmp_path):
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
    model = gpt2()
    start = copy.deepcopy(model)
    callback = mast.nn.transformers.MastCallback(mast.Bernoulli(0.6), seed=4)
    seen = []
    model.register_forward_hook(lambda m, args, kwargs, out: seen.append(kwargs), with_kwargs=True)
    train(model, tokens, callback, tmp_path, max_steps=3, save_strategy="no")
    assert callback.sk.step == 3
    ref = reference(callback.sk, start, lambda p: torch.optim.SGD(p, lr=0.05))
    for step, kwargs in enumerate(seen):  # the batch, and what the Trainer divides the loss by
        ref.step(step, [lambda m, kwargs=kwargs: m(**kwargs).loss])
    same(model, ref.x, atol=2e-6)


@pytest.mark.parametrize("shift", [None, "init"])
def test_resuming_is_exact(same, tokens, tmp_path, shift):
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
    new = lambda: mast.nn.transformers.MastCallback(mast.PermK(3), seed=4, shift=shift)  # noqa: E731
    whole = gpt2()
    train(whole, tokens, new(), tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    folder = tmp_path / "checkpoint-2"
    assert (folder / "mast.safetensors").exists()
    resumed, callback = gpt2(), new()
    train(resumed, tokens, callback, tmp_path, resume=str(folder), max_steps=4, save_strategy="no")
    assert callback.sk.step == 4
    same(resumed, whole)


def test_there_is_no_handle_before_training():
    with pytest.raises(mast.MastError, match=r"trainer\.train"):
        _ = mast.nn.transformers.MastCallback(mast.Bernoulli(0.6)).sk
