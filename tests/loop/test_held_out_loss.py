"""Tests the loss on held-out answers and pairs, with numbers computed from logits by hand."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.loop.held_out_loss import HeldOutLoss, metrics_of
from rl4p.rollout.demonstrations import Demonstrations
from rl4p.rollout.preferences import Preferences
from rl4p.update.dpo import DPO
from rl4p.update.sft import SFT


@pytest.fixture
def logprob(numpy_logits, policy, params):
    """Returns a function that sums the log-probabilities of a response, and counts its tokens."""

    def logprob(prompt, response, params=params):
        tokens = [*prompt, *response]
        logits_TV = numpy_logits(policy.decoder.config, params, tokens)
        logprobs_TV = logits_TV - np.log(np.exp(logits_TV).sum(axis=-1, keepdims=True))
        steps = range(len(prompt), len(tokens))
        return sum(logprobs_TV[t - 1, tokens[t]] for t in steps), len(response)

    return logprob


@pytest.mark.slow
def test_a_loss_is_over_the_tokens_of_each_task(policy, params, make_prompt, make_phases, logprob):
    end = policy.end_ids[0]
    answers = [((65, 66), "ab", "x"), ((67,), "abcd", "x"), ((68,), "a", "y")]
    prompts = [
        replace(make_prompt(tokens, solution=text), task=task) for tokens, text, task in answers
    ]
    phases = make_phases(rollout=Demonstrations(max_response_tokens=8), update=SFT())
    # Four rows at a time: the fourth repeats a prompt, and does not count.
    loss = HeldOutLoss(phases=phases, policy=policy, prompts=prompts, rows=4, group_size=1)
    metrics = loss(params)
    for task in ("x", "y"):
        sums = [
            logprob(tokens, [*policy.tokenizer(text)["input_ids"], end])
            for tokens, text, own in answers
            if own == task
        ]
        mean = -sum(x for x, _ in sums) / sum(n for _, n in sums)
        assert metrics[f"eval/{task}/loss"] == pytest.approx(mean, abs=1e-4)
        assert metrics[f"eval/{task}/perplexity"] == pytest.approx(np.exp(mean), rel=1e-3)
    assert metrics.keys() == {
        f"eval/{t}/{n}" for t in "xy" for n in ("loss", "perplexity", "prompts")
    }
    assert (metrics["eval/x/prompts"], metrics["eval/y/prompts"]) == (2, 1)
    for rows in (1, 2):
        assert replace(loss, rows=rows)(params) == pytest.approx(metrics, rel=1e-5)


@pytest.mark.slow
def test_the_loss_of_pairs_is_the_updates(policy, params, make_prompt, make_phases, logprob):
    end = policy.end_ids[0]
    pairs = [((65, 66), (70, end), (71, 72, end)), ((67,), (80, 81, end), (end,))]
    prompts = [replace(make_prompt(x), responses=(good, bad)) for x, good, bad in pairs]
    phases = make_phases(rollout=Preferences(max_response_tokens=4), update=DPO(beta=0.5))
    loss = HeldOutLoss(
        phases=phases,
        policy=policy,
        prompts=prompts,
        rows=6,
        group_size=2,
        reference=(policy.decoder, params),
    )
    at_first = loss(params)
    assert at_first["eval/t/loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert at_first["eval/t/preference_accuracy"] == 0
    other = jax.tree.map(lambda x: x * 1.02, params)
    margins = []
    for tokens, good, bad in pairs:
        s_good, s_bad = (
            logprob(tokens, each, other)[0] - logprob(tokens, each)[0] for each in (good, bad)
        )
        margins.append(s_good - s_bad)
    metrics = loss(other)
    mean = np.mean([np.log1p(np.exp(-0.5 * h)) for h in margins])
    assert min(map(abs, margins)) > 1e-3
    assert metrics["eval/t/loss"] == pytest.approx(mean, abs=1e-4)
    assert metrics["eval/t/preference_margin"] == pytest.approx(np.mean(margins), abs=1e-3)
    assert metrics["eval/t/preference_accuracy"] == np.mean(np.array(margins) > 0)
    assert loss(other, other) == pytest.approx(at_first, abs=1e-6)  # the reference was reset


def test_a_perplexity_beyond_a_float_is_infinite():
    assert metrics_of({"loss": 2e4, "tokens": 2.0}) == {"loss": 1e4, "perplexity": np.inf}
