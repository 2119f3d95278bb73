"""Tests that transformers reads our exports: no warnings, equal weights, equal tokens."""

import logging
from contextlib import contextmanager

import jax
import numpy as np
import pytest

from rl4p.base.types import Prompt
from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import (
    read_config,
    read_params,
    write_adapter,
    write_model,
    write_policy,
)
from rl4p.model.lora import LoRA, merge_trees
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.golden import forward
from tests.support.random_models import random_model

pytestmark = pytest.mark.parity
QUESTIONS = ("123+456", "999+1", "7")


@contextmanager
def remarks():
    """Collects the messages of transformers at level WARNING; Python's warnings are errors."""
    said = []

    class Keep(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    import transformers

    logger, keep = logging.getLogger("transformers"), Keep(level=logging.WARNING)
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    logger.addHandler(keep)
    try:
        yield said
    finally:
        logger.removeHandler(keep)
        transformers.logging.set_verbosity(before)


@pytest.fixture(scope="module")
def tiny():
    return Pretrained(path="rl4p/tiny").build(Mesh(dp=1), jax.random.key(0))


@pytest.fixture(scope="module", params=[(None, 5 * 10**9), ("bfloat16", 5 * 10**9), (None, 10**5)])
def opened(request, tiny, tmp_path_factory):
    """Opens exports in one file and in several, in float32 and in bfloat16."""
    pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("out") / "policy"
    dtype, shard_bytes = request.param
    write_policy(folder, *tiny, dtype, shard_bytes)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard_bytes == 10**5)
    with remarks() as said:
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    assert not said
    assert not any(info.values())
    assert str(model.dtype) == f"torch.{dtype or 'float32'}"
    return folder, model, tokenizer


def test_its_parameters_are_ours(opened, tiny):
    import torch

    folder, model, _ = opened
    assert model.config.eos_token_id == tiny[0].end_ids[0]
    assert model.generation_config.eos_token_id == list(tiny[0].end_ids)
    ours = Pretrained(path=str(folder), param_dtype=None).build(Mesh(dp=1), jax.random.key(0))[1]
    theirs = {name: tensor.to(torch.float32).numpy() for name, tensor in model.state_dict().items()}
    np.testing.assert_array_equal(
        theirs["model.embed_tokens.weight"], np.asarray(ours["embedding"], np.float32)
    )
    np.testing.assert_array_equal(
        theirs["model.layers.2.mlp.down_proj.weight"],
        np.asarray(ours["layers"]["down"]["kernel"][2].T, np.float32),
    )


def test_its_tokens_and_greedy_words_are_ours(opened, tiny):
    folder, model, tokenizer = opened
    policy, params = Pretrained(path=str(folder)).build(Mesh(dp=1), jax.random.key(0))
    sampler = NaiveSampler(max_response_tokens=40)
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        theirs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        ids = policy.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=False
        )
        assert theirs["input_ids"][0].tolist() == ids
        prompt = Prompt(id="a", question=question, answer="", task="t", tokens=tuple(ids))
        key = jax.random.key(0)
        drawn, (episode,) = sampler(
            policy, params, [prompt], group_size=1, key=key, version=0, greedy=True
        )
        response = np.asarray(drawn.tokens_BT)[np.asarray(drawn.response_mask_BT)]
        with remarks() as said:
            words = model.float().generate(**theirs, max_new_tokens=40, do_sample=False)
        assert not said
        assert words[0, len(ids) :].tolist() == response.tolist()
        assert tokenizer.decode(response, skip_special_tokens=True) == episode.response


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # from PEFT itself
def test_peft_opens_an_adapter(tmp_path):
    """The adapter on its base gives the merged logits, in transformers and in PEFT."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    lora = LoRA(rank=3, alpha=5.0, targets="query|output|up|down")
    policy, adapters = Pretrained(path="rl4p/tiny", lora=lora).build(Mesh(dp=1), jax.random.key(0))
    key = jax.random.key(1)
    adapters = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), adapters)
    write_policy(tmp_path / "adapter", policy, adapters, adapter=True)
    write_policy(tmp_path / "merged", policy, adapters)
    tokens = torch.randint(0, 250, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(tokens).logits
        with remarks() as said:
            beside = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
        assert not said
        base = AutoModelForCausalLM.from_pretrained(policy.base)(tokens).logits
        adapted = beside(tokens).logits
    assert float((adapted - merged).abs().max()) < 2e-4
    assert float((base - merged).abs().max()) > 0.1
    # Every adapter of the file was read: no B is 0, its initial value.
    taken = [p for name, p in beside.named_parameters() if "lora_B" in name]
    assert len(taken) == 4 * 3
    assert all(float(p.detach().abs().max()) > 0 for p in taken)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # from PEFT itself
@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
@pytest.mark.parametrize(
    ("case", "targets"),
    [
        ("phi3", "query|value|gate|up|down"),
        ("phi3", "key|output|up"),
        ("qwen3_5", ".*"),
        ("qwen3_next", ("q_proj", "in_proj_qkvz", "in_proj_ba")),
        ("minicpm3", ".*"),
        ("deepseek_v3", ("q_a_proj", "kv_b_proj", "o_proj")),  # and takes others for the experts'
        ("lfm2", ".*"),
        ("bamba", ".*"),
        ("nemotron_h", ("in_proj", "q_proj", "up_proj", "down_proj")),  # PEFT refuses out_proj
        ("granite_hybrid", ".*"),
        ("gemma4_shared", ".*"),
        ("llama4", ".*"),
        ("mixtral", ".*"),
    ],
)
def test_peft_opens_an_adapter_of_kernels_in_one_matrix(tmp_path, case, targets):
    """PEFT adapts queries, keys and values of Phi together; here each has a rank of its own."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    random_model(case, "AutoModelForCausalLM").save_pretrained(tmp_path / "base")
    lora = LoRA(rank=2, alpha=5.0, targets=targets)
    decoder = Decoder(config=read_config(tmp_path / "base"), lora=lora)
    params = read_params(tmp_path / "base", decoder, "float32")
    adapters, key = lora.init(jax.random.key(0), params), jax.random.key(1)
    adapters = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), adapters)
    write_adapter(tmp_path / "adapter", decoder, adapters, str(tmp_path / "base"))
    write_model(tmp_path / "merged", decoder, merge_trees(params, adapters), (1,), pad_id=0)
    tokens = np.random.default_rng(0).integers(0, 64, (2, 30))
    with torch.no_grad(), remarks() as said:
        adapted, merged, base = (
            load(tmp_path / name)(torch.from_numpy(tokens)).logits.numpy()
            for load, name in (
                (peft.AutoPeftModelForCausalLM.from_pretrained, "adapter"),
                (AutoModelForCausalLM.from_pretrained, "merged"),
                (AutoModelForCausalLM.from_pretrained, "base"),
            )
        )
    known = (
        *("original_max_position_embeddings", "is falling back to its reference"),
        *("high_freq_factor", "Unrecognized keys in `rope_parameters`"),
    )
    assert not [text for text in said if not any(part in text for part in known)]
    limit = 5e-4 if decoder.config.delta else 1e-4  # memories amplify rounding
    np.testing.assert_allclose(adapted, merged, atol=limit)
    ours = forward.logits(decoder, merge_trees(params, adapters), *forward.rows(tokens, 30))
    np.testing.assert_allclose(ours, merged, atol=limit)
    assert np.abs(base - merged).max() > 0.1
