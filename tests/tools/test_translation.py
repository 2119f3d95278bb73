"""Tests that configurations of TRL and verl become commands with the same numbers.

`public_configurations.yaml` has the values of ten public ones, with numbers computed by hand.
"""

from pathlib import Path

import pytest

from rl4p import configuration
from rl4p.base.errors import InputError
from rl4p.command.commands import options_of
from rl4p.configuration.quoting import setting
from rl4p.configuration.yaml_file import read_mapping
from rl4p.tools.planning.estimate_report import estimate
from rl4p.tools.translation import (
    TRANSLATE,
    TranslateOptions,
    flat,
    settings_in,
    settings_of,
    translated,
)

PUBLIC = read_mapping(Path(__file__).with_name("public_configurations.yaml"))
ONE = TranslateOptions()


def of_public(source: str):
    """Returns the translation of a public configuration, and its numbers."""
    options, _ = options_of(PUBLIC[source]["words"].split(), TRANSLATE)
    _, run, figures = translated(flat(PUBLIC[source]["settings"]), options)
    return run, figures


def words_of(text: str, options: TranslateOptions = ONE) -> dict:
    return translated(settings_of(text.split()), options)[1].words


def test_there_are_ten_of_several_repositories():
    assert len(PUBLIC) == 10
    assert len({source.partition(" ")[0] for source in PUBLIC}) == 4


@pytest.mark.parametrize("source", PUBLIC)
def test_the_numbers_of_a_public_configuration_are_those_of_its_library(source):
    _, figures = of_public(source)
    expected = PUBLIC[source]["expected"]
    assert {name: figures[name] for name in expected} == expected


def words_in(run) -> list[str]:
    return [setting(*pair) for pair in run.words.items()]


# Each takes half a second: `make test` has one of each library, `make slow` the others.
@pytest.mark.parametrize(
    "source",
    [pytest.param(x, marks=[] if i in (0, 9) else pytest.mark.slow) for i, x in enumerate(PUBLIC)],
)
def test_the_command_of_a_public_configuration_is_accepted(source):
    configuration.compose(words_in(of_public(source)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("source", PUBLIC)
def test_a_public_configuration_is_planned(source):
    """With a model, data and devices that need no network."""
    run, _ = of_public(source)
    elsewhere = ("model=", "model.path=", "data", "mesh.", "tracker=", "hydra.")
    words = [word for word in words_in(run) if not word.startswith(elsewhere)]
    words += ["model=qwen2_5_7b", "mesh=h200_8", "max_prompt_tokens=512"]
    report = estimate(configuration.compose(words))
    assert report["step"]["prompts"] == run.words["prompts_per_step"]
    assert " by the estimate: " in report["verdict"]


def test_what_a_file_leaves_out_has_the_default_of_the_library():
    trl, verl = words_of("max_prompt_length=64"), words_of("algorithm.adv_estimator=grpo")
    assert (trl["prompts_per_step"], trl["group_size"]) == (1, 8)
    assert (trl["optimizer.learning_rate"], trl["optimizer.schedule"]) == (1e-6, "linear")
    assert (verl["prompts_per_step"], verl["update.minibatches"], verl["group_size"]) == (
        1024,
        4,
        1,
    )
    assert verl["optimizer.weight_decay"] == 0.01
    assert verl["update.dual_clip"] == 3.0


def test_trl_counts_responses_and_optimizer_updates():
    """16 responses x 2 devices x 4 of a generation: 16 prompts of 8, in 4 / 2 minibatches."""
    text = (
        "per_device_train_batch_size=16 gradient_accumulation_steps=2 steps_per_generation=4 "
        "num_iterations=3 max_steps=60 warmup_steps=12 epsilon_high=0.28"
    )
    words = words_of(text, TranslateOptions(devices=2))
    assert (words["prompts_per_step"], words["update.minibatches"]) == (16, 2)
    assert (words["steps"], words["optimizer.warmup_steps"]) == (10, 2)
    assert (words["update.clip_low"], words["update.clip_high"]) == (0.2, 0.28)
    same = words_of(
        text.replace("steps_per_generation=4", "generation_batch_size=128"),
        TranslateOptions(devices=2),
    )
    assert same == words


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "loss_type=dr_grpo max_completion_length=99": {
            "update.aggregation": "constant",
            "update.aggregation_length": 99,
        },
        "loss_type=cispo epsilon_high=5.0 num_iterations=2": {
            "update": "cispo",
            "update.high": 5.0,
        },
        "importance_sampling_level=sequence loss_type=grpo": {
            "update": "gspo",
            "update.aggregation": "sequence_mean_token_mean",
        },
        "scale_rewards=batch": {"advantage": "batch_std"},
        "beta=0.04": {"kl": "fixed", "kl.beta": 0.04, "kl.importance_weight": True},
        "optim=adamw_torch": {"optimizer": "adamw"},
        "lora_r=8 use_peft=true": {"model.lora.rank": 8},
        "dataset=OWNER/rows": {"data": "huggingface", "data.path": "OWNER/rows"},
        "algorithm.adv_estimator=reinforce_plus_plus": {"advantage": "reinforce_pp"},
        "algorithm.adv_estimator=grpo algorithm.norm_adv_by_std_in_grpo=False": {
            "advantage": "dr_grpo"
        },
        "algorithm.adv_estimator=gae": {"critic": "separate", "advantage.lambda_policy": 1.0},
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum": {
            "update.aggregation": "sequence_mean_token_sum"
        },
        "trainer.save_freq=-1": {"checkpoint.every": 0},
        "--num_iterations 4 --max_steps -1 --save_steps 64": {
            "steps": None,
            "checkpoint.every": 16,
        },
        "eval_strategy=no eval_steps=100": {"evaluation.every": 0},
        "--lora_r 8 --lora_target_modules q_proj v_proj": {
            "model.lora.targets": ["q_proj", "v_proj"]
        },
        "algorithm.adv_estimator=grpo algorithm.kl_ctrl.type=fixed": {"kl": None},
        "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive": {"kl": "adaptive"},
        "actor_rollout_ref.rollout.val_kwargs.top_p=0.7": {"rollout.top_p": None},
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo": {
            "update.aggregation": "sequence_mean_token_mean"
        },
        "actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov": {"update.clip_low": None},
        "data.train_batch_size=256": {"prompts_per_step": 256},
        "algorithm.adv_estimator=grpo trainer.total_epochs=null": {"prompts_per_step": 1024},
        "actor_rollout_ref.actor.entropy_coeff=0.01": {"entropy": "bonus", "entropy.alpha": 0.01},
    }.items(),
)
def test_the_terms_of_the_loss_have_their_names_here(text, expected):
    words = words_of(text)
    assert {key: words.get(key) for key in expected} == expected


