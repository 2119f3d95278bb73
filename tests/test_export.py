"""Tests `python -m rl4p.export`: other libraries read its folder, or one sentence says why not."""

import json

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from rl4p.configuration import compose
from rl4p.distributed.mesh import Mesh
from rl4p.export import main
from rl4p.model import huggingface
from rl4p.model.pretrained import Pretrained
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax

SMALL = (
    "model=scratch", "model.width=32", "model.layers=2", "model.heads=2", "data.train_size=20",
    "data.held_out_size=4", "prompts_per_step=4", "group_size=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns the folder of a run with a checkpoint of step 7, as `rl4p.train` writes it."""
    folder = tmp_path_factory.mktemp("run")
    config = compose(SMALL)
    (folder / ".hydra").mkdir()
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    experiment = build(config)
    state = experiment.state
    params = jax.tree.map(lambda x: x + jax.random.normal(state.key, x.shape), state.params)
    changed = {"step": np.int32(7), "params": params}
    with Orbax().open(folder, experiment.loop.stateful) as checkpoints:
        checkpoints.save(type(state)(**(vars(state) | changed)))
    return folder, experiment.loop.policy, params


@pytest.fixture
def run(made):
    return made[0]


def load(out, **options):
    return Pretrained(path=str(out), **options).build(Mesh(dp=1), jax.random.key(0))


def assert_equal(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), ours, theirs)


def test_what_is_exported_is_read_bit_for_bit(made, tmp_path, capsys):
    run, policy, params = made
    out = tmp_path / "new" / "out"
    assert main([f"run={run}", f"out={out}"]) == 0
    assert capsys.readouterr().out == f"{out} holds the policy of {run} after step 7.\n"
    read, read_params = load(out, param_dtype=None)
    assert_equal(read_params, params)
    assert (read.decoder, read.end_ids, read.pad_id) == (
        policy.decoder,
        policy.end_ids,
        policy.pad_id,
    )
    assert read.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert read.tokenizer.chat_template == policy.tokenizer.chat_template
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_the_files_can_be_of_another_dtype(made, tmp_path):
    run, _, params = made
    assert main([f"run={run}", f"out={tmp_path / 'out'}", "dtype=bfloat16"]) == 0
    assert_equal(
        load(tmp_path / "out", param_dtype=None)[1],
        jax.tree.map(lambda x: x.astype("bfloat16"), params),
    )
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_large_policy_is_divided(made, tmp_path):
    _, policy, params = made
    huggingface.write_policy(tmp_path / "out", policy, params, shard_bytes=20_000)
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert_equal(load(tmp_path / "out")[1], params)
    assert huggingface.SHARD_BYTES == 5 * 10**9


def test_nothing_of_the_run_but_its_model_is_needed(run, tmp_path):
    """Without data, tracker and optimizer a run can be exported on another machine."""
    copy = tmp_path / "run"
    (copy / ".hydra").mkdir(parents=True)
    (copy / "checkpoints").symlink_to(run / "checkpoints")
    config = OmegaConf.load(run / ".hydra" / "config.yaml")
    kept = {name: config[name] for name in ("model", "mesh", "seed")}
    OmegaConf.save(OmegaConf.create(kept), copy / ".hydra" / "config.yaml")
    assert main([f"run={copy}", f"out={tmp_path / 'out'}"]) == 0


def test_a_run_folder_cannot_say_what_is_trusted(run, tmp_path, capsys):
    copy = tmp_path / "run"
    (copy / ".hydra").mkdir(parents=True)
    config = OmegaConf.load(run / ".hydra" / "config.yaml")
    config.model = {"_target_": "shutil.rmtree", "path": str(tmp_path)}
    config.trusted_targets = ["shutil"]
    OmegaConf.save(config, copy / ".hydra" / "config.yaml")
    assert main([f"run={copy}", f"out={tmp_path / 'out'}"]) == 2
    assert "model._target_=shutil.rmtree is not trusted" in capsys.readouterr().err
    assert copy.is_dir()


@pytest.mark.slow
def test_adapters_are_merged_or_written_alone(run, tmp_path, capsys):
    lora_run = tmp_path / "run"
    config = compose(("model.lora.rank=1", "data.train_size=20", "data.held_out_size=4"))
    (lora_run / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, lora_run / ".hydra" / "config.yaml")
    experiment = build(config)
    assert "0.01M parameters and 0.35M frozen (1.5% trained)" in experiment.sizes
    with Orbax().open(lora_run, experiment.loop.stateful) as checkpoints:
        checkpoints.save(experiment.state)
    assert main([f"run={lora_run}", f"out={tmp_path / 'alone'}", "adapter=true"]) == 0
    assert "holds the adapter of" in capsys.readouterr().out
    assert (tmp_path / "alone" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "alone" / "model.safetensors").exists()
    assert main([f"run={lora_run}", f"out={tmp_path / 'merged'}"]) == 0
    assert_equal(load(tmp_path / "merged")[1], experiment.loop.policy.frozen)  # B is still 0
    assert main([f"run={run}", f"out={tmp_path / 'none'}", "adapter=true"]) == 2
    assert "has no adapter, as it trained all parameters" in capsys.readouterr().err


