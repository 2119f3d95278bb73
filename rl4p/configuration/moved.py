"""Names used by older versions, so that the configurations of older runs stay valid."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

# Old prefixes of a `_target_`, and the prefixes that replace them; the first match counts.
MOVED = {
    "rl4p.critic.apart.Apart": "rl4p.learner.critic.separate.Separate",
    "rl4p.checkpoint.": "rl4p.runs.checkpoint.",
    "rl4p.collector.": "rl4p.loop.collector.",
    "rl4p.correction.": "rl4p.learner.correction.",
    "rl4p.critic.": "rl4p.learner.critic.",
    "rl4p.entropy.": "rl4p.learner.entropy.",
    "rl4p.kl.": "rl4p.learner.kl.",
    "rl4p.mesh.": "rl4p.distributed.mesh.",
    "rl4p.optimizer.": "rl4p.learner.optimizer.",
    "rl4p.tracker.": "rl4p.runs.tracker.",
}
# Old names of options, by group, and of keys, with the names that replace them.
OPTIONS = {"critic": {"apart": "separate"}}
KEYS = {"key_value_heads": "num_kv_heads"}
# Options that older runs lack, by target, with the values that keep the behaviour of those runs.
ADDED_OPTIONS = {
    "rl4p.data.jsonl.JSONLines": {
        "reference_key": None,
        "several_answers": False,
        "messages_key": None,
        "tools_key": "tools",
        "metadata_keys": [],
        "task_key": None,
        "where": {},
        "skip": 0,
        "limit": None,
        "strip_tags": False,
    },
    **{
        f"rl4p.update.{module}.{name}": {"old_policy": "proximal"}
        for module, name in (
            *(("cispo", "CISPO"), ("gmpo", "GMPO"), ("gspo", "GSPO"), ("luspo", "LUSPO")),
            *(("ppo", "PPO"), ("sapo", "SAPO"), ("topr", "TOPR"), ("vespo", "VESPO")),
        )
    },
    "rl4p.rollout.continuous.Continuous": {"annealing": None},
    "rl4p.rollout.naive_sampler.NaiveSampler": {"annealing": None},
    "rl4p.reward.classifier.Classifier": {"deadline": None},
    "rl4p.reward.correct.Correct": {"extract": "hashes"},
    "rl4p.reward.weighted.Weighted": {"deadline": 60.0},
    "rl4p.update.sft.SFT": {"pack": False},
}
# data=gsm8k was a file of JSON lines with these values, before it could be fetched from the hub.
FILE, GSM8K = "rl4p.data.jsonl.JSONLines", "rl4p.data.gsm8k.GSM8K"
OF_GSM8K = {
    "_target_": FILE,
    "task": "gsm8k",
    "system_prompt": "Reason step by step. End with #### and the final number.",
}
# Keys that older runs lack, with the values that keep the behaviour of those runs.
ADDED = {
    "source": {"_target_": "rl4p.loop.source.stream.Stream"},
    "max_skipped": 5,
    "hooks": {},
    "scores": {},
}
# Such keys of sections.
ADDED_BELOW = {
    "evaluation": {
        "held_out": True,
        "tasks": {},
        "samples": 0,
        "pass_at_k": None,
        "seed": 0,
        "rows": None,
    },
}


def moved(target: str) -> str:
    """Returns the current name of a `_target_`."""
    for old, new in MOVED.items():
        if target.startswith(old):
            return new + target.removeprefix(old)
    return target


def renewed_override(line: str) -> str:
    """Returns an override of a command line with current names."""
    key, equals, value = line.partition("=")
    parent, dot, name = key.rpartition(".")
    value = OPTIONS.get(key, {}).get(value, value)
    return f"{parent}{dot}{KEYS.get(name, name)}{equals}{value}"


def renewed(config: DictConfig) -> DictConfig:
    """Returns the configuration of a run folder with current names and keys."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            node = {
                KEYS.get(key, key): moved(x) if key == "_target_" and isinstance(x, str) else of(x)
                for key, x in value.items()
            }
            target = str(node.get("_target_"))
            if target == "rl4p.update.dppo.DPPO" and "anchor" in node:
                node["old_policy"] = node.pop("anchor")
            if "messages_key" not in node and OF_GSM8K.items() <= node.items():
                node["_target_"] = GSM8K
            return ADDED_OPTIONS.get(target, {}) | node
        return [of(x) for x in value] if isinstance(value, list) else value

    tree = of(OmegaConf.to_container(config, resolve=False))
    for section, added in ADDED_BELOW.items():
        if isinstance(tree.get(section), dict):
            tree[section] = added | tree[section]
    return DictConfig(ADDED | tree)
