import json
from dataclasses import replace

import huggingface_hub
import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Prompt
from rl4p.distributed.mesh import Mesh
from rl4p.model import pretrained
from rl4p.model.huggingface import write_model, write_policy
from rl4p.model.lora import LoRA
from rl4p.model.model_files import model_files
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from rl4p.rollout.naive_sampler import NaiveSampler


@pytest.fixture
def folder(tmp_path, policy, params):
    write_model(tmp_path, policy.decoder, params, (256, 258))
    policy.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def build(folder, **options):
    return Pretrained(path=str(folder), **options).build(Mesh(dp=1), jax.random.key(0))


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_policy_comes_back_whole(folder, policy, params):
    read, read_params = build(folder)
    assert read.decoder == policy.decoder
    assert read.end_ids == (256, 258)
    assert read.pad_id == policy.pad_id
    jax.tree.map(np.testing.assert_array_equal, read_params, params)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("config.json", {"bos_token_id": 257}),
        ("config.json", {"bos_token_id": None}),  # else a class of transformers has its own
        ("config.json", {"unk_token_id": 3, "sep_token_id": 4, "use_cache": False}),
        ("config.json", {"initializer_range": 0.01, "attention_dropout": 0.1}),
        ("config.json", {"use_sliding_window": False, "max_window_layers": 2}),
        ("generation_config.json", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ("generation_config.json", {"repetition_penalty": 1.05, "bos_token_id": 257}),
        ("generation_config.json", {"do_sample": False}),
        ("generation_config.json", {"max_new_tokens": 99, "min_p": 0.1}),
        ("generation_config.json", {"stop_strings": ["User:"], "suppress_tokens": [7]}),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_an_export_keeps_what_rl4p_does_not_decide(folder, tmp_path, name, keys, rank):
    edit(folder / name, lambda content: content.update(keys))
    out = tmp_path / "out"
    write_policy(out, *build(folder, lora=LoRA(rank=rank)))
    written = json.loads((out / name).read_text())
    assert {key: written[key] for key in keys} == keys
    again = tmp_path / "again"  # and so does an export of the export
    write_policy(again, *build(out))
    assert (again / name).read_text() == (out / name).read_text()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("config.json", "torch_dtype", "float16"),
        ("config.json", "auto_map", {"AutoModel": "modeling.Model"}),  # the code is not exported
        ("config.json", "transformers_version", "4.40.0"),
        ("generation_config.json", "_from_model_config", True),
        ("generation_config.json", "transformers_version", "4.40.0"),
    ],
)
def test_an_export_leaves_out_what_is_no_longer_so(folder, tmp_path, name, key, value):
    edit(folder / name, lambda content: content.update({key: value}))
    write_policy(tmp_path / "out", *build(folder))
    assert key not in json.loads((tmp_path / "out" / name).read_text())


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_the_special_tokens_of_an_export_are_those_of_the_policy(folder, tmp_path, name):
    """The end tokens of the tokenizer and of the files are one set, and the pad token is its."""
    edit(folder / name, lambda content: content.update(pad_token_id=3))
    policy, params = build(folder)
    write_policy(tmp_path / "out", policy, params)
    written = json.loads((tmp_path / "out" / name).read_text())
    assert written["pad_token_id"] == policy.pad_id
    assert written["eos_token_id"] in (policy.end_ids[0], list(policy.end_ids))


@pytest.mark.parametrize("layers", [{"remat": "layer"}, {"remat": "none", "unroll": True}])
def test_dtypes_and_how_layers_run_are_options(folder, layers):
    options = {"dtype": "bfloat16"} | layers
    policy, params = build(folder, param_dtype="bfloat16", **options)
    assert {name: getattr(policy.decoder, name) for name in options} == options
    assert {str(x.dtype) for x in jax.tree.leaves(params)} == {"bfloat16"}


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_decoder_knows_the_platform_of_its_mesh(folder, monkeypatch, platform):
    monkeypatch.setattr(Mesh, "platform", platform)
    mesh = Mesh(dp=1)
    assert (
        Pretrained(path=str(folder)).policy(model_files(str(folder)), mesh).decoder.platform
        == platform
    )
    assert Scratch().policy(mesh).decoder.platform == platform


