"""Tests that every need gives its array, and that nothing is computed without a need."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rl4p.loop.scoring
from rl4p.base.errors import RunError
from rl4p.base.types import Episode, Turn
from rl4p.distributed.mesh import Mesh
from rl4p.learner.critic import Shared
from rl4p.learner.kl import Fixed
from rl4p.learner.logprobs import trunk
from rl4p.learner.optimizer import SGD
from rl4p.loop.scoring import Scoring, answer_clusters, task_ids, turn_states
from rl4p.model.heads import init_value_head, values
from rl4p.model.lora import LoRA, merge_trees
from rl4p.model.scratch import Scratch
from rl4p.protocols.collection import Collected
from rl4p.reward.answers import Correct
from rl4p.reward.router import Router
from rl4p.reward.weighted import Weighted
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.runs.policy import reference_params
from rl4p.update.ppo import PPO

B, T = 8, 16
# Three prompts of two tasks, in mixed order; prompt b cannot be graded.
IDS = ("a", "b", "a", "c", "c", "b", "c", "a")
TASKS = {"a": "sums", "b": "sums", "c": "primes"}


@dataclass(frozen=True, kw_only=True)
class Asking:
    """An advantage that is never called; `returns` makes it fit for a critic."""

    needs: frozenset = frozenset()

    def returns(self, trajectories, rewards, scores): ...


def letters(response):
    return float(sum(map(ord, response)))


@dataclass(frozen=True, kw_only=True)
class Letters:
    """A term that sums the characters of a response; None for prompt b."""

    weight: float = 2.0

    def __call__(self, episodes):
        return [None if each.prompt.id == "b" else letters(each.response) for each in episodes]


@dataclass(frozen=True, kw_only=True)
class Counting(NaiveSampler):
    """A sampler that records the prompts of every call."""

    calls: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, policy, params, prompts, **options):
        self.calls.append([prompt.id for prompt in prompts])
        return super().__call__(policy, params, prompts, **options)


@pytest.fixture
def sampler():
    return Counting(max_response_tokens=8, temperature=0.7)


@pytest.fixture
def ask(make_phases, sampler):
    """Returns a function that builds phases whose advantage has these needs."""

    def ask(*needs, **phases):
        return make_phases(
            **{
                "rollout": sampler,
                "reward": Weighted(terms={"letters": Letters()}),
                "advantage": Asking(needs=frozenset(needs)),
                "update": PPO(tokens_per_microbatch=4 * T),
                "critic": Shared(),
            }
            | phases
        )

    return ask


@pytest.fixture(scope="module")
def trained(params):
    """Returns parameters that differ from the initial ones, with a critic."""
    moved = jax.tree.map(lambda x: 0.9 * x, params)
    head = init_value_head(32) | {"kernel": jnp.linspace(-1, 1, 32), "bias": jnp.float32(0.5)}
    return moved | {"critic": {"value": head}}


@pytest.fixture(scope="module")
def collected(make_prompt, make_trajectories, make_episodes):
    prompts = tuple(
        make_prompt(tokens=(257, 65 + "abc".index(x)), id=x, task=TASKS[x]) for x in IDS
    )
    episodes = make_episodes([f"#### {i}" for i in range(B)], prompts)
    return Collected(
        trajectories=make_trajectories(), episodes=episodes, rewards=None, memory={}, metrics={}
    )


@pytest.fixture(scope="module")
def teacher():
    model = Scratch(width=16, layers=1, heads=2, num_kv_heads=1, feed_forward_width=24)
    policy, params = model.build(Mesh(dp=1), jax.random.key(7))
    return policy.decoder, jax.tree.map(lambda x: 10 * x, params)


@pytest.fixture
def score(policy, params, trained, make_state, collected, teacher):
    """Returns a function that computes the scores that phases need, for trained parameters."""

    def score(phases, policy=policy, trained=trained, **scoring):
        scoring = {"reference": (policy.decoder, params), "teacher": teacher} | scoring
        state = make_state(trained, SGD())
        return Scoring(**scoring, tasks=("primes", "sums"))(phases, policy, state, collected)

    return score


@pytest.fixture
def forwards(monkeypatch):
    """Returns the list of decoders that have scored a batch."""
    counted, score = [], rl4p.loop.scoring.score_tokens

    def counting(options, *args, **temperature):
        counted.append(options.decoder)
        return score(options, *args, **temperature)

    monkeypatch.setattr(rl4p.loop.scoring, "score_tokens", counting)
    return counted


def assert_scores(ours, wanted, collected):
    mask = np.asarray(collected.trajectories.response_mask_BT)
    np.testing.assert_allclose(np.asarray(ours)[mask], np.asarray(wanted)[mask], rtol=2e-5)


@pytest.mark.slow
def test_one_forward_of_the_policy_gives_all_that_is_asked_of_it(
    policy, trained, ask, score, score_all, sampler, collected, forwards
):
    names = ("proximal_logprobs", "entropy", "collision", "values")
    ours = score(ask(*names))
    assert forwards == [policy.decoder]
    assert ours.keys() == set(names)
    wanted = score_all(policy.decoder, trained, collected.trajectories, sampler.sampling)
    assert_scores(ours["proximal_logprobs"], wanted.logprobs_BT, collected)
    assert_scores(ours["entropy"], wanted.entropy_BT, collected)
    assert_scores(ours["collision"], wanted.collision_BT, collected)
    hidden_BTD = trunk(policy.decoder, trained, collected.trajectories)
    assert_scores(ours["values"], values(trained["critic"], hidden_BTD), collected)


@pytest.mark.slow
def test_the_reference_is_what_the_run_began_with(
    policy, params, ask, score, score_all, sampler, collected, forwards
):
    """The penalty and the advantage both need it, but it is scored once."""
    ours = score(ask("reference_logprobs", kl=Fixed()))
    assert forwards == [policy.decoder]
    wanted = score_all(policy.decoder, params, collected.trajectories, sampler.sampling)
    assert_scores(ours["reference_logprobs"], wanted.logprobs_BT, collected)


def test_the_reference_outlives_the_parameters_that_the_update_takes(policy, params):
    mine = jax.tree.map(jnp.copy, params)
    reference = reference_params(policy, mine)
    jax.tree.map(lambda x: x.delete(), mine)
    jax.tree.map(np.testing.assert_array_equal, reference, params)


@pytest.mark.slow
def test_the_reference_of_adapters_is_their_base(
    policy, params, ask, score, score_all, sampler, collected
):
    lora = LoRA(rank=2)
    adapted = replace(policy, decoder=replace(policy.decoder, lora=lora), frozen=params)
    trained = jax.tree.map(lambda x: x + 0.1, lora.init(jax.random.key(3), params))
    reference = reference_params(adapted, trained)
    assert reference is adapted.frozen
    phases = ask("reference_logprobs", "proximal_logprobs")
    ours = score(phases, policy=adapted, trained=trained, reference=(policy.decoder, reference))
    options = (collected.trajectories, sampler.sampling)
    base = score_all(policy.decoder, params, *options).logprobs_BT
    moved = score_all(adapted.decoder, merge_trees(params, trained), *options).logprobs_BT
    assert_scores(ours["reference_logprobs"], base, collected)
    assert_scores(ours["proximal_logprobs"], moved, collected)
    assert not np.allclose(base, moved, atol=0.1)


def test_the_reference_of_adapters_that_were_read_has_them(policy, params):
    lora = LoRA(rank=2)
    adapted = replace(policy, frozen=params, adapted=True)
    trained = jax.tree.map(lambda x: x + 0.1, lora.init(jax.random.key(3), params))
    mine = jax.tree.map(jnp.copy, trained)
    reference = reference_params(adapted, mine)
    jax.tree.map(lambda x: x.delete(), mine)
    jax.tree.map(np.testing.assert_array_equal, reference, merge_trees(params, trained))


@pytest.mark.slow
def test_a_teacher_is_another_decoder(ask, score, score_all, teacher, sampler, collected, forwards):
    ours = score(ask("teacher_logprobs"))
    assert forwards == [teacher[0]]
    wanted = score_all(*teacher, collected.trajectories, sampler.sampling)
    assert_scores(ours["teacher_logprobs"], wanted.logprobs_BT, collected)


@pytest.mark.parametrize(
    ("needs", "phases", "count"),
    [
        ((), {}, 0),
        ((), {"update": PPO(minibatches=2)}, 1),
        ((), {"kl": Fixed(beta=0.0)}, 0),
        (("answer_clusters", "task_ids"), {}, 0),
        (("proximal_logprobs", "reference_logprobs", "teacher_logprobs"), {}, 3),
    ],
)
def test_nothing_runs_that_nobody_asked_for(
    ask, score, forwards, sampler, collected, needs, phases, count
):
    phases = ask(*needs, **phases)
    ours = score(phases)
    assert ours.keys() == phases.needs()
    assert len(forwards) == count
    assert not sampler.calls
    rows = {"answer_clusters", "task_ids"}
    assert all(x.shape == ((B,) if name in rows else (B, T)) for name, x in ours.items())


class Four(Mesh):
    """A mesh of one device that pretends to have four."""

    row_shards = 4


def test_each_prompt_is_answered_once_by_the_most_probable_tokens(
    policy, trained, ask, score, sampler, collected
):
    """Three prompts on four devices; without a grade the reward is nan, not 0."""
    ours = score(ask("greedy_rewards"), policy=replace(policy, mesh=Four(dp=1)))["greedy_rewards"]
    assert sampler.calls.pop() == ["a", "b", "c", "a"]
    prompts = {each.prompt.id: each.prompt for each in collected.episodes}
    options = {"group_size": 1, "key": jax.random.key(9), "version": 0}
    _, episodes = sampler(policy, trained, list(prompts.values()), **options, greedy=True)
    sums = dict(zip(prompts, (letters(each.response) for each in episodes), strict=True))
    assert sums["a"] != sums["c"]
    wanted = [np.nan if x == "b" else 2 * sums[x] for x in IDS]
    np.testing.assert_array_equal(ours, np.float32(wanted))


@pytest.mark.quick(1)
@pytest.mark.parametrize("need", ["proximal_logprobs", "reference_logprobs", "teacher_logprobs"])
def test_the_sizes_of_microbatches_are_those_of_the_update(ask, score, monkeypatch, need):
    """The sampling distribution is also the rollout's."""
    seen, original = [], rl4p.loop.scoring.score_tokens

    def watching(options, params, trajectories, **temperature):
        seen.append(options)
        return original(options, params, trajectories, **temperature)

    monkeypatch.setattr(rl4p.loop.scoring, "score_tokens", watching)
    phases = ask(need, update=PPO(tokens_per_microbatch=3 * T, microbatch_widths=2))
    score(phases)
    (options,) = seen
    assert options.microbatching.tokens == 3 * T
    assert options.microbatching.widths == 2
    assert options.sampling == phases.rollout.sampling
    assert options.sampling.temperature == 0.7


