"""Compares losses and advantages with TRL's trainers on the same tensors: `make parity`.

TRL's own code does all the arithmetic. Its trainers are built for the tiny policy. `numbers`
replaces the generated tokens and the outputs of the forward; old logprobs, corrections, advantages,
the loss and its sum come from TRL. Where TRL and this project differ on purpose, a test says why
and by how much. It is one file because all tests share the fixtures that build them.
"""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import rl4p
from rl4p.advantage.batch_std import BatchStd
from rl4p.advantage.dr_grpo import DrGRPO
from rl4p.advantage.gdpo import GDPO
from rl4p.advantage.grpo import GRPO
from rl4p.advantage.rloo import RLOO
from rl4p.base.types import Finish, Rewards
from rl4p.learner.correction import (
    OffPolicyMask,
    Product,
    SequenceMask,
    SequenceTruncate,
    TokenMask,
    TokenTruncate,
)
from rl4p.learner.entropy import Bonus, TopTokens
from rl4p.learner.kl import NONE as NO_KL
from rl4p.learner.kl import Fixed
from rl4p.loop.phases import estimate
from rl4p.update.cispo import CISPO
from rl4p.update.dpo import DPO
from rl4p.update.gmpo import GMPO
from rl4p.update.gspo import GSPO
from rl4p.update.luspo import LUSPO
from rl4p.update.ppo import PPO
from rl4p.update.reinforce import Reinforce
from rl4p.update.sapo import SAPO
from rl4p.update.vespo import VESPO

pytestmark = [
    pytest.mark.parity,
    # Names of transformers that TRL and PEFT still use.
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
]
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
TINY = str(Path(rl4p.__file__).parent / "model" / "tiny")
KL = {"beta": 0.3, "use_bias_correction_kl": False}  # on by default; another test compares it
TOKEN = 5  # not an end token
REWARDS = (1.0, 0.0, 0.5, 0.0, 2.0, 0.25, 1.0, 0.0)


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("trl")
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tiny(torch):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    return model, transformers.AutoTokenizer.from_pretrained(TINY)


@pytest.fixture
def make_trainer(tiny, tmp_path):
    """Returns a function that builds a trainer whose reward functions return fixed numbers."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def make(trainer=GRPOTrainer, config=GRPOConfig, *, rewards=(REWARDS,), vllm=False, **options):
        options = {
            "output_dir": str(tmp_path),
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "num_iterations": 2,  # makes the old logprobs differ from the current ones
            "max_completion_length": 9,
            "report_to": [],
        } | options

        def grader(k):
            def grade(completions, **_):
                return list(rewards[k])

            grade.__name__ = f"grader_{k}"
            return grade

        built = trainer(
            model=TINY if options.get("beta") else tiny[0],  # TRL loads a reference by its name
            reward_funcs=[grader(k) for k in range(len(rewards))],
            args=config(**options),
            train_dataset=Dataset.from_dict({"prompt": ["1"] * 8}),
            processing_class=tiny[1],
        )
        built.use_vllm = vllm  # enables the correction for the sampler; nothing is generated
        built.current_gradient_accumulation_steps = 1
        return built

    return make


@pytest.fixture
def collect(torch, make_trainer):
    """Returns a function that builds a trainer and the inputs of its loss from the numbers."""
    from trl import RLOOTrainer

    def run(numbers, *, truncated=(), **options):
        trainer = make_trainer(**options)
        B = len(numbers.mask)
        lengths = numbers.mask.sum(axis=1)
        ids = [[TOKEN] * length for length in lengths]
        for b in set(range(B)) - set(truncated):
            ids[b][-1] = trainer.eos_token_ids[0]
        sampled = [numbers.behaviour[b, :length].tolist() for b, length in enumerate(lengths)]

        def generate(prompts):
            if isinstance(trainer, RLOOTrainer):
                return [[TOKEN]] * B, ids, [""] * B
            return [[TOKEN]] * B, ids, None, [""] * B, sampled, {}, None, []

        tensors = SimpleNamespace(
            logprobs=torch.tensor(numbers.logprobs, requires_grad=True),
            entropy=torch.tensor(numbers.entropy, requires_grad=True),
        )

        def forward(model, input_ids, attention_mask, logits_to_keep, *_, **__):
            assert logits_to_keep == numbers.mask.shape[1]
            if torch.is_grad_enabled():
                return tensors.logprobs, tensors.entropy, None
            reference = model is trainer.ref_model
            return torch.tensor(numbers.reference if reference else numbers.proximal), None, None

        trainer._generate = generate
        trainer._get_per_token_logps_and_entropies = forward
        return trainer, trainer._generate_and_score_completions([{"prompt": "1"}] * B), tensors

    return run


@pytest.fixture
def their_loss(torch, collect):
    """Returns a function that computes TRL's loss of the numbers, and its slopes."""

    def evaluate(numbers, *, kept=None, **options):
        trainer, inputs, tensors = collect(numbers, **options)
        inputs["advantages"] = torch.tensor(numbers.advantages)
        if kept is not None:  # TRL masks the output of tools in this way
            inputs["tool_mask"] = torch.tensor(kept).int()
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        slopes = {
            name: np.zeros_like(numbers.logprobs) if x.grad is None else x.grad.numpy()
            for name, x in vars(tensors).items()
        }
        return SimpleNamespace(loss=float(loss.detach()), **slopes)

    return evaluate


