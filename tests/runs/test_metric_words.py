"""Tests the words of metrics in titles and on axes."""

import pytest

from rl4p.runs.metric_words import in_words, title


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["reward/mean"], "mean reward of the samples"),
        (["eval/sums/pass_at_1"], "greedy pass@1 on held-out sums"),
        (["eval/a/b/pass_at_16"], "pass@16 on held-out a/b"),
        (["eval/sums/avg_at_8"], "mean pass@1 of 8 samples on held-out sums"),
        (["eval/sums/loss"], "loss on held-out sums"),
        (["eval/a/pass_at_1", "eval/b/pass_at_1"], "mean greedy pass@1 on 2 held-out tasks"),
        (["eval/a/loss", "eval/b/pass_at_1"], "mean of eval/a/loss, eval/b/pass_at_1"),
        (["reward/$own"], "reward/$own"),
    ],
)
def test_a_metric_has_words_or_stays_as_it_is(names, words):
    assert in_words(*names) == words


def test_a_title_begins_with_a_capital_letter():
    assert title("pass@1 of KL") == "Pass@1 of KL"
