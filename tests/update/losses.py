"""Every policy loss that the package brings, at the options of its YAML, and what sets some apart.

`NAMES` are the files of conf/update; `LOSSES` has variants of them beside.
"""

import dataclasses

from hydra.utils import instantiate
from omegaconf import OmegaConf

from tests.options import CONF, keys_of

NAMES = sorted(path.stem for path in (CONF / "update").glob("*.yaml"))


def built(group, name, **changes):
    """The option of a group that its YAML describes."""
    return dataclasses.replace(
        instantiate(OmegaConf.create(keys_of(CONF / group / f"{name}.yaml"))), **changes
    )


LOSSES = {name: built("update", name) for name in NAMES}
LOSSES |= {
    "gspo-token": dataclasses.replace(LOSSES["gspo"], form="token"),
    "gspo-wide": dataclasses.replace(LOSSES["gspo"], clip_low=0.5, clip_high=0.5),
    "luspo-wide": dataclasses.replace(LOSSES["luspo"], clip_low=0.5, clip_high=0.5),
    "ppo-two-sided": dataclasses.replace(LOSSES["ppo"], dual_clip=1.3, delta=1.4),
    "topr-sequence": dataclasses.replace(LOSSES["topr"], level="sequence"),
    "dro-token": dataclasses.replace(LOSSES["dro"], level="token", anchor="behaviour"),
    "dpo-ipo": dataclasses.replace(LOSSES["dpo"], kind="ipo"),
    "dpo-simpo": dataclasses.replace(LOSSES["dpo"], kind="simpo", label_smoothing=0.1),
    "clip_cov-half": dataclasses.replace(LOSSES["clip_cov"], share=0.5, covariance_low=0.1),
    "kl_cov-half": dataclasses.replace(LOSSES["kl_cov"], share=0.5),
}

# At ratio 1 the gradient is not -A for these: raft and sft look at no advantage's size, dpo at its
# sign in pairs, clip_cov takes the gradient of the tokens that it chose.
NOT_REINFORCE = {"raft", "sft", "dpo", "dpo-ipo", "dpo-simpo", "clip_cov", "clip_cov-half"}
# With A = 0: sft imitates all the same, kimi and dro pull to their anchor.
NOT_STILL = {"sft", "kimi", "dro", "dro-token"}
# The weight of a token is a constant to its gradient: the loss is not what is differentiated, and
# finite differences see another slope. Their slopes are held by hand in their own tests.
CONSTANT_WEIGHT = {"cispo", "dppo", "topr", "topr-sequence", "vespo", "gspo-token"}
