"""Suggestions for error messages: names of other libraries, and near names.

Error messages suggest these corrections; nothing is corrected silently. In an override, ``{}`` is
the value that the user gave, and spaces separate several overrides.
"""

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

NUMBER = r"[-+.\d].*"
TRUE = r"(?i)true|yes|on"
FALSE = r"(?i)false|no|off|null|none"
THOUSANDS = {"k": 10**3, "m": 10**6, "b": 10**9}
USES_ALL = "mesh=auto uses all devices that JAX finds"


class Key(NamedTuple):
    """Keys that do not exist here, by their whole name or by the last parts of it."""

    names: str  # with spaces between them
    overrides: str  # an example if it has no {}
    reason: str = ""
    off: str = ""  # the overrides if the value is false; "" if they are the same
    values: str = ""  # values that have another name here, as THEIRS=OURS with spaces between them


class Option(NamedTuple):
    """Values of a group that are not options of it; `value` is a regular expression."""

    group: str
    value: str
    overrides: str
    reason: str = ""


KEYS = (
    # The sizes and the length of a run.
    Key(
        "batch_size train_batch_size global_batch_size rollout_batch_size",
        "prompts_per_step={}",
        "a step has prompts_per_step x group_size sequences",
    ),
    Key(
        "num_generations num_samples n_samples num_return_sequences rollout_n n "
        "n_samples_per_prompt rollouts_per_example",
        "group_size={}",
    ),
    Key("val_kwargs.n num_generations_eval", "evaluation.samples={}"),
    Key(
        "per_device_train_batch_size",
        "update.tokens_per_microbatch=2048",
        "it counts responses, and prompts_per_step counts prompts; a microbatch is limited by its "
        "tokens and never changes the gradient",
    ),
    Key(
        "micro_batch_size gradient_accumulation_steps use_dynamic_bsz packing_samples "
        "micro_batch_size_per_gpu ppo_micro_batch_size ppo_micro_batch_size_per_gpu "
        "micro_train_batch_size micro_rollout_batch_size train_micro_batch_size "
        "rollout_micro_batch_size compute_logps_micro_batch_size log_prob_micro_batch_size "
        "log_prob_micro_batch_size_per_gpu max_token_len_per_gpu ppo_max_token_len_per_gpu "
        "use_remove_padding",
        "update.tokens_per_microbatch=2048",
        "a microbatch is limited by its tokens and never changes the gradient",
    ),
    Key(
        "generation_batch_size",
        "prompts_per_step=32",
        "it counts prompts, and a step has prompts_per_step x group_size sequences",
    ),
    Key(
        "per_device_eval_batch_size eval_batch_size val_batch_size",
        "evaluation.rows={}",
        "these are the sequences that an evaluation samples at a time",
    ),
    Key(
        "mini_batch_size ppo_mini_batch_size num_minibatches num_mini_batches steps_per_generation",
        "update.minibatches=2",
        "the option is the number of minibatches, each with one optimizer update",
    ),
    Key(
        "max_steps num_steps train_steps total_training_steps num_batches iterations",
        "steps={}",
        "a step is one batch of samples, with update.epochs x update.minibatches updates",
    ),
    Key(
        "num_train_epochs num_epochs total_epochs num_episodes epoch",
        "steps=100",
        "the length of a run is counted in steps of prompts_per_step prompts",
    ),
    Key(
        "epochs ppo_epochs num_ppo_epochs num_iterations update_epochs max_epochs",
        "update.epochs={}",
        "these are passes over the samples of a step; the length of a run is steps",
    ),
    Key(
        "max_tokens max_new_tokens max_completion_length max_response_length max_length "
        "generate_max_len total_generation_steps max_tokens_to_generate",
        "max_response_tokens={}",
    ),
    Key("max_prompt_length max_input_length prompt_length prompt_max_len", "max_prompt_tokens={}"),
    Key("seq_len max_seq_length max_model_len", "max_prompt_tokens=512 max_response_tokens=512"),
    Key(
        "filter_overlong_prompts data.truncation",
        "max_prompt_tokens=512",
        "longer prompts are dropped and counted",
    ),
    Key("random_seed rng_seed data_seed", "seed={}"),
    # The optimizer.
    Key("lr learning_rate actor_learning_rate", "optimizer.learning_rate={}"),
    Key(
        "critic.optim.lr critic_learning_rate",
        "critic=shared critic.coefficient=0.5",
        "a critic has the optimizer of the policy",
    ),
    Key(
        "lr_scheduler_type lr_scheduler scheduler lr_schedule warmup_style",
        "optimizer.schedule={}",
        values="constant_with_warmup=constant cosine_with_min_lr=cosine",
    ),
    Key("min_lr_ratio min_lr_rate", "optimizer.schedule=cosine optimizer.final_fraction={}"),
    Key("warmup num_warmup_steps lr_warmup_steps", "optimizer.warmup_steps={}"),
    Key(
        "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio warmup_fraction",
        "optimizer.warmup_steps=10",
        "warm-up is counted in steps",
    ),
    Key("weight_decay wd l2", "optimizer.weight_decay={}"),
    Key(
        "grad_clip max_norm clip_grad gradient_clipping max_grad_norm", "optimizer.max_grad_norm={}"
    ),
    Key("beta1 adam_beta1", "optimizer.b1={}"),
    Key("beta2 adam_beta2", "optimizer.b2={}"),
    Key("adam_epsilon", "optimizer.epsilon={}"),
    Key("optimizer_offload adam_offload param_offload", "optimizer.offload={}"),
    # The terms of the loss.
    Key(
        "beta kl.coefficient kl_coef kl_coeff kl_beta kl_loss_coef init_kl_coef",
        "kl=fixed kl.beta={}",
    ),
    Key(
        "kl_tau",
        "kl=fixed kl.against=behaviour kl.estimator=k2 kl.beta={}",
        "k2 is half of the square, so beta is twice tau",
    ),
    Key(
        "off_policy_mask_threshold opsm_delta", "correction=off_policy_mask correction.threshold={}"
    ),
    Key(
        "entropy.coefficient entropy_coef entropy_coeff ent_coef entropy_bonus",
        "entropy=bonus entropy.alpha={}",
    ),
    Key(
        "clip clip_range cliprange clip_eps clip_ratio clip_coef epsilon eps_clip",
        "update.clip_low={} update.clip_high={}",
    ),
    Key("clip_ratio_c", "update.dual_clip={}"),
    Key("delta", "update.delta={}"),
    Key(
        "kl_loss_type kl_penalty kl_estimator",
        "kl=fixed kl.estimator={}",
        values="low_var_kl=k3 kl=k1 mse=k2",
    ),
    Key("kl_ctrl.type", "kl={}", "its target is that of a token, its horizon is in steps"),
    Key("use_bias_correction_kl", "kl=fixed kl.importance_weight={}"),
    Key("top_entropy_quantile", "entropy=top_tokens entropy.share={}"),
    Key("vllm_importance_sampling_correction", "correction=token_truncate", off="correction=none"),
    Key("clip_ratio_high epsilon_high clip_eps_high", "update.clip_high={}"),
    Key("clip_ratio_low epsilon_low clip_eps_low", "update.clip_low={}"),
    Key("use_kl_loss use_kl_in_reward", "kl=fixed", "its coefficient is kl.beta", off="kl=none"),
    Key(
        "scale_rewards norm_adv_by_std_in_grpo",
        "advantage=grpo",
        "advantage=grpo divides by the standard deviation of a group, and dr_grpo does not",
        off="advantage=dr_grpo",
    ),
    Key(
        "mask_truncated_completions overlong_filtering filter_overlong",
        "advantage.mask_truncated={}",
    ),
    Key(
        "loss_agg_mode loss_aggregation",
        "update.aggregation={}",
        "one of token_mean, sequence_mean_token_mean, sequence_mean_token_sum and constant",
        values="token-mean=token_mean seq-mean-token-mean=sequence_mean_token_mean "
        "seq-mean-token-sum=sequence_mean_token_sum seq-mean-token-sum-norm=constant",
    ),
    Key("gamma", "advantage=gae critic=shared advantage.gamma={}"),
    Key("lam lambd gae_lambda", "advantage=gae critic=shared advantage.lambda_policy={}"),
    Key("vf_coef value_loss_coef", "advantage=gae critic=shared critic.coefficient={}"),
    # The phases and parts.
    Key(
        "algorithm algo adv_estimator advantage_estimator estimator",
        "advantage={}",
        values="reinforce_plus_plus=reinforce_pp group_norm=grpo "
        "reinforce_plus_plus_baseline=reinforce_pp_baseline",
    ),
    Key(
        "loss loss_type policy_loss policy_loss.loss_mode",
        "update={}",
        "update.aggregation is the mean over tokens or over sequences",
        values="vanilla=ppo dapo=ppo bnpo=ppo geo_mean=gmpo",
    ),
    Key("optim", "optimizer={}", values="adamw_torch=adamw adamw_torch_fused=adamw adamw_hf=adamw"),
    Key("dataset task env", "data={}"),
    Key("dataset_name prompt_data", "data=huggingface data.path={}", "of a file: data=jsonl"),
    Key("dataset_config", "data=huggingface data.path=OWNER/NAME data.subset={}"),
    Key("dataset_train_split", "data=huggingface data.path=OWNER/NAME data.split={}"),
    Key("dataset_test_split", "data=huggingface data.path=OWNER/NAME data.held_out_split={}"),
    Key("val_files eval_dataset", "data=jsonl data.path=FILE data.held_out_path={}"),
    Key("prompt_key input_key", "data=jsonl data.path=FILE data.question_key={}"),
    Key("label_key", "data=jsonl data.path=FILE data.answer_key={}"),
    Key("max_samples", "data=jsonl data.path=FILE data.limit={}"),
    Key(
        "report_to logger",
        "tracker={}",
        values="console=none [wandb]=wandb [console,wandb]=wandb [tensorboard]=tensorboard",
    ),
    Key("use_wandb", "tracker=wandb", off="tracker=none"),
    Key("project_name", "tracker.experiment={}"),
    Key("run_name experiment_name", "hydra.run.dir=outputs/{}"),
    Key(
        "model_name model_name_or_path model_path model_id base_model model.name pretrain "
        "actor_rollout_ref.model.path",
        "model=pretrained model.path={}",
    ),
    Key("model_revision", "model=pretrained model.path=OWNER/NAME@{}"),
    Key(
        "trust_remote_code",
        "model=pretrained model.path=OWNER/NAME",
        "Python code in the folder of a model is never run",
    ),
    Key(
        "model.adapter adapter adapter_path adapter_name_or_path peft_model lora_path",
        "model=pretrained model.path={}",
        "an adapter names its base model",
    ),
    Key("data_path dataset_path train_file train_files", "data=jsonl data.path={}"),
    Key(
        "data.path",
        "data=jsonl data.path={}",
        "data=csv, gsm8k, huggingface and parquet have it too",
    ),
    Key("reward_weights", "reward.terms.correct.weight=1", "each term has a weight of its own"),
    Key("importance_sampling_level", "update=gspo", "its ratio is that of a sequence"),
    Key("shuffle data.shuffle shuffle_dataset", "source=stream", "it shuffles each epoch"),
    Key("push_to_hub hub_model_id save_hf_ckpt", "+hook@hooks.export=export", "it writes a folder"),
    Key("reward_fn reward_func reward_funcs reward_function", "+reward.terms.mine._target_={}"),
    Key(
        "custom_reward_function.path custom_reward_function.name",
        "+reward.terms.mine._target_=my_rewards.Mine trusted_targets=my_rewards",
        "it is a class",
    ),
    Key("reward_pretrain", "+term@reward.terms.model=classifier +reward.terms.model.path={}"),
    Key("remote_rm_url", "+term@reward.terms.server=http_scorer +reward.terms.server.url={}"),
    Key(
        "dynamic_filtering filter_groups.enable",
        "collector=dynamic_sampling",
        "groups of equal rewards are sampled again",
        off="collector=synchronous",
    ),
    Key("max_async_level async_level", "collector=asynchronous collector.ahead={}"),
    Key(
        "reference.path ref_model ref_model_path ref_model_name_or_path reference_model",
        "+model@reference.model=pretrained reference.model.path={}",
        "without a model, the reference is the policy that the run began with",
    ),
    Key("ref_model_sync_steps ref_update_interval", "reference.reset_every={}"),
    Key("sync_ref_model", "reference.reset_every=512", "in steps", off="reference.reset_every=0"),
    Key("model.run", "model=run model.run={}"),
    Key("torch_dtype precision dtype", "model.dtype={}"),
    Key("bf16", "model.dtype=bfloat16", off="model.dtype=float32"),
    Key("fp16", "model.dtype=bfloat16", "there is no float16", off="model.dtype=float32"),
    Key(
        "chat_template_kwargs apply_chat_template_kwargs",
        "+model.template.enable_thinking=false",
        "each argument is a key of model.template",
    ),
    Key(
        "gradient_checkpointing enable_gradient_checkpointing activation_checkpointing",
        "model.remat=layer",
        "the default, elementwise, recomputes less",
        off="model.remat=none",
    ),
    Key(
        "load_in_4bit use_4bit quantization",
        "model=pretrained model.path=FOLDER model.param_dtype=nf4 model.lora.rank=16",
        "adapters are trained on a base in 4 bits",
        off="model=pretrained model.path=FOLDER model.param_dtype=float32",
    ),
    Key(
        "flash_attn attn_implementation use_flash_attention use_liger_kernel use_fused_kernels",
        "model.attention=auto",
        "it is the fastest kernel of the device",
    ),
    Key("use_peft use_lora", "model.lora.rank=16", off="model.lora.rank=0"),
    Key("lora_rank lora_r model.lora.r model.lora.lora_r", "model.lora.rank={}"),
    Key("lora_alpha model.lora.lora_alpha", "model.lora.alpha={}"),
    Key(
        "target_modules lora_target_modules model.lora.target_modules model.lora.modules",
        "model.lora.targets={}",
        values="all-linear=.*",
    ),
    Key("lora_dropout", "model.lora.rank=16", "adapters have no dropout"),
    Key("temp temperature", "rollout.temperature={}"),
    Key("top_p", "rollout.top_p={}"),
    Key("top_k", "rollout.top_k={}"),
    Key("min_p", "rollout.min_p={}"),
    Key(
        "use_vllm vllm_mode vllm_server_host vllm_server_base_url",
        "rollout=vllm rollout.servers=[http://HOST:8000]",
        "without a server rl4p samples by itself",
        off="rollout=continuous",
    ),
    Key("rollout.name", "rollout={}", "continuous samples in the process", values="hf=continuous"),
    Key(
        "gpu_memory_utilization vllm_gpu_memory_utilization kv_cache_size",
        "rollout.slots=64",
        "fewer sequences at a time need a smaller cache",
    ),
    Key("device devices num_gpus n_gpus_per_node num_processes", "mesh=auto", USES_ALL),
    Key("nnodes num_nodes", "mesh.processes=auto", "srun starts a process for each host"),
    Key(
        "deepspeed fsdp_config zero_stage actor.strategy",
        "mesh=fsdp",
        "it divides parameters and optimizer over the devices",
    ),
    Key("tensor_parallel_size tp_size", "mesh=fsdp_tp mesh.tp={}"),
    Key(
        "tensor_model_parallel_size vllm_tensor_parallel_size inference.parallel.tp",
        "mesh.sampling_tp={}",
    ),
    Key(
        "context_parallel_size cp_size ulysses_sequence_parallel_size sequence_parallel_size",
        "mesh.cp={}",
    ),
    # The folder and the events of a run.
    Key(
        "eval_strategy evaluation_strategy do_eval",
        "evaluation.every=50",
        "in steps",
        off="evaluation.every=0",
    ),
    Key(
        "out output_dir out_dir save_dir log_dir run_dir default_local_dir save_path ckpt_path "
        "checkpoint_root_directory",
        "hydra.run.dir={}",
    ),
    Key(
        "eval_every eval_steps eval_interval eval_freq test_freq eval_every_n_steps eval.interval",
        "evaluation.every={}",
    ),
    Key(
        "save_every save_steps save_interval save_freq save_interval_steps ckpt.interval",
        "checkpoint.every={}",
    ),
    Key("save_strategy", "checkpoint.every=50", "in steps", off="checkpoint.every=0"),
    Key("save_total_limit max_actor_ckpt_to_keep max_to_keep", "checkpoint.keep={}"),
    Key("num_completions_to_print", "samples.count={}"),
    Key(
        "logging_steps log_every log_interval log_completions",
        "samples.every={}",
        "every step has its metrics; samples of some steps are kept",
    ),
    Key("run resume_from_checkpoint resume_from load_checkpoint", "resume={}"),
    Key("resume_mode", "resume=auto hydra.run.dir=FOLDER"),
)