def assert_same(ours, theirs):
    assert np.abs(theirs.logprobs).max() > 1e-3
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.entropy, theirs.entropy, rtol=0, atol=1e-5)


def assert_different(ours, theirs):
    assert np.abs(ours.logprobs - theirs.logprobs).max() > 1e-3


# What both projects have: TRL's options, our update, and the other parts of our loss.
SAME = {
    "grpo": ({"loss_type": "grpo"}, PPO(aggregation="sequence_mean_token_mean"), {}),
    "bnpo": ({"loss_type": "bnpo"}, PPO(), {}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, PPO(aggregation="constant", aggregation_length=9), {}),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, PPO(clip_high=0.28), {}),
    "delta": ({"loss_type": "dapo", "delta": 1.3}, PPO(delta=1.3), {}),
    "delta_inside": (
        {"loss_type": "dapo", "epsilon_high": 0.4, "delta": 1.1},
        PPO(clip_high=0.4, delta=1.1),
        {},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.2}, CISPO(high=1.2), {}),
    "sapo": ({"loss_type": "sapo"}, SAPO(), {}),
    "sapo_sharp": (
        {"loss_type": "sapo", "sapo_temperature_pos": 3.0, "sapo_temperature_neg": 5.0},
        SAPO(tau_positive=3.0, tau_negative=5.0),
        {},
    ),
    "gspo": (
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.03,
            "epsilon_high": 0.04,
        },
        GSPO(clip_low=0.03, clip_high=0.04),
        {},
    ),
    "luspo": (
        {
            "loss_type": "luspo",
            "importance_sampling_level": "sequence",
            "epsilon": 0.03,
            "epsilon_high": 0.04,
        },
        LUSPO(clip_low=0.03, clip_high=0.04),
        {},
    ),
    "vespo": ({"loss_type": "vespo"}, VESPO(), {}),
    "kl": ({"loss_type": "dapo"} | KL, PPO(), {"kl": Fixed(beta=0.3)}),
    "kl_grpo": (
        {"loss_type": "grpo"} | KL,
        PPO(aggregation="sequence_mean_token_mean"),
        {"kl": Fixed(beta=0.3)},
    ),
    "kl_gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"} | KL,
        GSPO(clip_low=0.2, clip_high=0.2),
        {"kl": Fixed(beta=0.3)},
    ),
    "entropy_bonus": (
        {"loss_type": "dapo", "entropy_coef": 0.2},
        PPO(),
        {"entropy": Bonus(alpha=0.2)},
    ),
    "top_entropy": (
        {"loss_type": "dapo", "top_entropy_quantile": 0.4} | KL,
        PPO(),
        {"entropy": TopTokens(share=0.4), "kl": Fixed(beta=0.3)},
    ),
    "token_truncate": (
        {
            "loss_type": "dapo",
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.1,
        }
        | KL,
        PPO(),
        {"correction": TokenTruncate(cap=1.1), "kl": Fixed(beta=0.3)},
    ),
    "token_mask": (
        {
            "loss_type": "grpo",
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_min": 0.8,
            "vllm_importance_sampling_clip_max": 1.15,
        },
        PPO(aggregation="sequence_mean_token_mean"),
        {"correction": TokenMask(low=0.8, high=1.15)},
    ),
    "sequence_truncate": (
        {
            "loss_type": "dapo",
            "vllm_importance_sampling_mode": "sequence_truncate",
            "vllm_importance_sampling_clip_max": 1.2,
        },
        PPO(),
        {"correction": SequenceTruncate(cap=1.2)},
    ),
    "off_policy_mask": (
        {
            "loss_type": "dapo",
            "vllm_importance_sampling_correction": False,
            "off_policy_mask_threshold": 0.02,
        },
        PPO(),
        {"correction": OffPolicyMask(threshold=0.02)},
    ),
    "off_policy_mask_and_token_truncate": (
        {
            "loss_type": "grpo",
            "off_policy_mask_threshold": 0.02,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.1,
        },
        PPO(aggregation="sequence_mean_token_mean"),
        {
            "correction": Product(
                parts={"mask": OffPolicyMask(threshold=0.02), "w": TokenTruncate(cap=1.1)}
            )
        },
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_loss_and_slopes(numbers, our_loss, their_loss, name):
    options, update, phases = SAME[name]
    theirs = their_loss(numbers, vllm="correction" in phases, **options)
    assert_same(our_loss(numbers, update, **phases), theirs)


def test_gmpo(numbers, our_loss, their_loss):
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    options = {"trainer": GMPOTrainer, "config": GMPOConfig, "epsilon": 0.2, "beta": 0.3}
    ours = our_loss(numbers, GMPO(clip_low=0.2, clip_high=0.2), kl=Fixed(beta=0.3))
    assert_same(ours, their_loss(numbers, **options))


def test_the_divergence_weighted_by_the_ratio(numbers, our_loss, their_loss):
    # TRL's ratio is pi / pi_old for any sampler. Ours is pi / pi_behaviour, as in DeepSeek-V3.2,
    # because the tokens come from the sampler's distribution.
    options = {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": True}
    kl, theirs = Fixed(beta=0.3, importance_weight=True), their_loss(numbers, **options)
    unchanged = SimpleNamespace(**vars(numbers) | {"behaviour": numbers.proximal})
    assert_same(our_loss(unchanged, PPO(), kl=kl), theirs)
    assert_different(our_loss(numbers, PPO(), kl=kl), theirs)


# Deliberate differences.


def test_a_row_without_loss_tokens_is_no_sequence(numbers, our_loss, their_loss):
    # TRL divides by all rows, including rows that are masked completely. Here the mean is over
    # sequences with tokens, so that dropping a sample does not shrink the steps of the others.
    kept = np.ones_like(numbers.mask)
    kept[[1, 4]] = False
    theirs = their_loss(numbers, kept=kept, loss_type="grpo")
    fewer = SimpleNamespace(**vars(numbers) | {"mask": numbers.mask & kept})
    ours = our_loss(fewer, PPO(aggregation="sequence_mean_token_mean"))
    assert ours.loss == pytest.approx(theirs.loss * 8 / 6, abs=1e-5)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs * 8 / 6, rtol=0, atol=1e-5)


def test_token_mean_is_over_the_minibatch(numbers, our_loss, their_loss):
    # TRL's bnpo divides by the tokens of a microbatch, so the gradient depends on its size.
    # Here the count is the minibatch's. TRL's dapo agrees with us (above).

    def half(rows):
        part = {name: x[rows] for name, x in vars(numbers).items()}
        options = {"per_device_train_batch_size": 4, "rewards": (REWARDS[:4],)}
        return their_loss(SimpleNamespace(**part), loss_type="bnpo", **options)

    ours = our_loss(numbers, PPO())
    first, second = half(slice(0, 4)), half(slice(4, 8))
    tokens = numbers.mask.sum(axis=1)
    shares = tokens[:4].sum() / tokens.sum(), tokens[4:].sum() / tokens.sum()
    assert abs(ours.loss - (first.loss + second.loss) / 2) > 1e-3
    together = shares[0] * first.loss + shares[1] * second.loss
    assert ours.loss == pytest.approx(together, abs=1e-5)


def test_a_ratio_beyond_float32_stays_finite(numbers, our_loss, their_loss):
    # TRL does not bound the log-ratio: its exponential overflows on a bad token far from the old
    # policy. Ours is clamped to +-20, and beyond these bounds the slope is 0.
    far = numbers.logprobs.copy()
    far[1, 0] = numbers.proximal[1, 0] + 100
    far = SimpleNamespace(**vars(numbers) | {"logprobs": far})
    assert far.advantages[1] < 0
    theirs, ours = their_loss(far, loss_type="dapo"), our_loss(far, PPO())
    assert not np.isfinite(theirs.loss)
    assert np.isfinite(ours.loss)
    assert ours.logprobs[1, 0] == 0
    others = np.ones_like(far.mask)
    others[1, 0] = False
    np.testing.assert_allclose(ours.logprobs[others], theirs.logprobs[others], rtol=0, atol=1e-5)


def test_the_share_of_uncertain_tokens_is_rounded_down(numbers, our_loss, their_loss):
    # TRL compares with an interpolated quantile, which keeps floor(0.25 x 34) + 1 = 9 of 35
    # tokens. Here a share of 0.25 is floor(0.25 x 35) = 8. The extra token is the ninth largest.
    theirs = their_loss(numbers, loss_type="cispo", epsilon_high=5.0, top_entropy_quantile=0.25)
    ours = our_loss(numbers, CISPO(), entropy=TopTokens(share=0.25))
    order = np.sort(np.where(numbers.mask, numbers.entropy, 0).ravel())[::-1]
    learns = (numbers.advantages != 0)[:, None] & numbers.mask
    assert ((ours.logprobs != 0) == (learns & (numbers.entropy >= order[7]))).all()
    assert ((theirs.logprobs != 0) == (learns & (numbers.entropy >= order[8]))).all()


def test_the_entropy_bonus_is_summed_as_the_loss_is(numbers, our_loss, their_loss):
    # TRL's bonus is the mean over tokens for any loss type. Here it is a part of each token's loss
    # and has the same weight. Both agree for token_mean (above), and differ otherwise.
    theirs = their_loss(numbers, loss_type="grpo", entropy_coef=0.2)
    ours = our_loss(numbers, PPO(aggregation="sequence_mean_token_mean"), entropy=Bonus(alpha=0.2))
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-5)
    lengths = numbers.mask.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(theirs.entropy, -0.2 * numbers.mask / 35, atol=1e-6)
    np.testing.assert_allclose(ours.entropy, -0.2 * numbers.mask / lengths / 8, atol=1e-6)


