"""The diagnosis of a run: symptoms that its metrics show, and what to do about each."""

import logging
import math
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from rl4p.base.errors import InputError
from rl4p.configuration.targets import locate
from rl4p.configuration.trust import TRUSTED
from rl4p.protocols.hook import StepInfo

log = logging.getLogger(__name__)

WINDOW = 10  # steps: a shorter one takes noise for a symptom, a longer one reports late
SOLVED = 0.9  # of the held-out prompts answered correctly
EQUAL_GROUPS = 0.9  # of the groups give no gradient: a step costs ten times what it should
TRUNCATED = 0.5  # of the responses: most samples are graded without their end
ENTROPY = 0.1  # of the initial entropy: the samples of a prompt are nearly the same
GAP = 0.05  # nats per token: bfloat16 gives up to 0.02, float32 less than 0.0001
GAP_GROWTH = 20.0  # times the gap of the first steps, if the gap is above GAP / 10 as well
CLIPPED = 0.3  # of the tokens: usual are 0.001 to 0.2
NARROW = 0.05  # a narrower clip is one of whole sequences, and clips many by design
KL = 0.5  # nats per token from the initial policy: usual are 0.001 to 0.1
STEP_KL = 0.1  # nats per token within one step: usual are 0.0001 to 0.02
INVALID = 0.02  # of the samples: a grader may time out at times
NOISE = 3.0  # standard errors: a smaller change of the reward may be noise
FLAT_STEPS = 40  # in fewer steps a usual learning rate may change the reward by noise only
PATIENCE = 100  # steps, and half of the run, before a flat reward is reported while the run goes on


@dataclass(frozen=True)
class History:
    """The rows of a run's metrics.jsonl, up to any step, and its resolved configuration."""

    rows: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]

    @cached_property
    def steps(self) -> list[Mapping[str, Any]]:
        """The rows of steps that trained, without the evaluation before the first step."""
        return [row for row in self.rows if "reward/mean" in row]

    @property
    def lasts(self) -> bool:
        """Whether there are as many steps as a window has."""
        return len(self.steps) >= WINDOW

    def values(self, metric: str) -> list[float]:
        return [float(row[metric]) for row in self.steps if metric in row]

    def recent(self, metric: str) -> list[float]:
        return self.values(metric)[-WINDOW:]

    def late(self, metric: str) -> float:
        """Returns the median of the last steps, so that one odd step does not count; or nan."""
        values = self.recent(metric)
        return statistics.median(values) if values else math.nan

    def early(self, metric: str) -> float:
        """Returns the median of the first steps; nan if the run has no such metric."""
        values = self.values(metric)[:WINDOW]
        return statistics.median(values) if values else math.nan

    @cached_property
    def evaluations(self) -> list[float]:
        """The pass@1 of each evaluation, of the worst task."""
        scores = [
            [float(x) for name, x in row.items() if name.endswith("/pass_at_1")]
            for row in self.rows
        ]
        return [min(values) for values in scores if values]

    @property
    def solved(self) -> bool:
        """Whether the last evaluation answers nearly all held-out prompts correctly."""
        return bool(self.evaluations) and self.evaluations[-1] >= SOLVED

    @cached_property
    def change(self) -> float:
        """The change of the mean reward from the first to the last steps, in standard errors.

        The samples of a prompt are not independent, so the number of prompts counts.
        """
        rewards = self.values("reward/mean")
        difference = mean(rewards[-WINDOW:]) - mean(rewards[:WINDOW])
        variance = self.early("reward/std") ** 2 + self.late("reward/std") ** 2
        error = math.sqrt(variance / (WINDOW * self.config["prompts_per_step"]))
        if error:
            return difference / error
        return math.copysign(math.inf, difference) if difference else 0.0

    def option(self, key: str, default: Any = None) -> Any:
        """Returns a value of the configuration by its dotted key."""
        value: Any = self.config
        for name in key.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return default
            value = value[name]
        return value

    def chooses_none(self, group: str) -> bool:
        """Returns whether a group that may be off is off."""
        return str(self.option(f"{group}._target_")).endswith(".NONE")

    def declares(self, phase: str, name: str, default: bool) -> bool:
        """Returns a property that the class of a phase declares (`experiment/compatibility.py`)."""
        target = str(self.option(f"{phase}._target_"))
        module, _, leaf = target.rpartition(".")
        part = getattr(sys.modules.get(module), leaf, None)  # of the user's own, in this run
        if part is None:
            try:
                part = locate(target, TRUSTED, phase)
            except InputError:  # nothing of a folder's own is imported
                return default
        return getattr(part, name, default)

    @cached_property
    def learns_from_reward(self) -> bool:
        """Whether the policy samples and its loss depends on the rewards."""
        return (
            self.declares("rollout", "samples", True)
            and self.declares("update", "reads_advantages", True)
            and not self.declares("advantage", "uniform", False)
            and self.option("teacher") is None
        )


