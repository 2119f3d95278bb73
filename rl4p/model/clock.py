"""The date that a chat template sees, which is part of a prompt and so of a run."""

import json
from datetime import datetime
from typing import TYPE_CHECKING

from rl4p.base.errors import InputError
from rl4p.distributed.processes import agreed

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
      tokenizer: the tokenizer with the template.
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
