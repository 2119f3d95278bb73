"""Compares decoders in float32 with transformers in float64, on the CPU: `make parity`."""

import json

import jax
import numpy as np
import pytest

from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES
from rl4p.model.families.wrappers import WRAPPERS
from rl4p.model.huggingface import read_config, read_params, write_model
from rl4p.model.router import balance_loss
from tests.golden import forward, make
from tests.golden.cases import CASES, to_tensors
from tests.support.random_models import exact_twin, in_float64, random_model

pytestmark = pytest.mark.parity
LENGTHS = (1, 2, 9, 64, 300)
LIMIT = 1e-5  # of the largest logit, and of the norm of a gradient
# The angle of position 300 is rounded by up to 2^-17 in float32, which transformers does too. The
# norm of a gated delta rule divides what a query reads by its size, so that reads near 0 pass on
# their rounding up to 300 times. Transformers in float32 is as far from float64, or further.
LATE = READS = 5e-5
GRADIENTS = {"mamba": 5e-5}  # that of its dt_bias is a sum that nearly cancels


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """Returns a model of transformers in float32 and float64, and what is read from its folder."""
    model = random_model(request.param, "AutoModelForCausalLM")
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    decoder = Decoder(config=read_config(folder))
    assert decoder.config.family == CASES[request.param]["model_type"]
    params = jax.device_get(read_params(folder, decoder, "float32"))
    return request.param, model, exact_twin(model), decoder, params


def sequences(config):
    random = np.random.default_rng(1)
    lengths = (min(length, config.max_positions) for length in LENGTHS)
    return [random.integers(0, config.vocabulary, length) for length in lengths]


def exact_logits(twin, tokens):
    import torch

    with torch.no_grad(), in_float64():
        return twin(torch.from_numpy(tokens)[None]).logits[0].numpy()


def test_logits(pair):
    case, _, twin, decoder, params = pair
    rows = sequences(decoder.config)
    ours = forward.logits(decoder, params, *forward.rows(rows, max(LENGTHS)))
    far = {}
    for row, tokens in zip(np.asarray(ours), rows, strict=True):
        theirs = exact_logits(twin, tokens)
        assert np.std(theirs) > (0.1 if decoder.config.delta else 0.3)
        difference = np.max(np.abs(row[: len(tokens)] - theirs))
        far[len(tokens)] = float(difference / np.max(np.abs(theirs)))
    print(f"{case}: distance of logits from float64, of the largest: {far}")
    early = READS if decoder.config.delta else LIMIT
    assert max(x for length, x in far.items() if length <= 64) <= early
    assert max(far.values()) <= LATE


def test_gradients(pair):
    """Checks that we are as near to float64 as a limit, or as twice the error of transformers."""
    case, model, twin, decoder, params = pair
    tokens = sequences(decoder.config)[3]
    with in_float64():
        exact = make.loss_gradients(twin, tokens)
    theirs = make.loss_gradients(model, tokens)
    gradient = forward.gradient(decoder, params, np.int32(tokens)[None])
    ours = to_tensors(decoder.config, gradient)
    assert ours.keys() == exact.keys()
    # Without rotation the gradient of a bias of keys is 0, and what is found is rounding.
    least = 1e-3 * max(np.linalg.norm(x) for x in exact.values())
    # An expert without tokens has no gradient.
    size = {name: max(np.linalg.norm(x), least) for name, x in exact.items() if x.any()}
    far, their_far = (
        {name: np.linalg.norm(found[name] - exact[name]) / size[name] for name in size}
        for found in (ours, theirs)
    )
    print(f"{case}: distance of gradients {max(far.values()):.1e}, {max(their_far.values()):.1e}")
    assert len(far) >= 0.75 * len(ours)
    assert all(not ours[name].any() for name in ours.keys() - far.keys())
    limit = max(GRADIENTS.get(kind.mixer, LIMIT) for kind in decoder.config.kinds)
    assert max(far.values()) <= max(limit, 2 * max(their_far.values())), max(far, key=far.get)


def test_greedy_tokens(pair):
    _, model, _, decoder, params = pair
    prompt = sequences(decoder.config)[2]
    theirs = make.greedy_tokens(model, prompt)
    ours = forward.greedy(decoder, params, np.int32(prompt), make.GREEDY)
    assert len(theirs) == 64
    np.testing.assert_array_equal(ours, theirs)


def test_what_we_write_transformers_reads(pair, tmp_path):
    import transformers

    _, model, twin, decoder, params = pair
    write_model(tmp_path, decoder, params, (1,), pad_id=0)  # some have a default above 64
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == [type(model).__name__]
    assert FAMILIES[decoder.config.family].architecture == type(model).__name__
    tokens = sequences(decoder.config)[3]
    theirs = exact_logits(twin, tokens)
    difference = exact_logits(exact_twin(again), tokens) - theirs
    assert np.abs(difference).max() < 1e-9 * np.abs(theirs).max()


def test_every_family_is_compared_and_how_many_types_that_are():
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    compared = {keys["model_type"] for keys in CASES.values()}
    assert compared == FAMILIES.keys()
    compared |= WRAPPERS.keys()  # which `test_wrappers` compares
    known = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
    print(
        f"{len(compared & known)} of {len(known)} types of language models, and {compared - known}"
    )
    assert len(compared & known) >= 62


@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_the_loss_of_the_routers_is_that_of_transformers(case, tmp_path):
    import torch

    model = random_model(case, "AutoModelForCausalLM")
    model.save_pretrained(tmp_path)
    decoder = Decoder(config=read_config(tmp_path))
    params = read_params(tmp_path, decoder, "float32")
    tokens, places, real = forward.rows(sequences(decoder.config)[2:4], 64)
    with torch.no_grad():
        options = {"attention_mask": torch.from_numpy(np.array(real)).long()}
        inputs = torch.from_numpy(np.array(tokens)).long()
        theirs = model(inputs, output_router_logits=True, **options).aux_loss.item()
    load = jax.jit(decoder.hidden_and_load)(params, tokens, places, real)[1]
    assert theirs > 1.005 * decoder.config.chosen_experts
    np.testing.assert_allclose(balance_loss(load, load), theirs, rtol=1e-5)


@pytest.mark.parametrize("case", ["qwen3_moe", "deepseek_v3"])
def test_weights_of_8_bits_are_those_that_transformers_dequantizes(case, tmp_path):
    """In blocks that divide each matrix: transformers gives others of its own to the rest."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    random_model(case, "AutoModelForCausalLM").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        rows, columns = (size // 4 for size in tensors[name].shape)
        blocks = tensors[name].reshape(rows, 4, columns, 4)
        scales = blocks.abs().amax((1, 3), keepdim=True) / 448
        tensors[name] = (blocks / scales).reshape(tensors[name].shape).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales[:, 0, :, 0].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    section = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [4, 4]}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        quantization_config=FineGrainedFP8Config(weight_block_size=(4, 4), dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    decoder = Decoder(config=read_config(tmp_path))
    params = read_params(tmp_path, decoder, "float32")
    tokens = sequences(decoder.config)[2]
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)[None]).logits[0].numpy()
    ours = forward.logits(decoder, params, *forward.rows([tokens], 16))[0, : len(tokens)]
    np.testing.assert_allclose(ours, expected, atol=1e-4)
