"""Model families: the conversion between each family's config.json and tensors and the decoder."""

from difflib import get_close_matches
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.families.family import Family, Tensor, TensorPart
from rl4p.model.families.gemma import GEMMA2, GEMMA3
from rl4p.model.families.gpt_oss import GPT_OSS
from rl4p.model.families.llama import LLAMA, MISTRAL, OLMO3, SMOLLM3
from rl4p.model.families.phi import GLM4, PHI3
from rl4p.model.families.qwen import QWEN2, QWEN3, QWEN3_MOE

__all__ = ["FAMILIES", "Family", "Tensor", "TensorPart", "family_of"]

FAMILIES = {
    family.model_type: family
    for family in (
        *(QWEN2, QWEN3, QWEN3_MOE, LLAMA, SMOLLM3, MISTRAL, GEMMA2, GEMMA3, OLMO3, GPT_OSS),
        *(PHI3, GLM4),
    )
}


def family_of(config: dict[str, Any], where: str) -> Family:
    """Returns the family that config.json names; raises InputError if there is none."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        near = (
            get_close_matches(model_type, FAMILIES, 1, 0.65) if isinstance(model_type, str) else []
        )
        nearest = f" (the nearest supported one is {near[0]})" if near else ""
        raise InputError(
            f"{where}: model_type {model_type!r} is not supported{nearest}; use "
            f"{', '.join(FAMILIES)}."
        )
    return FAMILIES[model_type]
