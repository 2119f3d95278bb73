"""Every policy loss of the package with the options of its YAML, and sets of special cases.

`NAMES` are the files of conf/update without `OF_OTHERS`; `LOSSES` also has variants of them.
"""

import dataclasses

from hydra.utils import instantiate
from omegaconf import OmegaConf

from tests.support.options import CONF, keys_of

# The log-probabilities of tokens do not determine these: gkd compares whole distributions with a
# teacher's, score_centering reads the sampler's, and reward_model has scores of sequences.
OF_OTHERS = {"gkd", "reward_model", "score_centering"}
NAMES = sorted({path.stem for path in (CONF / "update").glob("*.yaml")} - OF_OTHERS)


def built(group, name, **changes):
    """Builds an option of a group from its YAML."""
    return dataclasses.replace(
        instantiate(OmegaConf.create(keys_of(CONF / group / f"{name}.yaml"))), **changes
    )


LOSSES = {name: built("update", name) for name in NAMES}
LOSSES |= {
    "dppo-kl": dataclasses.replace(LOSSES["dppo"], divergence="kl", delta=0.05),
    "gspo-token": dataclasses.replace(LOSSES["gspo"], form="token"),
    "gspo-wide": dataclasses.replace(LOSSES["gspo"], clip_low=0.5, clip_high=0.5),
    "luspo-wide": dataclasses.replace(LOSSES["luspo"], clip_low=0.5, clip_high=0.5),
    "ppo-two-sided": dataclasses.replace(LOSSES["ppo"], dual_clip=1.3, delta=1.4),
    "sft-dft": dataclasses.replace(LOSSES["sft"], dft=True),
    "topr-sequence": dataclasses.replace(LOSSES["topr"], level="sequence"),
    "dro-token": dataclasses.replace(LOSSES["dro"], level="token", anchor="behaviour"),
    "dpo-ipo": dataclasses.replace(LOSSES["dpo"], kind="ipo"),
    "dpo-simpo": dataclasses.replace(LOSSES["dpo"], kind="simpo", label_smoothing=0.1),
    "dpo-orpo": dataclasses.replace(LOSSES["dpo"], kind="orpo"),
    "clip_cov-half": dataclasses.replace(LOSSES["clip_cov"], share=0.5, covariance_low=0.1),
    "kl_cov-half": dataclasses.replace(LOSSES["kl_cov"], share=0.5),
}

# At ratio 1 the gradient of these is not -A: raft and sft ignore the size of advantages, dpo uses
# their sign in pairs and kto their sign, and clip_cov drops the gradient of chosen tokens.
NOT_REINFORCE = {"raft", "sft", "sft-dft", "dpo", "dpo-ipo", "dpo-simpo", "dpo-orpo", "kto"}
NOT_REINFORCE |= {"clip_cov", "clip_cov-half"}
# With A = 0 the gradient of these is not 0: sft still imitates; kimi and dro have an anchor.
NOT_STILL = {"sft", "sft-dft", "kimi", "dro", "dro-token"}
# The gradient of these treats the weight of a token as a constant. Finite differences of the loss
# therefore differ from it; their own tests check the slopes by hand.
CONSTANT_WEIGHT = {"cispo", "dppo", "dppo-kl", "sft-dft", "topr", "topr-sequence", "vespo"}
CONSTANT_WEIGHT |= {"gspo-token"}
