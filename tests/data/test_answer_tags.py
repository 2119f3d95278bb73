import pytest

from rl4p.data.answer_tags import stated_answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>hm</think><answer> OSLO\n</answer>", "OSLO"),
        ("<answer>A</answer> or <answer>B</answer>", "B"),
        ("<answer>A</answer> and then <answer>B", None),  # cut: the first one was taken back
        ("<think>is it OSLO?</think> BERGEN ", "BERGEN"),
        ("<think>is it OSLO?", None),
        ("is it so? </think> BERGEN", "BERGEN"),  # a template that opens the reasoning itself
        (" OSLO ", "OSLO"),
        ("<answer></answer>", ""),
        ("", ""),
    ],
)
def test_the_answer_that_a_response_states(response, answer):
    assert stated_answer(response) == answer
