"""Mistakes that people make at this command line, each corrected from its message alone.

The message of a mistake ends with the words to write instead. A test copies these words out of the
message, and checks that the command line accepts them.
"""

import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rl4p import configuration
from rl4p.base.errors import InputError
from rl4p.command import command_line
from rl4p.configuration import composition
from rl4p.configuration.composition import CONF, Composer
from rl4p.configuration.schema import without_hydra

HOME = Path.home()

# What is typed, and what the message says to write instead.
MISTAKES = {
    # Keys of other libraries.
    "batch_size=32": "prompts_per_step=32",
    "per_device_train_batch_size=4": "update.tokens_per_microbatch=2048",
    "num_generations=8": "group_size=8",
    "rollout.n=8": "group_size=8",
    "max_tokens=256": "max_response_tokens=256",
    "max_prompt_length=64": "max_prompt_tokens=64",
    "kl_tau=0.001": "kl=fixed kl.against=behaviour kl.estimator=k2 kl.beta=0.001",
    "off_policy_mask_threshold=0.5": "correction=off_policy_mask correction.threshold=0.5",
    "correction=tis": "correction=token_truncate",
    "correction=[token_truncate,sequence_mask]": (
        "correction=product +correction@correction.parts.weight=token_truncate "
        "+correction@correction.parts.mask=sequence_mask"
    ),
    "lr=1e-4": "optimizer.learning_rate=1e-4",
    "optimizer.lr=1e-4": "optimizer.learning_rate=1e-4",
    "+lr=0.01": "optimizer.learning_rate=0.01",
    "learning_rate=1e-4": "optimizer.learning_rate=1e-4",
    "epochs=2": "update.epochs=2",
    "max_steps=100": "steps=100",
    "temperature=0.7": "rollout.temperature=0.7",
    "clip_range=0.3": "update.clip_low=0.3 update.clip_high=0.3",
    "output_dir=x": "hydra.run.dir=x",
    "eval_steps=10": "evaluation.every=10",
    "algorithm=grpo": "advantage=grpo",
    "algorithm=ppo": "update=ppo",
    "model_name_or_path=Qwen/Qwen3-4B": "model=pretrained model.path=Qwen/Qwen3-4B",
    "model.adapter=outputs/adapter": "model=pretrained model.path=outputs/adapter",
    "adapter_path=outputs/adapter": "model=pretrained model.path=outputs/adapter",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8": "update.tokens_per_microbatch=2048",
    "generation_batch_size=64": "prompts_per_step=32",
    "eval_batch_size=64": "evaluation.rows=64",
    "steps_per_generation=2": "update.minibatches=2",
    "warmup_ratio=0.1": "optimizer.warmup_steps=10",
    "weight_decay=0.01": "optimizer.weight_decay=0.01",
    "max_grad_norm=0.5": "optimizer.max_grad_norm=0.5",
    "use_kl_loss=true": "kl=fixed",
    "use_kl_loss=false": "kl=none",
    "scale_rewards=false": "advantage=dr_grpo",
    "scale_rewards=group": "advantage=grpo",
    "mask_truncated_completions=true": "advantage.mask_truncated=true",
    "loss_agg_mode=token-mean": "update.aggregation=token_mean",
    "dataset_name=openai/gsm8k": "data=huggingface data.path=openai/gsm8k",
    "model.name=Qwen/Qwen3-4B": "model=pretrained model.path=Qwen/Qwen3-4B",
    "gradient_checkpointing=true": "model.remat=layer",
    "gradient_checkpointing=false": "model.remat=none",
    "bf16=false": "model.dtype=float32",
    "use_vllm=false": "rollout=continuous",
    "load_in_4bit=true": "model=pretrained model.path=FOLDER model.param_dtype=nf4 "
    "model.lora.rank=16",
    "attn_implementation=flash_attention_2": "model.attention=auto",
    "top_p=0.9": "rollout.top_p=0.9",
    "use_vllm=true": "rollout=vllm 'rollout.servers=[http://HOST:8000]'",
    "num_processes=8": "mesh=auto",
    "deepspeed=zero3.json": "mesh=fsdp",
    "use_peft=true": "model.lora.rank=16",
    "use_peft=false": "model.lora.rank=0",
    "reward_weights=[1,2]": "reward.terms.correct.weight=1",
    "importance_sampling_level=sequence": "update=gspo",
    "data.shuffle=true": "source=stream",
    "push_to_hub=true": "+hook@hooks.export=export",
    "eval_strategy=steps": "evaluation.every=50",
    "eval_strategy=no": "evaluation.every=0",
    "save_total_limit=3": "checkpoint.keep=3",
    "logging_steps=10": "samples.every=10",
    # Parts of rl4p that need another option first.
    "kl=0.1": "kl=fixed kl.beta=0.1",
    "kl.coefficient=0.1": "kl=fixed kl.beta=0.1",
    "kl.beta=0.1": "kl=adaptive kl.beta=0.1 or kl=fixed kl.beta=0.1",
    "beta=0.04": "kl=fixed kl.beta=0.04",
    "entropy=0.01": "entropy=bonus entropy.alpha=0.01",
    "critic=true": "advantage=gae critic=shared",
    "gamma=0.99": "advantage=gae critic=shared advantage.gamma=0.99",
    "data.path=x": "data=jsonl data.path=x",
    "data.path=x.csv": "data=csv data.path=x.csv",
    "ppo.clip_high=0.28": "update=ppo update.clip_high=0.28",
    "reward.correct.weight=2": "reward.terms.correct.weight=2",
    "reward.terms.tidy.weight=1": "+reward.terms.tidy._target_=package.module.Class "
    "+reward.terms.tidy.weight=1",
    "term=format": "+term@reward.terms.mine=format",
    "+term=format": "+term@reward.terms.mine=format",
    "reward.terms.tidy=format": "+term@reward.terms.tidy=format",
    "evaluation=10": "evaluation.every=10",
    # Options that are called something else.
    "mesh=gpu": "mesh=auto",
    "mesh=cuda:0": "mesh=auto",
    "advantage=GRPO": "advantage=grpo",
    "advantage=ppo": "update=ppo",
    "model=Qwen/Qwen2.5-0.5B": "model=pretrained model.path=Qwen/Qwen2.5-0.5B",
    "data=train.jsonl": "data=jsonl data.path=train.jsonl",
    "data=train.parquet": "data=parquet data.path=train.parquet",
    "experiment=experiments/arithmetic_sft.yaml": "experiment=arithmetic_sft",
    "optimizer=adam": "optimizer=adamw",
    # Values.
    "steps=1e3": "steps=1000",
    "seed=[0,1,2]": "-m seed=0,1,2",
    "evaluation.prompts=None": "evaluation.prompts=null",
    "debug.profile=yes": "debug.profile=true",
    "trusted_targets=mine,yours": "'trusted_targets=[mine,yours]'",
    "resume=true": "resume=latest",
    "hydra.run.dir=": "hydra.run.dir=outputs/my_run",
    "steps=10k": "steps=10000",
    "seed=0-2": "-m seed=0,1,2",
    "seed=0..20": "-m 'seed=range(0,21)'",
    "trusted_targets=my_rewards.py": "trusted_targets=my_rewards",
    "trusted_targets=src/my_rewards.py": "trusted_targets=src.my_rewards",
    "advantage=[grpo,rloo]": "-m advantage=grpo,rloo",
    "optimizer=[adamw]": "optimizer=adamw",
    "reward.terms=[correct,math]": "+term@reward.terms.math=math '~term@reward.terms.format'",
    "hooks=[export]": "+hook@hooks.export=export",
    "model.lora.r=8": "model.lora.rank=8",
    "lora_alpha=32": "model.lora.alpha=32",
    # Words.
    "help": "--help",
    "grpo": "advantage=grpo",
    "--seed 1": "seed=1",
    "--advantage=grpo": "advantage=grpo",
    "--learning-rate 1e-4 group_size=4": "optimizer.learning_rate=1e-4",
    "group_size = 8": "group_size=8",
    "'group_size = 8'": "group_size=8",
    "seed=0, 1, 2": "-m seed=0,1,2",
    "seed:1": "seed=1",
    "seed==1": "seed=1",
    "model=pretrained model.path=~/models/x": f"model.path={HOME}/models/x",
    "data=jsonl data.path=été/a.jsonl": "'data.path=\"été/a.jsonl\"'",
    "data=jsonl data.path=a,b.jsonl": "'data.path=\"a,b.jsonl\"'",
    "data=jsonl data.path=a=b.jsonl": "'data.path=\"a=b.jsonl\"'",
    "data=jsonl 'data.path=a (b).jsonl'": "'data.path=\"a (b).jsonl\"'",
}
# The rest of a command line whose mistake is in one of several words.
KEPT = ("model=pretrained", "data=jsonl")