OPTIONS = (
    Option("kl", NUMBER, "kl=fixed kl.beta={}"),
    Option("kl", TRUE, "kl=fixed"),
    Option("entropy", NUMBER, "entropy=bonus entropy.alpha={}"),
    Option("correction", "(?i)tis", "correction=token_truncate"),
    Option("correction", "(?i)icepop", "correction=token_mask"),
    Option(
        "correction", "(?i)seq[-_]mask[-_]tis", "correction=sequence_mask correction.weighted=true"
    ),
    Option("correction", "(?i)opsm", "correction=off_policy_mask"),
    Option(
        "correction",
        r"\[.*\]",
        "correction=product +correction@correction.parts.weight=token_truncate "
        "+correction@correction.parts.mask=sequence_mask",
        "the parts of a product have names of your own",
    ),
    Option("critic", TRUE, "advantage=gae critic=shared"),
    Option("checkpoint", NUMBER, "checkpoint.every={}"),
    Option(
        "checkpoint",
        "best|newest",
        "checkpoint.best=eval/TASK/pass_at_1",
        "checkpoint=best chooses a checkpoint of resume=FOLDER",
    ),
    Option("checkpoint", FALSE, "checkpoint.every=0", "only the last step is saved"),
    Option("tracker", FALSE, "tracker=none"),
    Option("debug", TRUE, "debug=on"),
    Option("debug", FALSE, "debug=off"),
    Option("optimizer", "(?i)adam", "optimizer=adamw"),
    Option("rollout", "(?i)hf", "rollout=continuous", "rl4p samples by itself"),
    Option("mesh", r"(?i)(gpus?|cuda|tpus?|cpus?|rocm|all)(:\d+)?|\d+", "mesh=auto", USES_ALL),
    Option("model", r".*[/~].*", "model=pretrained model.path={}"),
    Option("data", r"[\w.-]+/[\w-]+", "data=huggingface data.path={}"),
    Option("data", r".*\.jsonl?", "data=jsonl data.path={}"),
    Option("data", r".*\.csv", "data=csv data.path={}"),
    Option("data", r".*\.parquet", "data=parquet data.path={}"),
)

