"""Tests that the files of a model are found: of a folder, or of an adapter and its base."""

import pytest

from rl4p.base.errors import InputError
from rl4p.model.model_files import model_files
from tests.support.adapters import CONFIG, OWN, WEIGHTS, build, edit, read


def test_an_adapter_of_an_adapter_is_refused(adapter_folder, exported_adapter):
    edit(adapter_folder, base_model_name_or_path=str(exported_adapter[0] / "adapter"))
    with pytest.raises(InputError, match="which has an adapter itself"):
        read(adapter_folder)


def test_the_tokenizer_is_that_of_the_adapter_or_of_its_base(adapter_folder, exported_adapter):
    template = adapter_folder / "chat_template.jinja"
    template.write_text("{{ '<|user|>' }}" + template.read_text())
    base = build("rl4p/tiny")[0].tokenizer.chat_template
    assert build(adapter_folder)[0].tokenizer.chat_template == "{{ '<|user|>' }}" + base
    for path in adapter_folder.iterdir():
        if path.name not in (WEIGHTS, CONFIG):
            path.unlink()
    assert build(adapter_folder)[0].tokenizer.chat_template == base
    assert build(adapter_folder)[0].end_ids == build("rl4p/tiny")[0].end_ids


@pytest.mark.parametrize("revision", [None, "v1"])
def test_the_base_is_read_at_its_revision(adapter_folder, monkeypatch, revision):
    asked = []

    def download(name, **options):
        asked.append((name, options["revision"]))
        return str(model_files("rl4p/tiny").weights)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    edit(adapter_folder, base_model_name_or_path="someone/base", revision=revision)
    policy, _ = build(adapter_folder, lora=OWN)
    assert asked == [("someone/base", revision)]
    assert policy.base == ("someone/base@v1" if revision else "someone/base")


def test_an_address_of_a_base_needs_a_word(adapter_folder, monkeypatch):
    edit(adapter_folder, base_model_name_or_path="memory://somewhere/base")
    with pytest.raises(InputError, match="set the environment variable RL4P_ALLOW=memory://some"):
        read(adapter_folder)
    monkeypatch.setenv("RL4P_ALLOW", "memory://somewhere")
    with pytest.raises(InputError, match="which cannot be read: memory://somewhere/base does not"):
        read(adapter_folder)


def test_the_end_tokens_are_those_of_the_adapter_or_of_its_base(adapter_folder):
    path = adapter_folder / "generation_config.json"
    path.write_text('{"eos_token_id": [256, 258], "temperature": 0.5}')
    policy, _ = build(adapter_folder)
    assert policy.end_ids == (256, 258)
    assert policy.kept[path.name]["temperature"] == 0.5
    path.unlink()
    assert build(adapter_folder)[0].end_ids == build("rl4p/tiny")[0].end_ids
