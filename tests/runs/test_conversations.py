"""Tests supervised training on conversations from the configuration on."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.grading import samples_of

pytestmark = pytest.mark.mixed_dtypes


def chats(count):
    """Returns conversations of sums, with two or three answers each."""
    found = []
    for i in range(count):
        a, b = i % 7 + 1, i % 5 + 2
        asked = [f"{a}+{b}", f"{a}+{b + 1}", f"{b}+{b}"][: 2 + i % 2]
        messages = [{"role": "system", "content": f"Add {i}."}]
        for sum_ in asked:
            worth = sum(map(int, sum_.split("+")))
            messages.append({"role": "user", "content": sum_})
            messages.append({"role": "assistant", "content": f"{sum_}={worth} #### {worth}"})
        found.append({"messages": messages})
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Returns the overrides of a small run of the recipe."""
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in chats(28)))
    return (
        *("experiment=conversations_sft", f"data.path={path}", "data.held_out_size=4"),
        *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2"),
        *("model.feed_forward_width=64", "model.max_positions=256", "tracker=none", "debug=on"),
        *("prompts_per_step=8", "max_prompt_tokens=112", "max_response_tokens=24", "steps=6"),
        *("optimizer.learning_rate=0.01", "optimizer.warmup_steps=2"),
        *("update.microbatch_widths=1", "update.tokens_per_microbatch=2048", "update.pack=true"),
    )


@pytest.fixture(scope="module")
def trained(small):
    run = build(compose(small))
    return run, list(train(run.loop, run.state))


@pytest.mark.slow
def test_the_loss_of_the_answers_falls(trained):
    run, infos = trained
    losses = [info.metrics["update/loss"] for info in infos]
    assert all(info.metrics["update/grad_norm"] > 0 for info in infos)
    assert losses[-1] < 0.8 * losses[0]
    rates = [info.metrics["update/learning_rate"] for info in infos]
    assert rates[0] < max(rates) > rates[-1]  # warms up, and falls along a cosine
    assert "2 epochs" in run.sizes  # 6 steps of 8 out of 24 conversations


@pytest.mark.slow
def test_all_answers_of_a_conversation_are_trained_and_nothing_else(trained):
    run, infos = trained
    tokenizer, info = run.loop.policy.tokenizer, infos[0]
    for row, episode in enumerate(info.episodes):
        tokens, mask = (
            np.asarray(x[row]) for x in (info.trajectories.tokens_BT, info.loss_mask_BT)
        )
        said = [m["content"] for m in episode.prompt.messages if m["role"] == "assistant"]
        assert len(said) in (2, 3)
        assert tokenizer.decode(tokens[mask]) == "".join(f"{text}<|end|>" for text in said)
        assert episode.response == said[-1]
    answered = int(np.asarray(info.loss_mask_BT).sum())
    assert info.metrics["rollout/response_tokens"] == answered / 8


def test_a_sample_shows_what_stands_between_the_answers(trained):
    run, infos = trained
    (sample,) = samples_of(infos[0], 1, run.loop.policy.tokenizer)
    line = sample.to_dict()
    tokens, messages = line["tokens"], infos[0].episodes[0].prompt.messages
    assert tokens["prompt"] == (
        f"<|system|>{messages[0]['content']}<|end|><|user|>{messages[1]['content']}<|end|>"
        "<|assistant|>"
    )
    assert "".join(tokens["texts"]).startswith(f"{messages[2]['content']}<|end|><|user|>")
    assert len(tokens["mask"]) == len(tokens["ids"]) == len(tokens["logprobs"])
    assert tokens["mask"].count("1") == line["length"]
    assert "10" in tokens["mask"]
    assert line["response"] == messages[-1]["content"]


def by_hand(messages):
    """Returns the texts of a conversation, each with whether it is trained."""
    for message in messages:
        yield f"<|{message['role']}|>", False
        yield f"{message['content']}<|end|>", message["role"] == "assistant"


@pytest.mark.slow
def test_loss_and_gradient_are_those_of_the_answers_by_hand(trained, small):
    """The mean of -log p over the tokens of answers; every other token is only read."""
    _, infos = trained
    run = build(compose(small))
    policy, params = run.loop.policy, run.state.params
    tokens_BT, marks_BT = np.zeros((2, 8, 128), np.int32)
    for row, episode in enumerate(infos[0].episodes):
        texts, trained = zip(*by_hand(episode.prompt.messages), strict=True)
        pieces = policy.tokenizer(list(texts))["input_ids"]
        tokens = [token for piece in pieces for token in piece]
        tokens_BT[row, : len(tokens)] = tokens
        marks_BT[row, : len(tokens)] = np.repeat(trained, list(map(len, pieces)))
    positions_BT = np.broadcast_to(np.arange(128, dtype=np.int32), (8, 128))

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        args = (tokens_BT, positions_BT, np.ones((8, 128), np.int32))
        hidden_BTD = policy.decoder.hidden(params, *args)
        logprobs_BTV = jax.nn.log_softmax(policy.decoder.logits(params, hidden_BTD[:, :-1]))
        targets_BT1 = tokens_BT[:, 1:, None]
        logprobs_BT = jnp.take_along_axis(logprobs_BTV, targets_BT1, axis=-1)[..., 0]
        return -jnp.sum(jnp.where(marks_BT[:, 1:] > 0, logprobs_BT, 0.0)) / marks_BT.sum()

    value, gradient = loss(params)
    norm = float(optax.tree.norm(gradient))
    assert norm > 0
    np.testing.assert_allclose(infos[0].metrics["update/loss"], value, rtol=1e-5)
    np.testing.assert_allclose(infos[0].metrics["update/grad_norm"], norm, rtol=1e-4)


@pytest.mark.slow
def test_packing_changes_neither_the_loss_nor_the_parameters(trained, small):
    _, infos = trained
    run = build(compose([*small, "update.pack=false", "steps=2", "optimizer.total_steps=6"]))
    for ours, theirs in zip(train(run.loop, run.state), infos, strict=False):
        for name in ("update/loss", "update/grad_norm", "update/entropy"):
            np.testing.assert_allclose(ours.metrics[name], theirs.metrics[name], rtol=1e-5)


@pytest.mark.slow
def test_a_run_that_was_saved_goes_on_bit_for_bit(trained, small, tmp_path):
    _, infos = trained
    first = build(compose(small))
    for info in train(first.loop, first.state):
        if info.step == 4:  # in the second epoch
            with Orbax().open(tmp_path, first.loop.stateful) as checkpoints:
                checkpoints.save(info.state)
            break
    again = build(compose(small))
    with Orbax().open(tmp_path, again.loop.stateful) as checkpoints:
        state = checkpoints.restore(again.state)
    rest = list(train(again.loop, state))
    assert [info.step for info in rest] == [5, 6]
    for ours, theirs in zip(rest, infos[4:], strict=True):
        assert [e.prompt.id for e in ours.episodes] == [e.prompt.id for e in theirs.episodes]
        assert ours.metrics["update/loss"] == theirs.metrics["update/loss"]
    pair = (jax.device_get(x[-1].state.params) for x in (rest, infos))
    jax.tree.map(np.testing.assert_array_equal, *pair)


@pytest.mark.slow
def test_a_conversation_that_cannot_be_trained_ends_the_run_before_it_begins(small, tmp_path):
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("1+1", "2+2")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"does not fit the conversation .*: no message is of the"):
        build(compose([*small, f"data.path={path}", "data.held_out_size=1"]))
