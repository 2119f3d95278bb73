"""Each held-out question counts once, by the term that says right from wrong."""

from dataclasses import dataclass

import pytest

from rl4p.errors import InputError
from rl4p.evaluation import Evaluation
from rl4p.optimizer.adamw import AdamW
from rl4p.reward.weighted import Weighted
from rl4p.rollout.naive_sampler import NaiveSampler


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Right for the prompts whose ids are listed; None for those that cannot be graded."""

    right: tuple[str, ...]
    broken: tuple[str, ...] = ()
    weight: float = 1.0

    def __call__(self, texts):
        return [
            None if prompt.id in self.broken else float(prompt.id in self.right)
            for prompt in texts.prompts
        ]


@pytest.fixture
def evaluate(policy, params, make_prompt, make_state, make_phases):
    def run(tasks, *, rows, term="correct", **listed):
        prompts = [
            make_prompt(tokens=(257, 65 + i), id=str(i), task=task) for i, task in enumerate(tasks)
        ]
        # A second, constant term with a large weight: the weighted sum must not matter.
        terms = {"correct": Listed(**listed), "style": Listed(right=(), weight=100.0)}
        evaluation = Evaluation(
            every=1,
            phases=make_phases(
                rollout=NaiveSampler(max_response_tokens=8),
                reward=Weighted(terms=terms, max_invalid=1.0),
            ),
            policy=policy,
            prompts=prompts,
            term=term,
            rows=rows,
        )
        return evaluation.evaluate(make_state(params, AdamW()))

    return run


@pytest.mark.parametrize("rows", [2, 8])
def test_questions_count_once_whatever_is_sampled_at_a_time(evaluate, rows):
    found = evaluate(["a", "a", "b", "a", "b"], rows=rows, right=("0", "4"))
    assert found == {
        "eval/a/pass_at_1": 1 / 3,
        "eval/b/pass_at_1": 1 / 2,
        "eval/a/prompts": 3.0,
        "eval/b/prompts": 2.0,
    }


def test_what_cannot_be_graded_is_not_right(evaluate):
    found = evaluate(["a", "a"], rows=2, right=("0", "1"), broken=("1",))
    assert found["eval/a/pass_at_1"] == 0.5


def test_a_term_that_the_reward_lacks_is_named(evaluate):
    with pytest.raises(InputError, match=r"evaluation\.term=luck .* correct, style"):
        evaluate(["a"], rows=2, term="luck", right=())
