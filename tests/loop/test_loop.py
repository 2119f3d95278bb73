"""Tests the loop on a tiny policy: state, needs, memory, and gradients that are not finite."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rl4p.loop.scoring
from rl4p.advantage.gae import GAE
from rl4p.advantage.grpo import GRPO
from rl4p.base.errors import RunError
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import Bonus
from rl4p.learner.kl import Adaptive, Fixed
from rl4p.learner.masking import spread_over_tokens
from rl4p.learner.optimizer import AdamW
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.loop import Loop, run_hooks, train
from rl4p.loop.scoring import Scoring
from rl4p.loop.source import Stream
from rl4p.protocols.hook import StepInfo
from rl4p.reward.weighted import Weighted
from rl4p.rollout.annealing import Linear
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.update.ppo import PPO
from rl4p.update.reinforce import Reinforce
from rl4p.update.sft import SFT

pytestmark = pytest.mark.mixed_dtypes


@dataclass(frozen=True, kw_only=True)
class OddCharacters:
    """A term that counts characters with odd codes; it differs between random responses."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [float(sum(ord(c) % 2 for c in episode.response)) for episode in episodes]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    def initial_state(self):
        return {"sum": jnp.float32(0), "steps": jnp.int32(0)}

    def __call__(self, trajectories, rewards, memory):
        advantages_BT = spread_over_tokens(rewards.total_B - memory["sum"], trajectories)
        total = memory["sum"] + jnp.sum(rewards.total_B)
        return advantages_BT, {"sum": total, "steps": memory["steps"] + 1}


@pytest.fixture
def make_loop(policy, make_phases):
    def make(steps=2, **phases):
        return Loop(
            policy=policy,
            phases=make_phases(
                **{
                    "rollout": NaiveSampler(max_response_tokens=8),
                    "reward": Weighted(terms={"odd": OddCharacters()}),
                    "advantage": GRPO(),
                    "update": PPO(),
                }
                | phases
            ),
            source=None,  # `taking` sets it for each run
            collector=None,
            optimizer=AdamW(learning_rate=1e-2),
            group_size=4,
            steps=steps,
        )

    return make


def taking(prompts, loop):
    """Returns the loop with a source of these prompts, two per step, and a collector."""
    source = Stream().open(prompts, seed=0)
    collector = Synchronous().open(
        loop.phases, loop.policy, source, prompts_per_step=2, group_size=4
    )
    return replace(loop, source=source, collector=collector)


def run(loop, params, prompts, make_state):
    state = make_state(params, loop.optimizer, memory=loop.phases.initial_memory())
    return list(train(taking(prompts, loop), state))


def test_steps_are_counted_and_the_policy_moves(make_loop, params, prompts, make_state):
    infos = run(make_loop(steps=3), params, prompts, make_state)
    assert [info.step for info in infos] == [1, 2, 3]
    for info in infos:
        assert info.metrics["update/grad_norm"] > 0
        assert info.metrics["staleness/max"] == 0  # trained in the step that sampled them
        seconds, rows = info.metrics["time/rollout"], len(info.episodes)
        tokens = rows * info.metrics["rollout/response_tokens"] / seconds
        assert info.metrics["rollout/tokens_per_second"] == pytest.approx(tokens)
    versions = [np.asarray(info.trajectories.policy_version_BT) for info in infos]
    assert [set(np.ravel(x)) for x in versions] == [{-1, 0}, {-1, 1}, {-1, 2}]
    # A step samples with the parameters of the step before: sampler and trainer agree.
    assert max(info.metrics["rollout/logprob_gap_max"] for info in infos) < 1e-4
    last = infos[-1].state
    assert int(last.step) == 3
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), last.params, params)
    assert any(jax.tree.leaves(moved))
    tokens = [np.asarray(info.trajectories.tokens_BT).tobytes() for info in infos]
    assert len(set(tokens)) == 3


@dataclass(frozen=True, kw_only=True)
class OtherWeights(NaiveSampler):
    """A sampler that claims the weights of the step, but has kept those of an earlier one."""

    since: int = 0

    def __call__(self, policy, params, prompts, **options):
        if options["version"] >= self.since:
            params = jax.tree.map(lambda x: 1.5 * x, params)
        trajectories, episodes = super().__call__(policy, params, prompts, **options)
        return trajectories, [replace(x, engine=f"http://{i % 2}") for i, x in enumerate(episodes)]


