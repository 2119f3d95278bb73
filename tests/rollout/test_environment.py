"""Tests episodes of many turns: which tokens are trained, and what environments may do."""

import asyncio
import copy
import dataclasses
import json
import time
from collections import deque

import jax
import numpy as np
import pytest

import rl4p.rollout.episodes
from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish
from rl4p.data.environment import SEED
from rl4p.loop.checks import check_trajectories
from rl4p.protocols.environment import StepResult
from rl4p.rollout import episode_loop
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.environment import Environment, opening
from rl4p.rollout.environments.tool_object import ToolObject
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.support.episodes import ENDS, REWRITES, TEMPLATE, logprobs_of, words

R = 96


@pytest.fixture(scope="module")
def ending(policy):
    """Every second turn ends by one of several end tokens, which the template writes as well."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return dataclasses.replace(policy, end_ids=ENDS, tokenizer=tokenizer)


@dataclasses.dataclass
class Counts:
    """An environment that answers with the number of the turn, after some time."""

    seed: int
    turns: int = 3
    seconds: float = 0.0
    step_number: int = 0
    closed: int = 0

    async def reset(self):
        return ()

    async def step(self, message):
        self.step_number += 1
        await asyncio.sleep(self.seconds)
        return StepResult(
            messages=({"role": "user", "content": f"turn {self.step_number}"},),
            reward=float(self.step_number),
            done=self.step_number == self.turns,
            metrics={"length": len(message["content"])},
        )

    async def close(self):
        self.closed += 1


@dataclasses.dataclass(frozen=True)
class Counting:
    made: list = dataclasses.field(default_factory=list)
    kind: type = Counts
    options: dict = dataclasses.field(default_factory=dict)

    def open(self, prompt, seed, episode_id):
        self.made.append(self.kind(seed, **self.options))
        return self.made[-1]

    def tools(self, prompt):
        return None


def rollout(environment, engine=Continuous, **options):
    options = {"max_response_tokens": R, "max_turn_tokens": 12, "max_turns": 4} | options
    return Environment(
        engine=engine(max_response_tokens=R, temperature=1.0), environment=environment, **options
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("template", [TEMPLATE, REWRITES])
def test_trained_tokens_are_those_sampled_after_the_context_that_was_read(
    sample, ending, params, requests, template, monkeypatch
):
    monkeypatch.setattr(ending.tokenizer, "chat_template", template)
    trajectories, episodes = sample(rollout(Counting()), group_size=4)
    check_trajectories(trajectories)
    read = {(tuple(context), tuple(drawn)) for context, drawn in requests}
    turns, most_segments = 0, 0
    for row, episode in enumerate(episodes):
        segments = words(trajectories, row)
        most_segments = max(most_segments, len(segments))
        turns += len(episode.turns)
        for tokens, mask in segments:
            starts = [i for i, on in enumerate(mask) if on and not mask[i - 1]]
            for start in starts:
                count = mask[start:].index(False) if False in mask[start:] else len(mask) - start
                pair = tuple(tokens[:start]), tuple(tokens[start : start + count])
                assert pair in read
    assert turns == len(requests) > len(episodes)
    assert (most_segments > 1) == (template is REWRITES)
    # The trainer computes the log-probabilities of the same tokens in the same contexts.
    mask = np.asarray(trajectories.response_mask_BT)
    ours = logprobs_of(ending, params, trajectories)
    behaviour = np.asarray(trajectories.behaviour_logprobs_BT)
    np.testing.assert_allclose(ours[mask], behaviour[mask], atol=2e-5)


def test_a_row_may_have_the_seed_of_its_episodes(sample, prompts):
    rows = [dataclasses.replace(prompts[0], metadata={SEED: seed}) for seed in (5, 6)]
    options = Counting()
    for seed in (0, 1):  # of two steps
        sample(rollout(options), prompts=rows, seed=seed)
    sample(rollout(options), prompts=rows, greedy=True)
    assert [each.seed for each in options.made] == [5, 5, 6, 6] * 3


@pytest.mark.parametrize(("question", "text"), [("", "World 3."), ("Play.", "Play.\nWorld 3.")])
def test_the_first_observation_is_the_question_of_a_game(make_prompt, question, text):
    messages = opening(make_prompt(question=question), "\nWorld 3.")
    assert messages == [{"role": "user", "content": text}]


SKIPS_TOOLS = (
    "{% for m in messages if m.role != 'tool' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NEEDS_IDS = SKIPS_TOOLS.replace(" if m.role != 'tool'", "").replace(
    "<|{{",
    "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ none + 1 }}{% endif %}<|{{",
)


class WithTools(Counting):
    """An environment with a tool, which answers with its result."""

    def tools(self, prompt):
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return [{"type": "function", "function": {"name": "add", "parameters": parameters}}]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (SKIPS_TOOLS, "leaves out messages of the role tool.*chat_template=FILE"),
        (SKIPS_TOOLS.replace("role != 'tool'", "role"), None),
        (NEEDS_IDS, None),
        (NEEDS_IDS.replace("!= 9", "!= 8"), "does not take results of tools"),
    ],
)
def test_tools_need_a_template_that_writes_their_results(
    sample, ending, template, words, monkeypatch, caplog
):
    monkeypatch.setattr(ending.tokenizer, "chat_template", template)
    environment = rollout(WithTools(options={"turns": 1}))
    if words is None:
        sample(environment, group_size=2)
        assert caplog.text.count("shows no tools") == 1
    else:
        with pytest.raises(InputError, match=words):
            sample(environment, group_size=2)


def test_both_samplers_hold_the_same_episodes(sample):
    ours, our_episodes = sample(rollout(Counting()), group_size=2)
    theirs, their_episodes = sample(rollout(Counting(), NaiveSampler), group_size=2)
    assert our_episodes == their_episodes
    for name in ("tokens_BT", "response_mask_BT", "positions_BT", "segment_ids_BT", "finish_B"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


def test_another_process_decodes_what_process_0_asks_for(sample, requests, monkeypatch):
    """Two processes, one after the other: the second receives what the first has sent."""
    ours, our_episodes = sample(rollout(Counting()), group_size=2)
    sent: deque = deque()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for module in (episode_loop, rl4p.rollout.episodes):
        monkeypatch.setattr(module, "agreed", lambda value: sent.append(json.dumps(value)) or value)
    sample(rollout(Counting()), group_size=2)
    for module in (episode_loop, rl4p.rollout.episodes):
        monkeypatch.setattr(module, "agreed", lambda value: json.loads(sent.popleft()))
    monkeypatch.setattr(rl4p.rollout.episodes, "first", lambda: False)
    requests.clear()
    other = Counting()
    theirs, their_episodes = sample(rollout(other), group_size=2)
    assert (len(sent), len(other.made)) == (0, 0)
    assert len(requests) == sum(len(episode.turns) for episode in our_episodes)
    assert our_episodes == their_episodes
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_second_turn_prefills_only_what_is_new(sample, ending, params, prompts, monkeypatch):
    engines = []
    open_engine = Continuous.open
    monkeypatch.setattr(
        Continuous,
        "open",
        lambda self, policy: engines.append(open_engine(self, policy)) or engines[-1],
    )
    trajectories, episodes = sample(rollout(Counting()), prompts=prompts[:1], group_size=8)
    assert max(len(episode.turns) for episode in episodes) == 3
    first = len(prompts[0].tokens)
    expected = first  # the prompt, once for all samples
    for row, episode in enumerate(episodes):
        (_, mask), *others = words(trajectories, row)
        assert not others
        # What the environment said, and after each of its messages the last token of the turn
        # before it, which was drawn and not yet read.
        expected += mask.count(False) - first + len(episode.turns) - 1
    assert engines[0].prefilled_tokens == expected


def test_rewards_turns_and_the_end_of_an_episode(sample):
    trajectories, episodes = sample(rollout(Counting()), group_size=4)
    finished = [x for x in episodes if x.finish is Finish.STOP]
    assert finished
    for episode in finished:
        assert [turn.reward for turn in episode.turns] == [1.0, 2.0, 3.0]
        assert [message["role"] for message in episode.messages] == [
            "user",
            *["assistant", "user"] * 3,
        ]
        assert episode.response == episode.turns[-1].text
    cut = [x for x in episodes if x.finish is Finish.LENGTH]
    assert all(x.turns[-1].tokens == 12 for x in cut)
    tokens_B = np.asarray(trajectories.response_mask_BT).sum(axis=1)
    assert tokens_B.tolist() == [episode.tokens for episode in episodes]


def test_the_samples_of_a_prompt_meet_the_same_environment(sample):
    counting = Counting()
    sample(rollout(counting), group_size=4)
    seeds = [environment.seed for environment in counting.made]
    assert seeds == [seed for seed in seeds[::4] for _ in range(4)]
    assert len(set(seeds)) == len(seeds) // 4
    assert {environment.closed for environment in counting.made} == {1}


class Crowd(Counts):
    """Counts the episodes that are open."""

    now = most = 0

    async def reset(self):
        Crowd.now += 1
        Crowd.most = max(Crowd.most, Crowd.now)
        return ()

    async def close(self):
        Crowd.now -= 1


def test_a_bound_of_simultaneous_episodes(sample):
    _, episodes = sample(rollout(Counting(kind=Crowd), concurrency=3), group_size=4)
    assert all(episode.turns for episode in episodes)
    assert (Crowd.most, Crowd.now) == (3, 0)


def test_samples_do_not_depend_on_the_number_of_episodes(sample, monkeypatch):
    """Every measurement changes the number, within its bounds."""
    numbers = iter([3, 8, 5] * 9)
    monkeypatch.setattr(
        episode_loop.AdaptiveConcurrency,
        "learn",
        lambda self, rate: self.most == 8 and setattr(self, "number", next(numbers)),
    )
    ours, our_episodes = sample(rollout(Counting(), concurrency=3), group_size=16)
    Crowd.most = 0
    adaptive = rollout(Counting(kind=Crowd), concurrency=(2, 8), max_failed=0.0)
    theirs, their_episodes = sample(adaptive, group_size=16)
    assert 3 < Crowd.most <= 8
    assert adaptive.metrics()["rollout/concurrency"] in (3.0, 8.0, 5.0)
    assert our_episodes == their_episodes
    for name in ("tokens_BT", "response_mask_BT", "positions_BT", "segment_ids_BT", "finish_B"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


def test_episodes_that_end_early_give_their_places_to_other_prompts(sample, prompts):
    """The second prompt's episodes wait until the third's have begun, in places of the first's."""
    begun = []

    class Waits(Counts):
        async def reset(self):
            self.number = len(begun) // 4
            begun.append(self)
            return ()

        async def step(self, message):
            while self.number == 1 and len(begun) < 12:
                await asyncio.sleep(0.001)
            return StepResult(done=True)

    environment = rollout(Counting(kind=Waits), concurrency=8, step_seconds=20.0)
    _, episodes = sample(environment, prompts=prompts[:3], group_size=4)
    assert [episode.failure for episode in episodes] == [None] * 12