# Sections of the root and their key that a single value probably means.
SECTIONS = {
    "evaluation": "evaluation.every={}",
    "samples": "samples.every={}",
    "ema": "ema.decay={}",
}


class Suggestion(NamedTuple):
    """The overrides to write instead, and the reason, which may be empty."""

    overrides: list[str]
    reason: str = ""

    def after(self, problem: str) -> str:
        """Returns the error message: the problem, the reason, and last of all what to write."""
        return write(f"{problem} ({self.reason})" if self.reason else problem, self.overrides)


def write(problem: str, *choices: Iterable[str]) -> str:
    """Returns an error message that ends with a command line, or with several to choose from."""
    return f"{problem}: write {' or '.join(shlex.join(words) for words in choices)}"


def fill(overrides: str, value: str) -> list[str]:
    """Returns the overrides with the value instead of {}."""
    return [word.replace("{}", value) for word in overrides.split()]


def key_correction(key: str, value: str, *, whole: bool = False) -> Suggestion | None:
    """Returns the correction of a key that does not exist; None if the table does not know it.

    Args:
      whole: whether to look up the whole key only; otherwise its end counts too.
    """
    if (known := row(key, whole=whole)) is None:
        return None
    if known.off and re.fullmatch(FALSE, value):
        return Suggestion(fill(known.off, value), known.reason)
    ours = dict(pair.rsplit("=", 1) for pair in known.values.split()).get(value, value)
    return Suggestion(fill(known.overrides, ours), known.reason)