def test_a_sampler_with_other_weights_ends_the_run_in_that_step(
    make_loop, params, prompts, make_state
):
    rollout = OtherWeights(max_response_tokens=8, since=1, max_logprob_gap=0.01)
    loop = make_loop(steps=3, rollout=rollout)
    state = make_state(params, loop.optimizer, memory=loop.phases.initial_memory())
    steps = train(taking(prompts, loop), state)
    assert next(steps).metrics["update/grad_norm"] > 0
    wanted = r"http://0 and http://1 do not sample from the weights of step 1 \(version 1\)"
    with pytest.raises(RunError, match=wanted):
        next(steps)
    infos = run(
        make_loop(rollout=replace(rollout, max_logprob_gap=None)), params, prompts, make_state
    )
    assert infos[-1].metrics["rollout/logprob_gap_mean"] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("needs", [False, True])
def test_the_temperature_of_a_step_is_that_of_its_sampler(
    make_loop, params, prompts, make_state, needs
):
    """Trainer and scores use the distribution that the tokens were drawn from."""
    annealing = Linear(end=0.3, steps=2)
    rollout = NaiveSampler(max_response_tokens=8, annealing=annealing)
    phases = {"update": NeedsProximal()} if needs else {}
    infos = run(make_loop(steps=3, rollout=rollout, **phases), params, prompts, make_state)
    for info in infos:
        assert info.metrics["update/grad_norm"] > 0
        assert info.metrics["rollout/logprob_gap_max"] < 1e-4
    entropies = [info.metrics["update/entropy"] for info in infos]
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[0] > 1.2 * entropies[2]


@dataclass(frozen=True, kw_only=True)
class NeedsProximal(PPO):
    needs = frozenset({"proximal_logprobs"})


def test_a_step_draws_with_a_key_of_its_own(make_loop, params, prompts, make_state):
    """With constant parameters and one prompt, the responses of the steps still differ."""
    loop = replace(make_loop(steps=3), optimizer=AdamW(learning_rate=0.0))
    infos = run(loop, params, prompts[:1], make_state)
    assert len({tuple(episode.response for episode in info.episodes) for info in infos}) == 3


def test_what_an_update_is_given_is_checked_where_that_is_asked_for(
    make_loop, params, prompts, make_state
):
    seen = []
    loop = make_loop(steps=1)
    loop = replace(loop, phases=replace(loop.phases, checks={"update": seen.append}))
    (info,) = run(loop, params, prompts, make_state)
    (batch,) = seen
    np.testing.assert_array_equal(batch.trajectories.tokens_BT, info.trajectories.tokens_BT)
    assert np.abs(batch.advantages_BT).max() == pytest.approx(info.metrics["advantage/max"])


def test_memory_lives_in_the_state(make_loop, params, prompts, make_state):
    infos = run(make_loop(advantage=Baseline()), params, prompts, make_state)
    memory = jax.device_get(infos[-1].state.memory["advantage"])
    rewards = [float(np.asarray(info.rewards.total_B).sum()) for info in infos]
    assert memory["steps"] == 2
    assert memory["sum"] == pytest.approx(sum(rewards))


@dataclass(frozen=True, kw_only=True)
class Remembering(Weighted):
    """A reward that returns its memory unchanged."""

    def initial_state(self):
        return jnp.float32(7)

    def __call__(self, trajectories, episodes, memory):
        return super().__call__(trajectories, episodes), memory


def test_memory_that_a_phase_leaves_alone_outlives_the_update(
    make_loop, params, prompts, make_state
):
    """The update receives donated arrays, and these must not be among them."""
    reward = Remembering(terms={"odd": OddCharacters()})
    infos = run(make_loop(reward=reward), params, prompts, make_state)
    assert infos[-1].state.memory["reward"] == 7


@pytest.mark.quick(1)
@pytest.mark.parametrize(("update", "calls"), [(PPO(), 0), (PPO(minibatches=2), 2)])
def test_no_forward_runs_that_nobody_needs(
    make_loop, params, prompts, make_state, monkeypatch, update, calls
):
    counted = []
    score = rl4p.loop.scoring.score_tokens

    def counting(*args, **options):
        counted.append(args)
        return score(*args, **options)

    monkeypatch.setattr(rl4p.loop.scoring, "score_tokens", counting)
    infos = run(make_loop(update=update), params, prompts, make_state)
    assert len(counted) == calls
    assert max(info.metrics["rollout/logprob_gap_max"] for info in infos) < 1e-4


