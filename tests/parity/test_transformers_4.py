"""Tests that transformers 4.57 reads our exports; RL4P_TRANSFORMERS_4 names a Python that has it.

`make parity-4` makes an environment for it.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest

import rl4p.model
from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import write_model, write_policy
from rl4p.model.model_files import model_files
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from tests.golden import forward
from tests.golden.cases import CASES, decoder_config

PYTHON = os.environ.get("RL4P_TRANSFORMERS_4", "")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not PYTHON, reason="RL4P_TRANSFORMERS_4 names no Python"),
]
TINY = Path(rl4p.model.__file__).parent / "tiny"
TOKENS = np.random.default_rng(1).integers(0, 64, 40)
READ = """
import json, sys, torch, transformers
assert transformers.__version__.startswith("4."), transformers.__version__
type = json.load(open(sys.argv[1] + "/config.json"))["model_type"]
if type not in transformers.CONFIG_MAPPING:
    print(json.dumps(f"transformers {transformers.__version__} has no {type}"))
    sys.exit()
model, info = transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=torch.float32, attn_implementation="eager", output_loading_info=True
)
assert not any(info.values()), info
with torch.no_grad():
    print(json.dumps(model.eval()(torch.tensor([json.loads(sys.argv[2])])).logits[0].tolist()))
"""
# What 4.57 computes otherwise than transformers 5, whose logits the other tests compare with ours.
OTHERWISE = {
    "apertus": "the parameters of the activation are rounded to bfloat16",
    "apertus_scaled": "the parameters of the activation are rounded to bfloat16",
    "bamba": "the norm behind the gate has one group, not mamba_n_groups",
    "granite_hybrid": "the norm behind the gate has one group, not mamba_n_groups",
    "granite_hybrid_moe": "the norm behind the gate has one group, not mamba_n_groups",
    "deepseek_v2": "attention is not scaled by mscale_all_dim of YaRN",
    "qwen2_moe_dense": "a sliding window is that of all layers, whatever layer_types say",
}
ENCODE = """
import json, sys, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
chat = [{"role": "user", "content": "1+1 = é 🙂"}]
encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
print(json.dumps([encoded, tokenizer.eos_token_id, tokenizer.pad_token_id]))
"""


def run(code, *arguments):
    process = subprocess.run(
        [PYTHON, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout)


@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_logits_of_every_family(case, tmp_path):
    decoder = Decoder(config=decoder_config(case))
    params = jax.jit(decoder.init)(jax.random.key(0))
    params = jax.tree.map(
        lambda x: x + 0.05 * jax.random.normal(jax.random.key(1), x.shape), params
    )
    write_model(tmp_path, decoder, params, (1, 2), pad_id=0, shard_bytes=50_000)
    ours = np.asarray(forward.logits(decoder, params, *forward.rows([TOKENS], 40)))[0]
    read = run(READ, tmp_path, json.dumps(TOKENS.tolist()))
    if isinstance(read, str):
        pytest.skip(read)
    theirs = np.float32(read)
    assert np.std(theirs) > 0.03
    equal = np.allclose(ours, theirs, rtol=1e-7, atol=1e-4)
    assert equal != (case in OTHERWISE), np.abs(ours - theirs).max()


def encoded(policy):
    chat = [{"role": "user", "content": "1+1 = é 🙂"}]
    tokenizer = policy.tokenizer
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return [ids, tokenizer.eos_token_id, tokenizer.pad_token_id]


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "Qwen2Tokenizer", "GPT2Tokenizer"])
def test_a_tokenizer_that_it_read_before_it_reads_after(name, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(TINY, source)
    path = source / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": name}, indent=1))
    policy, params = Pretrained(path=str(source)).build(Mesh(dp=1), jax.random.key(0))
    write_policy(tmp_path / "out", policy, params)
    assert run(ENCODE, source) == run(ENCODE, tmp_path / "out") == encoded(policy)


def test_it_reads_the_policies_of_the_package(tmp_path):
    assert run(ENCODE, TINY) == encoded(
        Pretrained(path="rl4p/tiny").policy(model_files("rl4p/tiny"), Mesh(dp=1))
    )
    policy, params = Scratch(width=32, heads=2).build(Mesh(dp=1), jax.random.key(0))
    write_policy(tmp_path / "out", policy, params)
    assert run(ENCODE, tmp_path / "out") == encoded(policy)