@pytest.mark.slow
def test_the_cache_of_an_episode_is_released_when_it_ends(sample):
    held = []

    class Watching(Counts):
        async def reset(self):
            held.append(len(counted.opened.engine.weights.kept))
            return ()

    counted = rollout(Counting(kind=Watching), concurrency=2, max_turn_tokens=30)
    _, episodes = sample(counted, group_size=4)
    assert sum(len(episode.turns) == 3 for episode in episodes) > 4
    assert len(held) == 16
    assert max(held) <= 4


class Fails(Counts):
    async def step(self, message):
        raise KeyError("lost")


class Hangs(Counts):
    async def reset(self):
        if self.seed % 2:
            await asyncio.sleep(60)
        return ()


class Nonsense(Counts):
    async def step(self, message):
        return "fine"


class Silent(Counts):
    async def step(self, message):
        return StepResult()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Fails, "KeyError: 'lost'"),
        (Nonsense, "step returned str, and not a StepResult"),
        (Silent, "step returned no message, although the episode goes on"),
    ],
)
def test_a_failed_environment_makes_its_episode_invalid(sample, kind, sentence):
    trajectories, episodes = sample(rollout(Counting(kind=kind), max_failed=1.0), group_size=2)
    check_trajectories(trajectories)
    assert {x.failure for x in episodes if x.finish is Finish.STOP} <= {None}
    failed = [x for x in episodes if x.failure]
    assert failed
    assert {x.failure for x in failed} == {sentence}


