"""Translates the configuration of a run in TRL or verl into a command of rl4p.

The names come from the table that also answers them on the command line
(`configuration.suggestions`). What has another unit, or follows from several keys, is computed
here. What a file leaves out has the peer's default (`peers.yaml`), so that the command trains what
the peer would train.
"""

import math
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from string import Template
from typing import Any

import yaml

from rl4p.base.errors import InputError, reason_of
from rl4p.base.terminal import write
from rl4p.command.commands import Grammar, options_of
from rl4p.configuration.bounds import Positive
from rl4p.configuration.quoting import setting
from rl4p.configuration.suggestions import Key, key_correction, option_correction, row
from rl4p.configuration.yaml_file import LOADER, read_mapping

Settings = dict[str, Any]  # the peer's keys, with dots, and their values
PLACES = ("FILE", "FOLDER", "OWNER/NAME")  # values of the table that a user replaces
# Keys whose row of the table is advice: their values are names of the peer's code or servers.
LISTED = {
    *("use_vllm", "vllm_mode", "vllm_server_host", "vllm_server_base_url", "rollout.name"),
    *("reward_funcs", "logging_steps", "log_completions", "project_name", "load_in_4bit"),
}
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
# The aggregation of TRL's losses; the others take the mean over all tokens.
AGGREGATION = {"grpo": "sequence_mean_token_mean", "sapo": "sequence_mean_token_mean"}
AGGREGATION |= {"dr_grpo": "constant", "luspo": "sequence_mean_token_sum"}
IN_RATIO = re.compile(r"update\.(clip_low|clip_high|dual_clip|high|delta)")


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """The words of rl4p.translate, which --help explains."""

    file: str | None = None
    devices: Positive | None = None
    rows: Positive | None = None


TRANSLATE = Grammar(name="translate", kind=TranslateOptions)


