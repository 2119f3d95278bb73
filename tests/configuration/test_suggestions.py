import re

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration.composition import Composer
from rl4p.configuration.schema import Root
from rl4p.configuration.suggestions import (
    KEYS,
    OPTIONS,
    SECTIONS,
    key_correction,
    option_correction,
    write,
)


def test_a_name_has_one_correction_and_is_no_key_of_the_root():
    names = [name for known in KEYS for name in known.names.split()]
    assert len(names) == len(set(names))
    assert not set(names) & set(Root.__dataclass_fields__)


# A value of each kind, for overrides that take any value.
VALUES = {
    "seed": "1",
    "optimizer.schedule": "cosine",
    "model.dtype": "bfloat16",
    "advantage": "rloo",
}
VALUES |= {"update": "gspo", "optimizer": "lion", "data": "jsonl", "tracker": "none"}
VALUES |= {"kl": "adaptive", "rollout": "vllm"}
VALUES |= {"update.clip_low": "0.1", "+reward.terms.mine._target_": "rl4p.reward.answers.Correct"}


# Words of peers, as their users type them, and a word of the answer.
TYPED = {
    # TRL.
    "num_generations=8": "group_size=8",
    "per_device_train_batch_size=4": "prompts_per_step counts prompts",
    "gradient_accumulation_steps=4": "never changes the gradient",
    "steps_per_generation=2": "update.minibatches=2",
    "generation_batch_size=64": "prompts_per_step=32",
    "num_iterations=2": "update.epochs=2",
    "num_train_epochs=3": "steps=100",
    "max_completion_length=256": "max_response_tokens=256",
    "beta=0.04": "kl=fixed kl.beta=0.04",
    "epsilon_high=0.28": "update.clip_high=0.28",
    "delta=4.0": "update.delta=4.0",
    "loss_type=dr_grpo": "advantage=dr_grpo",
    "loss_type=dapo": "update=ppo",
    "scale_rewards=false": "advantage=dr_grpo",
    "importance_sampling_level=sequence": "update=gspo",
    "mask_truncated_completions=true": "advantage.mask_truncated=true",
    "lr_scheduler_type=constant_with_warmup": "optimizer.schedule=constant",
    "warmup_ratio=0.1": "optimizer.warmup_steps=10",
    "optim=adamw_torch_fused": "optimizer=adamw",
    "bf16=true": "model.dtype=bfloat16",
    "gradient_checkpointing=true": "model.remat=layer",
    "use_vllm=true": "rollout=vllm 'rollout.servers=[http://HOST:8000]'",
    "vllm_importance_sampling_correction=true": "correction=token_truncate",
    "top_entropy_quantile=0.2": "entropy=top_tokens entropy.share=0.2",
    "sync_ref_model=true": "reference.reset_every=512",
    "lora_r=16": "model.lora.rank=16",
    "lora_target_modules=all-linear": "model.lora.targets=.*",
    "load_in_4bit=true": "model.param_dtype=nf4",
    "model_name_or_path=Qwen/Qwen3-4B": "model=pretrained model.path=Qwen/Qwen3-4B",
    "dataset_name=openai/gsm8k": "data=huggingface data.path=openai/gsm8k",
    "dataset_train_split=train": "data.split=train",
    "reward_funcs=mine.Brevity": "+reward.terms.mine._target_=mine.Brevity",
    "logging_steps=10": "samples.every=10",
    "report_to=wandb": "tracker=wandb",
    "trust_remote_code=true": "is never run",
    # verl.
    "algorithm.adv_estimator=reinforce_plus_plus": "advantage=reinforce_pp",
    "algorithm.use_kl_in_reward=true": "kl=fixed",
    "algorithm.filter_groups.enable=true": "collector=dynamic_sampling",
    "data.train_batch_size=1024": "prompts_per_step=1024",
    "data.max_response_length=1024": "max_response_tokens=1024",
    "data.val_files=a.jsonl": "data.held_out_path=a.jsonl",
    "actor_rollout_ref.model.path=Qwen/Qwen3-4B": "model=pretrained model.path=Qwen/Qwen3-4B",
    "actor_rollout_ref.rollout.n=5": "group_size=5",
    "actor_rollout_ref.rollout.val_kwargs.n=4": "evaluation.samples=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2": "mesh.sampling_tp=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6": "rollout.slots=64",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256": "update.minibatches=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8": "update.tokens_per_microbatch=2048",
    "actor_rollout_ref.actor.clip_ratio_c=3.0": "update.dual_clip=3.0",
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl": "kl=fixed kl.estimator=k3",
    "actor_rollout_ref.actor.loss_agg_mode=token-mean": "update.aggregation=token_mean",
    "trainer.total_epochs=15": "steps=100",
    "trainer.test_freq=5": "evaluation.every=5",
    "custom_reward_function.path=mine.py": "trusted_targets=my_rewards",
    # OpenRLHF, prime-rl and Tunix.
    "n_samples_per_prompt=8": "group_size=8",
    "init_kl_coef=0.01": "kl=fixed kl.beta=0.01",
    "eps_clip=0.2": "update.clip_low=0.2 update.clip_high=0.2",
    "pretrain=Qwen/Qwen3-4B": "model=pretrained model.path=Qwen/Qwen3-4B",
    "remote_rm_url=http://HOST:5000/score": "+term@reward.terms.server=http_scorer",
    "rollouts_per_example=16": "group_size=16",
    "max_async_level=2": "collector=asynchronous collector.ahead=2",
    "trainer.model.name=Qwen/Qwen3-4B": "model=pretrained model.path=Qwen/Qwen3-4B",
    "ckpt.interval=100": "checkpoint.every=100",
    "total_generation_steps=768": "max_response_tokens=768",
    "eval_every_n_steps=10": "evaluation.every=10",
}