def mean(values: Sequence[float]) -> float:
    """Returns the mean; nan without values."""
    return statistics.fmean(values) if values else math.nan


@dataclass(frozen=True)
class Symptom:
    """One symptom, without its name and step."""

    metric: str  # the metric that shows it
    value: float  # the value of the metric, usually the median of the last steps
    meaning: str  # what it usually means, as a sentence
    remedy: str  # the override to try


def lower_rate(history: History, factor: float = 10.0) -> str:
    """Returns the override that divides the learning rate."""
    return f"optimizer.learning_rate={history.option('optimizer.learning_rate') / factor:.2g}"


def larger_group(history: History) -> str:
    return f"group_size={max(8, 2 * history.config['group_size'])}"


def are_cut(history: History) -> bool:
    """Returns whether most responses are cut at the limit."""
    return history.late("rollout/truncated") >= TRUNCATED


def longer_responses(history: History) -> str:
    return f"max_response_tokens={2 * history.config['max_response_tokens']}"


def skipped_updates(history: History) -> Symptom | None:
    skipped = sum(x > 0 for x in history.recent("update/skipped"))
    if not skipped:
        return None
    meaning = (
        f"in {skipped} of the last steps a gradient was infinite or nan and changed nothing; "
        "usually the learning rate is too high, or a phase of your own returns such numbers."
    )
    return Symptom("update/skipped", skipped, meaning, f"{lower_rate(history)}, or debug=on")


def invalid_grades(history: History) -> Symptom | None:
    invalid = mean(history.recent("reward/invalid"))
    share = invalid / (history.config["prompts_per_step"] * history.config["group_size"])
    if not share > INVALID:
        return None
    if any(history.recent("environment/failed")):
        meaning = f"{share:.0%} of the samples are left out, because their episode fails."
        remedy = f"rollout.max_failed={INVALID}, to stop the run with the reason"
        return Symptom("reward/invalid", invalid, meaning, remedy)
    meaning = f"{share:.0%} of the samples are left out, because a grader fails or times out."
    tasks = history.option("reward.tasks") or ()  # of reward=router
    keys = [f"reward.tasks.{task}.max_invalid={INVALID}" for task in tasks]
    keys = keys or [f"reward.max_invalid={INVALID}"]
    remedy = f"{' '.join(keys)}, to stop the run and count the failures by term"
    return Symptom("reward/invalid", invalid, meaning, remedy)


def no_advantage(history: History) -> Symptom | None:
    recent = history.recent("advantage/max")
    if any(recent) or not recent:
        return None
    # Solved from the first evaluation on is also what a grader that accepts all looks like.
    if history.solved and not history.evaluations[0] >= SOLVED:
        return None
    why, remedy = "in each group all rewards are equal", larger_group(history)
    if history.option("rollout.temperature") == 0:
        why, remedy = "at temperature 0 all samples of a prompt are equal", "rollout.temperature=1"
    elif are_cut(history):  # more samples would be cut too
        why, remedy = "most responses are cut before their answer", longer_responses(history)
    elif not any(history.recent("reward/std")):
        every, count = history.option("samples.every", 0), history.option("samples.count", 0)
        recorded = every and count and any(row["step"] % every == 0 for row in history.steps)
        why = (
            f"all samples get the reward {history.late('reward/mean'):.3g}, as the prompts are too "
            "hard or too easy, or the grader is wrong"
        ) + (" (see samples.jsonl)" if recorded else "")
    return Symptom("advantage/max", 0.0, f"nothing is trained: {why}.", remedy)


def truncated(history: History) -> Symptom | None:
    share, limit = history.late("rollout/truncated"), history.config["max_response_tokens"]
    if not are_cut(history) or not (history.lasts or share == 1) or history.solved:
        return None
    said = no_advantage(history)
    if said is not None and said.remedy == longer_responses(history):
        return None
    meaning = f"most responses are cut at max_response_tokens={limit}, often before their answer."
    return Symptom("rollout/truncated", share, meaning, longer_responses(history))