def test_limits_of_a_ratio_that_is_1_are_left_out():
    _, run, figures = translated({"epsilon": 0.3}, ONE)
    assert "update.clip_low" not in run.words
    assert run.left["update.clip_low=0.3"] == "no effect, because a step has one update"
    assert figures["clipping"] == "1 - 0.3 to 1 + 0.3, without effect"


def test_what_has_no_counterpart_is_named_with_its_reason():
    left = translated(settings_of(["vllm_device=auto", "tf32=true", "reward_weights=[1]"]), ONE)[
        1
    ].left
    assert left["tf32"] == left["vllm_device"] == "no counterpart"
    assert left["reward_weights"] == "each term has a weight of its own"
    assert translated({"algorithm.gamma": 0.9, "algorithm.adv_estimator": "grpo"}, ONE)[1].left[
        "algorithm.gamma"
    ] == ("only advantage=gae discounts")
    assert left["num_train_epochs"] == "3 passes over the prompts: add rows=N, their number"


def test_a_script_is_read_with_its_variables_and_flags(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "run.sh").write_text(
        "set -x # a comment\nbatch=64\npython3 -m verl.trainer.main_ppo \\\n"
        "  data.train_batch_size=${batch} +data.train_files=$HOME/a.parquet data.shuffle=False $@\n"
    )
    assert settings_in(tmp_path / "run.sh") == {
        "data.train_batch_size": 64,
        "data.train_files": "/home/me/a.parquet",
        "data.shuffle": False,
    }
    (tmp_path / "trl.sh").write_text(
        "accelerate launch grpo.py --learning-rate 1e-5 --bf16 --beta=0.1"
    )
    assert settings_in(tmp_path / "trl.sh") == {"learning_rate": 1e-5, "bf16": True, "beta": 0.1}


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "num_generations=7": "which are no whole groups of num_generations=7: add devices=N",
        "beta=$BETA": r"beta=\$BETA is not a number: write its value into it\.",
        "data.train_batch_size=many algorithm.lam=1": "data.train_batch_size=many is not a number",
    }.items(),
)
def test_a_value_that_cannot_be_translated_is_named(text, message):
    with pytest.raises(InputError, match=message):
        words_of(text)
