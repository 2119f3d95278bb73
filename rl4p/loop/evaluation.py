"""Evaluation on held-out prompts, with a rollout and a reward phase and without updates.

Responses are sampled in chunks, which depend on the prompts and the options alone. The greedy
chunks of a data set come first, then the chunks of its samples. The random key of a sample depends
on the seed, the task, the id of the prompt and the number of the sample, never on a position in a
batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, isfinite
from typing import Any

import jax

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Params, Prompt, Rewards, TrainState, Trajectories
from rl4p.data.extraction import extract
from rl4p.data.fields import digest_of_questions
from rl4p.data.quantity import quantity
from rl4p.distributed.counting import counted
from rl4p.distributed.processes import to_host
from rl4p.loop.accuracy import SampleChoice, Tally, metrics_of
from rl4p.loop.held_out_loss import HeldOutLoss
from rl4p.loop.phases import Phases, graded
from rl4p.loop.source import check_digest, digest_of
from rl4p.loop.stopwatch import Stopwatch
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Engine, HoldsEpisodes, opened
from rl4p.protocols.hook import StepInfo
from rl4p.protocols.traits import RewardTraits, TermTraits
from rl4p.rollout.sampler import answers, requests_of, response_keys


@dataclass(frozen=True, kw_only=True)
class PromptChunk:
    """Prompts of an evaluation whose responses are sampled in one call."""

    prompts: Sequence[Prompt]  # the prompts; each has `together` consecutive rows
    # The number of the first sample of each prompt; empty for greedy responses.
    first: Sequence[int] = ()
    together: int = 1  # the number of samples of each prompt in this chunk

    def rows(self) -> list[tuple[Prompt, int | None]]:
        """Returns the prompt and the number of the sample of each row; None for greedy."""
        if not self.first:
            return [(prompt, None) for prompt in self.prompts]
        return [
            (prompt, first + i)
            for prompt, first in zip(self.prompts, self.first, strict=True)
            for i in range(self.together)
        ]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The graded responses of a chunk, in the order of its rows."""

    chunk: PromptChunk
    trajectories: Trajectories
    episodes: Sequence[Episode]
    rewards: Rewards


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A hook that measures pass@1, and with samples pass@k and avg@n, on held-out prompts."""

    every: int  # the number of steps between evaluations
    phases: Phases  # the phases of the run, possibly with another rollout
    policy: Policy
    sets: Sequence[Sequence[Prompt]]  # the prompts of each data set; no chunk has prompts of two
    term: str  # the reward term that decides whether an answer is correct; never the weighted sum
    # The number of sequences sampled at a time. By default it is the number of a training step, so
    # that both use the same compiled sampler.
    rows: int
    of_average: bool = False  # whether to evaluate the moving average of the parameters
    samples: int = 0  # the number of samples of each prompt, in addition to the greedy response
    pass_at_k: Sequence[int] = field(default=())  # the values of k for pass@k, from 2 to `samples`
    seed: int = 0  # the seed of the samples
    chosen_by: str | None = None  # the reward term that chooses among the samples; None for none
    # Measures the loss of given responses to the held-out prompts; None without.
    loss: HeldOutLoss | None = None
    # Records the scores of each question of a step: one row for each task; None records nothing.
    record: Callable[[int, Sequence[Mapping[str, Any]]], None] | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """Returns the prompts of all sets, or the prompts of the loss if nothing is sampled."""
        sets = self.sets or ([self.loss.prompts] if self.loss else [])
        return [prompt for prompts in sets for prompt in prompts]

    def times(self, steps: int) -> int:
        """Returns the number of evaluations of a run, with those before and after all its steps."""
        return 1 + (-(-steps // self.every) if self.every else 1)

    def names(self) -> list[str]:
        """Returns the names of the accuracies that `evaluate` returns."""
        tasks = dict.fromkeys(prompt.task for prompt in self.prompts)
        kinds = ["pass_at_1", *([f"avg_at_{self.samples}"] if self.samples else [])]
        kinds += [f"pass_at_{k}" for k in self.pass_at_k]
        if self.chosen_by is not None:
            kinds += [f"best_of_{self.samples}", f"majority_of_{self.samples}"]
        return [f"eval/{task}/{kind}" for task in tasks for kind in kinds]

    def __call__(self, info: StepInfo) -> dict[str, float]:
        return self.timed(info.state)

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digest of the prompts of each task."""
        by_task: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            by_task.setdefault(prompt.task, []).append(prompt)
        return {task: digest_of(prompts) for task, prompts in by_task.items()}

    @cached_property
    def questions(self) -> dict[str, str]:
        """The digest of the questions of each task, whatever their chat template."""
        by_task: dict[str, list[tuple[str, str, str, Mapping[str, Any]]]] = {}
        for prompt in self.prompts:
            question = prompt.id, prompt.question, prompt.answer, prompt.metadata
            by_task.setdefault(prompt.task, []).append(question)
        return {task: digest_of_questions(questions) for task, questions in by_task.items()}

    def state(self) -> dict[str, Any]:
        return {"prompts": self.digests}

    def restore(self, state: dict[str, Any]) -> None:
        """Refuses prompts of a task that differ from the saved run's, if it had the task."""
        for task, saved in state.get("prompts", {}).items():  # older checkpoints have none
            if (own := self.digests.get(task)) is not None:
                check_digest(saved, own, f"held-out prompts of {task}")

    def timed(self, state: TrainState) -> dict[str, float]:
        """Returns the metrics of `evaluate`, and its seconds of work and of compilation."""
        watch = Stopwatch()
        with watch("evaluation"):
            metrics = self.evaluate(state)
        compiled = watch.metrics()["time/compile"]
        return metrics | watch.times() | {"time/evaluation_compile": compiled}

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Returns `eval/<task>/pass_at_1` and `eval/<task>/prompts` for each task.

        With samples also `avg_at_<samples>` and `pass_at_<k>`, and the metrics of `loss`. If some
        responses could not be graded, `invalid` is their number.
        """
        tally = Tally()
        total = sum(map(len, self.sets)) * (1 + self.samples)
        unit = "responses" if self.samples else "prompts"
        with counted("evaluation", unit, total) as count:
            for answered in self.answered(state):
                correct_B, valid_B = judged(answered.rewards, self.term)
                rows = zip(answered.chunk.rows(), correct_B, valid_B, strict=True)
                grades_B: list[float] = []
                if self.chosen_by is not None:
                    grades_B = to_host(answered.rewards.terms[self.chosen_by]).tolist()
                for row, ((prompt, sample), correct, valid) in enumerate(rows):
                    choice = None
                    if sample is not None and grades_B:
                        response = answered.episodes[row].response
                        choice = self.choice(prompt, response, grades_B[row], correct=correct)
                    tally.add(
                        prompt.task,
                        prompt.id,
                        greedy=sample is None,
                        correct=correct,
                        valid=valid,
                        choice=choice,
                    )
                count.add(len(valid_B))
        metrics = metrics_of(tally.scores(self.samples, self.pass_at_k))
        if self.record is not None:
            scores = tally.by_question(self.samples)
            rows = [{"task": x, "questions": self.questions[x], **scores[x]} for x in scores]
            self.record(int(state.step), rows)
        return (
            metrics
            if self.loss is None
            else self.loss(self.evaluated(state), state.reference) | metrics
        )

    def choice(
        self, prompt: Prompt, response: str, grade: float | None, *, correct: bool
    ) -> SampleChoice:
        """Returns a sample with its grade by `chosen_by` and its final answer."""
        answer = final_answer(response, prompt, self.phases.reward, self.term)
        graded = grade is not None and isfinite(grade)
        return SampleChoice(grade if graded else None, answer, correct)

    def evaluated(self, state: TrainState) -> Params:
        """Returns the parameters that are evaluated."""
        return state.average if self.of_average else state.params

    def answered(self, state: TrainState, *, begin: int = 0) -> Iterator[Answered]:
        """Samples and grades the chunks in order and yields each.

        Args:
          begin: the number of chunks to leave out at the start.
        """
        state.check_not_donated()
        params = self.evaluated(state)
        with ExitStack() as stack:
            engine: Engine | None = None
            for chunk in self.chunks()[begin:]:
                if not chunk.first:
                    graded_rows = greedy_answers(
                        self.phases, self.policy, params, state, chunk.prompts, rows=self.rows
                    )
                else:
                    if engine is None:
                        rollout: Any = self.phases.rollout
                        engine = stack.enter_context(closing(opened(rollout, self.policy)))
                        engine.publish(params, int(state.step))
                    graded_rows = self.sampled(engine, state, chunk)
                trajectories, episodes, rewards = graded_rows
                yield Answered(
                    chunk=chunk, trajectories=trajectories, episodes=episodes, rewards=rewards
                )

    def chunks(self) -> list[PromptChunk]:
        """Returns the chunks of `rows` sequences; the last one of a set may have fewer.

        A chunk of samples has a divisor of `rows` and of `samples` as the number of samples of a
        prompt. With `samples` equal to `group_size` its shapes equal the shapes of a training step.
        """
        together = gcd(self.rows, self.samples) if self.samples else 1
        at_a_time = self.rows // together
        chunks = []
        for prompts in self.sets:
            chunks += [
                PromptChunk(prompts=prompts[start : start + self.rows])
                for start in range(0, len(prompts), self.rows)
            ]
            pairs = [(x, first) for x in prompts for first in range(0, self.samples, together)]
            for start in range(0, len(pairs), at_a_time):
                chosen, first = zip(*pairs[start : start + at_a_time], strict=True)
                chunks.append(PromptChunk(prompts=chosen, first=first, together=together))
        return chunks

    def sampled(
        self, engine: Engine, state: TrainState, chunk: PromptChunk
    ) -> tuple[Trajectories, Sequence[Episode], Rewards]:
        """Samples a chunk of samples and returns its responses and their grades.

        The prompts are repeated to fill `rows` sequences; the repetitions are not graded.
        """
        rollout, count = self.phases.rollout, self.rows // chunk.together
        limit = rollout.max_response_tokens
        repeated = [i % len(chunk.prompts) for i in range(count)]
        prompts = [chunk.prompts[i] for i in repeated]
        keys_PN = response_keys(
            self.seed,
            [f"{prompt.task}\0{prompt.id}" for prompt in prompts],
            chunk.together,
            first=[chunk.first[i] for i in repeated],
        )
        if isinstance(rollout, HoldsEpisodes):
            held = rollout.hold(engine, self.policy, prompts, keys_PN)
            trajectories, episodes = rollout.rows(self.policy, held, chunk.together)
            responses = self.policy.mesh.shard_rows(trajectories), episodes
        else:
            requests = requests_of(prompts, keys_PN, limit)
            responses = answers(self.policy, prompts, engine.complete(requests), limit)
        self.phases.check("rollout", responses, self.policy, version=int(state.step))
        return graded_part(self.phases, state, responses, len(chunk.prompts) * chunk.together)


def judged(rewards: Rewards, term: str) -> tuple[list[bool], list[bool]]:
    """Returns for each row whether the term's grade is at least 1, and whether it gave one.

    Raises:
      InputError: the reward has no such term.
    """
    if term not in rewards.terms:
        raise InputError(
            f"evaluation.term={term} is not a term of the reward; its terms are "
            f"{', '.join(rewards.terms) or 'none'}."
        )
    rewards = to_host(rewards)
    graded_B = rewards.graded(term)
    return (graded_B & (rewards.terms[term] >= 1)).tolist(), graded_B.tolist()


def final_answer(response: str, prompt: Prompt, reward: Any, term: str) -> Any:
    """Returns the final answer of a response: a number if it is one, else a text; None without.

    The term of the task's reward says where it stands (`TermTraits.extract`).
    """
    own = (RewardTraits.read(reward).tasks or {}).get(prompt.task, reward)
    rule = TermTraits.read((RewardTraits.read(own).terms or {}).get(term)).extract
    answer = extract(response, rule, prompt.generation_prompt)
    number = None if answer is None else quantity(answer)
    return answer if number is None else number


def greedy_answers(
    phases: Phases,
    policy: Policy,
    params: Params,
    state: TrainState,
    prompts: Sequence[Prompt],
    *,
    rows: int,
) -> tuple[Trajectories, Sequence[Episode], Rewards]:
    """Samples one greedy response to each prompt and returns the responses and their grades.

    The prompts are repeated to fill `rows` sequences; the repetitions are not graded. The memory
    that the phases return is discarded.
    """
    responses, _ = phases.sample(
        state.memory,
        policy,
        params,
        [prompts[i % len(prompts)] for i in range(rows)],
        group_size=1,
        key=jax.random.key(0),
        version=int(state.step),
        greedy=True,
    )
    return graded_part(phases, state, responses, len(prompts))


def graded_part(
    phases: Phases, state: TrainState, responses: tuple[Trajectories, Sequence[Episode]], count: int
) -> tuple[Trajectories, Sequence[Episode], Rewards]:
    """Grades the first `count` rows and returns these rows and their grades."""
    trajectories = jax.tree.map(lambda x: x[:count], responses[0])
    episodes = responses[1][:count]
    rewards, _ = graded(phases, state.memory, trajectories, episodes)
    return trajectories, episodes, rewards
