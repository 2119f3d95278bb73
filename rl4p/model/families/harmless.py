"""The keys of config.json and generation_config.json that change no number of rl4p.

An export keeps the values that these keys and others had, except those that an export decides.
"""

import logging
from collections.abc import Mapping
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.families.keys import Config
from rl4p.model.quantization import fp8_block

log = logging.getLogger(__name__)

SAMPLING = (  # rollout.temperature and its neighbours, and max_response_tokens, take their place
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "top_h", "do_sample", "max_length"),
    *("max_new_tokens", "min_length", "min_new_tokens", "num_return_sequences", "max_time"),
    *("repetition_penalty", "encoder_repetition_penalty", "length_penalty", "diversity_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff"),
    *("num_beams", "num_beam_groups", "early_stopping", "penalty_alpha", "renormalize_logits"),
)
SPECIAL_TOKENS = (
    *("bos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "unk_token_id"),
)
HARMLESS = {
    "names and versions": (
        *("model_type", "architectures", "_name_or_path", "name_or_path", "_commit_hash"),
        "_model_name_or_path",
        *("transformers_version", "_from_model_config", "task_specific_params", "finetuning_task"),
        *("unsloth_version", "unsloth_fixed", "transformers.js_config", "_original_object_hash"),
        "_sliding_window_pattern",  # layer_types has what follows from it
    ),
    "code, which is never run": ("auto_map", "custom_pipelines"),
    "the dtype: model.param_dtype decides": ("dtype", "torch_dtype", "use_bfloat16"),
    "what a model of torch keeps and returns": (
        *("use_cache", "cache_implementation", "cache_config", "return_legacy_cache"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("return_dict", "return_dict_in_generate", "use_return_dict", "torchscript"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        *("experts_implementation", "chunk_size_feed_forward", "pretraining_tp"),
        *("tie_encoder_decoder", "is_decoder", "add_cross_attention", "remove_invalid_values"),
        *("cross_attention_hidden_size", "disable_compile", "prefill_chunk_size"),
        *("tie_last_hidden_states", "low_memory", "is_assistant"),
        *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_lookbehind"),
        *("assistant_confidence_threshold", "target_lookbehind", "prompt_lookup_num_tokens"),
    ),
    "older names in files of Gemma, which transformers ignores": (
        *("hidden_act", "sliding_window_size"),
    ),
    "fresh parameters": ("initializer_range", "initializer_factor"),
    "training in torch": (
        *("attention_dropout", "hidden_dropout", "residual_dropout"),
        *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
        *("problem_type", "gradient_checkpointing"),
    ),
    "heads that predict several tokens, which are left out": (
        *("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"),
        *("use_mtp", "mtp_transformer_layers"),
    ),
    "widths of layers that the model lacks": ("intermediate_size",),
    "read only with use_sliding_window": ("sliding_window", "max_window_layers"),
    "heads that predict several tokens, which transformers leaves out": (
        *("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"),
    ),
    "the dtype of states, which are float32": ("mamba_ssm_dtype",),
    "special tokens: the chat template and the masks decide": SPECIAL_TOKENS,
    "read elsewhere": ("eos_token_id", "id2label", "label2id", "num_labels"),
    "sampling": SAMPLING,
}
REFUSED = (  # each of them changes what transformers computes or reads
    *("per_layer_config", "transformers_weights", "fusion_config", "pruned_heads"),
    *("is_encoder_decoder",),
)

# An export writes them anew, or has no longer what they speak of.
DECIDED = (
    *("model_type", "architectures", "dtype", "torch_dtype", "use_bfloat16"),
    *("eos_token_id", "pad_token_id", "id2label", "label2id", "num_labels"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
    *("quantization_config", "compression_config"),  # the weights are written in full
    *("auto_map", "custom_pipelines"),  # the code is not exported
    *("_name_or_path", "name_or_path", "_model_name_or_path", "_commit_hash"),
    *("transformers_version", "_from_model_config", "_original_object_hash"),
)


def kept_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an export keeps of a config.json or of a generation_config.json.

    Those are the special tokens that rl4p does not read, the settings of sampling that the authors
    recommend, and whatever else a reader of the folder may look for.
    """
    kept = {key: value for key, value in content.items() if key not in DECIDED}
    if isinstance(inner := kept.get("text_config"), Mapping):
        kept["text_config"] = kept_keys(inner)
    return kept


def check_keys(
    config: Mapping[str, Any],
    where: str,
    quantization: str | None = None,
    *,
    blocks: bool = False,
) -> None:
    """Checks that every key is read, harmless, or without a value; names the others.

    Args:
      config: the content of config.json, with the keys that were read, or of
        generation_config.json.
      quantization: the method of quantized weights that can be read; None if there is none.
      blocks: whether weights of 8 bits with a scale for each block can be read.

    Raises:
      InputError: the weights are quantized, or a key changes what transformers computes.
    """
    known = {key for keys in HARMLESS.values() for key in keys}
    known |= config.read if isinstance(config, Config) else set()
    for key in ("quantization_config", "compression_config"):
        if section := config.get(key):
            method = section.get("quant_method", "") if isinstance(section, dict) else ""
            of_blocks = blocks and key == "quantization_config" and fp8_block(section)
            if of_blocks or (method and method == quantization):
                known.add(key)
                continue
            raise InputError(
                f"{where} has a {key}{method and f' ({method})'}: quantized weights are not "
                "supported; use the folder of the model before it was quantized."
            )
    for key in REFUSED:
        if key not in known and config.get(key):
            raise InputError(f"{where} has {key}, which is not supported.")
    known |= {*REFUSED}
    unknown = [key for key in config if key not in known and config[key] not in (None, [], {})]
    if unknown:
        log.warning("%s has keys that are not read: %s.", where, ", ".join(map(repr, unknown)))
