import json
from contextlib import nullcontext

import pytest

from rl4p.base.errors import InputError
from rl4p.model import tensor_files
from rl4p.model.chat_templates import set_clock
from rl4p.model.tokenizer import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    byte_tokenizer,
    check_template,
    load_tokenizer,
    save_tokenizer,
    token_texts,
)


@pytest.fixture
def folder(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", ["347+585", " a\n\tb  ", "žluťoučký 中文 🙂", "\x00\x7f", ""])
def test_any_text_goes_in_and_comes_back(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_what_is_no_file_or_has_no_end_is_refused(folder):
    (folder / "added_tokens.json").symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"added_tokens\.json is not a regular file"):
        load_tokenizer(folder)
    (folder / "added_tokens.json").unlink()
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"chat_template\.jinja is not a regular file"):
        load_tokenizer(folder)


def test_a_file_nested_too_deep_is_refused(folder):
    (folder / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"tokenizer_config\.json is nested too deep"):
        load_tokenizer(folder)


def test_a_file_of_any_size_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(tensor_files, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="at most 100 are read"):
        load_tokenizer(folder)


def test_special_tokens_are_one_token_each_and_leave_the_text():
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == 256 + len(SPECIAL_TOKENS)
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+2"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Add.<|end|><|user|>1+2<|end|><|assistant|>"
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert len(ids) == len("Add.1+2") + 5
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Add.1+2"
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_a_tokenizer_read_back_is_the_same(folder):
    ours, read = byte_tokenizer(), load_tokenizer(folder)
    assert read.get_vocab() == ours.get_vocab()
    assert read.chat_template == CHAT_TEMPLATE
    assert (read.eos_token_id, read.pad_token_id) == (ours.eos_token_id, ours.pad_token_id)
    assert read("1+2<|end|>")["input_ids"] == ours("1+2<|end|>")["input_ids"]


def drop(folder, *keys):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: x for key, x in config.items() if key not in keys}))


def test_a_tokenizer_without_a_chat_template_is_refused(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(
        InputError,
        match=r"has no chat template: set model\.chat_template=chatml, .* or add chat_template",
    ):
        load_tokenizer(folder)


@pytest.mark.parametrize("keys", [("pad_token",), ("eos_token", "pad_token")])
def test_a_tokenizer_may_do_without_pad_and_end(folder, keys):
    drop(folder, *keys)
    assert load_tokenizer(folder).pad_token_id is None


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json is not JSON"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json is not a JSON object"),
        ("tokenizer.json", '{"model": {}}', r"The tokenizer in .* cannot be read: "),
    ],
)
def test_a_broken_tokenizer_is_named(folder, name, content, sentence):
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=sentence):
        load_tokenizer(folder)


def test_what_is_saved_says_nothing_of_how_it_was_loaded(folder, tmp_path):
    load_tokenizer(folder).save_pretrained(tmp_path / "again")
    before, after = (
        json.loads((path / "tokenizer_config.json").read_text())
        for path in (folder, tmp_path / "again")
    )
    assert before == after


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, None),
        ({"enable_thinking": False}, None),
        (
            {"enable_thinkin": 1},
            r"model\.template\.enable_thinkin .* mean .*\.enable_thinking\?",
        ),
        ({"zzz": 1}, r"model\.template\.zzz does not occur in the model's chat template\."),
        ({"messages": []}, r"model\.template\.messages is set by rl4p"),
    ],
)
def test_an_argument_that_the_template_does_not_know_is_refused(arguments, sentence):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0] }}{% if enable_thinking %}<think>{% endif %}"
    with nullcontext() if sentence is None else pytest.raises(InputError, match=sentence):
        check_template(tokenizer, arguments)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError, match=r"model\.path=.* has no tokenizer\.json\."):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<|user|>"]},
        {"tokenizer_class": "LlamaTokenizer", "legacy": False},
        {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ 1 }}"},
        {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|user|>"]},
        {"added_tokens_decoder": {"256": {"content": "<|end|>", "special": True}}},
        {"model_max_length": 1_000_000_000_000_000_019_884_624_838_656, "unknown": [1, None]},
    ],
)
def test_the_files_of_a_tokenizer_are_copied_byte_for_byte(tmp_path, changed):
    source, out = tmp_path / "source", tmp_path / "out"
    save_tokenizer(byte_tokenizer(), source)
    config = json.loads((source / "tokenizer_config.json").read_text()) | changed
    (source / "tokenizer_config.json").write_text(json.dumps(config, indent=7))
    for name in ("merges.txt", "vocab.json", "added_tokens.json", "special_tokens_map.json"):
        (source / name).write_bytes(b"{}\n" if name.endswith("json") else b"#version: 0.2\r\n")
    (source / "tokenizer.model").write_bytes(bytes(range(256)))
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    expected = {path.relative_to(source): path.read_bytes() for path in files(source)}
    (source / "config.json").write_text("{}")  # no file of the tokenizer
    tokenizer = load_tokenizer(source)
    set_clock(tokenizer, "2026-01-05")  # changes the template in memory alone
    save_tokenizer(tokenizer, out)
    assert {path.relative_to(out): path.read_bytes() for path in files(out)} == expected
    assert load_tokenizer(out).get_vocab() == tokenizer.get_vocab()


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_tokenizer_without_files_has_names_that_all_versions_read(tmp_path):
    save_tokenizer(byte_tokenizer(), tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["additional_special_tokens"] == list(SPECIAL_TOKENS[2:])
    assert not {"backend", "extra_special_tokens"} & config.keys()
    assert load_tokenizer(tmp_path).get_vocab() == byte_tokenizer().get_vocab()


@pytest.mark.parametrize(("inside", "named"), [(None, False), ("file", False), ("other", True)])
def test_a_second_chat_template_is_named(folder, caplog, inside, named):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    template = (folder / "chat_template.jinja").read_text()
    path.write_text(
        json.dumps(config | {"chat_template": template if inside == "file" else inside})
    )
    assert load_tokenizer(folder).chat_template == template
    assert ("has two chat templates" in caplog.text) is named


TEXTS = [
    "1+1=2 #### 2",
    "é",
    "a\N{SNOWMAN}b\N{GRINNING FACE}c",
    "",
    "日本語 テキスト",
    "  two  spaces \n",
]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.mark.parametrize("text", TEXTS)
def test_the_texts_joined_are_the_response(tokenizer, text):
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = token_texts(tokenizer, tokens)
    assert len(texts) == len(tokens)
    assert "".join(texts) == text


def test_the_last_token_of_a_character_has_its_text(tokenizer):
    tokens = tokenizer("aé\N{SNOWMAN}", add_special_tokens=False)["input_ids"]
    assert token_texts(tokenizer, tokens) == ["a", "", "é", "", "", "\N{SNOWMAN}"]


def test_special_tokens_are_seen(tokenizer):
    tokens = [*tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert token_texts(tokenizer, tokens) == ["a", "<|end|>"]


def test_bytes_that_are_no_character_do_not_wait_for_one(tokenizer):
    """A model may draw any bytes."""
    (e,) = (tokenizer.convert_tokens_to_ids(x) for x in "Ċ")  # the newline's name
    lead = tokenizer("é", add_special_tokens=False)["input_ids"][0]
    texts = token_texts(tokenizer, [lead] * 9 + [e])
    assert len(texts) == 10
    assert "".join(texts) == tokenizer.decode([lead] * 9 + [e])
    assert texts[3]
    assert token_texts(tokenizer, [lead]) == ["\N{REPLACEMENT CHARACTER}"]
