import pytest

from rl4p.data.answer import same_answer
from rl4p.data.stated import stated

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
