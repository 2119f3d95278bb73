"""The log of a run."""

from types import SimpleNamespace

METRICS = {"reward/mean": 0.25, "rollout/tokens_per_second": 1234.4, "time/step": 2.0}


def info(step, *, response="#### 3", **metrics):
    prompt = SimpleNamespace(question="1+2?", answer="3")
    return SimpleNamespace(
        step=step,
        metrics=METRICS | metrics,
        episodes=(SimpleNamespace(prompt=prompt, response=response), None),
        rewards=SimpleNamespace(total_B=[1.5, 0.0]),
    )