def equal_groups(history: History) -> Symptom | None:
    share = history.late("advantage/zero_std_groups")
    some = any(history.recent("advantage/max"))  # otherwise `no_advantage` says it
    if share < EQUAL_GROUPS or not (history.lasts and some):
        return None
    if not history.declares("advantage", "compares_group", False):
        return None
    if history.solved or not history.learns_from_reward or history.change > NOISE:
        return None
    meaning = (
        "nearly all groups have equal rewards and train nothing; the prompts are too hard or too "
        "easy for this policy."
    )
    remedy = f"{larger_group(history)}, or other prompts"
    if are_cut(history):
        remedy = longer_responses(history)
    return Symptom("advantage/zero_std_groups", share, meaning, remedy)


def sampler_gap(history: History) -> Symptom | None:
    metric = "rollout/logprob_gap_mean"
    before, now = history.early(metric), history.late(metric)
    if not history.lasts or not (now > GAP or now > max(GAP / 10, GAP_GROWTH * before)):
        return None
    meaning = (
        "sampler and trainer compute different probabilities of tokens of the same weights "
        f"({before:.2g} in the first steps), so the gradient is biased."
    )
    uncorrected = history.chooses_none("correction")
    remedy = "correction=token_truncate" if uncorrected else "model.dtype=float32"
    return Symptom(metric, now, meaning, remedy)


def stale_samples(history: History) -> Symptom | None:
    """Reports stale samples that neither a correction nor the ratio of the loss allows for."""
    age = history.late("staleness/mean")
    coupled = history.option("update.old_policy") == "behaviour"
    if not history.lasts or not age > 0 or coupled or not history.chooses_none("correction"):
        return None
    meaning = f"the samples are {age:.2g} steps old on average, and nothing allows for it."
    remedy = "correction=token_truncate, or update.old_policy=behaviour"
    return Symptom("staleness/mean", age, meaning, remedy)


def clipped(history: History) -> Symptom | None:
    share = history.late("update/clip_low") + history.late("update/clip_high")
    narrow = history.option("update.clip_low", 1.0) < NARROW
    if not history.lasts or narrow or not share > CLIPPED:
        return None
    meaning = "in one step the policy moves so far that this share of tokens loses its gradient."
    several = [
        name for name in ("epochs", "minibatches") if history.option(f"update.{name}", 1) > 1
    ]
    remedy = ", or ".join([lower_rate(history, 2.0), *(f"update.{name}=1" for name in several)])
    return Symptom("update/clip_low + update/clip_high", share, meaning, remedy)


def large_steps(history: History) -> Symptom | None:
    now = history.late("update/approx_kl")
    if not history.lasts or not now > STEP_KL:
        return None
    meaning = "within one step the policy moves too far from the one that drew the samples."
    return Symptom("update/approx_kl", now, meaning, lower_rate(history, 3.0))


def far_from_reference(history: History) -> Symptom | None:
    now, beta = history.late("update/kl"), history.option("kl.beta")
    if not history.lasts or not now > KL:
        return None
    meaning = "the policy is far from the initial one, usually because the learning rate is high."
    remedy = f"kl.beta={10 * beta:.2g}, or {lower_rate(history)}" if beta else lower_rate(history)
    return Symptom("update/kl", now, meaning, remedy)


def fallen_reward(history: History) -> Symptom | None:
    if len(history.steps) < 2 * WINDOW or not history.learns_from_reward or history.solved:
        return None
    if history.change > -NOISE:
        return None
    now, before = mean(history.recent("reward/mean")), mean(history.values("reward/mean")[:WINDOW])
    meaning = f"it was {before:.3g} in the first steps; usually the learning rate is too high."
    return Symptom("reward/mean", now, meaning, lower_rate(history))


def collapsed_entropy(history: History) -> Symptom | None:
    before, now = history.early("update/entropy"), history.late("update/entropy")
    if len(history.steps) < 2 * WINDOW or not now < ENTROPY * before:
        return None
    if history.solved or not history.learns_from_reward:
        return None
    meaning = (
        f"it was {before:.3g} in the first steps; the samples of a prompt are nearly the same, so "
        "groups have little left to compare."
    )
    remedy = lower_rate(history)
    if history.chooses_none("entropy"):
        remedy = f"entropy=adaptive, or {remedy}"
    return Symptom("update/entropy", now, meaning, remedy)


def no_gradient(history: History) -> Symptom | None:
    norms, advantages = history.recent("update/grad_norm"), history.recent("advantage/max")
    if not history.lasts or any(norms) or not all(advantages):
        return None
    if history.chooses_none("correction"):
        why, remedy = "the loss drops every token", "update=reinforce"
    else:
        why, remedy = "the correction gives every token weight 0", "correction=none"
    return Symptom("update/grad_norm", 0.0, f"there are advantages, but {why}.", remedy)


