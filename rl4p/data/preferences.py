"""Preference pairs from a file of JSON lines."""

from dataclasses import dataclass

from rl4p.data.jsonl import JSONLines


@dataclass(frozen=True, kw_only=True)
class Preferences(JSONLines):
    """A file with one JSON object per line: a prompt, and a better and a worse response to it.

        {"prompt": [{"role": "user", "content": "2+2?"}],
         "chosen": [{"role": "assistant", "content": "4"}],
         "rejected": [{"role": "assistant", "content": "5"}]}

    The names and forms are TRL's: messages or plain texts, with a prompt or with a beginning that
    both responses share. Other formats (`data=parquet`, `huggingface`, ...) have the same options.
    `Rows` explains them.
    """

    question_key: str = "prompt"
    chosen_key: str | None = "chosen"
    rejected_key: str | None = "rejected"
    several_answers: bool = True
    task: str = "preferences"
