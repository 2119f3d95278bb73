"""Chat templates for tokenizers that have none, by the key in `model.chat_template`.

Each is written from the documented format of a family. No template has a default system message.

The date that a template sees is part of a prompt, and so of a run (`date_of`, `set_clock`).
"""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.configuration.suggestions import did_you_mean
from rl4p.distributed.processes import agreed
from rl4p.model.tensor_files import check_file

Key = Literal["chatml", "qwen", "llama3", "gemma", "mistral", "plain"]


class ChatTemplate(NamedTuple):
    """A chat template.

    Attributes:
      source: the template, in Jinja.
      end: the token that ends a message of the assistant; None is the tokenizer's end token.
      tokens: the other tokens that the tokenizer must have.
    """

    source: str
    end: str | None = None
    tokens: tuple[str, ...] = ()


CHATML = ChatTemplate(
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    end="<|im_end|>",
    tokens=("<|im_start|>",),
)

LLAMA3 = ChatTemplate(
    "{{ '<|begin_of_text|>' }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}",
    end="<|eot_id|>",
    tokens=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
)

# Gemma and Mistral have no system message: its text begins the first message of the user.
WITHOUT_SYSTEM = (
    "{% set first = messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' %}"
    "{% for message in messages if message['role'] != 'system' %}"
    "{% set text = (first if loop.first else '') + message['content'] %}"
)

GEMMA = ChatTemplate(
    "{{ bos_token }}" + WITHOUT_SYSTEM + "{% set role = message['role'] %}"
    "{{ '<start_of_turn>' + ('model' if role == 'assistant' else role) + '\n' }}"
    "{{ text | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    end="<end_of_turn>",
    tokens=("<start_of_turn>",),
)

MISTRAL = ChatTemplate(
    "{{ bos_token }}" + WITHOUT_SYSTEM + "{% if message['role'] == 'assistant' %}"
    "{{ ' ' + text | trim + eos_token }}"
    "{% else %}"
    "{{ '[INST] ' + text + ' [/INST]' }}"
    "{% endif %}"
    "{% endfor %}",
)

PLAIN = ChatTemplate(
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ 'Assistant: ' + message['content'] + eos_token + '\n\n' }}"
    "{% else %}{{ message['role'] | capitalize + ': ' + message['content'] + '\n\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
)

TEMPLATES: dict[str, ChatTemplate] = {
    "chatml": CHATML,
    "qwen": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "plain": PLAIN,
}

KEYS = ", ".join(get_args(Key))


def chat_template(given: str) -> ChatTemplate:
    """Returns the template that `model.chat_template` names: a key, or a file with Jinja."""
    if given in TEMPLATES:
        return TEMPLATES[given]
    path = local_copy(given).expanduser()
    if path.is_file():
        check_file(path)
        return ChatTemplate(path.read_text("utf-8"))
    hint = did_you_mean(given, TEMPLATES, "model.chat_template={}") or "."
    raise InputError(
        f"model.chat_template={given} is neither a file nor one of {KEYS}{hint}".rstrip(".") + "."
    )


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NAME = "strftime_now"  # the function of transformers that chat templates call
DIRECTIVES = [f"%{flag}{x}" for flag in ("-", "") for x in "aAbBcdDeFGHIjlmMpPRSTuUVwWxXyYzZ"]


def uses_clock(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Returns whether a chat template of the tokenizer has the date."""
    return NAME in str(tokenizer.chat_template)


def date_of(tokenizer: "PreTrainedTokenizerFast", given: str | None, key: str) -> str | None:
    """Returns the date for the chat template: the given one, or today; None if it has no date.

    Args:
      given: a date, or a date and a time, in ISO 8601; the time of a date is 00:00.
      key: the option with the date, for error messages.

    Raises:
      InputError: the date is not in ISO 8601, or is given although the template has none.
    """
    if not uses_clock(tokenizer):
        if given is not None:
            raise InputError(f"{key}={given} has no effect: the chat template has no date.")
        return None
    if given is None:
        return str(agreed(f"{datetime.now():%Y-%m-%d}"))
    try:
        datetime.fromisoformat(given)
    except ValueError:
        raise InputError(f"{key}={given} is not a date such as 2026-01-31.") from None
    return given


def set_clock(tokenizer: "PreTrainedTokenizerFast", date: str) -> None:
    """Sets the date that the chat templates of the tokenizer see from now on."""
    templates = tokenizer.chat_template
    if isinstance(templates, dict):
        tokenizer.chat_template = {name: dated(x, date) for name, x in templates.items()}
    else:
        tokenizer.chat_template = dated(str(templates), date)


def dated(template: str, date: str) -> str:
    """Returns a chat template whose `strftime_now` is a macro with a clock that stands still.

    A macro, because transformers passes no functions to templates. It replaces the directives of a
    format one after another. The newline after the macro belongs to it (`trim_blocks`).
    """
    when = datetime.fromisoformat(date)
    steps = [("%%", "\0"), *((each, when.strftime(each)) for each in DIRECTIVES), ("\0", "%")]
    calls = "".join(f"|replace({json.dumps(a)}, {json.dumps(b)})" for a, b in steps if a != b)
    return f"{{% macro {NAME}(format) %}}{{{{ format{calls} }}}}{{% endmacro %}}\n{template}"
