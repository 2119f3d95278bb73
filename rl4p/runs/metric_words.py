"""Metrics in words, for the titles and the axes of pictures."""

import re

WORDS = {
    "reward/mean": "mean reward of the samples",
    "rollout/response_tokens": "response length (tokens)",
    "update/entropy": "entropy of the policy (nats per token)",
    "rollout/logprob_gap_max": "sampler gap (largest, of log-probabilities)",
    "rollout/truncated": "truncated responses (share)",
}
# The measures of an evaluation, by the end of the metric's name.
EVALUATIONS = {
    r"pass_at_1": "greedy pass@1",
    r"pass_at_(\d+)": r"pass@\1",
    r"avg_at_(\d+)": r"mean pass@1 of \1 samples",
    r"(loss|perplexity)": r"\1",
}


def in_words(*names: str) -> str:
    """Returns a metric, or the mean of several, in words; other names stay as they are."""
    parts = [re.fullmatch(r"eval/(.+)/([^/]+)", name) for name in names]
    measures = {measure_in_words(part[2]) if part else None for part in parts}
    if None in measures or len(measures) > 1:
        return WORDS.get(names[0], names[0]) if len(names) == 1 else f"mean of {', '.join(names)}"
    (measure,) = measures
    if len(names) > 1:
        return f"mean {measure} on {len(names)} held-out tasks"
    return f"{measure} on held-out {parts[0][1] if parts[0] else ''}"


def measure_in_words(measure: str) -> str | None:
    """Returns the last part of the name of an evaluation's metric in words; None if unknown."""
    for pattern, words in EVALUATIONS.items():
        if (match := re.fullmatch(pattern, measure)) is not None:
            return match.expand(words)
    return None


def title(words: str) -> str:
    """Returns words with a capital letter at their beginning."""
    return words[:1].upper() + words[1:]
