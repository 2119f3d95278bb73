"""Tests that adapters in the format of PEFT are merged, or refused in a sentence."""

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.huggingface import write_policy
from rl4p.model.pretrained import Pretrained
from tests.support.adapters import CONFIG, WEIGHTS, build, edit, edit_tensors, read

QUERY = "base_model.model.model.layers.0.self_attn.q_proj"


def logits(policy, params):
    tokens = np.arange(20, dtype=np.int32)[None] + 40
    whole, decoder = policy.merged(params), policy.decoder
    hidden = decoder.hidden(whole, tokens, tokens - 40, np.ones_like(tokens))
    return np.asarray(decoder.logits(whole, hidden))


@pytest.mark.slow
def test_an_export_is_read_back_merged(exported_adapter, tmp_path):
    folder, _ = exported_adapter
    policy, params = build(folder / "adapter")
    merged, wanted = build(folder / "merged")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), params, wanted)
    write_policy(tmp_path / "again", policy, params)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        again = (tmp_path / "again" / name).read_text()
        assert again == (folder / "merged" / name).read_text(), name
    assert (policy.end_ids, policy.pad_id) == (merged.end_ids, merged.pad_id)
    assert not policy.frozen
    assert np.abs(logits(policy, params) - logits(*build("rl4p/tiny"))).max() > 0.1


@pytest.mark.parametrize("start", ["model.language_model.", "language_model.model."])
def test_the_names_of_a_model_of_several_modalities_are_those_of_its_text_model(
    adapter_folder, start
):
    before = read(adapter_folder)

    def renamed(tensors):
        for name in list(tensors):
            tensors[name.replace(".model.model.", f".model.{start}")] = tensors.pop(name)

    edit_tensors(adapter_folder, renamed)
    jax.tree.map(np.testing.assert_array_equal, read(adapter_folder), before)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_merged_parameter_is_rounded_once(exported_adapter, dtype):
    folder, _ = exported_adapter
    params = build(folder / "adapter", param_dtype=dtype)[1]
    wanted = build(folder / "merged", param_dtype=dtype)[1]
    assert jax.tree.map(lambda x: x.dtype, params) == jax.tree.map(lambda x: x.dtype, wanted)
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(
            np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=0.01, atol=1e-6
        )


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"use_dora": True}, "use_dora=True is not read: merge it"),
        ({"of_tomorrow": {"a": 1}}, "of_tomorrow={'a': 1} is not read: merge it"),
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' is not LORA: merge it"),
        ({"peft_type": None}, "peft_type None is not LORA"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4' the matrices"),
        ({"layer_replication": [[0, 2]]}, "layer_replication="),
        ({"fan_in_fan_out": True}, "fan_in_fan_out=True is not read"),
        ({"base_model_name_or_path": None}, "names no base_model_name_or_path"),
        (
            {"base_model_name_or_path": "/nowhere"},
            "is /nowhere, which cannot be read: .* not a fol",
        ),
        ({"r": "2"}, "r must be a number, not '2'"),
        ({"r": 3}, "has matrices of rank 2 for model.layers.0.self_attn.q_proj, but .* says 3"),
        ({"lora_alpha": None}, "lora_alpha must be a number, not None"),
        ({"rank_pattern": {"q_proj": 4}}, "of rank 2 for model.layers.0.self_attn.q_proj, but"),
        ({"alpha_pattern": {"(": 4}}, "'\\(' is not a regular expression"),
        ({"alpha_pattern": {"(a+)+b": 4}}, "repeats a group, or has more than 4 repetitions"),
        ({"alpha_pattern": {".*.*.*.*.*": 4}}, "repeats a group, or has more than 4 repetitions"),
        ({"alpha_pattern": {"q_proj": "4"}}, "alpha_pattern q_proj must be a number, not '4'"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern must be an object, not \\['q_proj'\\]"),
    ],
)
def test_a_configuration_that_is_not_read_is_refused(adapter_folder, keys, words):
    edit(adapter_folder, **keys)
    with pytest.raises(InputError, match=words) as error:
        read(adapter_folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x: x.pop(f"{QUERY}.lora_A.weight"),
            "has no pair of matrices A and B for model.lay",
        ),
        (
            lambda x: x.update({f"{QUERY}.lora_A.weight": np.ones((3, 9), "f4")}),
            "no pair of matric",
        ),
        (
            lambda x: x.update({f"{QUERY}.lora_A.weight": np.ones((2, 9), "f4")}),
            "is no matrix of i",
        ),
        (lambda x: x.update({f"{QUERY}.lora_magnitude_vector": np.ones(9, "f4")}), "magnitude_vec"),
        (
            lambda x: x.update({f"{QUERY}.lora_A.default.weight": np.ones(9, "f4")}),
            "not read: merge",
        ),
        (lambda x: x.update({"model.norm.weight": np.ones(9, "f4")}), "model.norm.weight .* not r"),
        (lambda x: x.update({f"{QUERY}.lora_A.weight": np.ones((2, 9), "i4")}), "I32.* not read"),
        (
            lambda x: x.update({"base_model.model.model.norm.weight": np.ones(9, "f4")}),
            r"model.norm.weight must have shape \(\d+,\), not \(9,\)",
        ),
        (
            lambda x: x.update({"base_model.model.vision.weight": np.ones(9, "f4")}),
            "vision.weight is not in it",
        ),
        (
            lambda x: x.update({"base_model.model.lm_head.weight": np.ones(9, "f4")}),
            "another lm_head.weight, but its base model .* has one matrix for both",
        ),
        (
            lambda x: x.update(
                {
                    f"base_model.model.model.layers.9.mlp.up_proj.lora_{name}.weight": each
                    for name, each in (("A", np.ones((2, 4), "f4")), ("B", np.ones((4, 2), "f4")))
                }
            ),
            r"layers.9.mlp.up_proj is no matrix of it with A \[2, 4\] and B \[4, 2\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(adapter_folder, change, words):
    edit_tensors(adapter_folder, change)
    with pytest.raises(InputError, match=words) as error:
        read(adapter_folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("more", "less", "words"),
    [
        (("model.safetensors",), (), "has an adapter .* beside the weights of a model"),
        (("model.safetensors.index.json",), (), "beside the weights of a model"),
        ((), (WEIGHTS,), r"has an adapter \(adapter_config.json\), but only"),
        ((), (CONFIG,), r"has an adapter \(adapter_model.safetensors\), but only"),
        (("adapter_model.bin",), (WEIGHTS,), "save it with PEFT's save_pretrained"),
        (("adapters.safetensors",), (WEIGHTS,), "save it with PEFT's save_pretrained"),
    ],
)
def test_folders_that_are_not_one_adapter_are_refused(adapter_folder, more, less, words):
    for name in more:
        (adapter_folder / name).write_text("{}")
    for name in less:
        (adapter_folder / name).unlink()
    with pytest.raises(InputError, match=words):
        Pretrained(path=str(adapter_folder))  # before anything else is read


def test_files_that_are_not_read_are_named(adapter_folder, caplog):
    (adapter_folder / "config.json").write_text("{}")
    build(adapter_folder)
    assert f"{adapter_folder} has files that are not read: config.json." in caplog.text