def test_sixty_words_of_peers_are_answered_by_one_sentence_with_the_words_to_write():
    composer = Composer()
    assert len(TYPED) >= 60
    for word, expected in TYPED.items():
        with pytest.raises(InputError) as caught:
            composer.load([word])
        assert caught.value.exit_code == 2
        message = str(caught.value)
        assert expected in message, message
        assert ": write " in message
        assert "\n" not in message


@pytest.mark.slow
@pytest.mark.parametrize("known", [*KEYS, *OPTIONS], ids=lambda known: str(known[:2]))
def test_every_correction_in_the_table_composes(known):
    composer = Composer()
    lines = [
        word.replace("{}", VALUES.get(word.partition("=")[0], "1"))
        for word in known.overrides.split()
    ]
    lines = ["data.path=x" if line == "data.path=1" else line for line in lines]
    lines = [line.replace("my_rewards.Mine", "rl4p.reward.answers.Correct") for line in lines]
    lines = [line for line in lines if not line.startswith("trusted_targets=")]
    config = composer.load(lines)  # unknown keys and options are refused here
    assert config is not None


def test_the_value_takes_the_place_of_the_braces_and_may_have_spaces():
    correction = key_correction("model_path", "my model")
    assert correction is not None
    assert correction.overrides == ["model=pretrained", "model.path=my model"]
    assert correction.after("No") == "No: write model=pretrained 'model.path=my model'"


def test_the_last_name_of_a_key_counts_unless_the_whole_key_is_asked_for():
    assert key_correction("trainer.lr", "1") == key_correction("lr", "1")
    assert key_correction("trainer.lr", "1", whole=True) is None
    assert key_correction("kl.coefficient", "1", whole=True) is not None
    assert key_correction("coefficient", "1") is None


def test_the_longest_end_of_a_key_counts():
    whole, end = key_correction("a.val_kwargs.n", "4"), key_correction("a.n", "4")
    assert whole is not None
    assert end is not None
    assert (whole.overrides, end.overrides) == (["evaluation.samples=4"], ["group_size=4"])


def test_a_value_has_its_name_here():
    assert key_correction("kl_loss_type", "low_var_kl") == key_correction("kl_loss_type", "k3")


def test_the_reason_is_part_of_the_message():
    correction = option_correction("mesh", "gpu")
    assert correction is not None
    assert (
        correction.after("No") == "No (mesh=auto uses all devices that JAX finds): write mesh=auto"
    )


def test_the_names_of_a_group_match_as_a_whole():
    assert option_correction("mesh", "gpus_of_mine") is None
    assert option_correction("kl", "-0.1") is not None
    assert option_correction("kl", "fixed_1") is None


def test_several_choices_are_joined():
    assert write("No", ["a=1"], ["b=2", "c=3"]) == "No: write a=1 or b=2 c=3"


def test_sections_are_those_of_the_root():
    assert set(SECTIONS) <= set(Root.__dataclass_fields__)
    for key, overrides in SECTIONS.items():
        assert re.fullmatch(rf"{key}\.\w+=\{{\}}", overrides)
