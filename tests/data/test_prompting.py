"""Tests the template of the user's question, and few-shot examples."""

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.arithmetic import Arithmetic
from rl4p.data.mixture import Mixture
from rl4p.data.prompting import prompted
from rl4p.data.prompts import encode_prompts
from rl4p.model.tokenizer import byte_tokenizer

BOXED = "{question}\nAnswer in \\boxed{{}}"
SHOTS = ({"question": "1 + 1", "answer": "2"}, {"question": "2 + 3", "answer": "5"})


def data(**options):
    return Arithmetic(train_size=4, held_out_size=2, **options)


def test_the_template_is_the_message_of_the_user_and_graders_read_the_question():
    plain = data().train()
    for question, bare in zip(prompted(data(prompt=BOXED), plain), plain, strict=True):
        assert question.question == bare.question
        assert question.prompt_messages("Be brief.") == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"{bare.question}\nAnswer in \\boxed{{}}"},
        ]
    assert prompted(data(), plain) == list(plain)


def test_examples_come_before_the_question_in_the_same_template():
    (question,) = prompted(data(prompt="Q: {question}", examples=SHOTS), data().train()[:1])
    contents = [(x["role"], x["content"]) for x in question.prompt_messages()]
    assert contents == [
        ("user", "Q: 1 + 1"),
        ("assistant", "2"),
        ("user", "Q: 2 + 3"),
        ("assistant", "5"),
        ("user", f"Q: {question.question}"),
    ]
    (prompt,), _ = encode_prompts(
        [question], byte_tokenizer(), system_prompt=None, max_prompt_tokens=500
    )
    text = byte_tokenizer().decode(prompt.tokens)
    assert text.startswith("<|user|>Q: 1 + 1<|end|><|assistant|>2<|end|><|user|>Q: 2 + 3")
    assert text.endswith("<|assistant|>")


def test_a_conversation_keeps_its_system_message_first_and_its_last_question_is_changed():
    messages = (
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    )
    row = Question(id="1", question="c", answer="d", task="t", messages=messages)
    (question,) = prompted(data(prompt="<{question}>", examples=SHOTS[:1]), [row])
    contents = [x["content"] for x in question.prompt_messages()]
    assert contents == ["S", "<1 + 1>", "2", "a", "b", "<c>"]
    assert row.messages == messages


def test_a_mixture_has_the_templates_of_its_sets():
    mixture = Mixture(sets={"a": data(prompt="A {question}"), "b": data(seed=1)})
    for question in mixture.train():
        assert question.prompt_messages()[-1]["content"].startswith("A ") == (question.task == "a")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompt": "Answer."}, "data.prompt lacks the question"),
        ({"prompt": "{question} {answer}"}, "data.prompt has the field {answer}, but only"),
        ({"prompt": "{question.__class__}"}, "data.prompt has the field {question.__class__}"),
        ({"prompt": "{question!r}"}, "data.prompt has the field {question}"),
        ({"prompt": "{question} \\boxed{"}, "data.prompt cannot be read: "),
        ({"examples": ({"question": "a"},)}, "data.examples[0] has the keys question: write"),
    ],
)
def test_a_wrong_template_or_example_is_refused(options, sentence):
    with pytest.raises(InputError) as error:
        prompted(data(**options), data().train())
    assert sentence in str(error.value)