def test_sequences_are_masked_by_their_geometric_mean(numbers, our_loss, their_loss):
    # TRL masks by the product of a sequence's ratios, which leaves any interval as the sequence
    # grows, and weighs kept sequences by the product. Here the bounds are on the geometric mean,
    # and each token has its own weight. Both agree on sequences of one token.
    options = {
        "loss_type": "dapo",
        "vllm": True,
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_min": 0.8,
        "vllm_importance_sampling_clip_max": 1.15,
    }
    correction = SequenceMask(low=0.8, high=1.15, weighted=True)
    theirs = their_loss(numbers, **options)
    assert_different(our_loss(numbers, PPO(), correction=correction), theirs)
    names = ("mask", "logprobs", "proximal", "behaviour", "reference", "entropy", "values")
    names += ("old_values", "returns")
    single = {name: getattr(numbers, name)[:, :1] for name in names}
    single = SimpleNamespace(**vars(numbers) | single)
    assert_same(our_loss(single, PPO(), correction=correction), their_loss(single, **options))


def test_a_token_without_a_score_is_not_in_the_mean(numbers, our_loss, their_loss):
    # TRL counts it as a log-ratio of 0. Here it is left out of the mean, which is that of the
    # tokens with a score, so a sequence is dropped from a smaller sum on.
    options = {"loss_type": "dapo", "vllm_importance_sampling_correction": False, "vllm": True}
    behaviour = numbers.behaviour.copy()
    bad = np.flatnonzero((numbers.advantages < 0) & (numbers.mask.sum(axis=1) > 1))[0]
    behaviour[bad, 0] = np.nan
    behaviour[bad, 1:] = numbers.logprobs[bad, 1:] + 0.1
    single = SimpleNamespace(**vars(numbers) | {"behaviour": behaviour})
    scored = numbers.mask[bad].sum() - 1
    theirs_mean = 0.1 * scored / (scored + 1)
    between = (theirs_mean + 0.1) / 2
    theirs = their_loss(single, off_policy_mask_threshold=between, **options)
    ours = our_loss(single, PPO(), correction=OffPolicyMask(threshold=between))
    assert (ours.logprobs[bad] == 0).all()
    assert (theirs.logprobs[bad] != 0).any()
    others = np.arange(len(behaviour)) != bad
    np.testing.assert_allclose(ours.logprobs[others], theirs.logprobs[others], rtol=0, atol=1e-5)


