"""The tags ``<think>`` and ``<answer>``, in which a response keeps its reasoning and its answer."""

from rl4p.data.answer import tagged

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def stated_answer(response: str) -> str | None:
    """Returns the answer that a response states, without the spaces around it.

    This is the text between the last ``<answer>`` and the ``</answer>`` after it. Without
    ``<answer>``, it is the text after the last ``</think>``, or the whole response if it has no
    tags at all. None stands for a response that was cut: its last tag was never closed.
    """
    if "<answer>" in response:
        return tagged(response)
    _, opened, tail = response.rpartition("<think>")
    if opened:
        _, closed, tail = tail.rpartition("</think>")
        return tail.strip() if closed else None
    return response.rpartition("</think>")[2].strip()
