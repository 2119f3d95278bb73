"""Tests where the final answer of a response stands, and what are its thoughts."""

import copy
from typing import get_args

import pytest
from tokenizers import AddedToken

from rl4p.data.extraction import (
    Extraction,
    after_thoughts,
    answer_of,
    extract,
    final_answer,
    response_texts,
    same_answer,
    stated,
    stated_answer,
    tagged_text,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2+2=4 #### 4", "4"),
        ("####4", "4"),
        ("#### 1 no, #### 2", "2"),
        ("#### 4\nand more", "4"),
        ("#### \n 4", "4"),
        ("####", ""),
        ("4", None),
        ("", None),
        ("### 4", None),
    ],
)
def test_the_final_answer_stands_after_the_last_marker(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("given", "reference", "same"),
    [
        ("12", "12", True),
        ("12.0", "12", True),
        ("$1,234", "1234", True),
        ("1,2", "12", False),
        ("-12", "12", False),
        ("12", "13", False),
        ("twelve", "12", False),
        ("", "12", False),
        (None, "12", False),
        (None, "Paris", False),
        (" Paris ", "Paris", True),
        ("paris", "Paris", False),
        ("12", "Paris", False),
        ("0.1", "0.10000000000000000000001", False),
        # Units and fractions are understood only where the reference is a number.
        ("5 apples", "5", True),
        ("$5 per hour", "5", True),
        ("12%", "12", True),
        ("12", "12%", True),
        ("0.12", "12%", False),
        ("3/4", "0.75", True),
        ("0.75", "3/4", True),
        ("0.333", "1/3", False),
        (r"\frac{3}{4}", "3/4", True),
        ("1.5 million", "1,500,000", True),
        ("5 pears", "5 apples", False),
        ("5", "5 apples", False),
        ("5 apples", "5 apples", True),
        ("1  3\n7", "1 3 7", True),
        ("1 37", "1 3 7", False),
        ("12 or 15", "12", False),
        ("2 15", "215", False),
        *[(r"10,\!000", "10000", True), (r"1,\!200", "1, 200", False), ("1 234", "1234", True)],
        *[(r"0.\overline{3}", "1/3", True), (r"0.\overline{3}", "0.333", False)],
        *[("101_2", "5", True), ("101_2", "101", False), ("101_2", "101_3", False)],
        *[("1.6e-19", r"1.6\times 10^{-19}", True), ("0.00", r"\frac{1}{13983816}", False)],
        *[("-0", "0", True), ("-0.0", "+0", True), ("3 4/4", "4", False), ("3 4/4", "3", False)],
        *[("\uff11\uff12", "12", True), ("\u00bd", "0.5", True), ("3 4/4", "3 4/4", True)],
    ],
)
def test_answers_are_compared_as_numbers_and_otherwise_as_text(given, reference, same):
    assert same_answer(given, reference) is same


@pytest.mark.parametrize("reference", ["", " ", "12", "no", "\n"])
@pytest.mark.parametrize("given", ["", " ", "\t\n", None])
def test_an_empty_answer_is_never_right(given, reference):
    assert same_answer(given, reference) is False


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