@pytest.mark.slow
def test_a_critic_learns_beside_the_policy(make_loop, policy, params, prompts, make_state):
    critic = Shared()
    loop = make_loop(advantage=GAE(), critic=critic)
    params = params | {"critic": critic.init(policy.decoder, params)}
    infos = run(loop, params, prompts, make_state)
    for info in infos:
        assert info.metrics["update/value_loss"] > 0
        assert np.isfinite(info.metrics["update/explained_variance"])
    # A head of zeros predicts 0: the error is the return itself.
    rewards = np.asarray(infos[0].rewards.total_B)[:, None]
    returns = np.broadcast_to(rewards, infos[0].trajectories.response_mask_BT.shape)
    returns = np.float64(returns[np.asarray(infos[0].trajectories.response_mask_BT)])
    explained = 1 - np.mean(returns**2) / np.var(returns)
    assert infos[0].metrics["update/explained_variance"] == pytest.approx(explained, rel=1e-4)
    head = jax.device_get(infos[-1].state.params["critic"]["value"])
    assert head["bias"] != 0
    assert head["kernel"].all()


@pytest.mark.slow
def test_the_weight_of_an_adaptive_penalty_moves_and_is_remembered(
    make_loop, params, prompts, make_state
):
    """The coefficient follows the measured divergence; before the first update there is none."""
    kl = Adaptive(beta=0.5, target=1e-3, limit=0.2, horizon=10.0)
    loop = make_loop(kl=kl, steps=3)
    loop = replace(loop, scoring=Scoring(reference=(loop.policy.decoder, params)))
    state = make_state(params, loop.optimizer, memory=loop.phases.initial_memory())
    beta, seen = 0.5, []
    for info in train(taking(prompts, loop), state):
        measured = info.metrics["update/kl"]
        beta *= 1 + np.clip(measured / 1e-3 - 1, -0.2, 0.2) / 10
        assert info.state.memory["kl"]["coefficient"] == pytest.approx(beta, rel=1e-5)
        seen.append(measured)
    assert seen[0] == pytest.approx(0, abs=1e-6)
    assert seen[-1] > 1e-3


@pytest.mark.slow
def test_a_reference_is_reset_to_the_policy_every_n_steps(make_loop, params, prompts, make_state):
    """After a reset the next step measures no divergence; without one, each step measures some."""
    loop = replace(make_loop(kl=Fixed(beta=0.1), steps=5), reset_reference_every=2)
    state = make_state(params, loop.optimizer, memory=loop.phases.initial_memory())
    state = replace(state, reference=jax.tree.map(jnp.copy, params))
    divergence, policies = [], [jax.device_get(params)]
    for info in train(taking(prompts, loop), state):
        assert info.metrics["update/grad_norm"] > 0
        divergence.append(info.metrics["update/kl"])
        policies.append(jax.device_get(info.state.params))
        wanted = policies[info.step - info.step % 2]
        jax.tree.map(np.testing.assert_array_equal, info.state.reference, wanted)
    assert [abs(x) < 1e-6 for x in divergence] == [True, False, True, False, True]


@pytest.mark.slow
def test_the_moving_average_follows_the_parameters_and_is_what_is_evaluated(
    make_loop, policy, params, prompts, make_state
):
    loop = replace(make_loop(), average_decay=0.75)
    state = make_state(params, loop.optimizer)
    state = replace(state, average=jax.tree.map(jnp.copy, params))
    expected = jax.device_get(params)
    for info in train(taking(prompts, loop), state):
        expected = jax.tree.map(
            lambda a, x: 0.75 * a + 0.25 * np.asarray(x), expected, info.state.params
        )
    jax.tree.map(
        lambda a, x: np.testing.assert_allclose(a, x, rtol=1e-5, atol=1e-6),
        jax.device_get(info.state.average),
        expected,
    )
    # The parameters and their average differ strongly, and so do their responses.
    state = replace(info.state, params=jax.tree.map(jnp.negative, info.state.params))
    sampler = loop.phases.rollout
    options = {"group_size": 1, "key": jax.random.key(0), "version": 0, "greedy": True}
    _, episodes = sampler(policy, state.average, prompts, **options)
    evaluation = Evaluation(
        every=1,
        phases=replace(loop.phases, reward=Weighted(terms={"as": SaidBy(episodes=episodes)})),
        policy=policy,
        sets=[prompts],
        term="as",
        rows=len(prompts),
    )
    (task,) = {prompt.task for prompt in prompts}
    assert evaluation.evaluate(state)[f"eval/{task}/pass_at_1"] == 0
    evaluation = replace(evaluation, of_average=True)
    assert evaluation.evaluate(state)[f"eval/{task}/pass_at_1"] == 1


@dataclass(frozen=True, kw_only=True)
class SaidBy:
    """A term that is 1 if the response is the one given before."""

    episodes: tuple
    weight: float = 1.0

    def __call__(self, episodes):
        before = {each.prompt.id: each.response for each in self.episodes}
        return [float(before[each.prompt.id] == each.response) for each in episodes]


@dataclass(frozen=True, kw_only=True)
class Broken(Reinforce):
    def __call__(self, logprobs_BT, batch):
        return logprobs_BT * jnp.nan, {}