def flat_reward(history: History) -> Symptom | None:
    steps, of = len(history.steps), history.config["steps"]
    if steps < (FLAT_STEPS if steps >= of else max(PATIENCE, of // 2)):
        return None
    if not history.learns_from_reward or history.solved or not abs(history.change) <= NOISE:
        return None
    now, before = mean(history.recent("reward/mean")), mean(history.values("reward/mean")[:WINDOW])
    meaning = (
        f"it was {before:.3g} in the first steps and has moved by noise only; usually the learning "
        "rate is too low, or the prompts are too hard."
    )
    rate = 3 * history.option("optimizer.learning_rate")
    return Symptom("reward/mean", now, meaning, f"optimizer.learning_rate={rate:.2g}")


# Causes before their consequences.
RULES: tuple[Callable[[History], Symptom | None], ...] = (
    skipped_updates,
    invalid_grades,
    no_advantage,
    truncated,
    equal_groups,
    sampler_gap,
    stale_samples,
    clipped,
    large_steps,
    far_from_reference,
    fallen_reward,
    collapsed_entropy,
    no_gradient,
)
# Told only if no other rule speaks: each of them makes the reward flat.
LAST_RULE = flat_reward
NO_LOSS = 0.05  # of the largest advantage


def loss_note(history: History) -> str | None:
    """Returns a note for users who wonder about a loss near 0; None if it is not near 0.

    With one update per step the ratio is 1, so the loss is minus the mean advantage, and the
    advantages of a group sum to 0. The gradient is not 0.
    """
    losses, norms = history.values("update/loss"), history.values("update/grad_norm")
    updates = history.option("update.epochs", 1) * history.option("update.minibatches", 1)
    if not losses or updates > 1 or not any(norms):
        return None
    size, norm = mean([abs(loss) for loss in losses]), mean(norms)
    if not size < NO_LOSS * history.late("advantage/max"):
        return None
    return (
        f"update/loss stays near 0 (mean size {size:.2g}). This is no failure: on-policy the "
        f"advantages sum to about 0, and the gradient is not 0 (update/grad_norm {norm:.2g})."
    )


@dataclass(frozen=True, kw_only=True)
class Finding(Symptom):
    """A symptom in the metrics of a run, its fixed name, and the step at which it was found."""

    name: str
    step: int

    def __str__(self) -> str:
        """Returns one line for the terminal."""
        value = f"{self.value:.3g}"
        return f"{self.metric} is {value} at step {self.step}: {self.meaning} Try {self.remedy}"


def diagnose(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[Finding]:
    """Returns what is wrong with a run, causes before their consequences (see `History`)."""
    history = History(rows, config)
    if not history.steps:
        return []
    symptoms = [(rule.__name__, rule(history)) for rule in RULES]
    if not any(symptom for _, symptom in symptoms):
        symptoms.append((LAST_RULE.__name__, LAST_RULE(history)))
    step = int(history.steps[-1]["step"])
    return [Finding(name=name, step=step, **vars(x)) for name, x in symptoms if x is not None]


@dataclass(kw_only=True)
class Diagnosis:
    """A hook that logs each finding once, when it is found, and again at the end if it lasts."""

    config: Mapping[str, Any]
    quiet: bool = False  # whether to log nothing, as in all processes but the first
    every: int = 1  # 1, because the hook reads the metrics of every step
    rows: list[dict[str, Any]] = field(default_factory=list)
    # By name, the first step of a finding, and the newest finding.
    seen: dict[str, tuple[int, Finding]] = field(default_factory=dict)

    def __call__(self, info: StepInfo) -> None:
        self.rows.append({**info.metrics, "step": info.step})
        due = info.step < WINDOW or info.step % WINDOW == 0
        if due and info.step < self.config["steps"]:  # the end tells what holds after the last step
            self.update(silent=tuple(self.seen))

    def end(self) -> list[dict[str, Any]]:
        """Logs what holds at the end, and returns all findings of the run for its summary."""
        self.update()
        return [{"first_step": first, **asdict(finding)} for first, finding in self.seen.values()]

    def update(self, silent: Collection[str] = ()) -> None:
        """Diagnoses the steps so far, and logs what holds now unless its name is `silent`."""
        for finding in diagnose(self.rows, self.config):
            first, _ = self.seen.get(finding.name, (finding.step, finding))
            self.seen[finding.name] = first, finding
            if finding.name not in silent and not self.quiet:
                log.warning("%s", finding)