def refused(line: str) -> str:
    with pytest.raises(InputError) as refusal:
        command_line.launch("train", pytest.fail, pytest.fail, None, shlex.split(line), CONF)
    message = str(refusal.value)
    assert "\n" not in message
    return message


@pytest.fixture(scope="module")
def with_a_run(tmp_path_factory) -> Path:
    """A working directory with a run, for `resume=latest`."""
    working = tmp_path_factory.mktemp("working")
    run = working / "outputs/runs/one"
    (run / ".hydra").mkdir(parents=True)
    config = without_hydra(Composer().load([]))
    (run / ".hydra/config.yaml").write_text(OmegaConf.to_yaml(config))
    (run / ".hydra/overrides.yaml").write_text("[]\n")
    (run / "metrics.jsonl").write_text("")
    return working


# Each takes half a second: `make test` has every eighth, `make slow` the others.
EACH = [
    pytest.param(line, correction, id=line, marks=[pytest.mark.slow] if i % 8 else [])
    for i, (line, correction) in enumerate(MISTAKES.items())
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("line", "correction"), EACH)
def test_the_message_of_a_mistake_ends_with_what_to_write(
    line, correction, with_a_run, monkeypatch
):
    check = composition.check

    def without_targets(config, *, targets=True):
        assert not targets, "imports the targets, which is slow"
        check(config, targets=False)

    monkeypatch.setattr(composition, "check", without_targets)
    _, found, written = refused(line).rpartition(": write ")
    assert (found, written) == (": write ", correction)
    monkeypatch.undo()
    monkeypatch.chdir(with_a_run)
    for choice in written.split(" or "):
        words = shlex.split(choice.replace("package.module.Class", "rl4p.reward.answers.Correct"))
        if words == ["--help"]:
            continue  # a test of the command line shows it
        kept = [word for word in shlex.split(line) if word in KEPT]
        overrides = kept + [word for word in words if word != "-m"]
        if "-m" in words or choice.startswith("resume="):
            command_line.preflight(
                Composer(), overrides, "-m" in words, run=None, targets=False, resumable=True
            )
        else:
            configuration.compose(overrides)


def test_there_are_at_least_twenty():
    assert len(MISTAKES) >= 20


@pytest.mark.slow
def test_a_single_trusted_name_needs_no_brackets(tmp_path, monkeypatch):
    (tmp_path / "my_terms.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Tidy:\n    weight: float = 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    added = "+reward.terms.tidy._target_=my_terms.Tidy"
    config = configuration.compose([added, "trusted_targets=my_terms"])
    assert type(configuration.instantiate(config.reward).terms["tidy"]).__name__ == "Tidy"
    with pytest.raises(InputError, match="not trusted"):
        configuration.compose([added, "trusted_targets=my_term"])
