"""Tests the commands with a real pretrained chat model, SmolLM2-135M-Instruct: `make real`.

The folder of the model is .cache/smollm2, or the one that RL4P_REAL_MODEL names.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from experiments.real_model import packaged
from rl4p.base.types import Prompt
from rl4p.distributed.mesh import Mesh
from rl4p.model.huggingface import write_policy
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.golden import forward

pytestmark = pytest.mark.real
FOLDER = Path(os.environ.get("RL4P_REAL_MODEL", ".cache/smollm2")).absolute()
MOST_TOKENS = 24
QUESTIONS = (
    *("What is the capital of France?", "How many legs has a spider?", "What is 17+25?"),
    *("Name a colour of the rainbow.", "Say hello in Spanish.", "Which animal barks?"),
    *("Write a word that rhymes with cat.", "Is the sun a star?", "What comes after Tuesday?"),
    *("Finish the row: 2, 4, 6, 8,", "Translate 'water' into German.", "Who wrote Hamlet?"),
    *("What is the opposite of hot?", "Write one line of Python.", "How do bees make honey?"),
    "Tom has 3 apples, buys 4 more and eats 2. How many are left?",
)
SMALL = (
    *("experiment=smollm2_sums", f"model.path={FOLDER}", "model.dtype=float32", "tracker=none"),
    *("steps=2", "prompts_per_step=4", "group_size=4", "max_response_tokens=12"),
    *("data.train_size=64", "data.held_out_size=8", "rollout.temperature=1.0"),
    # The rewards of a few short responses may be equal, and then nothing would be learned.
    "+reward.terms.short._target_=rl4p.reward.form.Format",
    "+reward.terms.short.pattern='[^aeiou]*'",
)


def test_the_folder_has_the_weights_and_tokens_that_transformers_reads(monkeypatch):
    """`experiments.real_model` reads the GGUF file by itself."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(FOLDER.with_name(f"{FOLDER.name}_package")))
    path = packaged()
    source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**source).state_dict()
    ours = load_file(FOLDER / "model.safetensors")
    assert ours.keys() == theirs.keys() - {"lm_head.weight"}  # tied
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name].numpy())
    text = "Add 17 and 25.\n\tété 漢字 <|im_start|>user\n12345<|im_end|>"
    tokens = [
        transformers.AutoTokenizer.from_pretrained(**each).encode(text)
        for each in (source, {"pretrained_model_name_or_path": FOLDER})
    ]
    assert tokens[0] == tokens[1]


def command(module: str, *words: str) -> str:
    line = [sys.executable, "-m", f"rl4p.{module}", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def ours():
    return Pretrained(path=str(FOLDER)).build(Mesh(dp=1), jax.random.key(0))


@pytest.fixture(scope="module")
def prompts(ours):
    """Returns the tokens of the questions in the chat template of the model."""
    tokenizer = ours[0].tokenizer
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in chats
    ]


@pytest.fixture(scope="module")
def theirs():
    """Returns the model as transformers loads it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32").eval()


def test_logits_are_those_of_transformers(ours, prompts, theirs):
    import torch

    policy, params = ours
    rows = forward.rows(prompts, max(map(len, prompts)))
    logits_BTV = np.asarray(forward.logits(policy.decoder, params, *rows))
    worst, largest = 0.0, 0.0
    for row_TV, prompt in zip(logits_BTV, prompts, strict=True):
        with torch.no_grad():
            expected_TV = theirs(torch.tensor([prompt])).logits[0].numpy()
        worst = max(worst, float(np.abs(row_TV[: len(prompt)] - expected_TV).max()))
        largest = max(largest, float(np.abs(expected_TV).max()))
    print(f"largest difference of logits: {worst:.1e}, largest logit: {largest:.1f}")
    assert worst <= 1e-5 * largest


def test_greedy_answers_are_those_of_transformers(ours, prompts, theirs):
    import torch

    policy, params = ours
    asked = [
        Prompt(id=str(n), question=text, answer="", task="t", tokens=tuple(tokens))
        for n, (text, tokens) in enumerate(zip(QUESTIONS, prompts, strict=True))
    ]
    drawn, _ = NaiveSampler(max_response_tokens=MOST_TOKENS)(
        policy, params, asked, group_size=1, key=jax.random.key(0), version=0, greedy=True
    )
    for row, prompt in enumerate(prompts):
        words = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=MOST_TOKENS, do_sample=False
        )[0]
        mask_T = np.asarray(drawn.response_mask_BT[row])
        assert np.asarray(drawn.tokens_BT[row])[mask_T].tolist() == words[len(prompt) :].tolist()


def test_an_export_has_the_same_weights(ours, tmp_path):
    write_policy(tmp_path / "out", *ours)
    again = Pretrained(path=str(tmp_path / "out")).build(Mesh(dp=1), jax.random.key(1))[1]
    jax.tree.map(np.testing.assert_array_equal, again, ours[1])


def test_an_adapter_is_trained_and_exported(tmp_path):
    run, out = tmp_path / "run", tmp_path / "adapter"
    command("train", *SMALL, "steps=1", "model.lora.rank=4", f"hydra.run.dir={run}")
    assert rows_of(run)[-1]["update/grad_norm"] > 0
    command("export", f"run={run}", f"out={out}", "adapter=true")
    assert out.joinpath("adapter_model.safetensors").stat().st_size < FOLDER.stat().st_size + 2**25


def rows_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns the folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("real") / "run"
    command("train", *SMALL, f"hydra.run.dir={folder}")
    return folder


def test_two_steps_train_the_tokens_that_were_sampled(run):
    rows = rows_of(run)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows[1:]:
        assert row["update/grad_norm"] > 0
        assert row["rollout/logprob_gap_max"] < 1e-3


def test_it_is_evaluated(run, tmp_path):
    command("evaluate", f"run={run}", f"out={tmp_path / 'evaluation'}")
    (row,) = rows_of(tmp_path / "evaluation")
    assert row["step"] == 2
    assert 0 <= row["eval/arithmetic/pass_at_1"] <= 1


def test_it_generates(run, tmp_path):
    command("generate", f"run={run}", "prompts=4", f"out={tmp_path / 'out.jsonl'}")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()  # without cut responses
    rows = [json.loads(line) for line in lines]
    assert 0 < len(rows) == len({(row["id"], row["sample"]) for row in rows})
    assert len({row["id"] for row in rows}) <= 4
    assert all(row["answer"] for row in rows)


def test_it_is_served_and_answers_a_chat(prompts, ours):
    line = [sys.executable, "-m", "rl4p.serve", "model=pretrained", f"model.path={FOLDER}"]
    with subprocess.Popen([*line, "port=0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://\S+", server.stdout.readline())[0]
            body = {
                "messages": [{"role": "user", "content": QUESTIONS[0]}],
                "temperature": 0,
                "max_tokens": MOST_TOKENS,
                "return_token_ids": True,
            }
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).json()
            assert answer["prompt_token_ids"] == prompts[0]
            assert "Paris" in answer["choices"][0]["message"]["content"]
        finally:
            server.terminate()
