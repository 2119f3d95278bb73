"""Builds the evaluation: the held-out prompts of the data and of further tasks, and its options."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from rl4p.base.errors import InputError
from rl4p.base.types import Params, Prompt, Question, Sampling
from rl4p.configuration import instantiate
from rl4p.configuration.suggestions import did_you_mean
from rl4p.data.prompts import encode_prompts, prompted
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.held_out_loss import HeldOutLoss
from rl4p.loop.phases import Phases
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.protocols.data_and_model import DataSet
from rl4p.protocols.engine import HoldsEpisodes, OpensEngine
from rl4p.protocols.phases import Rollout
from rl4p.protocols.traits import RewardTraits, RolloutTraits, TermTraits, require
from rl4p.reward.router import without_reward
from rl4p.rollout.sampler import without_annealing
from rl4p.runs.compatibility import choice
from rl4p.runs.policy import most_prompt_tokens

Encode = Callable[..., tuple[list[Prompt], int]]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The held-out questions of the data set with a configuration key."""

    key: str
    questions: Sequence[Question]
    system_prompt: str | None


def held_out_questions(config: DictConfig, data: Any) -> list[HeldOut]:
    """Returns the held-out questions of `data` and of each of `evaluation.tasks`.

    The questions of `evaluation.tasks.NAME` get the task NAME.
    """
    data_sets = []
    if config.evaluation.held_out:
        questions = prompted(data, data.held_out())
        data_sets.append(HeldOut(key="data", questions=questions, system_prompt=data.system_prompt))
    for name, node in config.evaluation.tasks.items():
        key, data = f"evaluation.tasks.{name}", instantiate(node)
        require(data, DataSet, key)
        questions = prompted(data, data.held_out(), key)
        questions = [replace(question, task=str(name)) for question in questions]
        data_sets.append(HeldOut(key=key, questions=questions, system_prompt=data.system_prompt))
    if not data_sets:
        raise InputError(
            "evaluation.held_out=false leaves no task to evaluate: choose suite=NAME, or add "
            "+data@evaluation.tasks.NAME=OPTION."
        )
    owners: dict[str, str] = {}
    for each in data_sets:
        for task in {question.task for question in each.questions}:
            if task in owners:
                raise InputError(
                    f"{each.key} has the name of a task of {owners[task]}: choose another name, or "
                    "leave the held-out questions of data out with evaluation.held_out=false."
                )
        owners |= dict.fromkeys((question.task for question in each.questions), each.key)
    return data_sets


def build_evaluation(
    config: DictConfig,
    phases: Phases,
    policy: Policy,
    held_out: Sequence[HeldOut],
    encode: Encode,
    *,
    rows: int,
) -> tuple[Evaluation, int]:
    """Returns the evaluation, and the number of prompts dropped for being too long.

    Args:
      phases: with the rollout of the evaluation (`evaluation_sampler`).
      rows: the number of sequences of a training step.
    """
    options, sets, dropped = config.evaluation, [], 0
    for each in held_out:
        prompts, long = encode(each.questions, system_prompt=each.system_prompt)
        sets.append(first_of_each_task(prompts, options.prompts))
        dropped += long
    refuse_samples_that_cannot_be(config, phases.rollout, sets)
    if config.evaluation.rollout is not None:
        tasks = {prompt.task for prompts in sets for prompt in prompts}
        check_own_sampling("evaluation.rollout", phases.rollout, tasks)
    if options.rows is not None:
        rows = options.rows
        if rows % policy.mesh.row_shards:
            raise InputError(
                f"evaluation.rows={rows} must be a multiple of {policy.mesh.row_shards}, so that "
                "the mesh can divide them over its devices."
            )
    evaluation = Evaluation(
        every=options.every,
        phases=phases,
        policy=policy,
        sets=sets,
        term=options.term,
        rows=rows,
        of_average=config.ema.decay > 0 and config.ema.use_for_eval,
        samples=options.samples,
        pass_at_k=pass_at_k(options),
        seed=options.seed,
        chosen_by=options.chosen_by,
    )
    return evaluation, dropped


def build_loss(
    config: DictConfig,
    phases: Phases,
    policy: Policy,
    held_out: Sequence[HeldOut],
    encode: Encode,
    rows: int,
    reference: tuple[Decoder, Params] | None,
) -> tuple[HeldOutLoss, int]:
    """Returns the loss on the held-out questions of `data`, and the number of those dropped."""
    if RolloutTraits.read(phases.rollout).samples:
        raise InputError(
            f"evaluation.loss=true measures the loss of given responses, but "
            f"{choice('rollout', phases.rollout)} has none: choose rollout=demonstrations or "
            "rollout=preferences, or leave it out."
        )
    own = [each for each in held_out if each.key == "data"]
    if not own:
        raise InputError(
            "evaluation.loss=true needs the held-out questions of data: leave "
            "evaluation.held_out=false out."
        )
    prompts, dropped = encode(own[0].questions, system_prompt=own[0].system_prompt)
    loss = HeldOutLoss(
        phases=phases,
        policy=policy,
        prompts=first_of_each_task(prompts, config.evaluation.prompts),
        rows=rows,
        group_size=config.group_size if RolloutTraits.read(phases.rollout).pairs else 1,
        reference=reference,
    )
    return loss, dropped