# What states 12.
RIGHT = [
    "3 * 4 = 12\n#### 12",
    "#### $12.00",
    "#### 12 apples",
    "#### Total: 12",
    "#### Total cost = $12",
    "#### The total is 12",
    "#### So, in total, she has 12 apples left.",
    "#### 3 * 4 = 12",
    "#### 12 (twelve)",
    "#### 12 pairs (24 shoes)",
    "#### 12, which is the total",
    "#### 12. Done",
    "#### 12 apples in 3 days",
    "#### 12 of the 20 apples",
    '#### "12"!',
    "#### 12<|im_end|>",
    "#### 12 ####",
    "#### 12\n#### ",
    "#### 12\n#### The end",
    "#### 15\nWait.\n#### 12",
    "#### **Answer:** 12",
    r"#### Final Answer: $\boxed{12}$",
    "#### Final Answer\n**12**",
    "#### Answer\n\nShe has 12 apples.",
    "#### Step 1: Add\n5 + 7 = 12\n#### Step 2: Conclude\nThe answer is 12.",
    "#### Step 1: Add 5\nIt is \\boxed{12}.",
    r"\boxed{12}",
    r"\boxed{12 \text{ apples}}, so 3 are left.",
    r"\boxed{3 \times 4 = 12}",
    r"\boxed{12} and so \boxed{done}",
    "<answer>12</answer> in 3 days",
    "The answer is 12.",
    "The answer is **12**, since 3 * 4 = 12 and 5 < 7.",
    "The answer is 12. Call me if you have 2 more questions.",
    "The answer is 12.\n\nNote that a week has 7 days.",
    "**Answer:** 12\nHere 3 is a number of the text.",
    "The answer is 12, not 15",
    "The answer is x = 12",
    "So she pays **$12** for the 3 books.",
    "It makes 3 * 4 = 12 apples.",
    "12",
]
# What does not state 12.
WRONG = [
    "",
    "12 #### 13",
    "#### 12 or 13",
    "#### 12, or 13",
    "#### 12 to 13",
    "#### 12, 13",
    "#### 12 - 5",
    "#### 12 * 3",
    "#### 2(12)",
    "#### 12 + x",
    "#### > 12",
    "#### - 12",
    "#### 12^2",
    "#### 12 13",
    "#### not 12",
    "#### about 12",
    "#### 12 and a half",
    "#### 12 million",
    "#### 12k",
    "#### 12 k",
    "#### 12/7",
    "#### 12:30",
    r"12 and \boxed{13}",
    r"12 and \boxed{1",
    "<answer>13</answer> 12",
    "The answer is 15, not 12",
    "The answer is not 12",
    "The answer is 15 apples in 12 days.",
    "The answer is 15.\n\nNote that a year has 12 months.",
    "It is 15 and not 12.",
    "It is 15 or 12",
    "She pays **$15** for 12 books.",
    "**12** or **13**: I do not know",
    "twelve",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_stated_number_is_found_in_any_format(text):
    assert same_answer(stated(text), "12")


@pytest.mark.parametrize("text", WRONG)
def test_a_number_that_is_not_stated_is_no_answer(text):
    assert not same_answer(stated(text), "12")


@pytest.mark.parametrize("text", ["So #### Paris", r"\boxed{Paris}", "<answer>Paris</answer>"])
def test_a_text_without_numbers_is_read_by_its_marks(text):
    assert stated(text) == "Paris"


@pytest.mark.parametrize(
    ("text", "how", "answer"),
    [
        ("2+2=4 #### 4", "hashes", "4"),
        (r"so \boxed{4}.", "hashes", None),
        (r"so \boxed{4}.", "boxed", "4"),
        (r"\boxed{3} no, \boxed{ \frac{3}{4} }", "boxed", r"\frac{3}{4}"),
        ("<answer> 4 </answer>", "answer", "4"),
        ("<answer>3</answer> no, <answer>4</answer>", "answer", "4"),
        ("<answer><answer>4</answer></answer>", "answer", "4"),
        ("<answer>3</answer> no, <answer>4", "answer", None),
        ("4</answer>", "answer", None),
        ("it is 4.", "number", "4"),
        ("it is four", "number", None),
        (r"#### 3 and \boxed{4}", ("boxed", "hashes"), "4"),
        (r"#### 3 and \boxed{4}", ("hashes", "boxed"), r"3 and \boxed{4}"),
        ("#### 3", ("boxed", "hashes"), "3"),
        ("it is 3", ("boxed", "hashes"), None),
        (r"\boxed{}", ("boxed", "number"), ""),
        ("1 + 1\n#### 2\nthanks", "hashes", "2"),
        ("2", "hashes", None),
        ("<answer>2", "answer", None),
        ("from 3 to -1,234.50 dollars.", "number", "-1,234.50"),
        ("3 or .5", "number", ".5"),
    ],
)
def test_the_answer_stands_where_it_is_said_to(text, how, answer):
    assert extract(text, how) == answer


@pytest.mark.parametrize("how", get_args(Extraction))
@pytest.mark.parametrize(
    "piece",
    [
        *("#", "####", "\\boxed{", "{", "\\boxed{}", "<answer>", "</answer>", "1,", "-1", "1+"),
        *("\\frac{", "answer is ", "answer is 1", "**1", "#### 1\n", "(", "not 1 ", "= "),
    ],
)
def test_a_long_text_is_read_in_linear_time_of_extraction(piece, how):
    """A quadratic rule would take minutes on each."""
    assert len(extract(piece * (240_000 // len(piece)), how) or "") < 240_001