def test_gradients_that_are_not_finite_change_nothing_and_stop_the_run(
    make_loop, params, prompts, make_state
):
    loop = replace(make_loop(steps=10, update=Broken()), max_skipped=2)
    infos = []
    state = make_state(params, loop.optimizer)
    with pytest.raises(RunError, match=r"not finite in steps \[1, 2, 3\]"):
        infos.extend(train(taking(prompts, loop), state))
    del infos
    one = next(train(taking(prompts, loop), make_state(params, loop.optimizer)))
    assert one.metrics["update/skipped"] == 1
    for ours, before in zip(
        jax.tree.leaves(one.state.params), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_array_equal(ours, before)


@dataclass(frozen=True, kw_only=True)
class BrokenEverySecondStep(Reinforce):
    """An update whose loss is nan in every second step."""

    def __call__(self, logprobs_BT, batch):
        loss_BT, extras = super().__call__(logprobs_BT, batch)
        version_BT = batch.trajectories.policy_version_BT
        return jnp.where((version_BT > 0) & (version_BT % 2 == 1), jnp.nan, loss_BT), extras


@pytest.mark.slow
def test_only_skipped_steps_in_a_row_are_counted(make_loop, params, prompts, make_state):
    loop = replace(make_loop(steps=6, update=BrokenEverySecondStep()), max_skipped=1)
    infos = run(loop, params, prompts, make_state)
    assert [info.metrics["update/skipped"] for info in infos] == [0, 1, 0, 1, 0, 1]


@pytest.mark.slow
def test_a_divergence_in_the_reward_has_its_own_coefficient(make_loop, params, prompts, make_state):
    """Each token has r - 2 (log pi - log pi_reference); the sampler differs from the reference."""
    reference = jax.tree.map(lambda x: x * 1.05, params)
    kl = Fixed(beta=2.0, estimator="k1", placement="in_reward")
    loop = make_loop(steps=1, kl=kl, entropy=Bonus(alpha=0.5), advantage=Plain())
    loop = replace(loop, scoring=Scoring(reference=(loop.policy.decoder, reference)))
    (info,) = run(loop, params, prompts, make_state)
    assert abs(info.metrics["update/kl"]) > 1e-3
    other = replace(loop, phases=replace(loop.phases, kl=replace(kl, beta=1.0)))
    (half,) = run(other, params, prompts, make_state)
    # Every token of a row has its advantage, so rows weigh by their lengths in the mean.
    lengths_B = np.asarray(info.trajectories.response_mask_BT).sum(axis=1)
    plain = float(np.sum(info.rewards.total_B * lengths_B) / np.sum(lengths_B))
    whole, halved = (x.metrics["advantage/mean"] - plain for x in (info, half))
    assert abs(whole) > 1e-3
    assert whole == pytest.approx(2 * halved, rel=1e-3)


@dataclass(frozen=True, kw_only=True)
class Plain:
    """An advantage with the total reward on every token."""

    def __call__(self, trajectories, rewards):
        return spread_over_tokens(rewards.total_B, trajectories)


@dataclass(frozen=True, kw_only=True)
class Half:
    """A term that grades every second response only."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [np.nan if b % 2 else 1.0 for b in range(len(episodes))]


@pytest.mark.slow
def test_samples_without_a_grade_are_not_in_the_loss(make_loop, params, prompts, make_state):
    loop = make_loop(steps=1, reward=Weighted(terms={"half": Half()}), update=SFT())
    (info,) = run(loop, params, prompts, make_state)
    mask_BT = np.asarray(info.trajectories.response_mask_BT)
    valid_BT = mask_BT & (np.arange(len(mask_BT)) % 2 == 0)[:, None]
    logprobs_BT = np.asarray(info.trajectories.behaviour_logprobs_BT)
    assert info.metrics["update/loss"] == pytest.approx(-logprobs_BT[valid_BT].mean(), rel=1e-4)
    assert info.metrics["reward/invalid"] == len(mask_BT) / 2


@dataclass(frozen=True, kw_only=True)
class Note:
    name: str
    every: int

    def __call__(self, info):
        return {self.name: float(len(info.metrics))}


@pytest.mark.slow
def test_hooks_have_their_turn_and_hand_metrics_on():
    info = StepInfo(
        step=4, state=None, trajectories=None, episodes=None, rewards=None, metrics={"a": 0.0}
    )  # fmt: skip
    hooks = [Note(name="b", every=2), Note(name="c", every=3), Note(name="d", every=0)]
    assert run_hooks(hooks, info, last=False).metrics == {"a": 0.0, "b": 1.0}
    assert run_hooks(hooks, info, last=True).metrics == {"a": 0.0, "b": 1.0, "c": 2.0, "d": 3.0}
