import json

import pytest

from rl4p.errors import InputError
from rl4p.model.tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_tokenizer, load_tokenizer


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


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (("pad_token",), r"has no pad token \(pad_token\): add it to tokenizer_config\.json"),
        (("eos_token",), r"has no end token \(eos_token\): add it"),
        (("chat_template",), r"has no chat template: add it .* chat_template\.jinja"),
        (
            ("eos_token", "pad_token"),
            r"has no end token \(eos_token\), no pad token \(pad_token\):",
        ),
    ],
)
def test_what_a_tokenizer_lacks_is_named(folder, keys, sentence):
    drop(folder, *keys)
    if "chat_template" in keys:
        (folder / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match=sentence):
        load_tokenizer(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}', '{"version": "1.0"}'])
def test_a_tokenizer_that_cannot_be_read_is_named(folder, content):
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"The tokenizer in .* cannot be read: "):
        load_tokenizer(folder)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError, match=r"model\.path=.* has no tokenizer\.json\."):
        load_tokenizer(tmp_path)
