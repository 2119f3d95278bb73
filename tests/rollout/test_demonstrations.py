from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Demonstration, Finish, Sampling
from rl4p.loop.checks import check_trajectories
from rl4p.rollout.demonstrations import Demonstrations

ROLLOUT = Demonstrations(max_response_tokens=4)


def demonstrate(policy, prompts, **options):
    options = {"group_size": 1, "key": None, "version": 5} | options
    return ROLLOUT(policy, None, prompts, **options)


def test_a_worked_answer_and_an_end_token_stand_where_samples_would(policy, make_prompt):
    prompts = [
        make_prompt((65, 66), solution="ab"),
        make_prompt((67,), solution="abc"),  # fits with its end token, exactly
        make_prompt((68,), solution="abcdef"),  # is cut
        make_prompt((69,), solution=""),
    ]
    trajectories, episodes = demonstrate(policy, prompts)
    check_trajectories(trajectories)
    a, b, c, d = policy.tokenizer("abcd")["input_ids"]
    end, pad = policy.end_ids[0], policy.pad_id
    np.testing.assert_array_equal(
        np.asarray(trajectories.tokens_BT)[:, 16:],
        [[a, b, end, pad], [a, b, c, end], [a, b, c, d], [end, pad, pad, pad]],
    )
    np.testing.assert_array_equal(
        np.asarray(trajectories.response_mask_BT)[:, 16:],
        [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0]],
    )
    assert trajectories.finish_B.tolist() == [Finish.STOP, Finish.STOP, Finish.LENGTH, Finish.STOP]
    assert tuple(episode.response for episode in episodes) == ("ab", "abc", "abcd", "")
    assert tuple(episode.prompt for episode in episodes) == tuple(prompts)
    row = (
        np.asarray(trajectories.tokens_BT)[0, 14:16],
        np.asarray(trajectories.positions_BT)[0, 14:],
    )
    np.testing.assert_array_equal(row[0], [65, 66])
    np.testing.assert_array_equal(row[1], [0, 1, 2, 3, 4, 4])
    np.testing.assert_array_equal(
        np.asarray(trajectories.segment_ids_BT)[0, 13:], [0, 1, 1, 1, 1, 1, 0]
    )
    assert not np.asarray(trajectories.behaviour_logprobs_BT).any()


def test_groups_repeat_a_demonstration(policy, make_prompt):
    prompts = [make_prompt((65,), solution="a"), make_prompt((66,), solution="bc")]
    trajectories, episodes = demonstrate(policy, prompts, group_size=3)
    lengths_B = np.asarray(trajectories.response_mask_BT).sum(axis=1)
    assert lengths_B.tolist() == [2, 2, 2, 3, 3, 3]
    assert trajectories.group_ids_B.tolist() == [0, 0, 0, 1, 1, 1]
    assert (np.asarray(trajectories.policy_version_BT) == -1).all()
    assert tuple(episode.response for episode in episodes) == ("a", "a", "a", "bc", "bc", "bc")


def test_the_tokenizer_adds_no_tokens_of_its_own(policy, make_prompt):
    """Some put a token before every text, which no response begins with."""
    asked = []

    class Tokenizer:
        added_tokens_decoder = {}  # noqa: RUF012

        def __call__(self, texts, **options):
            asked.append(options)
            return policy.tokenizer(texts, **options)

        def batch_decode(self, *arguments, **options):
            return policy.tokenizer.batch_decode(*arguments, **options)

    demonstrate(replace(policy, tokenizer=Tokenizer()), [make_prompt((65,), solution="a")])
    assert asked == [{"add_special_tokens": False}]


def test_a_prompt_without_a_worked_answer_is_named(policy, make_prompt):
    prompts = [make_prompt(solution="a"), make_prompt(id="bare")]
    with pytest.raises(InputError, match=r"rollout=demonstrations needs .* but bare of this data"):
        demonstrate(policy, prompts)


def test_there_is_nothing_to_evaluate(policy, make_prompt):
    with pytest.raises(InputError, match=r"rollout=demonstrations has no policy to evaluate"):
        demonstrate(policy, [make_prompt(solution="a")], greedy=True)


def test_the_distribution_is_the_plain_one():
    assert ROLLOUT.sampling == Sampling()


CHAT = ({"role": "user", "content": "A"}, {"role": "assistant", "content": "ab"})


def test_the_answers_of_a_conversation_are_trained_beside_solutions(policy, make_prompt):
    end, (a, b, c, d) = policy.end_ids[0], policy.tokenizer("abcd")["input_ids"]
    worked = Demonstration(tokens=[a, b, end], trained=((1, 2), (3, 6)))
    long = Demonstration(tokens=[a, b, c, d, end], trained=((1, 6),))
    prompts = [
        make_prompt((65, 66, 67), messages=CHAT, demonstration=worked),
        make_prompt((65,), messages=CHAT, demonstration=long),  # is cut
        make_prompt((65,), solution="ab"),
    ]
    trajectories, episodes = demonstrate(policy, prompts, group_size=2)
    check_trajectories(trajectories)
    tokens, mask = map(np.asarray, (trajectories.tokens_BT, trajectories.response_mask_BT))
    np.testing.assert_array_equal(tokens[0, 13:], [65, 66, 67, a, b, end, policy.pad_id])
    np.testing.assert_array_equal(mask[:2, 13:], [[0, 1, 0, 1, 1, 1, 0]] * 2)
    np.testing.assert_array_equal(mask[2:4, 13:], [[0, 0, 0, 1, 1, 1, 1]] * 2)
    np.testing.assert_array_equal(mask[4:, 13:], [[0, 0, 0, 1, 1, 1, 0]] * 2)
    assert not mask[:, :13].any()
    finish = [Finish.STOP] * 2 + [Finish.LENGTH] * 2 + [Finish.STOP] * 2
    assert trajectories.finish_B.tolist() == finish
    assert [episode.response for episode in episodes] == ["ab", "ab", "abcd", "abcd", "ab", "ab"]
    assert trajectories.prompt_columns == 0


def test_a_conversation_without_the_tokens_of_its_answers_is_named(policy, make_prompt):
    prompts = [make_prompt(messages=CHAT, solution="ab", id="chat")]
    with pytest.raises(InputError, match=r"tokens of the conversation chat: encode it with rl4p"):
        demonstrate(policy, prompts)
