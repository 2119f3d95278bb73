"""Explains from the metrics of a run what goes wrong in it: one line for each finding."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rl4p.protocols.hook import StepInfo
from rl4p.runs.history import WINDOW, History
from rl4p.runs.symptoms import LAST_RULE, RULES, Symptom, loss_note

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finding(Symptom):
    """A symptom in the metrics of a run.

    Attributes:
      name: a fixed name, for scripts.
      step: the step at which it was found.
    """

    name: str
    step: int

    def __str__(self) -> str:
        """Returns one line for the terminal."""
        value = f"{self.value:.3g}"
        return f"{self.metric} is {value} at step {self.step}: {self.meaning} Try {self.remedy}"


def diagnose(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[Finding]:
    """Returns what is wrong with a run, causes before their consequences; [] if nothing is.

    Args:
      rows: the rows of metrics.jsonl, up to any step.
      config: the resolved configuration of the run.
    """
    history = History(rows, config)
    if not history.steps:
        return []
    symptoms = [(rule.__name__, rule(history)) for rule in RULES]
    if not any(symptom for _, symptom in symptoms):
        symptoms.append((LAST_RULE.__name__, LAST_RULE(history)))
    step = int(history.steps[-1]["step"])
    return [
        Finding(name=name, step=step, **vars(symptom))
        for name, symptom in symptoms
        if symptom is not None
    ]


@dataclass(kw_only=True)
class Diagnosis:
    """A hook that logs each finding once, when it is found, and again at the end if it lasts.

    Attributes:
      config: the resolved configuration of the run.
      quiet: whether to log nothing, as in all processes but the first.
      every: 1, because the hook reads the metrics of every step.
      rows: the metrics of all steps so far.
      seen: by name, the first step of a finding, and the newest finding.
    """

    config: Mapping[str, Any]
    quiet: bool = False
    every: int = 1
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    seen: dict[str, tuple[int, Finding]] = field(default_factory=dict)

    def begin(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Sets the metrics of the steps before this start of the run."""
        self.rows = list(rows)

    def __call__(self, info: StepInfo) -> None:
        self.rows.append({**info.metrics, "step": info.step})
        due = info.step < WINDOW or info.step % WINDOW == 0
        if due and info.step < self.config["steps"]:  # the end tells what holds after the last step
            known = set(self.seen)
            self.tell(finding for finding in self.update() if finding.name not in known)

    def end(self) -> list[dict[str, Any]]:
        """Logs what holds at the end, and returns all findings of the run for its summary."""
        self.tell(self.update())
        return [{"first_step": first, **asdict(finding)} for first, finding in self.seen.values()]

    def note(self) -> str | None:
        """Returns a note on a loss near 0, which is no failure; None if there is none to make."""
        return loss_note(History(self.rows, self.config))

    def update(self) -> list[Finding]:
        """Diagnoses the steps so far and returns what holds now."""
        findings = diagnose(self.rows, self.config)
        for finding in findings:
            first, _ = self.seen.get(finding.name, (finding.step, finding))
            self.seen[finding.name] = first, finding
        return findings

    def tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if not self.quiet:
                log.warning("%s", finding)
