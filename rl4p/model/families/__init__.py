"""Model families: the conversion between each family's config.json and tensors and the decoder."""

import re
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.families.cohere import COHERE, COHERE2
from rl4p.model.families.deepseek import LATENT
from rl4p.model.families.delta import DELTA_FAMILIES
from rl4p.model.families.dense import DENSE
from rl4p.model.families.family import Family, Tensor, TensorPart
from rl4p.model.families.gemma import GEMMA2, GEMMA3
from rl4p.model.families.gemma4 import GEMMA4
from rl4p.model.families.gpt_oss import GPT_OSS
from rl4p.model.families.hunyuan import HUNYUAN
from rl4p.model.families.lfm2 import LFM2, LFM2_MOE
from rl4p.model.families.llama import EXAONE4, MINISTRAL, MINISTRAL3, MISTRAL, OLMO3, SMOLLM3
from rl4p.model.families.llama4 import LLAMA4
from rl4p.model.families.mamba import BAMBA, GRANITE_HYBRID, NEMOTRON_H
from rl4p.model.families.phi import PHI3
from rl4p.model.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from rl4p.model.families.sparse import SPARSE
from rl4p.model.families.wrappers import WRAPPERS

__all__ = ["FAMILIES", "Family", "Tensor", "TensorPart", "family_of"]

FAMILIES = {
    family.model_type: family
    for family in (
        *(
            QWEN2,
            QWEN3,
            QWEN3_MOE,
            *DENSE,
            COHERE,
            COHERE2,
            MISTRAL,
            MINISTRAL,
            SMOLLM3,
            GEMMA2,
            GEMMA3,
            GEMMA4,
        ),
        *(OLMO3, EXAONE4, MINISTRAL3, GPT_OSS, PHI3, *SPARSE, *HUNYUAN, *DELTA_FAMILIES, *LATENT),
        *(LFM2, LFM2_MOE, NEMOTRON_H, GRANITE_HYBRID, BAMBA, LLAMA4),
    )
}


def family_of(config: dict[str, Any], where: str) -> Family:
    """Returns the family that config.json names; raises InputError if there is none."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        near = near_type(model_type) if isinstance(model_type, str) else None
        meant = f" (did you mean {near}?)" if near else ""
        raise InputError(
            f"{where}: model_type {model_type!r} is not supported{meant}; use "
            f"{', '.join([*FAMILIES, *WRAPPERS])}."
        )
    return FAMILIES[model_type]


def near_type(model_type: str) -> str | None:
    """Returns the supported type that one only misspells; None if there is none.

    The types of other models are near too (lfm3 and olmo3), so only marks and case may differ.
    """
    plain = {re.sub(r"[\W_]", "", name): name for name in (*FAMILIES, *WRAPPERS)}
    return plain.get(re.sub(r"[\W_]", "", model_type).lower())