def first_of_each_task(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """Returns the first `count` prompts of each task, in their order; None returns all."""
    chosen, counts = [], Counter()
    for prompt in prompts:
        counts[prompt.task] += 1
        if count is None or counts[prompt.task] <= count:
            chosen.append(prompt)
    return chosen


def encoder(config: DictConfig, policy: Policy) -> Encode:
    """Returns `encode_prompts` bound to the policy; it takes questions and the system prompt."""
    return partial(
        encode_prompts,
        tokenizer=policy.tokenizer,
        max_prompt_tokens=most_prompt_tokens(config, policy),
        template=policy.template,
    )


def check_term(config: DictConfig, phases: Phases) -> None:
    """Checks that the reward, or that of each task, has the terms that decide and choose."""
    tasks = RewardTraits.read(phases.reward).tasks
    rewards = {"the reward": phases.reward}
    if tasks is not None:
        rewards = {f"reward.tasks.{task}": reward for task, reward in tasks.items()}
    for name, reward in rewards.items():
        terms = RewardTraits.read(reward).terms
        for key in ("term", "chosen_by"):
            term, known = config.evaluation[key], terms if key == "term" else terms or {}
            if term is not None and known is not None and term not in known:
                raise InputError(
                    f"evaluation.{key}={term} is not a term of {name}; its terms are "
                    f"{', '.join(known) or 'none'}."
                )


def check_tasks(phases: Phases, *sets: Sequence[Question]) -> None:
    """Checks that a reward by task (`reward=router`) has one for each task of the questions."""
    tasks = RewardTraits.read(phases.reward).tasks
    tasks_of_questions = {question.task for questions in sets for question in questions}
    if tasks is not None and (unknown := sorted(tasks_of_questions - tasks.keys())):
        raise InputError(without_reward(unknown, tasks))
    check_own_sampling("rollout", phases.rollout, tasks_of_questions)


def check_references(phases: Phases, questions: Sequence[Question]) -> None:
    """Checks that questions to train on have the reference answer that their reward reads."""
    tasks = RewardTraits.read(phases.reward).tasks
    rewards = {"": phases.reward} if tasks is None else tasks
    comparing = {
        task: [
            name
            for name, term in (RewardTraits.read(reward).terms or {}).items()
            if TermTraits.read(term).reads_answer and TermTraits.read(term).weight
        ]
        for task, reward in rewards.items()
    }
    for question in questions:
        names = comparing["" if tasks is None else question.task]
        if names and not question.answer.strip():
            key = "reward" if tasks is None else f"reward.tasks.{question.task}"
            raise InputError(
                f"{key}.terms.{names[0]} compares with the reference answer, but the question "
                f"{question.id} has none: choose a reward that does not, such as the scorer "
                "of the question (reward=reasoning_gym), or another data set."
            )


def check_own_sampling(key: str, rollout: Any, tasks: Collection[str]) -> None:
    """Checks that each task with sampling options of its own has questions."""
    for name in getattr(rollout, "tasks", {}):
        if name not in tasks:
            hint = did_you_mean(name, tasks) or "."
            raise InputError(
                f"{key}.tasks.{name} has no effect, because no question has this task{hint} "
                f"(tasks: {', '.join(sorted(tasks))})"
            )


def evaluation_sampler(config: DictConfig, phases: Phases) -> Any:
    """Returns the rollout of the evaluation, by default the run's, without annealing."""
    node = config.evaluation.rollout
    rollout = phases.rollout if node is None else instantiate(node)
    require(rollout, Rollout, "rollout" if node is None else "evaluation.rollout")
    traits = RolloutTraits.read(rollout)
    if node is not None and traits.sync_every > 1:
        raise InputError(
            f"evaluation.rollout.sync_every={traits.sync_every} would have no effect, because an "
            "evaluation has the newest weights: leave it out."
        )
    if node is not None and traits.sleep:
        raise InputError(
            "evaluation.rollout.sleep=true would have no effect, because only the rollout of the "
            "run sleeps: leave it out."
        )
    return without_annealing(rollout)


def pass_at_k(options: DictConfig) -> tuple[int, ...]:
    """Returns the values of k: the configured ones, or 2, 4, 8, ... up to `samples`."""
    samples = options.samples
    if options.pass_at_k is None:
        return tuple(2**i for i in range(1, samples.bit_length()) if 2**i <= samples)
    for k in options.pass_at_k:
        if k > samples:
            raise InputError(
                f"evaluation.pass_at_k has {k}, but pass@{k} needs {k} samples or more: set "
                f"evaluation.samples={k}."
            )
    return tuple(sorted(set(options.pass_at_k)))


def refuse_samples_that_cannot_be(
    config: DictConfig, sampler: Any, sets: Sequence[Sequence[Prompt]]
) -> None:
    """Refuses options of samples if the sampler draws none, or two prompts have the same id."""
    options = config.evaluation
    if not options.samples:
        if options.seed:
            raise InputError(
                f"evaluation.seed={options.seed} is the seed of samples: set evaluation.samples."
            )
        if options.chosen_by is not None:
            raise InputError(
                f"evaluation.chosen_by={options.chosen_by} chooses among samples: set "
                "evaluation.samples."
            )
        return
    name = "rollout" if options.rollout is None else "evaluation.rollout"
    sampling: Sampling = sampler.sampling
    if not isinstance(sampler, OpensEngine | HoldsEpisodes):
        raise InputError(
            f"evaluation.samples={options.samples} needs a sampler with an engine, but "
            f"{name} ({type(sampler).__name__}) has no method open (rl4p/protocols/engine.py)."
        )
    if sampling.temperature == 0:
        raise InputError(
            f"{name}.temperature=0 makes all samples of a prompt equal: leave "
            f"evaluation.samples={options.samples} out, or set a temperature."
        )
    for prompts in sets:
        seen: set[tuple[str, str]] = set()
        for prompt in prompts:
            if (prompt.task, prompt.id) in seen:
                raise InputError(
                    f"Two prompts of the task {prompt.task} have the id {prompt.id}: the samples of"
                    " a prompt are counted by its id, so every id must be different."
                )
            seen.add((prompt.task, prompt.id))
