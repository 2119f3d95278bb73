"""Tests of the losses of a reward model, its training, and what term=classifier reads of it."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Episode
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.model.huggingface import write_policy
from rl4p.reward.classifier import Classifier
from rl4p.runs.build import build
from rl4p.update.reward_model import RewardModel

pytestmark = pytest.mark.mixed_dtypes
SCORES = np.array([1.5, -0.5, 0.25, 0.75, 9.0])
SIGNS = (1, -1, -1, 1, 0)
GROUPS = (0, 0, 1, 1, 1)
MARGINS = (0.5, 0.5, 2.0, 2.0, 2.0)


@pytest.fixture
def outcome(make_batch):
    """Returns a function for the loss by the weights of the aggregation, metrics and slopes."""

    def outcome(update, scores=SCORES):
        batch = make_batch(
            np.repeat(np.float64(SIGNS)[:, None], 2, axis=1), np.zeros((5, 2)), groups=GROUPS
        )

        def total(scores_B):
            score_BT = jnp.repeat(scores_B[:, None], 2, axis=1)
            own = batch.scores | {"sequence_score": score_BT, "margins": jnp.asarray(MARGINS)}
            loss_BT, metrics = update(jnp.zeros((5, 2)), replace(batch, scores=own))
            return jnp.sum(loss_BT) / 2, metrics  # the two tokens of a row have its loss

        with jax.enable_x64(True):
            (loss, metrics), slopes = jax.value_and_grad(total, has_aux=True)(jnp.asarray(scores))
        return float(loss), metrics, np.asarray(slopes)

    return outcome


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("options", "margins", "center"),
    [({}, (0, 0), 0.0), ({"margins": True}, (0.5, 2.0), 0.0), ({"center": 0.3}, (0, 0), 0.3)],
    ids=str,
)
def test_pairs(outcome, options, margins, center):
    """The pairs are 1.5 over -0.5 and 0.75 over 0.25; both rows of each have its loss."""
    loss, metrics, slopes = outcome(RewardModel(**options))
    h = np.array([2.0, 0.5])
    sums = np.array([1.0, 1.0])
    expected = -np.log(sigmoid(h - margins)) + center * sums**2
    assert loss == pytest.approx(2 * expected.sum(), rel=1e-9)
    good = -2 * sigmoid(margins - h) + 4 * center * sums
    bad = 2 * sigmoid(margins - h) + 4 * center * sums
    np.testing.assert_allclose(slopes, [good[0], bad[0], bad[1], good[1], 0], rtol=1e-9)
    np.testing.assert_allclose(metrics["preference_margin"][:, 0], [2, 2, 0.5, 0.5, 0])
    np.testing.assert_allclose(metrics["preference_accuracy"][:, 0], [1, 1, 1, 1, 0])


def test_single_responses(outcome):
    loss, metrics, slopes = outcome(RewardModel(kind="pointwise"))
    right = np.array([1.5, 0.5, -0.25, 0.75])  # the score times the sign
    assert loss == pytest.approx(-np.log(sigmoid(right)).sum(), rel=1e-9)
    expected = -sigmoid(-right) * np.array(SIGNS[:4])
    np.testing.assert_allclose(slopes, [*expected, 0], rtol=1e-9)
    assert metrics["label_accuracy"][:, 0].tolist() == [True, True, False, True, False]


def test_what_its_kind_has_no_use_for_is_refused():
    for options in ({"margins": True}, {"center": 0.1}):
        with pytest.raises(ValueError, match="needs kind=bradley_terry"):
            RewardModel(kind="pointwise", **options)
    assert RewardModel().whole_groups
    assert not RewardModel(kind="pointwise").whole_groups


PAIRS = (
    *("data=preferences", "data.held_out_size=3", "rollout=preferences", "reward=preferences"),
    *("advantage=preference", "update=reward_model", "model.score_head=true", "group_size=2"),
    *("prompts_per_step=4", "evaluation.loss=true", "tracker=none", "mesh=single"),
)
SUMS = [(1, 2), (30, 4), (5, 6), (71, 8), (9, 10), (2, 17), (40, 3)]


def chat(role, text):
    return [{"role": role, "content": text}]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {
            "prompt": chat("user", f"{a}+{b}"),
            "chosen": chat("assistant", f"#### {a + b}"),
            "rejected": chat("assistant", f"no #### {a + b + 1}"),
            "margin": 0.5 * a,
        }
        for a, b in SUMS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.path={path}"


def scores_of(run, params, folder):
    """Returns the margins of the held-out pairs by the exported classifier, and their texts."""
    write_policy(folder, run.loop.policy, params)
    term = Classifier(path=str(folder), max_tokens=64)
    prompts = run.evaluation.loss.prompts
    texts = [[message["content"] for message in prompt.pair] for prompt in prompts]
    grades = term(
        [Episode(prompt=p, response=x) for p, two in zip(prompts, texts, strict=True) for x in two]
    )
    return np.array(grades).reshape(-1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [(), pytest.param(("model.lora.rank=2",), marks=pytest.mark.slow)],
    ids=["whole", "adapters"],
)
def test_a_reward_model_learns_and_its_export_has_its_scores(pairs, tmp_path, words):
    run = build(compose([*PAIRS, pairs, "steps=8", "optimizer.learning_rate=2e-3", *words]))
    first = run.evaluation.loss(run.state.params)
    assert first["eval/preferences/loss"] == pytest.approx(np.log(2))  # every score is 0
    infos = list(train(run.loop, run.state))
    assert all(info.metrics["update/grad_norm"] > 0 for info in infos)
    params = infos[-1].state.params
    held_out = run.evaluation.loss(params)
    assert held_out["eval/preferences/preference_accuracy"] == 1
    scores = scores_of(run, params, tmp_path / "out")
    margins = scores[:, 0] - scores[:, 1]
    assert margins.std() > 1e-3
    assert held_out["eval/preferences/preference_margin"] == pytest.approx(margins.mean(), rel=1e-4)
    assert held_out["eval/preferences/score"] == pytest.approx(scores.mean(), rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_a_margin_of_the_row_is_read(pairs):
    words = ("data.metadata_keys=[margin]", "update.margins=true", "steps=1")
    run = build(compose([*PAIRS, pairs, *words]))
    a = [prompt.metadata["margin"] for prompt in run.evaluation.loss.prompts]
    loss = run.evaluation.loss(run.state.params)["eval/preferences/loss"]
    assert loss == pytest.approx(np.mean([np.log1p(np.exp(x)) for x in a]), rel=1e-5)
    (info,) = train(run.loop, run.state)
    assert info.metrics["update/loss"] > np.log(2) + 0.1
    with pytest.raises(InputError, match=r"set data\.metadata_keys=\[margin\]"):
        list(train(*(lambda run: (run.loop, run.state))(build(compose([*PAIRS, pairs, words[1]])))))


@pytest.mark.slow
def test_a_score_is_read_after_what_the_template_writes_last(pairs, tmp_path):
    """As in ChatML, a message ends with a token and a newline, at which transformers reads."""
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    words = (f"model.chat_template={template}", "steps=3", "optimizer.learning_rate=0.01")
    run = build(compose([*PAIRS, pairs, *words]))
    *_, last = train(run.loop, run.state)
    (row, *_), tokenizer = run.evaluation.loss.prompts, run.loop.policy.tokenizer
    assert tokenizer.decode(row.responses[0]).endswith("<|end|>\n")
    scores = scores_of(run, last.state.params, tmp_path / "out")
    held_out = run.evaluation.loss(last.state.params)
    assert held_out["eval/preferences/score"] == pytest.approx(scores.mean(), rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_single_responses_train_a_score(tmp_path):
    path = tmp_path / "labelled.jsonl"
    rows = [
        {"prompt": f"{a}+{b}", "completion": f"{'' if good else 'no '}#### {a + b}", "label": good}
        for a, b in SUMS
        for good in (True, False)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = (
        *("data=jsonl", f"data.path={path}", "data.question_key=prompt"),
        *("data.answer_key=completion", "data.metadata_keys=[label]", "data.several_answers=true"),
        *("data.held_out_size=2", "rollout=demonstrations", "reward=labels"),
        *("advantage=reinforce", "update=reward_model", "update.kind=pointwise", "group_size=1"),
        *("model.score_head=true", "prompts_per_step=8", "evaluation.loss=true", "tracker=none"),
        *("mesh=single", "steps=8", "optimizer.learning_rate=2e-3"),
    )
    run = build(compose(words))
    infos = list(train(run.loop, run.state))
    assert infos[0].metrics["update/loss"] == pytest.approx(np.log(2))
    assert infos[-1].metrics["update/loss"] < 0.5
    assert run.evaluation.loss(infos[-1].state.params)["eval/jsonl/label_accuracy"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.score_head=false",), r"has none: set model\.score_head=true"),
        (("update=dpo",), "generates no tokens, so update=dpo cannot train it"),
        (("kl=fixed",), "without log-probabilities, so kl=fixed would have no effect"),
        (("entropy=top_tokens",), "so entropy=top_tokens would have no effect"),
        (("rollout=continuous", "reward=weighted"), "samples: choose rollout=preferences"),
    ],
    ids=str,
)
def test_what_a_score_has_no_use_for_is_refused(pairs, words, message):
    with pytest.raises(InputError, match=message):
        build(compose([*PAIRS, pairs, *words]))


def test_a_score_head_cannot_sample(pairs):
    run = build(compose([*PAIRS, pairs]))
    with pytest.raises(InputError, match="A model with a score head generates no tokens"):
        run.loop.policy.for_sampling(run.state.params)
