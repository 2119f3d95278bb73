import dataclasses

import numpy as np
import pytest

from rl4p.loop.checks import check_trajectories
from rl4p.model.policy import Decoded, padded_width
from rl4p.types import Finish


@pytest.mark.parametrize(
    ("longest", "width"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (1000, 1024)]
)
def test_widths_are_few(longest, width):
    assert padded_width(longest) == width


def test_prompts_are_padded_left_and_the_mask_says_so(policy, make_prompt):
    pad = policy.pad_id
    prompts = [make_prompt((5, 6, 7)), make_prompt((pad, 9)), make_prompt(tuple(range(16)))]
    tokens, mask = policy.pad_prompts(prompts)
    assert tokens.shape == mask.shape == (3, 16)
    for row, prompt in enumerate(prompts):
        assert tuple(tokens[row][mask[row]]) == prompt.tokens
        np.testing.assert_array_equal(mask[row], np.arange(16) >= 16 - len(prompt.tokens))
    assert (tokens[~mask] == pad).all()


def test_responses_stand_beside_their_prompts_in_groups(policy, make_prompt):
    end, letters = policy.end_ids[0], policy.tokenizer("abcd")["input_ids"]
    prompts = [make_prompt((5, 6, 7)), make_prompt((8,))]
    tokens = np.array([[*letters[:3], end], [letters[0], 7, 7, 7], [end, 7, 7, 7], letters])
    trajectories, texts = policy.trajectories(
        prompts,
        2,
        tokens_BR=tokens.astype(np.int32),
        lengths_B=np.array([4, 1, 1, 4], np.int32),
        logprobs_BR=np.full((4, 4), -2.0, np.float32),
        version=3,
    )
    check_trajectories(trajectories)
    pad = policy.pad_id
    responses = [tokens[0], [letters[0], pad, pad, pad], [end, pad, pad, pad], tokens[3]]
    mask = [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    np.testing.assert_array_equal(trajectories.tokens_BT[:, 16:], responses)
    np.testing.assert_array_equal(
        trajectories.tokens_BT[:, 12:16], [[pad, 5, 6, 7]] * 2 + [[pad, pad, pad, 8]] * 2
    )
    np.testing.assert_array_equal(trajectories.response_mask_BT[:, 16:], mask)
    assert not trajectories.response_mask_BT[:, :16].any()
    np.testing.assert_array_equal(trajectories.behaviour_logprobs_BT[:, 16:], -2.0 * np.array(mask))
    np.testing.assert_array_equal(trajectories.positions_BT[1, 12:], [0, 0, 1, 2, 3, 3, 3, 3])
    assert trajectories.group_ids_B.tolist() == [0, 0, 1, 1]
    assert trajectories.policy_version_B.tolist() == [3] * 4
    assert trajectories.finish_B.tolist() == [
        Finish.STOP,
        Finish.LENGTH,
        Finish.STOP,
        Finish.LENGTH,
    ]
    assert texts.prompts == (prompts[0], prompts[0], prompts[1], prompts[1])
    assert texts.responses == ("abc", "a", "", "abcd")


def test_texts_are_decoded_where_they_are_read(policy):
    words = policy.tokenizer(["12+7", "abc", "19"], add_special_tokens=False)["input_ids"]
    texts = Decoded(policy.tokenizer, [[*words[0], policy.end_ids[0]], *words[1:]])
    assert (len(texts), texts[0], texts[-1]) == (3, "12+7", "19")
    assert tuple(texts[1:]) == ("abc", "19")
    assert list(texts) == ["12+7", "abc", "19"]


def test_trajectories_say_how_their_rows_are_grouped(policy, make_prompt):
    """Groups need this to share their prompts."""
    made, _ = policy.trajectories(
        [make_prompt((5, 6, 7)), make_prompt(tuple(range(20)))],
        3,
        tokens_BR=np.full((6, 2), 65, np.int32),
        lengths_B=np.full(6, 2),
        logprobs_BR=np.zeros((6, 2), np.float32),
        version=0,
    )
    assert (made.group_size, made.prompt_columns) == (3, 32)


def test_a_text_has_no_special_tokens_whichever_way_it_is_read(policy):
    end = policy.end_ids[0]
    texts = Decoded(policy.tokenizer, [[65, end], [end]])
    assert [texts[0], texts[1], *texts] == [policy.tokenizer.decode([65]), ""] * 2


def test_every_end_token_ends_a_response(policy, make_prompt):
    made, _ = dataclasses.replace(policy, end_ids=(7, 9)).trajectories(
        [make_prompt((5,))],
        3,
        tokens_BR=np.int32([[1, 9], [7, 9], [9, 1]]),
        lengths_B=np.array([2, 1, 2]),
        logprobs_BR=np.zeros((3, 2), np.float32),
        version=0,
    )
    assert made.finish_B.tolist() == [Finish.STOP, Finish.STOP, Finish.LENGTH]


def test_a_sampler_is_given_no_critic(policy):
    trained = {"layers": {"up": {"lora_a": 1}}, "critic": {"value": 2}}
    adapted = dataclasses.replace(policy, frozen={"layers": {"up": {"kernel": 3}}, "norm": 4})
    without = {"layers": {"up": {"kernel": 3, "lora_a": 1}}, "norm": 4}
    assert adapted.merged(trained) == without | {"critic": {"value": 2}}
    assert adapted.without_critic(trained) == without