def test_a_rollout_in_which_most_episodes_fail_ends_the_run(sample):
    with pytest.raises(RunError, match=r"episodes failed .rollout.max_failed is 10%.*'lost'"):
        sample(rollout(Counting(kind=Fails), max_failed=0.1), group_size=2)


def test_an_environment_that_never_answers_costs_its_own_deadline_only(sample):
    sample(rollout(Counting()), group_size=2)  # compiles
    began = time.monotonic()
    _, episodes = sample(rollout(Counting(kind=Hangs), step_seconds=0.5), group_size=2)
    assert time.monotonic() - began < 30
    late = [x for x in episodes if x.failure]
    assert {x.failure for x in late} == {"TimeoutError: no answer within 0.5 s"}
    assert all(x.turns for x in episodes if not x.failure)


def test_it_is_refused_without_an_engine_or_with_something_else_as_an_environment():
    with pytest.raises(InputError, match=r"rollout.engine must be a rollout with an engine"):
        Environment(engine=object(), environment=Counting(), max_response_tokens=8)
    with pytest.raises(InputError, match=r"rollout.environment: the class .* has no method open"):
        rollout(object())


@pytest.mark.parametrize("option", ["draft_tokens", "alternatives", "replay_support"])
def test_what_cannot_act_in_episodes_is_refused(option):
    """What episodes decode together depends on time; their rows keep the drawn tokens alone."""
    value = True if option == "replay_support" else 3
    engine = Continuous(max_response_tokens=R, top_k=5, **{option: value})
    with pytest.raises(InputError, match=rf"rollout\.engine\.{option} cannot act in episodes"):
        Environment(engine=engine, environment=Counting(), max_response_tokens=R)


