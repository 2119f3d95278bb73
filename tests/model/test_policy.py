import dataclasses

import numpy as np
import pytest

from rl4p.model.policy import padded_width


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


def test_responses_are_the_masked_tokens_without_special_ones(policy, make_trajectories):
    trajectories = make_trajectories((4, 0, 2))
    tokens = np.array(trajectories.tokens_BT)
    end, letters = policy.end_ids[0], policy.tokenizer("abcd")["input_ids"]
    tokens[0, 8:12], tokens[2, 8:10] = [*letters[:3], end], [end, letters[3]]
    trajectories = dataclasses.replace(trajectories, tokens_BT=tokens)
    assert policy.responses(trajectories) == ("abc", "", "d")
