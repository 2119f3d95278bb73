"""Tokenizers: read from a folder and checked, or made here byte by byte."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4p.configuration.targets import did_you_mean
from rl4p.errors import InputError
from rl4p.model.tensor_files import read_json

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
GIVEN = ("messages", "add_generation_prompt", "tokenize", "return_dict")
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    """Reads tokenizer.json and what belongs to it, and checks what training depends on.

    The class is named here because `AutoTokenizer` goes by the model type of config.json and may
    put its own class, with its own rules of splitting, in place of the file's.

    Raises:
      InputError: a file or the chat template is missing or broken.
    """
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"model.path={folder} has no tokenizer.json.")
    for path in folder.glob("*token*.json"):
        read_json(path)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library of tokenizer.json raises nothing narrower
        reason = " ".join(str(error).split())
        raise InputError(f"The tokenizer in {folder} cannot be read: {reason}.") from error
    for key in ("is_local", "local_files_only"):  # of this call; they would be saved with it
        tokenizer.init_kwargs.pop(key, None)
    if tokenizer.chat_template is None:
        raise InputError(
            f"The tokenizer in {folder} has no chat template: add chat_template.jinja, or "
            "chat_template to tokenizer_config.json."
        )
    return tokenizer


def check_template(
    tokenizer: "PreTrainedTokenizerFast", arguments: Mapping[str, Any], key: str = "model.template"
) -> None:
    """Refuses arguments that the chat template does not know: it would pass over them in silence.

    Raises:
      InputError: names the first, and the nearest that the template knows.
    """
    words = set(re.findall(r"[A-Za-z_]\w*", tokenizer.get_chat_template()))
    for name in arguments:
        if name in GIVEN:
            raise InputError(f"{key}.{name} is not for a configuration to say.")
        if name not in words:
            hint = did_you_mean(name, words, f"{key}.{{}}") or "."
            raise InputError(f"{key}.{name} does not occur in the model's chat template{hint}")


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
