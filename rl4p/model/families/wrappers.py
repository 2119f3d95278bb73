"""Models of several modalities, of which rl4p reads and writes the text model.

Their config.json has the keys of the text model in `text_config`, and their files have its tensors
under a prefix. What belongs to images and sound is not read; an export copies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rl4p.base.errors import InputError
from rl4p.model.families.keys import Config, Keys

T = TypeVar("T")
PLAIN = ("model.", "lm_head.")
INNER = ("language_model.model.", "language_model.lm_head.")  # of transformers before 4.52
OUTER = ("model.language_model.", "lm_head.")  # and of most modules in transformers since then


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A model type of several modalities.

    Attributes:
      architecture: the name of its class.
      texts: the types of text models that it may have; the first is the default.
      prefixes: what stands for "model." and for "lm_head." in the names of its files.
      modules: what stands for "model." in the names of its modules in transformers.
      defaults: the keys of the text model that its folders on the hub leave out.
    """

    architecture: str
    texts: tuple[str, ...]
    prefixes: tuple[str, str] = OUTER
    modules: str = OUTER[0]
    defaults: Mapping[str, Any] = field(default_factory=dict)


WRAPPERS = {
    "gemma3": Wrapper(
        architecture="Gemma3ForConditionalGeneration",
        texts=("gemma3_text",),
        prefixes=INNER,
        defaults={
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-6,
        },
    ),
    "mistral3": Wrapper(
        architecture="Mistral3ForConditionalGeneration",
        texts=("mistral", "ministral3", "mistral4"),
        prefixes=INNER,
    ),
    "gemma4": Wrapper(architecture="Gemma4ForConditionalGeneration", texts=("gemma4_text",)),
    "llama4": Wrapper(
        architecture="Llama4ForConditionalGeneration",
        texts=("llama4_text",),
        prefixes=INNER,
        modules=INNER[0],
    ),
    "qwen3_5": Wrapper(architecture="Qwen3_5ForConditionalGeneration", texts=("qwen3_5_text",)),
    "qwen3_5_moe": Wrapper(
        architecture="Qwen3_5MoeForConditionalGeneration", texts=("qwen3_5_moe_text",)
    ),
}


def text_config(config: Config, where: str) -> tuple[Config, str]:
    """Returns the keys of the text model, and where they stand: in a wrapper's `text_config`.

    `tie_word_embeddings` of the wrapper rules over the one of its text model.

    Raises:
      InputError: the wrapper has no text model, or one that it cannot have.
    """
    wrapper = WRAPPERS.get(str(config.get("model_type")))
    if wrapper is None:
        return config, where
    inner = Keys(config, where).get("text_config", dict)
    inner = {"model_type": wrapper.texts[0], **wrapper.defaults, **inner}
    if inner["model_type"] not in wrapper.texts:
        raise InputError(
            f"{where} has a text_config of model_type {inner['model_type']!r}, which is not "
            f"supported: it must be {' or '.join(wrapper.texts)}."
        )
    if (tied := config.get("tie_word_embeddings")) is not None:
        inner["tie_word_embeddings"] = tied
    config.read.update(config)  # the other keys are of images and sound
    return Config(inner), f"{where}, in text_config,"


def name_in_files(wrapper: str, name: str) -> str:
    """Returns the name of a tensor of the text model in the files of its wrapper, if it has one."""
    if wrapper:
        for plain, prefix in zip(PLAIN, WRAPPERS[wrapper].prefixes, strict=True):
            if name.startswith(plain):
                return prefix + name.removeprefix(plain)
    return name


def name_in_transformers(wrapper: str, module: str) -> str:
    """Returns the name of a module of the text model in its wrapper, if it has one."""
    return WRAPPERS[wrapper].modules + module.removeprefix(PLAIN[0]) if wrapper else module


def plain_name(name: str) -> str | None:
    """Returns the name in the text model of what has a name in a wrapper; None if it has none.

    The files of one model may have the names of older or newer versions of transformers.
    """
    for prefixes in (INNER, OUTER):
        for plain, prefix in zip(PLAIN, prefixes, strict=True):
            if name.startswith(prefix):
                return plain + name.removeprefix(prefix)
    return None


def split(wrapper: str, stored: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """Returns the tensors of the text model by their names there, and all others.

    Without a wrapper there are no others.
    """
    if not wrapper:
        return dict(stored), {}
    text = {plain_name(name): tensor for name, tensor in stored.items()}
    others = {name: tensor for name, tensor in stored.items() if plain_name(name) is None}
    return {name: tensor for name, tensor in text.items() if name is not None}, others


def wrapped(wrapper: str, content: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config.json of a wrapper, from that of its text model.

    Args:
      kept: the keys of the text model that an export keeps.
    """
    upper = ("tie_word_embeddings", "eos_token_id", "dtype")
    inner = {key: x for key, x in content.items() if key not in ("architectures", "eos_token_id")}
    return {
        "architectures": [WRAPPERS[wrapper].architecture],
        "model_type": wrapper,
        **{key: content[key] for key in upper},
        "text_config": {**{key: x for key, x in kept.items() if key not in inner}, **inner},
    }
