"""Model families: the conversion between each family's config.json and tensors and the decoder."""

from difflib import get_close_matches
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.families import (
    gemma2,
    gemma3,
    glm4,
    gpt_oss,
    llama,
    mistral,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
)
from rl4p.model.families.family import Family, Tensor, TensorPart

__all__ = ["FAMILIES", "Family", "Tensor", "TensorPart", "family_of"]

FAMILIES = {
    module.FAMILY.model_type: module.FAMILY
    for module in (
        *(qwen2, qwen3, qwen3_moe, llama, smollm3, mistral, gemma2, gemma3, olmo3, gpt_oss),
        *(phi3, glm4),
    )
}


def family_of(config: dict[str, Any], where: str) -> Family:
    """Returns the family that config.json names.

    Raises:
      InputError: the model_type is unknown.
    """
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
