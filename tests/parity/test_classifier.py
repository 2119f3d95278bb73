"""Compares sequence classifiers with transformers on torch, on the CPU in float32."""

import json

import numpy as np
import pytest

from rl4p.base.types import Microbatching
from rl4p.model.families import FAMILIES
from rl4p.model.huggingface import write_model
from rl4p.model.tokenizer import byte_tokenizer
from rl4p.reward.classifier import Classifier, last_scores
from tests.support.random_models import random_model

pytestmark = pytest.mark.parity
LENGTHS = (1, 2, 9, 64, 300)
PAD = 3


@pytest.fixture(
    scope="module",
    params=[
        *("qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3", "qwen3_moe", "smollm3"),
        *("olmo3", "gpt_oss", "phi3_window", "glm4", "seed_oss", "arcee_biases", "glm", "olmo2"),
        "ministral",
    ],
)
def pair(request, tmp_path_factory):
    """Returns a classifier of transformers and the reward term that reads its folder."""
    labels = 1 + len(request.param) % 3  # includes two, which config.json does not write
    options = {"vocab_size": 264, "num_labels": labels, "pad_token_id": PAD}
    model = random_model(request.param, "AutoModelForSequenceClassification", **options)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    term = Classifier(path=str(folder), max_tokens=512, label=labels - 1)
    assert term.model.decoder.config.labels == labels
    return request.param, model, term


def theirs(model, tokens, mask):
    import torch

    with torch.no_grad():
        output = model(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask))
    return output.logits.numpy()


def test_logits(pair):
    """Rows are padded right, as in transformers; one sequence ends with a real pad token."""
    case, model, term = pair
    random = np.random.default_rng(1)
    tokens = np.full((len(LENGTHS), max(LENGTHS)), PAD)
    mask = np.zeros_like(tokens)
    for b, length in enumerate(LENGTHS):
        tokens[b, :length], mask[b, :length] = random.integers(4, 264, length), 1
    tokens[2, 8] = PAD
    lengths = np.int32([1, 2, 8, 64, 300])  # up to the last token that is not padding
    wanted = theirs(model, tokens, mask)
    assert np.std(wanted) > 0.3
    model = term.model
    sizes = Microbatching(tokens=1024, widths=3)
    ours = last_scores(model.decoder, model.params, np.int32(tokens), lengths, sizes, model.mesh)
    worst = np.max(np.abs(ours - wanted))
    print(f"{case}: largest difference of scores {worst:.1e}, of {np.max(np.abs(wanted)):.1f}")
    assert worst <= 2e-4


def test_the_reward_is_what_transformers_says_of_the_conversation(pair, make_prompt, make_episodes):
    _, model, term = pair
    tokenizer = term.model.tokenizer
    prompt, responses = make_prompt(question="1+2"), ("3", "four", "x" * 40)
    grades = term(make_episodes(responses, (prompt,) * 3))
    for response, grade in zip(responses, grades, strict=True):
        chat = ({"role": "user", "content": "1+2"}, {"role": "assistant", "content": response})
        tokens = tokenizer.apply_chat_template(list(chat), return_dict=True, return_tensors="np")
        wanted = theirs(model, tokens["input_ids"], tokens["attention_mask"])[0, term.label]
        assert grade == pytest.approx(wanted, abs=2e-4)


def test_what_we_write_transformers_reads(pair, tmp_path):
    import transformers

    _, model, term = pair
    decoder, params, *_ = term.model
    write_model(tmp_path, decoder, params, (1,), pad_id=PAD)
    again, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == [type(model).__name__]
    assert FAMILIES[decoder.config.family].classifier == type(model).__name__
    tokens = np.random.default_rng(2).integers(4, 264, (1, 20))
    mask = np.ones_like(tokens)
    np.testing.assert_allclose(
        theirs(again.eval(), tokens, mask), theirs(model, tokens, mask), atol=1e-5
    )
