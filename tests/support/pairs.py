"""The table of pairs of options."""

import itertools
from pathlib import Path

import yaml

CONF = Path(__file__).resolve().parents[2] / "conf"
# From each pair to the error that refuses it; the file contains each error once.
TABLE = {
    pair: sentence
    for sentence, pairs in yaml.safe_load(
        (Path(__file__).parents[1] / "refused_pairs.yaml").read_text()
    ).items()
    for pair in pairs
}
SHAPE = {"width": 16, "layers": 1, "heads": 2, "num_kv_heads": 1, "feed_forward_width": 32}
TEACHER = (
    "+model@teacher=scratch",
    *(f"teacher.{name}={n}" for name, n in SHAPE.items()),
)
SMALL = tuple(f"model.{name}={n}" for name, n in SHAPE.items())
WHOLE_ANSWERS = ("max_response_tokens=40",)  # a policy that can add differs in results only
LARGE = (*SMALL, "model.vocabulary=264", "model.dtype=float32", "model.attention=xla")
# From each option to further keys that make it have an effect in such a small run.
MORE = {
    "advantage=distill": TEACHER,
    "update=gkd": TEACHER,
    "correction=off_policy_mask": ("correction.threshold=0",),
    "correction=product": (
        "+correction.parts={a: {_target_: rl4p.learner.correction.TokenTruncate}, "
        "b: {_target_: rl4p.learner.correction.TokenMask, weighted: false}}",
    ),
    "correction=sequence_mask": ("correction.low=0.9", "correction.weighted=true"),
    "entropy=adaptive": ("entropy.alpha=0.05", "entropy.target=10"),
    "entropy=bonus": ("entropy.alpha=0.05",),
    "kl=fixed": ("kl.beta=0.5",),
    "kl=adaptive": ("kl.beta=0.5",),
    "kl=fixed in_reward": ("kl.beta=20", "kl.estimator=k1", "kl.placement=in_reward"),
    "kl=fixed weighted": ("kl.beta=0.5", "kl.importance_weight=true"),
    "kl=fixed sampler": ("kl.beta=0.5", "kl.against=behaviour"),
    "model=scratch": SMALL,
    "model=pretrained": ("model.path=rl4p/tiny", *WHOLE_ANSWERS),
    "model=tiny": WHOLE_ANSWERS,
    "model=llama3_1_8b": LARGE,
    "model=qwen2_5_7b": LARGE,
    "model=tiny lora": ("model.lora.rank=2", *WHOLE_ANSWERS),
    "update=ppo constant": (
        *("update.aggregation=constant", "update.aggregation_length=8"),
        "update.minibatches=2",
    ),
}
# Options that an option needs in other groups, unless the pair itself chooses there.
COMPANIONS = {
    "advantage=gae": {"critic": "shared"},
    "critic=shared": {"advantage": "gae"},
    "critic=separate": {"advantage": "gae"},
    "update=gkd": {"advantage": "constant"},
    "update=sft": {"advantage": "constant"},
    "rollout=demonstrations": {"advantage": "constant", "update": "reinforce"},
}
GROUPS = ("critic", "advantage", "update", "kl", "entropy", "correction", "rollout", "model")
PLAIN = {
    *("critic=none", "kl=none", "entropy=none", "correction=none"),
    *("rollout=continuous", "model=scratch"),
}
# Options that need a server, data of their own or (score_centering) an option of one rollout;
# tests/rollout, tests/update and tests/runs train with them.
REMOTE = {"rollout=openai", "rollout=sglang", "rollout=vllm", "rollout=preferences"}
REMOTE |= {"update=reward_model", "update=score_centering"}
# Options that need an environment; tests/loop/test_turns.py trains with them.
TURNS = {"rollout=environment", "rollout=agent", "advantage=gigpo", "advantage=turn_returns"}


def options(group: str) -> list[str]:
    names = [f"{group}={path.stem}" for path in sorted((CONF / group).glob("*.yaml"))]
    names = [name for name in names if name not in REMOTE | TURNS]
    return names + [name for name in MORE if name.startswith(f"{group}=") and name not in names]


def group_of(option: str) -> str:
    return option.partition("=")[0]


PAIRS = [
    (a, b)
    for one, other in itertools.combinations(GROUPS, 2)
    for a, b in itertools.product(options(one), options(other))
    if not PLAIN & {a, b}
]