def test_vespo_and_the_correction_are_two_factors(numbers, our_loss, their_loss):
    # TRL multiplies the correction into the ratio that the kernel reads. Here a correction is a
    # factor of the loss of every update. Without a correction both agree (above).
    options = {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate"}
    theirs = their_loss(numbers, vllm=True, vllm_importance_sampling_clip_max=1.1, **options)
    ours = our_loss(numbers, VESPO(), correction=TokenTruncate(cap=1.1))
    plain = our_loss(numbers, VESPO())
    assert_different(ours, theirs)
    log_w = np.minimum(numbers.proximal - numbers.behaviour, np.log(1.1))
    np.testing.assert_allclose(
        ours.logprobs, plain.logprobs * np.where(numbers.mask, np.exp(log_w), 0), atol=1e-5
    )
    # TRL's result is our kernel at the ratio to the sampler: proximal is moved by log w.
    moved = SimpleNamespace(**vars(numbers) | {"proximal": numbers.proximal - log_w})
    assert_same(our_loss(moved, VESPO()), theirs)


def test_a_truncated_sample_is_dropped_from_its_group(numbers, collect, advantages, our_batch):
    # TRL removes the tokens of a truncated response from the loss, but keeps its reward in the
    # baseline. Here it is in neither, since its reward is that of an unfinished answer.
    _, inputs, _ = collect(numbers, truncated=(0,), mask_truncated_completions=True)
    trajectories, rewards = our_batch(numbers)
    finish_B = trajectories.finish_B.at[0].set(int(Finish.LENGTH))
    found = advantages(GRPO(mask_truncated=True), replace(trajectories, finish_B=finish_B), rewards)
    mask = inputs["completion_mask"].numpy().astype(bool)
    assert not mask[0].any()
    assert (np.asarray(found.loss_mask_BT) == mask).all()
    np.testing.assert_allclose(inputs["advantages"][1:4], hand(REWARDS[:4])[1:], atol=1e-5)
    np.testing.assert_allclose(found.advantages_BT[1:4, 0], hand(REWARDS[1:4]), atol=1e-5)
    np.testing.assert_allclose(found.advantages_BT[4:, 0], inputs["advantages"][4:], atol=1e-5)


# Advantages.


def hand(rewards):
    """Returns (r - mean) / (std + 1e-4) of a group; the variance divides by count - 1."""
    return (np.array(rewards) - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-4)


@pytest.fixture
def our_batch(batch_of):
    def make(numbers, terms=(REWARDS,)):
        valid = np.all([[x is not None for x in term] for term in terms], axis=0)
        grades = [[0.0 if x is None else x for x in term] for term in terms]
        rewards = Rewards(
            total_B=jnp.asarray(np.where(valid, np.sum(grades, axis=0), 0), jnp.float32),
            terms={f"term_{k}": jnp.asarray(term, jnp.float32) for k, term in enumerate(grades)},
            valid_B=jnp.asarray(valid),
        )
        return batch_of(numbers).trajectories, rewards

    return make


@pytest.fixture
def advantages():
    def find(phase, trajectories, rewards, kl=None, scores=None):
        kl = kl or NO_KL()
        return estimate(phase, kl, trajectories, rewards, scores or {}, kl.coefficient({}))

    return find


@pytest.mark.parametrize(
    ("options", "phase"),
    [
        ({"scale_rewards": "group"}, GRPO()),
        ({"scale_rewards": "batch"}, BatchStd()),
        ({"scale_rewards": "none"}, DrGRPO()),
    ],
    ids=["group", "batch", "none"],
)
@pytest.mark.parametrize("failed", [(), (2,)], ids=["all", "one_failed"])
def test_advantages(numbers, collect, advantages, our_batch, options, phase, failed):
    """Neither project counts a sample without a grade (None in TRL) in the baseline."""
    rewards = tuple(None if b in failed else r for b, r in enumerate(REWARDS))
    _, inputs, _ = collect(numbers, rewards=(rewards,), **options)
    found = advantages(phase, *our_batch(numbers, (rewards,)))
    assert_advantages(found, inputs, numbers)


def test_gdpo(numbers, collect, advantages, our_batch):
    terms = (REWARDS, (30.0, 10.0, 20.0, 5.0, 0.0, 3.0, 1.0, 7.0))
    options = {"multi_objective_aggregation": "normalize_then_sum"}
    _, inputs, _ = collect(numbers, rewards=terms, **options)
    assert_advantages(advantages(GDPO(), *our_batch(numbers, terms)), inputs, numbers)


def assert_advantages(found, inputs, numbers):
    theirs = inputs["advantages"].numpy()
    assert np.abs(theirs).max() > 0.5
    np.testing.assert_allclose(
        found.advantages_BT, np.where(numbers.mask, theirs[:, None], 0), rtol=0, atol=1e-5
    )


def test_a_failed_sample_leaves_the_loss(numbers, collect, advantages, our_batch):
    """TRL gives it advantage 0 but counts its tokens in the mean of the loss; we do not."""
    rewards = (*REWARDS[:2], None, *REWARDS[3:])
    _, inputs, _ = collect(numbers, rewards=(rewards,))
    found = advantages(GRPO(), *our_batch(numbers, (rewards,)))
    assert int(inputs["num_items_in_batch"]) == 35
    assert int(found.loss_mask_BT.sum()) == 30


def test_equal_rewards_give_exactly_nothing(numbers, collect, advantages, our_batch):
    # TRL divides the rounding error of the mean by 1e-4, its epsilon for the deviation. Here a
    # comparison finds a group of equal rewards, and its advantages are 0.
    rewards = (0.9, 0.9, 0.9, None, *REWARDS[4:])
    _, inputs, _ = collect(numbers, rewards=(rewards,))
    found = advantages(GRPO(), *our_batch(numbers, (rewards,)))
    assert 0 < np.abs(inputs["advantages"][:3].numpy()).max() < 1e-3
    assert (found.advantages_BT[:4] == 0).all()


# RLOO.


@pytest.fixture
def collect_rloo(collect):
    from trl import RLOOConfig, RLOOTrainer

    def run(numbers, **options):
        options = {"normalize_advantages": False, "beta": 0.0} | options
        return collect(numbers, trainer=RLOOTrainer, config=RLOOConfig, **options)

    return run


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("failed", [(), (2,)], ids=["all", "one_failed"])
def test_rloo_advantages(numbers, collect_rloo, advantages, our_batch, beta, failed):
    # With beta, both subtract the sum of log pi_old - log pi_reference (k1) from the reward. Here
    # pi is the sampler, which TRL's trainer does not distinguish from the old policy.
    rewards = tuple(None if b in failed else r for b, r in enumerate(REWARDS))
    same = SimpleNamespace(**vars(numbers) | {"behaviour": numbers.proximal})
    _, inputs, _ = collect_rloo(same, rewards=(rewards,), beta=beta)
    kl = Fixed(beta=beta, estimator="k1", placement="in_reward")
    scores = {"reference_logprobs": jnp.asarray(numbers.reference)}
    found = advantages(RLOO(), *our_batch(same, (rewards,)), kl, scores)
    if beta:  # a return excludes earlier tokens; the first token's has all
        theirs = np.asarray(inputs["advantages"])
        np.testing.assert_allclose(found.advantages_BT[:, 0], theirs, rtol=0, atol=1e-5)
    else:
        assert_advantages(found, inputs, numbers)


def test_rloo_at_the_old_policy(torch, numbers, collect_rloo, our_loss):
    # TRL's RLOO uses PPO's loss on the ratio of whole sequences. This product leaves the clip range
    # as the length grows, and no update here has it. Its slope at the old policy is REINFORCE's.
    same = SimpleNamespace(**vars(numbers) | {"proximal": numbers.logprobs})
    trainer, inputs, tensors = collect_rloo(same)
    inputs["advantages"] = torch.tensor(numbers.advantages)
    trainer.compute_loss(trainer.model, inputs).backward()
    ours = our_loss(same, Reinforce(aggregation="sequence_mean_token_sum"))
    np.testing.assert_allclose(ours.logprobs, tensors.logprobs.grad, rtol=0, atol=1e-5)


# Preferences: rows 2k and 2k + 1 are the chosen and the rejected response to prompt k.


@pytest.fixture(scope="module")
def pairs(numbers):
    signs = np.tile(np.array([1, -1], np.float32), 4)
    pairs = {"advantages": signs, "groups": np.arange(8) // 2}
    return SimpleNamespace(**vars(numbers) | pairs)


@pytest.fixture
def their_dpo(torch, tiny, tmp_path):
    """Returns a function for DPOTrainer's loss and slope, with given logprobs of both models."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    def evaluate(pairs, **options):
        row = {"prompt": "1", "chosen": "2", "rejected": "3"}
        config = DPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            report_to=[],
            **options,
        )
        trainer = DPOTrainer(
            model=TINY,
            args=config,
            train_dataset=Dataset.from_list([row]),
            processing_class=tiny[1],
        )
        order = [0, 2, 4, 6, 1, 3, 5, 7]  # first all chosen, then all rejected
        mask = torch.tensor(pairs.mask[order])
        logprobs = torch.tensor(pairs.logprobs[order], requires_grad=True)

        def model_of(logprobs):
            def forward(**_):
                # As in the fused head: 0 for a token without a label.
                zeros = torch.zeros(mask.shape)
                return SimpleNamespace(
                    log_probs=torch.where(mask, logprobs, 0.0),
                    entropy=zeros,
                    mean_logits=zeros,
                    is_top1=zeros.bool(),
                )

            return forward

        trainer.ref_model = model_of(torch.tensor(pairs.reference[order]))
        width = pairs.mask.shape[1] + 1  # the prompt has one token
        inputs = {
            "input_ids": torch.full((8, width), TOKEN),
            "attention_mask": torch.ones((8, width), dtype=torch.long),
            "completion_mask": torch.nn.functional.pad(mask.long(), (1, 0)),
        }
        loss = trainer._compute_loss(model_of(logprobs), inputs, return_outputs=False)
        loss.backward()
        slope = np.zeros_like(pairs.logprobs)
        slope[order] = logprobs.grad.numpy()
        return SimpleNamespace(loss=float(loss.detach()), logprobs=slope, entropy=0.0 * slope)

    return evaluate


@pytest.mark.filterwarnings("ignore::UserWarning:trl", "ignore::FutureWarning:trl")
@pytest.mark.parametrize(
    ("options", "update"),
    [
        ({"loss_type": ["sigmoid"], "beta": 0.3}, DPO(beta=0.3)),
        ({"loss_type": ["ipo"], "beta": 0.3}, DPO(kind="ipo", beta=0.3, length_normalised=True)),
        ({"loss_type": ["sigmoid_norm"], "beta": 2.0}, DPO(beta=2.0, length_normalised=True)),
    ],
    ids=["sigmoid", "ipo", "sigmoid_norm"],
)
def test_dpo(pairs, our_loss, their_dpo, options, update):
    assert_same(our_loss(pairs, update, group_size=2), their_dpo(pairs, **options))


def test_the_ipo_of_the_paper_is_not_divided_by_lengths(pairs, our_loss, their_dpo):
    """TRL's ipo uses means over tokens; the paper's formula, our default, uses sums."""
    theirs = their_dpo(pairs, loss_type=["ipo"], beta=0.3)
    assert_different(our_loss(pairs, DPO(kind="ipo", beta=0.3), group_size=2), theirs)


def test_smoothed_labels(pairs, our_loss, their_dpo):
    # cDPO: TRL has label smoothing in `robust` only, which subtracts the flipped term and divides
    # by (1 - 2e). cDPO, compared here, is the weighted sum of its two sigmoid losses.
    flipped = swapped(pairs)
    right = their_dpo(pairs, loss_type=["sigmoid"], beta=0.3)
    wrong = their_dpo(flipped, loss_type=["sigmoid"], beta=0.3)
    back = wrong.logprobs.reshape(4, 2, -1)[:, ::-1].reshape(8, -1)
    ours = our_loss(pairs, DPO(beta=0.3, label_smoothing=0.1), group_size=2)
    assert ours.loss == pytest.approx(0.9 * right.loss + 0.1 * wrong.loss, abs=1e-5)
    np.testing.assert_allclose(ours.logprobs, 0.9 * right.logprobs + 0.1 * back, atol=1e-5)


def swapped(pairs):
    """Swaps the two responses of each pair."""

    def swap(x):
        return x.reshape(4, 2, -1)[:, ::-1].reshape(x.shape)

    names = ("mask", "logprobs", "reference")
    return SimpleNamespace(**vars(pairs) | {name: swap(getattr(pairs, name)) for name in names})


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gamma", [0.0, 0.7])
def test_simpo(torch, pairs, our_loss, smoothing, gamma):
    """Compares with CPOTrainer's loss of the mean logprobs that its forward would return."""
    from accelerate import Accelerator
    from trl.experimental.cpo import CPOTrainer

    trainer = CPOTrainer.__new__(CPOTrainer)  # not initialised: its loss reads nothing else
    state = {"loss_type": "simpo", "alpha": 0.0, "beta": 2.0, "simpo_gamma": gamma}
    vars(trainer).update(state, label_smoothing=smoothing, accelerator=Accelerator(cpu=True))
    logprobs, mask = torch.tensor(pairs.logprobs, requires_grad=True), torch.tensor(pairs.mask)
    means = (logprobs * mask).sum(1) / mask.sum(1)
    loss = trainer.cpo_loss(means[0::2], means[1::2])[0].mean()
    loss.backward()
    slope = logprobs.grad.numpy()
    theirs = SimpleNamespace(loss=float(loss.detach()), logprobs=slope, entropy=0.0 * slope)
    update = DPO(kind="simpo", beta=2.0, gamma=gamma, label_smoothing=smoothing)
    assert_same(our_loss(pairs, update, group_size=2), theirs)