def test_how_experts_are_reached_is_an_option(folder, monkeypatch):
    config = replace(pretrained.read_config(folder), experts=4, chosen_experts=2)
    monkeypatch.setattr(pretrained, "read_config", lambda _: config)
    for experts in ("dense", "grouped"):
        policy = Pretrained(path=str(folder), experts=experts).policy(
            model_files(str(folder)), Mesh(dp=1)
        )
        assert policy.decoder.experts == experts


def test_a_classifier_is_no_policy(folder):
    edit(
        folder / "config.json",
        lambda config: config.update(architectures=["Qwen2ForSequenceClassification"]),
    )
    with pytest.raises(InputError, match=r"is a sequence classifier, .* a reward .*, not as a pol"):
        build(folder)


@pytest.mark.parametrize(("param_dtype", "expected"), [(None, "bfloat16"), ("float32", "float32")])
def test_parameters_may_keep_the_dtype_of_the_files(folder, policy, params, param_dtype, expected):
    write_model(folder, policy.decoder, params, (256,), dtype="bfloat16")
    _, read = build(folder, param_dtype=param_dtype)
    assert {str(x.dtype) for x in jax.tree.leaves(read)} == {expected}
    rounded = jax.tree.map(lambda x: x.astype("bfloat16").astype(expected), params)
    jax.tree.map(np.testing.assert_array_equal, read, rounded)


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        (None, 256, (256,)),
        (None, [7, 8], (256, 7, 8)),
        (None, [258, 256], (256, 258)),
        (None, 0, (256, 0)),
        (None, None, (256,)),
        ({}, [7, 8, 7], (256, 7, 8)),
        ({"eos_token_id": None}, 9, (256, 9)),
        ({"eos_token_id": []}, 9, (256, 9)),
        ({"eos_token_id": 7}, 9, (256, 7)),
        ({"eos_token_id": [7, 256]}, [9, 10], (256, 7)),
        ({"eos_token_id": 0}, 256, (256, 0)),
        ({"eos_token_id": [7, 8, 7]}, None, (256, 7, 8)),
    ],
)
def test_end_tokens_of_the_tokenizer_and_of_the_configs(folder, generation, config, ends):
    """As in transformers, config.json counts only if generation_config.json names none."""
    path = folder / "generation_config.json"
    path.unlink() if generation is None else path.write_text(json.dumps(generation))
    edit(folder / "config.json", lambda content: content.update(eos_token_id=config))
    assert build(folder)[0].end_ids == ends


@pytest.mark.slow
def test_a_policy_stops_at_every_end_token(folder):
    """All 264 tokens but one are end tokens: a response ends at its first token or continues."""
    ends = sorted(set(range(264)) - {5})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    policy, params = build(folder)
    sampler = NaiveSampler(max_response_tokens=4)
    prompts = [
        Prompt(id="a", question="q", answer="1", task="t", tokens=(65,)),
        Prompt(id="b", question="q", answer="1", task="t", tokens=(66, 67)),
    ]
    key = jax.random.key(0)
    drawn, _ = sampler(policy, params, prompts, group_size=8, key=key, version=0)
    tokens, mask = np.asarray(drawn.tokens_BT), np.asarray(drawn.response_mask_BT)
    for row in range(16):
        response = tokens[row][mask[row]]
        assert set(response[:-1]) <= {5}
        assert (drawn.finish_B[row] == Finish.STOP) == (response[-1] != 5)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", r"generation_config\.json is not JSON"),
        ("[]", r"generation_config\.json is not a JSON object"),
        ('{"eos_token_id": "</s>"}', r"generation_config\.json: eos_token_id must be a token id"),
        ('{"eos_token_id": [1, -1]}', r"eos_token_id must be a token id .* not \[1, -1\]"),
        (
            '{"eos_token_id": 264}',
            r"eos_token_id in .* has token 264, but .* only 264",
        ),
    ],
)
def test_a_broken_generation_config_is_named(folder, content, sentence):
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(InputError, match=sentence):
        build(folder)


