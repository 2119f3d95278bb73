import copy

import pytest
from tokenizers import AddedToken

from rl4p.data.extraction import answer_of, extract, stated_answer, tagged_text
from rl4p.data.thoughts import after_thoughts, response_texts

OPENED = "<|assistant|>\n<think>\n"  # by the chat template


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("12", "12"),
        ("", ""),
        ("<think>12</think>15", "15"),
        ("12</think>15", "15"),
        ("<think></think>15", "15"),
        ("Well. <think>12</think>15", "15"),
        ("<think>1</think>2<think>3</think>15", "15"),
        ("<think>1<think>2</think>15", "15"),  # it thought of the tag
        ("<think>1<think>2</think>3</think>15", "15"),
        ("<THINK>12</Think>15", "15"),
        ("< think >12</ think >15", "15"),
        ("<think>12", None),
        ("<think>", None),
        ("<think>1</think>2<think>3", None),
        ("</think><think>12", None),
        ("<thinking>12</thinking>15", "15"),
        ("<thought>12</thought>15", "15"),
        ("<reasoning>12</reasoning>15", "15"),
        ("<reasoning>12", None),
        ("<seed:think>12</seed:think>15", "15"),
        ("[THINK]12[/THINK]15", "15"),
        ("[THINK]12", None),
        ("I [think] so: 15", "I [think] so: 15"),
        ("\u25c1think\u25b712\u25c1/think\u25b715", "15"),
        ("<|begin_of_thought|>12<|end_of_thought|>15", "15"),
        ("<|begin_of_thought|>12", None),
        ("<think>1<reasoning>2</reasoning>3", None),  # each name has its own end
        ("<think>the tag '</think>' ends it</think>15", "15"),
        ("<think>1</think>The tag `<think>` is 15", "The tag `<think>` is 15"),
        ('<think>1</think>print("</think>")', 'print("</think>")'),
        ("<think>1</think>```\ns.split(</think>)\n```", "```\ns.split(</think>)\n```"),
        ("<think>```\n1</think>```\n15\n```", "```\n15\n```"),  # code that the thoughts left open
    ],
)
def test_the_answer_follows_the_last_thoughts(response, answer):
    assert after_thoughts(response) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("12</think>15", "15"),
        ("12", None),
        ("", None),
        ("<think>12</think>15", "15"),  # written twice
        ("<reasoning>12</reasoning>13", None),
    ],
)
def test_the_template_may_have_opened_the_thoughts(response, answer, make_prompt, make_episodes):
    assert after_thoughts(response, OPENED) == answer
    episodes = make_episodes((response,), (make_prompt(generation_prompt=OPENED),))
    assert stated_answer(episodes[0]) == answer
    assert answer_of(episodes[0], "number") == answer


def test_the_template_may_have_ended_the_thoughts():
    assert after_thoughts("15", "<|assistant|><think>\n\n</think>\n\n") == "15"
    assert after_thoughts("<think>12", "<|assistant|><think>\n\n</think>\n\n") is None


@pytest.mark.parametrize("how", ["boxed", "hashes", "answer", "number", "stated"])
@pytest.mark.parametrize("form", [r"\boxed{{{}}}", "#### {}", "<answer>{}</answer>", "It is {}"])
def test_no_rule_looks_into_the_thoughts(how, form):
    thoughts, answer = form.format(12), form.format(15)
    expected = extract(answer, how)
    assert extract(f"<think>{thoughts}</think>{answer}", how) == expected
    assert extract(f"{thoughts}</think>{answer}", how) == expected
    assert extract(f"{thoughts}</think>", how) is None
    assert extract(f"<think>{thoughts}", how) is None
    assert extract(thoughts, how, OPENED) is None
    assert extract(f"{thoughts}</think>{answer}", how, OPENED) == expected


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>hm</think><answer> OSLO\n</answer>", "OSLO"),
        ("<answer>A</answer> or <answer>B</answer>", "B"),
        ("<answer>A</answer> and then <answer>B", None),  # cut: the first one was taken back
        ("<think>is it <answer>OSLO</answer>?</think> BERGEN ", "BERGEN"),
        ("<think>is it OSLO?", None),
        ("is it so? </think> BERGEN", "BERGEN"),
        (" OSLO ", "OSLO"),
        ("<answer></answer>", ""),
        ("", ""),
    ],
)
def test_the_answer_that_a_response_states(response, answer, make_episodes):
    assert stated_answer(make_episodes((response,))[0]) == answer


@pytest.mark.parametrize(
    "piece", ["<think>", "</think>", "```", "`", "<think>`</think>", "'<think>'", "< ", "[THINK]"]
)
def test_a_long_text_is_read_in_linear_time(piece):
    assert len(after_thoughts(piece * (240_000 // len(piece))) or "") < 240_001


def test_tags_of_the_template_belong_to_the_response(make_prompt, make_episodes):
    tags = ("<think>", "</think>")

    def text(response, before):
        prompts = (make_prompt(generation_prompt=before),)
        return tagged_text(make_episodes((response,), prompts)[0], tags)

    assert text("a</think>", OPENED) == f"{OPENED}a</think>"
    assert text("a</think>", "") == "a</think>"
    assert text("a</think>", None) == "<think>a</think>"
    assert text("a</think><think>", None) == "a</think><think>"
    assert text("a", None) == "a"


@pytest.mark.parametrize("tags", [("[THINK]", "[/THINK]"), ("<think>", "</think>")])
@pytest.mark.parametrize("special", [True, False])
def test_tags_stay_in_the_text_also_as_special_tokens(policy, tags, special):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.add_tokens([AddedToken(tag, special=special) for tag in tags], special_tokens=special)
    text = f"{tags[0]}12{tags[1]}15"
    row = tokenizer(f"<|assistant|>{text}<|end|>", add_special_tokens=False)["input_ids"]
    assert response_texts(tokenizer, [row, row[:2]]) == [text, tags[0]]
    assert after_thoughts(response_texts(tokenizer, [row])[0]) == "15"
