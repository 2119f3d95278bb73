import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Episode
from rl4p.configuration import compose, instantiate
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import write_model
from rl4p.reward.classifier import Classifier, last_scores

TERM = "+reward.terms.model"


@pytest.fixture(scope="module")
def classifier(policy, params):
    """Returns a classifier of two labels with the trunk of the tests' policy."""
    config = dataclasses.replace(policy.decoder.config, labels=2, tied_embedding=False)
    return Decoder(config=config), params | {"score": params["embedding"][5:7]}


@pytest.fixture(scope="module")
def folder(classifier, policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    write_model(folder, *classifier, policy.end_ids, pad_id=policy.pad_id)
    policy.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def copied(folder, tmp_path):
    """Returns a copy of the folder that a test may change."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.fixture
def expected(classifier, policy, numpy_logits):
    """Returns a function that computes the score at the last token of a text, in plain NumPy."""

    def score(text, label=0):
        tokens = policy.tokenizer.encode(text, add_special_tokens=False)
        decoder, params = classifier
        config = dataclasses.replace(decoder.config, labels=0)
        return numpy_logits(config, params | {"head": params["score"]}, tokens)[-1, label]

    return score


def load(folder, **options):
    return Classifier(path=str(folder), **{"max_tokens": 64} | options)


def edit(path, change):
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def chat(question, response, system=""):
    system = system and f"<|system|>{system}<|end|>"
    return f"{system}<|user|>{question}<|end|><|assistant|>{response}<|end|>"


def episodes_of(make_prompt, *pairs):
    return [
        Episode(prompt=make_prompt(question=question), response=response)
        for question, response in pairs
    ]


PAIRS = (("1+2", "3"), ("1+2", "4"), ("12+34", "6+4=10, 46 #### 46"), ("?", ""), ("1+2", "3"))


@pytest.mark.parametrize("tokens_per_microbatch", [1, 40, 8192])
def test_each_row_gets_the_score_at_its_last_token(
    folder, make_prompt, expected, tokens_per_microbatch
):
    """Rows have the width 16 or 32; the limits allow one row, two narrow rows, or all at a time."""
    term = load(folder, tokens_per_microbatch=tokens_per_microbatch)
    grades = term(episodes_of(make_prompt, *PAIRS))
    wanted = [expected(chat(*pair)) for pair in PAIRS]
    assert np.std(wanted) > 0.1
    np.testing.assert_allclose(grades, wanted, atol=1e-4)
    assert all(type(grade) is float for grade in grades)


def test_a_label_is_chosen(folder, make_prompt, expected):
    grades = load(folder, label=1)(episodes_of(make_prompt, *PAIRS))
    np.testing.assert_allclose(grades, [expected(chat(*pair), 1) for pair in PAIRS], atol=1e-4)


def test_the_system_prompt_of_a_prompt_is_read(folder, make_prompt, expected):
    prompt = make_prompt(question="1+2", system_prompt="Add.")
    (grade,) = load(folder)([Episode(prompt=prompt, response="3")])
    assert grade == pytest.approx(expected(chat("1+2", "3", "Add.")), abs=1e-4)


def test_a_text_that_is_too_long_gets_no_grade_and_is_not_cut(folder, make_prompt, expected):
    """The limit is 16 tokens: 4 special tokens, 2 of the question, 10 of the response."""
    pairs = (("ab", "x" * 10), ("ab", "x" * 11), ("ab", ""))
    first, second, third = load(folder, max_tokens=16)(episodes_of(make_prompt, *pairs))
    assert np.isnan(second)
    assert first == pytest.approx(expected(chat(*pairs[0])), abs=1e-4)
    assert third == pytest.approx(expected(chat(*pairs[2])), abs=1e-4)
    assert np.isnan(load(folder, max_tokens=4)(episodes_of(make_prompt, *pairs[:2]))).all()


def test_texts_of_one_width_are_compiled_once(folder, make_prompt):
    term = load(folder)
    term(episodes_of(make_prompt, *[("a", "b")] * 7))
    before = last_scores._cache_size()
    term(episodes_of(make_prompt, *[("a", "b")] * 5, ("b", "x" * 200), ("c", "dd")))
    assert last_scores._cache_size() == before


def test_template_and_special_tokens_are_its_own(copied, make_prompt, expected):
    """The tokenizer adds a first token to every text, but its template has that token already."""
    (copied / "chat_template.jinja").write_text(
        "{{ '<|system|>' }}{% for m in messages %}{{ m['content'] + '<|end|>' }}{% endfor %}"
    )
    tokenizer = json.loads((copied / "tokenizer.json").read_text())
    (begin,) = [t["id"] for t in tokenizer["added_tokens"] if t["content"] == "<|system|>"]
    begins = {"SpecialToken": {"id": "<|system|>", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begins, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begins, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {
            "<|system|>": {"id": "<|system|>", "ids": [begin], "tokens": ["<|system|>"]}
        },
    }
    (copied / "tokenizer.json").write_text(json.dumps(tokenizer))
    term = load(copied)
    assert term.model.tokenizer.encode("a")[0] == begin
    (grade,) = term(episodes_of(make_prompt, ("1+2", "3")))
    assert grade == pytest.approx(expected("<|system|>1+2<|end|>3<|end|>"), abs=1e-4)


@pytest.mark.parametrize("pad_token", ["<|end|>", None])
def test_the_last_token_is_the_last_that_is_not_padding(
    copied, policy, make_prompt, expected, pad_token
):
    """As in transformers, a pad token may also end turns (Llama). Without one the last counts."""
    pad_id = None if pad_token is None else policy.tokenizer.convert_tokens_to_ids(pad_token)
    edit(copied / "config.json", {"pad_token_id": pad_id})
    (grade,) = load(copied)(episodes_of(make_prompt, ("1+2", "3")))
    text = chat("1+2", "3").removesuffix(pad_token or "never")
    assert text.endswith("<|assistant|>3" if pad_token else "3<|end|>")
    assert grade == pytest.approx(expected(text), abs=1e-4)


def test_bfloat16_is_near(folder, make_prompt):
    texts = episodes_of(make_prompt, *PAIRS)
    half = load(folder, dtype="bfloat16")
    assert {str(x.dtype) for x in half.model.params["layers"]["gate"].values()} == {"bfloat16"}
    exact, rough = (np.array(term(texts)) for term in (load(folder), half))
    assert 0 < np.abs(rough - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (
            {"architectures": ["Qwen2ForCausalLM"]},
            {},
            r"^path=.* has no score head: .* \['Qwen2ForCausalLM'\] is a sequence classifier\.$",
        ),
        ({}, {"label": 2}, r"^label=2, but the labels of .* are 0 to 1\.$"),
        ({"id2label": {"0": "good"}}, {}, r"weight must have shape \(1, 32\), not \(2, 32\)"),
        ({}, {"max_tokens": 129}, r"^max_tokens=129 is more than the 128 positions of "),
        ({"vocab_size": 260}, {}, r"tokenizer in .* has token 260, but .* has only 260 rows"),
    ],
)
def test_a_folder_that_will_not_do_is_refused(copied, change, options, sentence):
    edit(copied / "config.json", change)
    with pytest.raises(ValueError, match=sentence):
        load(copied, **options)


def test_the_command_line_of_its_docstring_adds_it_and_names_it_when_it_is_wrong(
    folder, make_prompt, make_trajectories
):
    def reward(path):
        options = [f"+term@{TERM[1:]}=classifier", f"{TERM[1:]}.path={path}"]
        options += [f"{TERM[1:]}.max_tokens=64"]
        return instantiate(compose(options).reward)

    with pytest.raises(InputError, match=r"^reward\.terms\.model: path=/nowhere is not a folder"):
        reward("/nowhere")
    rewards = reward(folder)(
        make_trajectories((1, 1)), episodes_of(make_prompt, ("1+2", "3"), ("1+2", "x" * 99))
    )
    assert rewards.valid_B.tolist() == [True, False]
    assert rewards.terms["model"][0] != 0


def test_a_microbatch_has_so_many_tokens(folder, make_prompt, monkeypatch):
    """With 97 tokens, a microbatch has two rows of 48 tokens or one row of 64."""
    shapes, hidden = set(), Decoder.hidden

    def spy(decoder, params, tokens_BT, *rest):
        shapes.add(tokens_BT.shape)
        return hidden(decoder, params, tokens_BT, *rest)

    monkeypatch.setattr(Decoder, "hidden", spy)
    load(folder, tokens_per_microbatch=97)(episodes_of(make_prompt, *PAIRS, ("1", "2" * 40)))
    assert shapes == {(1, 64), (2, 48)}


@pytest.mark.slow
def test_rows_are_split_over_devices(folder, make_prompt, on_devices):
    """Two devices score what one scores, and a text that is too long is left out on both."""
    program = f"""
import json, numpy as np
from rl4p.reward.classifier import Classifier
from rl4p.base.types import Episode, Prompt
pairs = {[*PAIRS, ("ab", "x" * 99)]!r}
prompt = lambda q: Prompt(id="a", question=q, answer="", task="t", tokens=(0,))
term = Classifier(path={str(folder)!r}, max_tokens=64)
assert term.model.mesh.row_shards == 2
print(json.dumps(term([Episode(prompt=prompt(q), response=r) for q, r in pairs])))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=on_devices(2))
    assert done.returncode == 0, done.stderr[-2000:]
    *grades, long = json.loads(done.stdout.splitlines()[-1])
    assert np.isnan(long)
    alone = load(folder)(episodes_of(make_prompt, *PAIRS))
    np.testing.assert_allclose(grades, alone, atol=1e-5)


def test_its_defaults(folder):
    term = Classifier(path=str(folder), max_tokens=64)
    assert (term.weight, term.label, term.dtype) == (1.0, 0, "float32")
    assert term.tokens_per_microbatch == 8192


def test_a_template_with_a_date_needs_one(copied):
    path = copied / "chat_template.jinja"
    path.write_text("{{ strftime_now('%d %b') }}" + path.read_text())
    with pytest.raises(ValueError, match=r"^date must be set, because the chat template of .* tod"):
        load(copied)
    tokenizer = load(copied, date="2026-01-05").model.tokenizer
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False).startswith("05 Jan<|user|>x")
    path.write_text("{{ messages[0].content }}")
    with pytest.raises(ValueError, match=r"date=2026-01-05 has no effect"):
        load(copied, date="2026-01-05")