@pytest.mark.slow
def test_a_critic_beside_the_policy_is_left_behind(tmp_path):
    config = compose((*SMALL, "advantage=gae", "critic=separate"))
    run = tmp_path / "run"
    (run / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, run / ".hydra" / "config.yaml")
    experiment = build(config)
    with Orbax().open(run, experiment.loop.stateful) as checkpoints:
        checkpoints.save(experiment.state)
    assert main([f"run={run}", f"out={tmp_path / 'out'}"]) == 0
    policy = {name: x for name, x in experiment.state.params.items() if name != "critic"}
    assert policy.keys() < experiment.state.params.keys()
    assert_equal(load(tmp_path / "out")[1], policy)


@pytest.mark.slow
def test_an_older_checkpoint_and_the_moving_average_can_be_had(tmp_path, capsys):
    """A run with an average has two checkpoints with different parameters."""
    config = compose((*SMALL, "ema.decay=0.5"))
    run = tmp_path / "run"
    (run / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, run / ".hydra" / "config.yaml")
    experiment = build(config)
    state, saved = experiment.state, {}
    with Orbax().open(run, experiment.loop.stateful) as checkpoints:
        for step in (3, 5):
            params = jax.tree.map(lambda x, n=step: x + n, state.params)
            average = jax.tree.map(lambda x, n=step: x - n, state.params)
            saved[step] = params, average
            changed = {"step": np.int32(step), "params": params, "average": average}
            checkpoints.save(type(state)(**(vars(state) | changed)))

    def exported(*words):
        out = tmp_path / "-".join(("out", *words))
        assert main([f"run={run}", f"out={out}", *words]) == 0
        return load(out)[1]

    assert_equal(exported(), saved[5][0])
    assert_equal(exported("step=3"), saved[3][0])
    assert_equal(exported("average=true"), saved[5][1])
    assert_equal(exported("step=3", "average=true"), saved[3][1])
    assert "holds the averaged policy of" in capsys.readouterr().out
    assert main([f"run={run}", f"out={tmp_path / 'no'}", "step=4"]) == 2
    assert (
        "has no checkpoint of step 4; it has checkpoints of steps 3, 5 (" in capsys.readouterr().err
    )


def test_an_average_that_was_not_kept_is_refused(run, tmp_path, capsys):
    assert main([f"run={run}", f"out={tmp_path / 'out'}", "average=true"]) == 2
    assert "has no moving average, because its ema.decay was 0." in capsys.readouterr().err


def test_a_write_that_fails_leaves_nothing(run, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface, "write_tensors", full)
    assert main([f"run={run}", f"out={tmp_path / 'out'}"]) == 1
    assert "could not be written: [Errno 28] No space left" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_is_filled_and_another_is_not(run, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    assert main([f"run={run}", f"out={out}"]) == 0
    before = sorted(out.iterdir())
    assert main([f"run={run}", f"out={out}"]) == 2
    assert capsys.readouterr().err == f"out={out} is not empty.\n"
    assert sorted(out.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Give run=FOLDER and out=PATH: rl4p.export needs them"),
        (["run=a"], "Give run=FOLDER and out=PATH: rl4p.export needs them; see --help."),
        (["run=a", "out=b", "step=last"], "step must be a valid integer, not 'last'."),
        (["run=a", "out=b", "average=1"], "average must be a valid boolean, not 1."),
        (["run=a", "out="], "out= has no value."),
        (["resume=a", "out=b"], "resume is not a word of rl4p.export: write run=a"),
        (
            ["run=a", "out=b", "adapter=yes"],
            "adapter must be a valid boolean, not 'yes'",
        ),
        (
            ["run=a", "out=b", "dtype=int8"],
            "dtype must be 'float32', 'bfloat16' or 'float16'",
        ),
        (["run=/nowhere", "out=b"], "run=/nowhere is not the folder of a run"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments, sentence, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(sentence)
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", ["[", "[]", "{}", "a: 1", "seed: 0"])
def test_a_broken_configuration_is_named(tmp_path, content, capsys):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(content)
    assert main([f"run={tmp_path}", f"out={tmp_path / 'out'}"]) == 2
    assert "config.yaml is absent or broken." in capsys.readouterr().err


@pytest.mark.parametrize("empty", [True, False])
def test_a_run_without_a_checkpoint_is_refused(run, tmp_path, empty, capsys):
    (tmp_path / ".hydra").symlink_to(run / ".hydra")
    if empty:
        (tmp_path / "checkpoints").mkdir()
    assert main([f"run={tmp_path}", f"out={tmp_path / 'out'}"]) == 2
    assert "checkpoints has no finished checkpoint." in capsys.readouterr().err


def test_a_checkpoint_of_another_model_is_refused(run, tmp_path, capsys):
    (tmp_path / "checkpoints").symlink_to(run / "checkpoints")
    (tmp_path / ".hydra").mkdir()
    config = OmegaConf.load(run / ".hydra" / "config.yaml")
    config.model.width = 64
    OmegaConf.save(config, tmp_path / ".hydra" / "config.yaml")
    assert main([f"run={tmp_path}", f"out={tmp_path / 'out'}"]) == 2
    assert "embedding is ((264, 32), 'float32') in it" in capsys.readouterr().err


@pytest.mark.quick(1)
@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_says_the_keys(word, capsys):
    assert main([word]) == 0
    assert "run=FOLDER out=FOLDER" in capsys.readouterr().out