def test_a_folder_that_names_no_end_token_is_refused(folder):
    edit(folder / "tokenizer_config.json", lambda config: config.pop("eos_token"))
    assert build(folder)[0].end_ids == (256, 258)
    (folder / "generation_config.json").unlink()
    assert build(folder)[0].end_ids == (256,)
    edit(folder / "config.json", lambda config: config.pop("eos_token_id"))
    with pytest.raises(InputError, match=r"defines no end token: add eos_token .* or eos_token_id"):
        build(folder)


def test_without_a_pad_token_rows_are_filled_with_an_end_token(folder):
    edit(folder / "tokenizer_config.json", lambda config: config.pop("pad_token"))
    policy, _ = build(folder)
    assert policy.pad_id == 256
    assert policy.tokenizer.pad_token_id is None  # an export must not add one


def test_a_vocabulary_that_is_too_small_for_the_tokenizer_is_refused(folder):
    edit(folder / "config.json", lambda config: config.update(vocab_size=260))
    with pytest.raises(InputError, match=r"tokenizer in .* has token 260, but .* only 260 rows"):
        build(folder)


def test_a_template_has_arguments(folder):
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "{% if not enable_thinking %}-{% endif %}")
    assert build(folder, template={"enable_thinking": True})[0].template == {
        "enable_thinking": True
    }
    with pytest.raises(InputError, match=r"model\.template\.enable_thinkin .* mean .*_thinking\?"):
        build(folder, template={"enable_thinkin": True})


def test_a_template_with_a_date_keeps_the_date_of_the_policy(folder):
    path = folder / "chat_template.jinja"
    path.write_text("{{ strftime_now('%d %b %Y') }}" + path.read_text())
    policy = build(folder, date="2024-07-26")[0]
    text = policy.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert text.startswith("26 Jul 2024<|user|>x")
    assert policy.date == "2024-07-26"
    with pytest.raises(InputError, match=r"model\.template\.strftime_now is set by rl4p"):
        build(folder, template={"strftime_now": "today"})


def test_the_policy_that_comes_with_the_package_loads():
    policy, params = build("rl4p/tiny")
    assert policy.tokenizer.chat_template
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(params)))


def test_a_way_with_experts_is_refused_where_there_are_none():
    with pytest.raises(InputError, match=r"model\.experts=grouped is for a model with experts"):
        build("rl4p/tiny", experts="grouped")


@pytest.mark.parametrize("rank", [0, 2])
def test_adapters_name_the_base_that_others_find(folder, monkeypatch, rank):
    """An id on the hub stays as it is; a folder is written as its full path."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(folder))
    monkeypatch.chdir(folder.parent)
    for path, base in (("Qwen/Qwen2.5-0.5B@v1",) * 2, (folder.name, str(folder))):
        policy, trained = build(path, lora=LoRA(rank=rank))
        assert policy.base == (base if rank else "")
        assert bool(policy.frozen) is bool(rank)
        assert ("lora_a" in trained["layers"]["up"]) is bool(rank)


@pytest.mark.parametrize("param_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_abstract_parameters_are_those_that_are_built(folder, param_dtype, rank):
    options = {"param_dtype": param_dtype, "lora": LoRA(rank=rank)}
    policy, params = build(folder, **options)
    for path in folder.glob("*.safetensors"):
        path.unlink()  # weights must not be read
    thought, shapes = Pretrained(path=str(folder), **options).abstract(Mesh(dp=1))
    assert thought.decoder == policy.decoder
    for ours, theirs in ((shapes, params), (thought.frozen, policy.frozen)):
        assert jax.tree.map(lambda x: (x.shape, x.dtype), ours) == jax.tree.map(
            lambda x: (x.shape, x.dtype), theirs
        )


def test_a_kernel_that_the_devices_do_not_have_is_refused(folder):
    with pytest.raises(InputError, match=r"model\.attention=cudnn needs an NVIDIA GPU"):
        build(folder, attention="cudnn")


def test_a_mesh_that_does_not_divide_the_model_is_refused(folder, monkeypatch):
    monkeypatch.setattr(Mesh, "check_divides", lambda mesh, sizes: pytest.fail(str(sizes)))
    with pytest.raises(pytest.fail.Exception, match="'heads': 4"):
        build(folder)
