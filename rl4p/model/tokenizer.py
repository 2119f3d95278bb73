"""Tokenizers: read from a folder and checked, or built with one token per byte."""

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from rl4p.base.errors import InputError
from rl4p.configuration.suggestions import did_you_mean
from rl4p.model.chat_templates import KEYS, ChatTemplate
from rl4p.model.folder import tokenizer_files
from rl4p.model.tensor_files import check_file, read_json
from rl4p.model.trial import try_loading

if TYPE_CHECKING:  # imported where it is used, because the import takes half a second
    from transformers import PreTrainedTokenizerFast

# Silences a message of transformers at import about the absence of torch.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

log = logging.getLogger(__name__)
CONFIG = "tokenizer_config.json"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# What a chat template can raise: it is a program, and may come from anyone.
TEMPLATE_ERRORS = (
    *(TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)

GIVEN = ("messages", "add_generation_prompt", "tokenize", "return_dict", "strftime_now")
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def load_tokenizer(folder: Path, own: ChatTemplate | None = None) -> "PreTrainedTokenizerFast":
    """Reads tokenizer.json and its companion files, and checks that there is a chat template.

    `AutoTokenizer` is not used: it may choose, by the model type in config.json, a class with
    other rules of splitting than those in the file.

    Args:
      own: a chat template in place of the one in the folder; None takes that one.

    Raises:
      InputError: a file is missing or broken, there is no chat template, the tokenizer lacks a
        token of `own`, or a short text takes it too much time or memory (`trial.py`).
    """
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        raise InputError(f"model.path={folder} has no tokenizer.json.")
    for path in folder.glob("*token*.json"):
        read_json(path)
    for path in folder.glob("chat_template*"):
        check_file(path)
    try_loading(folder, None if own is None else own.source)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the tokenizers library raises plain Exception
        reason = " ".join(str(error).split())
        raise InputError(f"The tokenizer in {folder} cannot be read: {reason}.") from error
    inside = read_json(path).get("chat_template") if (path := folder / CONFIG).is_file() else None
    beside = (folder / "chat_template.jinja").is_file()
    if beside and inside not in (None, tokenizer.chat_template):
        log.warning(
            "%s has two chat templates: chat_template.jinja is read, as by transformers, and not "
            "the one in tokenizer_config.json.",
            folder,
        )
    for key in ("is_local", "local_files_only"):  # else they are saved with it
        tokenizer.init_kwargs.pop(key, None)
    if own is not None:
        check_tokens(tokenizer, own, folder)
        tokenizer.chat_template = own.source
    if tokenizer.chat_template is None:
        raise InputError(
            f"The tokenizer in {folder} has no chat template: set model.chat_template={KEYS} or "
            "FILE, or add chat_template.jinja to the folder."
        )
    return tokenizer


def check_tokens(tokenizer: "PreTrainedTokenizerFast", own: ChatTemplate, folder: Path) -> None:
    """Raises InputError unless a tokenizer has, as one token each, what a chat template writes."""
    vocabulary = tokenizer.get_vocab()
    needed = own.tokens if own.end is None else (*own.tokens, own.end)
    if missing := [token for token in needed if token not in vocabulary]:
        raise InputError(
            f"model.chat_template needs the token {missing[0]}, which the tokenizer in {folder} "
            "lacks: choose plain, or another template."
        )


def check_template(
    tokenizer: "PreTrainedTokenizerFast", arguments: Mapping[str, Any], key: str = "model.template"
) -> None:
    """Raises InputError for an argument that the chat template would silently ignore."""
    words = set(re.findall(r"[A-Za-z_]\w*", tokenizer.get_chat_template()))
    for name in arguments:
        if name in GIVEN:
            raise InputError(f"{key}.{name} is set by rl4p: leave it out.")
        if name not in words:
            hint = did_you_mean(name, words, f"{key}.{{}}") or "."
            raise InputError(f"{key}.{name} does not occur in the model's chat template{hint}")


def save_tokenizer(tokenizer: "PreTrainedTokenizerFast", folder: Path) -> None:
    """Writes the files of a tokenizer, in a form that transformers 4.57 and 5 read.

    A tokenizer that was read from a folder is a copy of its files there, byte for byte: what
    loaded them before loads them again.

    Raises:
      OSError: the files could not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(tokenizer.name_or_path)
    if tokenizer.name_or_path and (source / "tokenizer.json").is_file():
        for path in tokenizer_files(source):
            copy = shutil.copytree if path.is_dir() else shutil.copyfile
            copy(path, folder / path.name)
        return
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # the tokenizers library has no class for a full disk
        raise OSError(str(error)) from error
    # Version 5 writes names here that version 4 cannot read; both read the older ones.
    config = read_json(folder / CONFIG)
    config.pop("backend", None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """Returns a lossless tokenizer of one token per byte, five special tokens and a template."""
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


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
LONGEST = 4  # tokens of one character: UTF-8 has at most four bytes


def token_texts(tokenizer: "PreTrainedTokenizerFast", tokens: Sequence[int]) -> list[str]:
    """Returns one text for each token, special tokens included.

    A token may hold a part of a character, so tokens cannot be decoded one by one. The last token
    of a character gets its whole text, the tokens before it get "". Each text is decoded after the
    token before it, because some tokenizers drop a space at the beginning of a text.
    """

    def decoded(part: Sequence[int]) -> str:
        text: Any = tokenizer.decode(list(part), skip_special_tokens=False)
        return text

    texts: list[str] = []
    before = begin = 0  # the tokens from `before` to `begin` are the context
    for end in range(1, len(tokens) + 1):
        text = decoded(tokens[before:end])
        if text.endswith(UNFINISHED) and end < len(tokens) and end - begin < LONGEST:
            texts.append("")
            continue
        texts.append(text[len(decoded(tokens[before:begin])) :])
        before, begin = begin, end
    return texts