def test_what_stands_for_a_row_lies_as_rows_do(ask, score, policy):
    for name, found in score(ask("greedy_rewards", "answer_clusters", "task_ids")).items():
        assert isinstance(found, jax.Array), name
        assert found.sharding.is_equivalent_to(policy.mesh.rows, found.ndim), name


def test_greedy_rewards_are_of_the_newest_parameters(
    policy, params, trained, ask, score, sampler, collected
):
    score(ask("greedy_rewards"))
    prompts = list({each.prompt.id: each.prompt for each in collected.episodes}.values())
    options = {"group_size": 1, "key": jax.random.key(0), "version": 0, "greedy": True}
    answered = [sampler(policy, x, prompts, **options)[1] for x in (trained, params)]
    new, old = ([each.response for each in episodes] for episodes in answered)
    assert new != old
    wanted = dict(zip("abc", (2 * letters(response) for response in new), strict=True))
    found = score(ask("greedy_rewards"))["greedy_rewards"]
    np.testing.assert_array_equal(
        found, np.float32([np.nan if x == "b" else wanted[x] for x in IDS])
    )


def test_answers_are_alike_as_numbers_or_else_as_texts(make_episodes):
    responses = {
        "so #### 1,000": 0,
        "#### 1000": 0,
        "####  $1000. ": 0,
        "#### 0": 1,
        "#### 0.0": 1,
        "no answer": 2,
        "": 2,
        "#### None": 3,
        "#### x": 4,
        "####  x ": 4,
        "#### 1,00": 5,
    }
    reward = Weighted(terms={"correct": Correct()})
    found = answer_clusters(make_episodes(tuple(responses)), reward, "correct")
    assert found.tolist() == list(responses.values())
    assert found.dtype == np.int32
    without = answer_clusters(make_episodes(tuple(responses)), reward, "other")
    assert without.tolist() == found.tolist()  # hashes, if no term says where answers are


