"""Tests that adapters of a file are trained on bit for bit, or answered with their options."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh
from rl4p.model.adapter import read_adapter
from rl4p.model.adapter_start import begin, check_begin
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import write_adapter, write_policy
from rl4p.model.lora import LoRA
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from tests.golden.cases import decoder_config
from tests.support.adapters import OWN, build, edit, edit_tensors, moved, read

QUERY = "base_model.model.model.layers.0.self_attn.q_proj"


def logits(policy, params):
    tokens = np.arange(20, dtype=np.int32)[None] + 40
    whole, decoder = policy.merged(params), policy.decoder
    hidden = decoder.hidden(whole, tokens, tokens - 40, np.ones_like(tokens))
    return np.asarray(decoder.logits(whole, hidden))


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_an_export_is_trained_on_bit_for_bit(exported_adapter, tmp_path):
    folder, adapters = exported_adapter
    policy, trained = build(folder / "adapter", lora=OWN)
    assert_equal(trained, adapters)
    assert_equal(policy.frozen, build("rl4p/tiny")[1])
    assert policy.adapted
    write_policy(tmp_path / "again", policy, trained, adapter=True)
    for path in (folder / "adapter").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


ON_FOUR = """
import sys
import jax, numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.model.lora import LoRA
from rl4p.model.pretrained import Pretrained