@dataclasses.dataclass
class Graded(Counts):
    """An environment whose reward at the end of an episode, cut or not, is 10."""

    end: object = 10.0
    asked: int = 0

    async def cut_reward(self):
        self.asked += 1
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


LIMITS = (
    {"max_turns": 1},
    {"max_turns": 2},
    {"max_turn_tokens": 1},
    {"max_turn_tokens": 3},
    {"max_response_tokens": 14},
    {"max_response_tokens": 40, "max_turn_tokens": None},
    {"max_response_tokens": 8, "max_turns": 2},
)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_whatever_cuts_an_episode_its_environment_is_asked_for_its_reward(sample, limits):
    counting = Counting(kind=Graded, options={"turns": 3})
    _, episodes = sample(rollout(counting, **limits), group_size=4)
    assert {episode.failure for episode in episodes} == {None}
    cut = 0
    for episode, environment in zip(episodes, counting.made, strict=True):
        ended = episode.finish is Finish.STOP
        cut += not ended
        assert environment.asked == (not ended)
        steps = float(sum(range(1, environment.step_number + 1)))
        assert sum(turn.reward for turn in episode.turns) == steps + 10.0 * (not ended)
    assert cut


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (float("nan"), "the reward nan of a step is not finite"),
        (ValueError("no tests"), "ValueError: no tests"),
    ],
)
def test_a_cut_episode_without_a_reward_is_invalid(sample, end, sentence):
    counting = Counting(kind=Graded, options={"end": end})
    _, episodes = sample(rollout(counting, max_turn_tokens=1, max_failed=1.0), group_size=2)
    assert {sentence} <= {each.failure for each in episodes} <= {sentence, None}


class Edits(Counts):
    """An environment that knows which files an episode has changed."""

    changed_files: dict = {}  # noqa: RUF012

    async def step(self, message):
        self.changed_files = {"a.py": self.step_number + 1}
        return await super().step(message)


def test_the_last_turn_has_the_files_that_its_episode_has_changed(sample):
    _, episodes = sample(rollout(Counting(kind=Edits)), group_size=4)
    several = [episode.turns for episode in episodes if len(episode.turns) == 3]
    assert several
    assert {tuple(str(turn.files) for turn in turns) for turns in several} <= {
        ("{}", "{}", "{'a.py': 3}"),
        ("{}", "{}", "{'a.py': 2}"),  # the third turn was cut
    }


class Won:
    """Tools of a world that is won from the beginning."""

    def look(self) -> str:
        """Returns nothing."""
        return ""

    def get_reward(self) -> float:
        return 1.0


class WonLater(Won):
    async def get_reward(self) -> bool:
        await asyncio.sleep(0)
        return True


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "reward"), [(Won, 1.0), (WonLater, 1.0), (object, None)])
@pytest.mark.parametrize("limits", LIMITS[:3], ids=str)
def test_tools_of_a_cut_episode_give_its_reward(sample, kind, reward, limits):
    class Lost:
        look = Won.look

    tools = ToolObject(factory=Lost if reward is None else kind)
    _, episodes = sample(rollout(tools, **{"max_response_tokens": 60} | limits), group_size=4)
    assert any(episode.finish is Finish.LENGTH for episode in episodes)
    for episode in episodes:
        assert sum(turn.reward for turn in episode.turns) == (reward or 0.0)
