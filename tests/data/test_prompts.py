"""Tests the text around questions, and their encoding as prompts."""

import copy
from dataclasses import fields, replace

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.mixture import Mixture
from rl4p.data.prompts import encode_prompts, prompted
from rl4p.data.synthetic import Arithmetic, addition
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


QUESTIONS = [
    addition(a, b, (False,) * len(str(a))) for a, b in ((1, 2), (123, 456), (34, 12), (9, 9))
]


@pytest.fixture
def encode(policy):
    def encode(questions=QUESTIONS, system_prompt=None, max_prompt_tokens=100):
        return encode_prompts(
            questions,
            policy.tokenizer,
            system_prompt=system_prompt,
            max_prompt_tokens=max_prompt_tokens,
        )

    return encode


def test_a_prompt_is_its_question_in_the_chat_template(encode, policy):
    prompts, dropped = encode()
    assert dropped == 0
    texts = [policy.tokenizer.decode(prompt.tokens) for prompt in prompts]
    assert texts == [f"<|user|>{q.question}<|end|><|assistant|>" for q in QUESTIONS]
    for prompt, question in zip(prompts, QUESTIONS, strict=True):
        fields = ("id", "question", "answer", "task", "solution", "messages", "metadata")
        assert all(getattr(prompt, name) == getattr(question, name) for name in fields)


def test_the_system_prompt_stands_first(encode, policy):
    prompts, _ = encode(system_prompt="Add.")
    assert policy.tokenizer.decode(prompts[0].tokens).startswith("<|system|>Add.<|end|><|user|>1+2")
    assert {prompt.system_prompt for prompt in prompts} == {"Add."}
    assert encode()[0][0].system_prompt is None


def test_long_prompts_are_dropped_and_counted_and_never_cut(encode):
    """Prompts have three special tokens and 3, 7, 5 and 3 bytes."""
    for limit, kept in (
        (6, [0, 3]),
        (7, [0, 3]),
        (8, [0, 2, 3]),
        (9, [0, 2, 3]),
        (10, [0, 1, 2, 3]),
    ):
        prompts, dropped = encode(max_prompt_tokens=limit)
        assert [prompt.id for prompt in prompts] == [QUESTIONS[i].id for i in kept]
        assert dropped == 4 - len(kept)
    whole, _ = encode()
    assert prompts == whole


def test_no_questions_are_refused(encode):
    with pytest.raises(InputError, match="no questions"):
        encode([])


def test_nothing_short_enough_is_refused(encode):
    with pytest.raises(
        InputError,
        match=r"max_prompt_tokens=5 is too small: the shortest of the 4 prompts has 6 to",
    ):
        encode(max_prompt_tokens=5)


def test_a_prompt_keeps_all_that_its_question_says(encode):
    question = Question(
        id="i",
        question="q",
        answer="a",
        task="t",
        solution="s",
        messages=CONVERSATION,
        system_prompt="p",
        metadata={"tests": [1]},
    )
    (prompt,), _ = encode([question])
    assert Question(**{f.name: getattr(prompt, f.name) for f in fields(Question)}) == question


CONVERSATION = (
    {"role": "user", "content": "1+2"},
    {"role": "assistant", "content": "#### 3"},
    {"role": "user", "content": "3+4"},
    {"role": "assistant", "content": "#### 7"},
)


def conversation(*messages, **more):
    return Question(id="i", question="3+4", answer="7", task="t", messages=messages, **more)


def test_a_conversation_is_the_prompt_without_the_answer_at_its_end(encode, policy):
    (prompt,), _ = encode([conversation(*CONVERSATION)])
    text = policy.tokenizer.decode(prompt.tokens)
    expected = "<|user|>1+2<|end|><|assistant|>#### 3<|end|><|user|>3+4<|end|><|assistant|>"
    assert text == expected
    assert prompt.messages == CONVERSATION


def test_the_system_prompt_of_a_question_goes_before_that_of_the_data_set(encode, policy):
    own, of_data = conversation(*CONVERSATION[:1], system_prompt="A"), QUESTIONS[0]
    first, second = encode([own, of_data], system_prompt="B")[0]
    assert policy.tokenizer.decode(first.tokens).startswith("<|system|>A<|end|><|user|>1+2")
    assert policy.tokenizer.decode(second.tokens).startswith("<|system|>B<|end|><|user|>1+2")
    assert (first.system_prompt, second.system_prompt) == ("A", "B")


def test_a_system_message_in_the_conversation_replaces_both(encode, policy):
    system = {"role": "system", "content": "C"}
    question = conversation(system, *CONVERSATION[:1], system_prompt="A")
    (prompt,), _ = encode([question], system_prompt="B")
    expected = "<|system|>C<|end|><|user|>1+2<|end|><|assistant|>"
    assert policy.tokenizer.decode(prompt.tokens) == expected
    assert prompt.system_prompt == "C"


@pytest.mark.parametrize("messages", [(), CONVERSATION[1:2], ({"role": "system", "content": "x"},)])
def test_a_conversation_without_a_user_is_refused(encode, messages):
    with pytest.raises(InputError, match="conversation of the question i has no user message"):
        encode([conversation(*messages)])


def test_a_question_that_is_repeated_is_encoded_once(encode):
    first, second = QUESTIONS[:2]
    prompts, dropped = encode([first, second, first, second, first], max_prompt_tokens=6)
    assert [prompt.id for prompt in prompts] == [first.id] * 3
    assert dropped == 2
    assert prompts[0] is prompts[1]


THOUGHTFUL = (
    "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
ALWAYS = "{% for m in messages %}Q: {{ m['content'] }}\n{% endfor %}A: <think>"


@pytest.mark.parametrize(
    ("template", "end"),
    [(None, "<|assistant|>"), (THOUGHTFUL, "<|assistant|><think>\n"), (ALWAYS, "\nA: <think>")],
)
def test_prompts_know_what_the_template_wrote_for_the_assistant(policy, template, end):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = template or tokenizer.chat_template
    questions = [replace(QUESTIONS[0], question=text) for text in ("1+2", "a <think> tag?", "n")]
    prompts, _ = encode_prompts(questions, tokenizer, system_prompt=None, max_prompt_tokens=99)
    assert [prompt.generation_prompt for prompt in prompts] == [
        *(end, end),
        "k>" if template is ALWAYS else end,
    ]
