"""The messages of the assistant that a conversation excludes from supervised training.

Files say it by one of these keys of a message, each 1 or true by default:

    weight      OpenAI's fine-tuning format, mistral-finetune, Fireworks
    train       axolotl
    trainable   verl, rllm
    loss        ms-swift
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rl4p.base.errors import InputError

KEYS = ("weight", "train", "trainable", "loss")
PARTS = "train_detail"  # axolotl's, for ranges of characters


def is_trained(message: Mapping[str, Any]) -> bool:
    """Returns whether supervised training trains a message."""
    return message["role"] == "assistant" and all(message.get(key) != 0 for key in KEYS)


def check_weights(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of messages that are to be trained although no assistant wrote them."""
    others = 0
    for number, message in enumerate(messages, 1):
        weights = {key: message[key] for key in KEYS if message.get(key) is not None}
        for key, value in weights.items():
            if value not in (0, 1):
                raise InputError(
                    f'message {number} has "{key}": {value!r:.40}, and a message is trained wholly '
                    "or not at all: write 0, 1, false or true"
                )
        if len(set(map(bool, weights.values()))) > 1:
            raise InputError(
                f"message {number} is trained by one of its keys {', '.join(weights)} and not by "
                "another: leave one out"
            )
        if message.get(PARTS):
            raise InputError(
                f'message {number} has "{PARTS}", and a message is trained wholly or not at all: '
                'leave it out, or write "train": false'
            )
        others += message["role"] != "assistant" and any(weights.values())
    return others
