"""Tests training on preference pairs, and the loss on held-out answers, from the configuration."""

import json

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build
from tests.support.build_words import SMALL

pytestmark = pytest.mark.mixed_dtypes

MODEL = (
    *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2"),
    *("model.feed_forward_width=64", "model.max_positions=64", "tracker=none", "debug=on"),
    *("update.microbatch_widths=1", "optimizer.warmup_steps=0"),
)


def rows(count):
    for i in range(count):
        a, b = i % 7 + 1, i % 5 + 2
        row = {"prompt": [{"role": "user", "content": f"{a}+{b}"}]}
        for key, text in (("chosen", f"#### {a + b}"), ("rejected", f"no idea {i}")):
            row[key] = [{"role": "assistant", "content": text}]
        yield row


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(28)))
    return (
        *("experiment=preferences_dpo", f"data.path={path}", "data.held_out_size=4", *MODEL),
        *("prompts_per_step=8", "max_prompt_tokens=24", "max_response_tokens=16", "steps=8"),
        "optimizer.learning_rate=0.003",
    )


@pytest.fixture(scope="module")
def trained(words):
    run = build(compose(words))
    before = run.evaluation.evaluate(run.state)
    infos = list(train(run.loop, run.state))
    return run, before, infos, run.evaluation.evaluate(infos[-1].state)


@pytest.mark.slow
def test_the_loss_of_the_pairs_falls_also_of_held_out_ones(trained):
    _, before, infos, after = trained
    assert all(info.metrics["update/grad_norm"] > 0 for info in infos)
    assert infos[0].metrics["update/loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert infos[-1].metrics["update/loss"] < 0.6
    assert before["eval/preferences/loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert after["eval/preferences/loss"] < 0.6
    assert after["eval/preferences/preference_accuracy"] == 1
    assert after["eval/preferences/prompts"] == 4
    assert not any("pass_at_1" in name for name in after)  # nothing is sampled


def test_the_samples_of_a_step_are_the_responses_of_the_file(trained):
    _, _, infos, _ = trained
    for episode, reward in zip(infos[0].episodes, infos[0].rewards.total_B, strict=True):
        assert episode.response == episode.prompt.pair[0 if reward == 1 else 1]["content"]
    assert infos[0].rewards.total_B.tolist() == [1, 0] * 8
    ages = [info.metrics["staleness/max"] for info in infos]
    assert ages == [0] * len(infos)  # no policy drew the tokens


def test_only_the_responses_are_trained(trained):
    run, _, infos, _ = trained
    tokenizer, info = run.loop.policy.tokenizer, infos[0]
    for row, episode in enumerate(info.episodes):
        tokens, mask = (
            np.asarray(x[row]) for x in (info.trajectories.tokens_BT, info.loss_mask_BT)
        )
        assert tokenizer.decode(tokens[mask]) == f"{episode.response}<|end|>"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["group_size=4"], "group_size=4, but rollout=preferences gives two responses"),
        (["data=arithmetic"], "rollout=preferences needs two responses to each question"),
        (["evaluation.held_out=false"], "evaluation.loss=true needs the held-out questions"),
    ],
)
def test_what_does_not_fit_is_refused(words, changes, sentence):
    own = [word for word in words if not word.startswith("data.") or "data=" not in changes[0]]
    changes = [*changes, *["+data@evaluation.tasks.own=arithmetic"] * ("held_out" in changes[0])]
    with pytest.raises(InputError, match=sentence):
        build(compose([*own, *changes]))


def test_a_loss_needs_given_responses():
    with pytest.raises(InputError, match="loss of given responses, but rollout=continuous has n"):
        build(compose([*SMALL, "evaluation.loss=true"]))


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_worked_answers_have_a_loss_and_a_perplexity(sampled):
    sft = ("rollout=demonstrations", "advantage=constant", "update=sft", "group_size=1")
    more = ["+rollout@evaluation.rollout=continuous"] if sampled else []
    run = build(compose([*SMALL, *sft, "evaluation.loss=true", "steps=4", *more]))
    before = run.evaluation.evaluate(run.state)
    *_, last = train(run.loop, run.state)
    assert last.metrics["update/grad_norm"] > 0
    after = run.evaluation.evaluate(last.state)
    assert after["eval/arithmetic/loss"] < before["eval/arithmetic/loss"]
    assert after["eval/arithmetic/perplexity"] == pytest.approx(
        np.exp(after["eval/arithmetic/loss"])
    )
    assert ("eval/arithmetic/pass_at_1" in after) == sampled
    assert [prompt.task for prompt in run.evaluation.prompts] == ["arithmetic"] * 4


@pytest.mark.slow
def test_a_mixture_of_pairs_has_a_loss_by_task(tmp_path, words):
    sets = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows(10)))
        sets += [f"+data@data.sets.{name}=preferences", f"data.sets.{name}.path={path}"]
        sets += [f"data.sets.{name}.held_out_size=2"]
    own = [word for word in words if not word.startswith("data.")]
    run = build(compose([*own, "data=mixture", *sets, "prompts_per_step=4"]))
    metrics = run.evaluation.evaluate(run.state)
    assert {"eval/one/loss", "eval/two/loss"} <= metrics.keys()
    state = jax.tree.map(lambda x: x, run.state)
    assert next(train(run.loop, state)).metrics["update/grad_norm"] > 0
