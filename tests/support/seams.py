"""Tokenizers that treat the text behind an end token in different ways, with their end tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl4p.model.tokenizer import byte_tokenizer
from tests.support.chats import MODELS, TAGGED, TAGGED_WITH_NEWLINE, TAGGED_WITHOUT_END, model

STRIPS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
WITHOUT_TOKENS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
THOUGHTLESS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if loop.last and m.role == 'assistant' %}thoughts {% endif %}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def bytes_with(template, **strips):
    tokenizer = byte_tokenizer()
    names = ("<|end|>", "<|user|>", "<|assistant|>") if strips else ()
    strips = {"normalized": False} | strips
    tokens = [AddedToken(name, special=True, **strips) for name in names]
    tokenizer.add_tokens(tokens, special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer, [tokenizer.convert_tokens_to_ids("<|end|>")]


KINDS = {
    **{name: lambda name=name: model(name) for name in MODELS},
    "tags": lambda: model("qwen2_5", TAGGED),
    "tags without ends": lambda: model("qwen2_5", TAGGED_WITHOUT_END),
    "tags with lines": lambda: model("qwen2_5", TAGGED_WITH_NEWLINE),
    "strips right": lambda: bytes_with(STRIPS, rstrip=True),
    "strips left": lambda: bytes_with(STRIPS, lstrip=True),
    "single words": lambda: bytes_with(STRIPS, single_word=True),
    "no tokens": lambda: bytes_with(WITHOUT_TOKENS),
    "other last message": lambda: bytes_with(THOUGHTLESS),
}


def prefixed(scheme):
    """Returns a tokenizer that puts a space before texts, as those of SentencePiece do."""
    vocabulary = {x: i for i, x in enumerate(("<unk>", "<|end|>", "▁", "\n"))}
    for code in range(33, 127):
        vocabulary.setdefault(chr(code), len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    options = {"replacement": "▁", "prepend_scheme": scheme, "split": False}
    backend.pre_tokenizer = pre_tokenizers.Metaspace(**options)
    backend.decoder = decoders.Metaspace(**options)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = STRIPS
    return tokenizer, [tokenizer.eos_token_id]


ENDS = KINDS | {
    "longer tokens": lambda: bytes_with(STRIPS, normalized=False),
    **{scheme: lambda scheme=scheme: prefixed(scheme) for scheme in ("first", "always", "never")},
}
