import json

import jax
import numpy as np
import pytest

from rl4p.errors import InputError
from rl4p.mesh import Mesh
from rl4p.model.huggingface import write_model
from rl4p.model.pretrained import Pretrained


@pytest.fixture
def folder(tmp_path, policy, params):
    write_model(tmp_path, policy.decoder, params, (256, 258))
    policy.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def build(folder, **options):
    return Pretrained(path=str(folder), **options).build(Mesh(dp=1), jax.random.key(0))


def test_a_policy_comes_back_whole(folder, policy, params):
    read, read_params = build(folder)
    assert read.decoder == policy.decoder
    assert read.end_ids == (256, 258)
    assert read.pad_id == policy.pad_id
    jax.tree.map(np.testing.assert_array_equal, read_params, params)


def test_dtypes_and_remat_are_options(folder):
    policy, params = build(folder, dtype="bfloat16", param_dtype="bfloat16", remat=True)
    assert (policy.decoder.dtype, policy.decoder.remat) == ("bfloat16", True)
    assert {str(x.dtype) for x in jax.tree.leaves(params)} == {"bfloat16"}


@pytest.mark.parametrize(
    ("content", "ends"),
    [
        (None, (256,)),
        ("{}", (256,)),
        ('{"eos_token_id": 7}', (256, 7)),
        ('{"eos_token_id": [7, 256]}', (256, 7)),
    ],
)
def test_end_tokens_are_that_of_the_tokenizer_and_those_of_the_generation_config(
    folder, content, ends
):
    path = folder / "generation_config.json"
    path.unlink() if content is None else path.write_text(content)
    assert build(folder)[0].end_ids == ends


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_generation_config_is_named(folder, content):
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(InputError, match=r"generation_config\.json is no"):
        build(folder)


def test_a_path_that_is_no_folder_is_named():
    with pytest.raises(InputError, match=r"model\.path=/nowhere is not a folder; .* rl4p/tiny"):
        build("/nowhere")


def test_a_vocabulary_that_is_too_small_for_the_tokenizer_is_refused(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 260}))
    with pytest.raises(InputError, match=r"has 261 tokens, but the embedding only 260 rows"):
        build(folder)


def test_the_policy_that_comes_with_the_package_loads():
    policy, params = build("rl4p/tiny")
    assert policy.tokenizer.chat_template
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(params)))
