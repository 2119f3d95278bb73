"""Tests every family: three names of its own, and one place for each parameter."""

import dataclasses

import jax
import numpy as np
import pytest

from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES
from tests.golden.cases import CASES, decoder_config


@pytest.mark.parametrize(
    ("model_type", "architecture", "classifier"),
    [
        ("qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification"),
        ("qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification"),
        ("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"),
        ("llama", "LlamaForCausalLM", "LlamaForSequenceClassification"),
        ("mistral", "MistralForCausalLM", "MistralForSequenceClassification"),
        ("gemma2", "Gemma2ForCausalLM", "Gemma2ForSequenceClassification"),
        ("gemma3_text", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
    ],
)
def test_a_family_has_the_names_of_transformers(model_type, architecture, classifier):
    family = FAMILIES[model_type]
    assert (family.model_type, family.architecture) == (model_type, architecture)
    assert family.classifier == classifier


def test_every_family_is_tested():
    assert {config["model_type"] for config in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("labels", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_each_part_of_each_parameter_stands_in_one_tensor(case, labels):
    config = dataclasses.replace(decoder_config(case), labels=labels)
    shapes = jax.eval_shape(Decoder(config=config).init, jax.random.key(0))
    filled = jax.tree.map(lambda x: np.zeros(x.shape, int), shapes)
    for tensor in FAMILIES[config.family].names(config):
        array = filled
        for key in tensor.path:
            array = array[key]
        array[tuple(i for i in (tensor.layer, tensor.expert) if i is not None)] += 1
    assert all((x == 1).all() for x in jax.tree.leaves(filled))
