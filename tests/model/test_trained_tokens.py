"""Tests the tokens of prompts, and the tokens that are trained, for several tokenizers."""

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt, Question
from rl4p.data.prompts import encode_prompts
from rl4p.distributed.mesh import Mesh
from rl4p.model.policy import Policy
from rl4p.model.tokenizer import CHAT_TEMPLATE, byte_tokenizer, load_tokenizer
from rl4p.rollout.demonstrations import Demonstrations

QUESTION = Question(id="a", question="1+2", answer="3", task="t", solution="=3")
HISTORY = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yo"},
    {"role": "user", "content": "1+2"},
]


def begins(template):
    return "{{ bos_token }}" + template


THINKING = CHAT_TEMPLATE.replace(
    "'<|assistant|>' }}{% endif %}",
    "'<|assistant|>' }}{% if enable_thinking is false %}{{ '[]' }}{% endif %}{% endif %}",
)


def tokenizer(folder, *, template=CHAT_TEMPLATE, adds_bos=False, **special):
    """Returns a saved and loaded byte tokenizer; Llama's and Gemma's have `adds_bos` by default."""
    from tokenizers.processors import TemplateProcessing

    made = byte_tokenizer()
    if adds_bos:
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|system|> $A", special_tokens=[("<|system|>", 258)]
        )
    for name, token in special.items():
        setattr(made, name, token)
    made.chat_template = template
    made.save_pretrained(folder)
    return load_tokenizer(folder)


def prompt(tokenizer, **options):
    options = {"system_prompt": None, "max_prompt_tokens": 99} | options
    (encoded,), _ = encode_prompts([QUESTION], tokenizer, **options)
    return encoded


def shown(tokenizer, ids):
    return " ".join(tokenizer.convert_ids_to_tokens(list(map(int, ids))))


@pytest.mark.parametrize(
    ("made", "options", "golden"),
    [
        ({}, {}, "<|user|> 1 + 2 <|end|> <|assistant|>"),
        (
            {},
            {"system_prompt": "Go"},
            "<|system|> G o <|end|> <|user|> 1 + 2 <|end|> <|assistant|>",
        ),
        # The template begins with <bos> and the tokenizer adds <bos>: the result has one.
        (
            {"bos_token": "<|system|>", "adds_bos": True, "template": begins(CHAT_TEMPLATE)},
            {},
            "<|system|> <|user|> 1 + 2 <|end|> <|assistant|>",
        ),
        (
            {"bos_token": "<|system|>", "template": begins(CHAT_TEMPLATE)},
            {},
            "<|system|> <|user|> 1 + 2 <|end|> <|assistant|>",
        ),
        # The model was trained on the template's output, which here has no <bos>.
        ({"adds_bos": True}, {}, "<|user|> 1 + 2 <|end|> <|assistant|>"),
        (
            {"template": THINKING},
            {"template": {"enable_thinking": False}},
            "<|user|> 1 + 2 <|end|> <|assistant|> [ ]",
        ),
        ({"template": THINKING}, {}, "<|user|> 1 + 2 <|end|> <|assistant|>"),
    ],
    ids=["plain", "system", "bos twice", "bos of the template", "bos of neither", "off", "on"],
)
def test_special_tokens_stand_where_the_template_puts_them(tmp_path, made, options, golden):
    made = tokenizer(tmp_path, **made)
    assert shown(made, prompt(made, **options).tokens) == golden


@pytest.fixture
def demonstrate(policy):
    """Returns a function that gives a row's tokens without padding, and those that are trained."""

    def demonstrate(tokenizer, prompts):
        own = Policy(
            decoder=policy.decoder,
            tokenizer=tokenizer,
            mesh=Mesh(dp=1),
            end_ids=(tokenizer.eos_token_id,),
            pad_id=tokenizer.pad_token_id,
        )
        drawn, episodes = Demonstrations(max_response_tokens=8)(
            own, None, prompts, group_size=1, key=None, version=0
        )
        tokens, trained, segments = map(
            np.asarray, (drawn.tokens_BT, drawn.response_mask_BT, drawn.segment_ids_BT)
        )
        rows = [
            (shown(tokenizer, row[here > 0]), shown(tokenizer, row[mask]))
            for row, mask, here in zip(tokens, trained, segments, strict=True)
        ]
        return rows, tuple(episode.response for episode in episodes)

    return demonstrate


@pytest.mark.parametrize("pad", ["<|pad|>", "<|end|>"])
def test_the_end_token_is_trained_and_padding_is_not_though_they_be_one(tmp_path, demonstrate, pad):
    made = tokenizer(tmp_path, pad_token=pad)
    rows, texts = demonstrate(made, [prompt(made), prompt(made, system_prompt="Go")])
    ours = "<|user|> 1 + 2 <|end|> <|assistant|> = 3 <|end|>"
    assert rows == [(ours, "= 3 <|end|>"), (f"<|system|> G o <|end|> {ours}", "= 3 <|end|>")]
    assert texts == ("=3", "=3")


@pytest.mark.parametrize("pad", ["<|pad|>", "<|end|>"])
def test_what_was_said_before_is_not_trained(tmp_path, demonstrate, pad):
    made = tokenizer(tmp_path, pad_token=pad)
    ids = made.apply_chat_template(HISTORY, add_generation_prompt=True, return_dict=False)
    history = Prompt(**vars(QUESTION), tokens=tuple(ids))
    golden = "<|user|> H i <|end|> <|assistant|> Y o <|end|> <|user|> 1 + 2 <|end|> <|assistant|>"
    assert demonstrate(made, [history])[0] == [(f"{golden} = 3 <|end|>", "= 3 <|end|>")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "{{ 1 // 0 }}",
        "{% include 'other' %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'x' * 10**18 }}",
        "{{ messages[9].content }}",
        "{{ messages.append(1) }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_a_template_that_fails_is_one_sentence(tmp_path, program):
    sentence = r"chat template (fails|in .* is refused): "
    with pytest.raises(InputError, match=sentence) as refused:
        prompt(tokenizer(tmp_path, template=CHAT_TEMPLATE + program))
    assert "\n" not in str(refused.value)


def test_a_template_that_refuses_a_prompt_says_so(tmp_path):
    refuses = (
        "{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}" + CHAT_TEMPLATE
    )
    made = tokenizer(tmp_path, template=refuses)
    assert prompt(made).tokens
    with pytest.raises(InputError, match=r"fails: System role not supported \(check data\.system"):
        prompt(made, system_prompt="Go")