for lora in (LoRA(), LoRA(rank=2, alpha=6.0, targets="gate|up")):
    mesh, key = Mesh(dp=1, fsdp=2, tp=2), jax.random.key(0)
    policy, params = Pretrained(path=sys.argv[1], lora=lora).build(mesh, key)
    _, alone = Pretrained(path=sys.argv[1], lora=lora).build(Mesh(dp=1), key)
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(params))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), params, alone)
"""


@pytest.mark.slow
def test_four_devices_read_what_one_reads(tmp_path, on_devices):
    scratch = Scratch(width=64, heads=4, num_kv_heads=2, feed_forward_width=128)
    write_policy(tmp_path / "base", *scratch.build(Mesh(dp=1), jax.random.key(3)))
    path = str(tmp_path / "base")
    lora = LoRA(rank=2, alpha=6.0, targets="gate|up")
    policy, adapters = build(path, lora=lora)
    write_policy(tmp_path / "adapter", policy, moved(adapters), adapter=True)
    command = [sys.executable, "-c", ON_FOUR, str(tmp_path / "adapter")]
    done = subprocess.run(command, env=on_devices(4), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_new_adapters_are_no_part_of_what_a_run_begins_with():
    assert not build("rl4p/tiny", lora=OWN)[0].adapted


def test_a_plan_needs_no_weights_and_refuses_what_a_run_would(exported_adapter):
    path = str(exported_adapter[0] / "adapter")
    thought, shapes = Pretrained(path=path, lora=OWN).abstract(Mesh(dp=1))
    built, adapters = build(path, lora=OWN)
    assert thought.adapted
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, adapters)
    assert jax.tree.structure(thought.frozen) == jax.tree.structure(built.frozen)
    with pytest.raises(InputError, match=r"model\.lora is not the adapter"):
        Pretrained(path=path, lora=LoRA(rank=2)).abstract(Mesh(dp=1))


@pytest.mark.parametrize(
    "lora",
    [
        LoRA(rank=4, alpha=12.0, targets="query|up"),
        LoRA(rank=2, alpha=16.0, targets="query|up"),
        LoRA(rank=2, alpha=6.0, targets="query"),
        LoRA(rank=2, alpha=6.0),
    ],
)
def test_other_adapters_are_answered_with_those_of_the_file(exported_adapter, lora):
    with pytest.raises(InputError) as error:
        build(exported_adapter[0] / "adapter", lora=lora)
    words = dict(re.findall(r"model\.lora\.(\w+)=(\S+?)'?(?: |$)", str(error.value)))
    assert words == {"rank": "2", "alpha": "6", "targets": "[query,up]"}
    assert "leave model.lora out, which merges it" in str(error.value)


@pytest.mark.slow
def test_rank_stable_adapters_are_trained_with_the_alpha_in_the_message(adapter_folder):
    edit(adapter_folder, use_rslora=True)
    with pytest.raises(InputError) as error:
        build(adapter_folder, lora=OWN)
    alpha = float(re.search(r"model\.lora\.alpha=(\S+)", str(error.value))[1])
    lora = LoRA(rank=2, alpha=alpha, targets="query|up")
    merged, trained = logits(*build(adapter_folder)), logits(*build(adapter_folder, lora=lora))
    np.testing.assert_allclose(trained, merged, atol=1e-3)
    assert alpha == pytest.approx(6 * 2**0.5)


def without_a_layer(tensors):
    del tensors[f"{QUERY}.lora_A.weight"], tensors[f"{QUERY}.lora_B.weight"]


def of_lower_rank(tensors):
    for name, at in (("A", np.s_[:1]), ("B", np.s_[:, :1])):
        tensors[f"{QUERY}.lora_{name}.weight"] = tensors[f"{QUERY}.lora_{name}.weight"][at].copy()


def with_a_norm(tensors):
    tensors["base_model.model.model.norm.weight"] = np.ones(96, np.float32)


def with_a_bias(tensors):
    tensors[f"{QUERY}.lora_B.bias"] = np.ones(96, np.float32)


@pytest.mark.parametrize("change", [without_a_layer, of_lower_rank, with_a_norm, with_a_bias])
def test_adapters_that_are_not_of_one_kind_are_merged_alone(adapter_folder, change):
    edit_tensors(adapter_folder, change)
    if change is of_lower_rank:
        edit(adapter_folder, rank_pattern={r"layers\.0\.self_attn\.q_proj": 1})
    with pytest.raises(InputError, match="which has more than matrices of one rank and scale"):
        build(adapter_folder, lora=OWN)
    assert np.isfinite(read(adapter_folder)["embedding"]).all()


def test_a_fitting_adapter_of_another_width_is_refused_when_it_is_trained_on(adapter_folder):
    def narrower(tensors):
        for name, x in tensors.items():
            tensors[name] = x[:, :-1].copy() if ".lora_A." in name else x

    edit_tensors(adapter_folder, narrower)
    with pytest.raises(InputError, match=r"q_proj is a matrix .*, and the adapter has A"):
        build(adapter_folder, lora=OWN)


@pytest.mark.slow
@pytest.mark.parametrize(
    "targets", ["query|value|down|gate|up", "key|output|up", "query|key|value"]
)
def test_projections_in_one_matrix_are_trained_on_bit_for_bit(tmp_path, targets):
    """The files of Phi have one matrix A for all, in which each projection has rows of its own."""
    lora = LoRA(rank=2, alpha=5.0, targets=targets)
    config = decoder_config("phi3")
    decoder = Decoder(config=config, lora=lora)
    adapters = moved(lora.init(jax.random.key(0), decoder.init(jax.random.key(1))))
    write_adapter(tmp_path, decoder, adapters, "rl4p/tiny")
    shapes = jax.eval_shape(lambda: adapters)
    assert_equal(begin(read_adapter(tmp_path), decoder, shapes, Mesh(dp=1)), adapters)
    fewer = LoRA(rank=2, alpha=5.0, targets="down")
    decoder = Decoder(config=config, lora=fewer)
    shapes = jax.eval_shape(fewer.init, jax.random.key(0), decoder.init(jax.random.key(1)))
    with pytest.raises(InputError) as error:
        check_begin(read_adapter(tmp_path), decoder, shapes)
    words = dict(re.findall(r"model\.lora\.(\w+)=(\S+?)'?(?: |$)", str(error.value)))
    assert {*words.pop("targets").strip("[]").split(",")} == {*targets.split("|")}
    assert words == {"rank": "2", "alpha": "5"}


def test_a_projection_that_is_changed_too_is_never_lost(tmp_path):
    """An adapter of the three projections in one matrix is not trained on as one of two."""
    config = decoder_config("phi3")
    whole = LoRA(rank=2, alpha=5.0, targets="query|key|value")
    decoder = Decoder(config=config, lora=whole)
    adapters = moved(whole.init(jax.random.key(0), decoder.init(jax.random.key(1))))
    write_adapter(tmp_path, decoder, adapters, "rl4p/tiny")
    for rank, targets in ((3, "query|key"), (6, "query|key"), (6, "value")):
        fewer = LoRA(rank=rank, alpha=2.5 * rank, targets=targets)
        decoder = Decoder(config=config, lora=fewer)
        shapes = jax.eval_shape(fewer.init, jax.random.key(0), decoder.init(jax.random.key(1)))
        with pytest.raises(InputError, match="changes more than "):
            begin(read_adapter(tmp_path), decoder, shapes, Mesh(dp=1))