def test_answers_are_found_as_the_reward_of_their_task_finds_them(make_prompt, make_episodes):
    boxed, tagged = (
        Weighted(terms={"right": Correct(extract=extract)}) for extract in ("boxed", "answer")
    )
    responses = (r"\boxed{1}", r"\boxed{2}", r"2 #### 1 \boxed{1.0}", "#### 2")
    found = answer_clusters(make_episodes(responses), boxed, "right")
    assert found.tolist() == [0, 1, 0, 2]
    prompts = [make_prompt(task=task) for task in ("a", "b", "b", "a")]
    responses = (r"\boxed{1}", r"<answer>1</answer> \boxed{2}", r"\boxed{3}", r"\boxed{1}")
    router = Router(tasks={"a": boxed, "b": tagged})
    found = answer_clusters(make_episodes(responses, prompts), router, "right")
    assert found.tolist() == [0, 0, 1, 0]


def test_a_task_is_where_it_stands_among_those_of_the_training_data(make_prompt, make_episodes):
    prompts = [make_prompt(task=task) for task in ("sums", "primes", "sums")]
    found = task_ids(make_episodes(("",) * 3, prompts), ("primes", "sums"))
    assert found.tolist() == [1, 0, 1]
    assert found.dtype == np.int32


def test_turns_of_a_group_share_the_number_of_their_state(make_trajectories, make_prompt):
    """Rows of turns of 2, 1 and 3 tokens; the last row is of another group."""
    trajectories = make_trajectories((8, 8, 8), group_ids=(0, 0, 1))
    mask = np.asarray(trajectories.response_mask_BT).copy()
    mask[:, [10, 12]] = False
    trajectories = replace(trajectories, response_mask_BT=mask)

    def episode(*states, opening=None):
        turns = (
            Turn(text="t", tokens=tokens, state=state)
            for tokens, state in zip((2, 1, 3), states, strict=True)
        )
        return Episode(prompt=make_prompt(), response="t", turns=tuple(turns), opening=opening)

    a, b, c = turn_states(
        trajectories, [episode("x", "y", None), episode("y", "x", None), episode("x", None, None)]
    )[:, 8:]
    assert a[0] == a[1] == b[0]  # the first turns
    assert a[3] == b[5] == b[7]
    assert b[3] == a[5]
    assert len({a[0], a[3], a[5], c[0], c[3], c[5]}) == 6  # by group, and None equals nothing
    assert not a[[2, 4]].any()
    other = episode("x", "y", None, opening=({"role": "user", "content": "another world"},))
    a, b, _ = turn_states(trajectories, [episode("x", "y", None), other, episode("x", "x", None)])
    assert a[8] != b[8]
    assert a[11] == b[11]
    unnamed = [episode(None, "y", None), episode(None, "x", None), episode("x", "x", None)]
    a, b, _ = turn_states(trajectories, unnamed)
    assert a[11] != b[11]
    with pytest.raises(RunError, match=r"no state a name \(StepResult.state\)"):
        turn_states(trajectories, [episode(None, None, "x")] * 3)


def test_single_responses_begin_in_the_same_state(make_trajectories, make_prompt):
    episodes = [Episode(prompt=make_prompt(), response="t")] * 3
    numbers = turn_states(make_trajectories((3, 2, 1), group_ids=(0, 0, 1)), episodes)[:, 8]
    assert numbers[0] == numbers[1] != numbers[2]
