"""Chat templates for tokenizers that have none, by the key in `model.chat_template`.

Each is written from the documented format of a family. No template has a default system message.
"""

from typing import Literal, NamedTuple, get_args

from rl4p.base.errors import InputError
from rl4p.base.storage import local_copy
from rl4p.configuration.suggestions import did_you_mean
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
    """Returns the template that `model.chat_template` names: a key, or a file with Jinja.

    Raises:
      InputError: it is neither.
    """
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