@dataclass(kw_only=True)
class Translation:
    """A command in the making.

    Attributes:
      settings: the peer's keys that are left to translate, and their values.
      words: values by key of rl4p.
      left: reasons by key of the peer that has no counterpart.
    """

    settings: Settings
    words: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def take(self, key: str, kind: Callable[[Any], Any] = float) -> Any:
        """Removes a key and returns its value; None if it has none."""
        value = self.settings.pop(key, None)
        try:
            return value if value is None else kind(value)
        except (TypeError, ValueError):
            raise InputError(f"{key}={value} is not a number: write its value into it.") from None

    def renamed(self, key: str) -> str:
        """Removes a key and returns the name that the table gives its value."""
        correction = key_correction(key, text_of(self.settings.pop(key)))
        assert correction is not None
        return correction.overrides[-1].partition("=")[2]

    def set_length(self, steps: float | None, epochs: str, rows: int | None) -> None:
        """Sets the number of steps, from a number of epochs if it is not given."""
        times = self.take(epochs)
        if steps and steps > 0:
            self.words["steps"] = math.ceil(steps)
        elif rows is None:
            self.left[epochs] = f"{times:g} passes over the prompts: add rows=N, their number"
        else:
            # Both libraries leave out the last prompts of a pass, which fill no step.
            of_pass = max(1, rows // self.words["prompts_per_step"])
            self.words["steps"] = math.ceil(times * of_pass)

    def set_warm_up(self, updates: float | None, share: float | None) -> None:
        """Sets the steps of the warm-up, from optimizer updates or from a share of all steps."""
        if updates and updates > 0:
            self.words["optimizer.warmup_steps"] = math.ceil(updates / updates_of(self.words))
        elif share and "steps" in self.words:
            self.words["optimizer.warmup_steps"] = math.ceil(share * self.words["steps"])
        elif share:
            self.left["warm-up"] = f"{share:g} of all steps: optimizer.warmup_steps counts steps"

    def follow_table(self, given: Settings) -> None:
        """Translates what is left by the table of words. What both set, an earlier rule decides."""
        for key in sorted(self.settings, key=lambda key: not takes_value(row(key))):
            value, text = self.settings[key], text_of(self.settings[key])
            known, correction = row(key), key_correction(key, text)
            if known is None or correction is None or value is None:
                if key in given and value not in (None, False):
                    self.left[key] = "no counterpart"
            elif LISTED & set(known.names.split()) or not (takes_value(known) or known.off):
                if key in given:
                    self.left[key] = correction.reason or " ".join(correction.overrides)
            else:
                for word in correction.overrides:
                    better = option_correction(*word.split("=", 1))
                    for each in better.overrides if better else [word]:
                        ours, _, new = each.partition("=")
                        if new not in PLACES:  # a value that was not renamed keeps its type
                            self.words.setdefault(ours, value if new == text else value_of(new))

    def drop_idle(self) -> None:
        """Leaves out limits of a ratio that is 1, because a step has one update."""
        if updates_of(self.words) == 1:
            for key in filter(IN_RATIO.fullmatch, list(self.words)):
                value = self.words.pop(key)
                self.left[f"{key}={value:g}"] = "no effect, because a step has one update"


def of_trl(run: Translation, options: TranslateOptions) -> None:
    """Translates the keys of TRL with other units: responses, and optimizer updates."""
    processes, group = run.take("num_processes", int), run.take("num_generations", int)
    devices, epochs = options.devices or processes or 1, run.take("num_iterations", int)
    accumulated = run.take("gradient_accumulation_steps", int)
    responses = run.take("per_device_train_batch_size", int) * devices
    per_generation = run.take("steps_per_generation") or accumulated
    if sampled := run.take("generation_batch_size"):
        per_generation = sampled / responses
    minibatches = max(1, round(per_generation / accumulated))
    responses *= accumulated * minibatches
    if responses % group:
        raise InputError(
            f"A step has {responses} responses on {devices} devices, which are no whole groups of "
            f"num_generations={group}: add devices=N, the number of processes that trained."
        )
    run.words |= {"prompts_per_step": responses // group, "group_size": group}
    run.words |= {"update.minibatches": minibatches, "update.epochs": epochs}
    steps = run.take("max_steps") or 0
    run.set_length(steps / updates_of(run.words), "num_train_epochs", options.rows)
    warm, share = run.take("warmup_steps") or 0, run.take("warmup_ratio")
    run.set_warm_up(warm if warm >= 1 else None, share or warm)
    if rest := run.take("lr_scheduler_kwargs.min_lr_rate"):
        run.words["optimizer.final_fraction"] = rest
    switches = {"save_steps": "save_strategy", "eval_steps": "eval_strategy"}
    for key, switch in {**switches, "ref_model_sync_steps": "sync_ref_model"}.items():
        on = run.settings.get(switch, switch != "sync_ref_model")
        every = run.take(key) if key in run.settings else None
        if every and text_of(on) not in ("no", "false"):
            if every < 1:
                run.left[key] = f"{every:g} of all steps: here it is a number of steps"
            else:  # TRL counts optimizer updates
                run.settings[key] = max(1, round(every / updates_of(run.words)))

    name, low, high = run.settings.pop("loss_type"), run.take("epsilon"), run.take("epsilon_high")
    whole = run.settings.pop("importance_sampling_level") == "sequence"
    own = name if name in ("cispo", "sapo", "luspo", "vespo") else "gspo" if whole else "ppo"
    run.words |= {"update": own, "update.aggregation": AGGREGATION.get(name, "token_mean")}
    if own == "cispo":
        run.words["update.high"] = high or low
    elif own not in ("sapo", "vespo"):
        run.words |= {"update.clip_low": low, "update.clip_high": high or low}
    if name == "dr_grpo":
        run.words["update.aggregation_length"] = run.settings["max_completion_length"]
    if name == "bnpo":
        run.left["loss_type=bnpo"] = "here the mean is over a minibatch, not over that of a device"
    corrected = run.take("use_bias_correction_kl", bool)
    if beta := run.take("beta"):
        run.words |= {"kl": "fixed", "kl.beta": beta, "kl.importance_weight": corrected}
    if run.settings.pop("vllm_importance_sampling_correction", False):
        run.left["vllm_importance_sampling_correction"] = "TRL masks sequences: see correction"
    scale = text_of(run.settings.pop("scale_rewards"))
    advantages = {"batch": "batch_std", "false": "dr_grpo", "none": "dr_grpo"}
    run.words["advantage"] = advantages.get(scale, "grpo")
    if run.settings.pop("multi_objective_aggregation", "") == "normalize_then_sum":
        run.words["advantage"] = "gdpo"


def of_verl(run: Translation, options: TranslateOptions) -> None:
    """Translates the keys of verl with other units; it counts prompts, as rl4p does."""
    prompts = run.take("data.train_batch_size", int)
    minibatches = max(1, prompts // run.take(f"{ACTOR}ppo_mini_batch_size", int))
    epochs, group = run.take(f"{ACTOR}ppo_epochs", int), run.take(f"{ROLLOUT}n", int)
    run.words |= {"prompts_per_step": prompts, "group_size": group}
    run.words |= {"update.minibatches": minibatches, "update.epochs": epochs}
    steps = run.take("trainer.total_training_steps")
    run.set_length(steps, "trainer.total_epochs", options.rows)
    warm, share = (run.take(f"{ACTOR}optim.lr_warmup_steps{x}") for x in ("", "_ratio"))
    run.set_warm_up(warm, share)

    run.words["update"] = run.renamed(f"{ACTOR}policy_loss.loss_mode")
    limit, dual = run.take(f"{ACTOR}clip_ratio"), run.take(f"{ACTOR}clip_ratio_c")
    low, high = (run.take(f"{ACTOR}clip_ratio_{end}") for end in ("low", "high"))
    if run.words["update"] != "kl_cov":
        run.words |= {"update.clip_low": low or limit, "update.clip_high": high or limit}
    if run.words["update"] == "ppo":
        run.words["update.dual_clip"] = dual
    run.words["update.aggregation"] = run.renamed(f"{ACTOR}loss_agg_mode")
    if run.words["update"] == "gspo":  # verl reads no other there
        run.words["update.aggregation"] = "sequence_mean_token_mean"
    if run.words["update.aggregation"] == "constant":
        run.words["update.aggregation_length"] = run.settings["data.max_response_length"]
    gamma, decay = run.take("algorithm.gamma"), run.take("algorithm.lam")
    divides = run.take("algorithm.norm_adv_by_std_in_grpo", bool)
    run.words["advantage"] = run.renamed("algorithm.adv_estimator")
    if run.words["advantage"] == "grpo" and not divides:
        run.words["advantage"] = "dr_grpo"
    if run.words["advantage"] == "gae":
        run.words |= {"critic": "separate", "advantage.gamma": gamma}
        run.words["advantage.lambda_policy"] = decay
    elif gamma != 1:
        run.left["algorithm.gamma"] = "only advantage=gae discounts"
    if not run.settings[f"{ACTOR}entropy_coeff"]:
        del run.settings[f"{ACTOR}entropy_coeff"]

    in_reward, in_loss = run.take("algorithm.use_kl_in_reward"), run.take(f"{ACTOR}use_kl_loss")
    beta, kind = run.take("algorithm.kl_ctrl.kl_coef"), run.renamed("algorithm.kl_penalty")
    of_loss, kind_of_loss = run.take(f"{ACTOR}kl_loss_coef"), run.renamed(f"{ACTOR}kl_loss_type")
    control = run.settings.pop("algorithm.kl_ctrl.type", "fixed")
    if in_reward:
        run.words |= {"kl": control, "kl.beta": beta, "kl.estimator": kind}
        run.words["kl.placement"] = "in_reward"
        if control == "adaptive":
            run.left["algorithm.kl_ctrl"] = "here its target is that of a token"
        if in_loss:
            run.left[f"{ACTOR}use_kl_loss"] = "there is one KL penalty: that in the reward"
    elif in_loss:
        run.words |= {"kl": "fixed", "kl.beta": of_loss, "kl.estimator": kind_of_loss}
    for key in [key for key in run.settings if f"{ROLLOUT}val_kwargs." in key]:
        if not key.endswith(".n"):
            run.left[key] = "an evaluation samples as evaluation.rollout says"
            del run.settings[key]
    for key in ("trainer.save_freq", "trainer.test_freq", f"{ROLLOUT}top_k"):  # -1 is off
        if key in run.settings:
            run.settings[key] = max(run.take(key, int), 0)
    run.words["model.dtype"] = "bfloat16"
    column = run.settings.pop("data.prompt_key")
    if isinstance(files := run.settings.get("data.train_files"), str):
        run.words |= {"data": "parquet", "data.path": files, "data.messages_key": column}
    elif files:
        run.left["data.train_files"] = "data.path of data=parquet is one file or a folder"
        del run.settings["data.train_files"]


def translated(given: Settings, options: TranslateOptions) -> tuple[dict, Translation, dict]:
    """Returns the translation of a library's settings.

    Returns:
      The library, as in `peers.yaml`; the translation; and what the command does, by name.
    """
    roots = {key.partition(".")[0] for key in given if "." in key}
    is_verl = bool(roots & {"actor_rollout_ref", "algorithm", "trainer", "data", "critic"})
    peer = read_mapping(Path(__file__).with_name("peers.yaml"))["verl" if is_verl else "trl"]
    given = {key: value for key, value in given.items() if value is not None}
    run = Translation(settings=peer["defaults"] | given)
    (of_verl if is_verl else of_trl)(run, options)
    for key, ours in (("seed", "seed"), ("system_prompt", "data.system_prompt")):
        if key in run.settings:
            run.words[ours] = run.settings.pop(key)
    run.follow_table(given)
    figures = numbers(run.words)
    run.drop_idle()
    return peer, run, figures


def numbers(words: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a run does, by the name of the number."""
    prompts, group = words["prompts_per_step"], words["group_size"]
    sequences = prompts * group // words["update.minibatches"]
    kl, limits = "none", "none"
    if "kl" in words:
        place = "reward" if words.get("kl.placement") == "in_reward" else "loss"
        kl = f"{words['kl.beta']:g} x {words.get('kl.estimator', 'k3')} in the {place}"
    if "update.clip_low" in words:
        limits = f"1 - {words['update.clip_low']:g} to 1 + {words['update.clip_high']:g}"
    elif "update.high" in words:
        limits = f"0 to {words['update.high']:g}"
    if limits != "none" and updates_of(words) == 1:
        limits += ", without effect"
    warm = words.get("optimizer.warmup_steps", 0)
    return {
        "sequences a step": f"{prompts * group:,} ({prompts:,} x {group})",
        "updates a step": f"{updates_of(words)} of {sequences:,} sequences",
        "steps": f"{words['steps']:,}" if "steps" in words else "as many as epochs have",
        "learning rate": f"{words['optimizer.learning_rate']:g}",
        "schedule": f"{words['optimizer.schedule']}, {warm} steps of warm-up",
        "KL penalty": kl,
        "clipping": limits,
        "aggregation": words["update.aggregation"],
        "loss, advantage": f"{words['update']}, {words['advantage']}",
    }


def updates_of(words: Mapping[str, Any]) -> int:
    """Returns the optimizer updates of a step."""
    return words["update.minibatches"] * words["update.epochs"]


def takes_value(known: Key | None) -> bool:
    """Returns whether a row of the table takes the value itself, and is no mere example."""
    return known is not None and "{}" in known.overrides and "NAME@" not in known.overrides


def text_of(value: Any) -> str:
    """Returns a value as it is written on a command line."""
    if isinstance(value, list):
        return f"[{','.join(map(text_of, value))}]"
    return value if isinstance(value, str) else "null" if value is None else str(value).lower()


def value_of(text: str) -> Any:
    """Returns the value of a text, which is itself if it is no YAML."""
    try:
        return yaml.load(text, LOADER)
    except yaml.YAMLError:
        return text


def flat(tree: Mapping[str, Any], prefix: str = "") -> Settings:
    """Returns the values of a tree by their keys with dots."""
    settings: Settings = {}
    for key, value in tree.items():
        inner = isinstance(value, dict) and value
        settings |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return settings


def settings_in(path: Path) -> Settings:
    """Returns the settings in a file: YAML, JSON, or a shell script with a command of the peer."""
    if path.suffix in (".yaml", ".yml", ".json"):  # JSON is YAML
        return flat(read_mapping(path))
    try:
        words = shlex.split(path.read_text("utf-8").replace("\\\n", " "), comments=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {reason_of(error)}.") from error
    variables = dict(word.split("=", 1) for word in words if re.match(r"\w+=", word))
    return settings_of(
        [
            Template(word).safe_substitute(os.environ | variables)
            for word in words
            if not re.match(r"\w+=", word)
        ]
    )


def settings_of(words: Sequence[str]) -> Settings:
    """Returns the settings in the words of a command: KEY=VALUE, or --KEY VALUE."""
    settings: Settings = {}
    for i, word in enumerate(words):
        if found := re.fullmatch(r"(?:--|\++)?([A-Za-z][\w.-]*)=(.*)", word, re.DOTALL):
            settings[found[1].replace("-", "_")] = value_of(found[2])
        elif re.match(r"--\w", word):
            after = words[i + 1 :]
            values = list(takewhile(lambda x: not re.match(r"--\w|[^=]*=", x), after))
            text = f"[{','.join(values)}]" if len(values) > 1 else (values or ["true"])[0]
            settings[word[2:].replace("-", "_")] = value_of(text)
    return settings


def translate(arguments: Sequence[str]) -> None:
    """Prints the command for a configuration, and its numbers beside the defaults."""
    words = [word if "=" in word else f"file={word}" for word in arguments]
    options, others = options_of(words, replace(TRANSLATE, composes=True))
    given = settings_in(Path(options.file)) if options.file else {}
    given |= settings_of(others)
    if not arguments:
        raise InputError("Give a file or words of TRL or verl; see --help.")
    for key, value in given.items():
        if isinstance(value, str) and "$" in value:
            raise InputError(f"{key}={value} is computed by the shell: write its value into it.")
    if not any(row(key) for key in given):
        raise InputError(f"{options.file or 'The command'} has no key that TRL or verl has.")
    peer, run, figures = translated(given, options)
    _, _, defaults = translated(peer["defaults"], options)
    lines = ["python -m rl4p.train"]
    for word in (shlex.quote(setting(*pair)) for pair in run.words.items()):
        if len(lines[-1]) + len(word) > 96:
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    write(" \\\n".join(lines))
    write(f"\n{'':18}{'here':38}default of {peer['name']} ({peer['source']})")
    for name, figure in figures.items():
        write(f"{name:18}{figure:38}{defaults[name]}")
    reasons: dict[str, list[str]] = {}
    for key, reason in run.left.items():
        reasons.setdefault(reason, []).append(key)
    write("\nNot in the command, besides rewards, which are code (docs/reward.md)")
    for reason, keys in reasons.items():
        write(textwrap.fill(f"{', '.join(keys)}: {reason}", 98, subsequent_indent="    "))