def row(key: str, *, whole: bool = False) -> Key | None:
    """Returns the row of a key, or of the longest end of it that the table knows."""
    parts = key.split(".")
    for first in range(1 if whole else len(parts)):
        name = ".".join(parts[first:])
        for known in KEYS:
            if name in known.names.split():
                return known
    return None


def option_correction(group: str, value: str) -> Suggestion | None:
    """Returns the correction of a value that is no option of its group."""
    for known in OPTIONS:
        if group == known.group and re.fullmatch(known.value, value):
            return Suggestion(fill(known.overrides, value), known.reason)
    return None


def integers_in(text: str) -> Sequence[int]:
    """Returns the integer in a text such as 10k, or the integers in a range such as 0-2 or 0..2.

    Returns () for any other text.
    """
    if count := re.fullmatch(r"(\d+(?:\.\d+)?)([kmb])", text.lower()):
        number = Decimal(count[1]) * THOUSANDS[count[2]]
        return (int(number),) if number == int(number) else ()
    if ends := re.fullmatch(r"(\d+)(?:-|\.\.)(\d+)", text):
        return range(int(ends[1]), int(ends[2]) + 1)
    return ()


def metrics_like(name: str, names: Collection[str]) -> list[str]:
    """Returns the metrics that end in a name such as pass@1, or else those with the nearest end."""
    last = name.replace("@", "_at_").rpartition("/")[2]
    by_end = {each: each.rpartition("/")[2] for each in names}
    near = difflib.get_close_matches(last, by_end.values(), n=1)
    return [each for each, end in by_end.items() if end in near]


def did_you_mean(name: str, names: Iterable[str], form: str = "{}") -> str:
    """Returns a hint with the closest name, to end a sentence; "" if no name is close."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {form.format(near[0])}?" if near else ""
