"""Tokenizers: read from a folder and checked, or made here byte by byte."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rl4p.errors import InputError

if (
    TYPE_CHECKING
):  # imported where it is used: it takes half a second, and checking does not need it
    from transformers import PreTrainedTokenizerFast

# transformers remarks at import that torch is absent.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    """Reads tokenizer.json and what belongs to it, and checks what training depends on.

    The class is named here because `AutoTokenizer` goes by the model type of config.json and may
    put its own class, with its own rules of splitting, in place of the file's.

    Raises:
      InputError: a file, the end token, the pad token or the chat template is missing.
    """
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"model.path={folder} has no tokenizer.json.")
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"The tokenizer in {folder} cannot be read: {reason}.") from error
    missing = [
        name
        for name, value in (
            ("an end token (eos_token)", tokenizer.eos_token_id),
            ("a pad token (pad_token)", tokenizer.pad_token_id),
            ("a chat template", tokenizer.chat_template),
        )
        if value is None
    ]
    if missing:
        raise InputError(
            f"The tokenizer in {folder} has no {', no '.join(m.split(' ', 1)[1] for m in missing)}:"
            " add it to tokenizer_config.json (a chat template may also stand in"
            " chat_template.jinja)."
        )
    return tokenizer


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per byte (any text comes back as it was), five special tokens, a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, end, *roles = SPECIAL_TOKENS
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token=end,
        extra_special_tokens=roles,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
