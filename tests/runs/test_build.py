"""Tests that parts which do not fit one another are refused with the key of one of them."""

import json

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.runs.build import build
from tests.support.build_words import SMALL

TRUNCATE = "+transform@transforms.a=truncate"
DROP = "+transform@transforms.a=drop +filter@transforms.a.filters.b=deviation"


def refusal(*overrides: str, small: tuple[str, ...] = SMALL) -> str:
    with pytest.raises(InputError) as caught:
        build(compose([*small, *overrides]))
    return str(caught.value)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("max_prompt_tokens=3", "max_prompt_tokens=3 is too small: the shortest"),
        ("max_response_tokens=5000", "is more than the 2048 positions of the model"),
        ("update.minibatches=3", "update.minibatches=3 does not divide the 8 sequences"),
        ("+model@teacher=pretrained teacher.path=/nowhere", "does not use a teacher: choose adv"),
        ("advantage=constant update=gkd", "update=gkd needs a teacher: add +model@teacher="),
        ("update.aggregation=constant", "aggregation=constant divides by a length in tokens"),
        ("update.aggregation_length=9", "aggregation_length=9 works only with aggregation=consta"),
        ("mesh.dp=64", "mesh.dp=64 mesh.fsdp=host needs 64 devices"),
        (f"{TRUNCATE} transforms.a.most=40", "most=40 has no effect, because no response"),
        ("+transform@transforms.a=gfpo transforms.a.keep=2", "keep=2 drops none of group_size=2"),
        (f"{TRUNCATE} transforms.a.most=39", None),
        (
            "+transform@transforms.a=relabel advantage=gdpo",
            "gdpo does not use the total reward,",
        ),
        (f"{DROP} group_size=1 advantage=reinforce", "transforms.a.filters.b compares the samples"),
        ("data.digits=1", None),
        ("data.train_size=99999999", "but only 810000 sums of 3-digit numbers exist"),
        ("model.heads=3", "width 32 must be a multiple of heads 3"),
    ],
)
def test_what_does_not_fit_is_named(override, sentence):
    if sentence is None:
        build(compose([*SMALL, *override.split()]))
    else:
        assert sentence in refusal(*override.split())


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        ("", "has no rows"),
        ('{"question": "1+1?", "answer": "2"}\nno json\n', "line 2: not JSON"),
        ('{"question": "1+1?"}\n', 'line 1: no text under "answer"'),
        ('{"answer": "2"}\n', 'line 1: no text under "question"'),
        ("[1]\n", "line 1: a JSON object is expected, not list"),
        (b'{"question": "\xff"}\n', "line 1: not UTF-8"),
    ],
)
def test_a_data_file_is_refused_with_its_line(tmp_path, content, sentence):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    small = ("model=scratch", "model.width=32", "model.heads=2", "data=gsm8k")
    assert sentence in refusal(f"data.path={path}", small=small)


@pytest.mark.slow
def test_an_evaluation_may_have_a_sampler_of_its_own():
    run = build(compose([*SMALL, "+rollout@evaluation.rollout=naive_sampler"]))
    assert isinstance(run.evaluation.phases.rollout, NaiveSampler)
    assert isinstance(run.loop.phases.rollout, Continuous)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("overrides", "of_average"),
    [((), False), (("ema.decay=0.5",), True), (("ema.decay=0.5", "ema.use_for_eval=false"), False)],
)
def test_the_average_is_evaluated_where_there_is_one_unless_told(overrides, of_average):
    assert build(compose([*SMALL, *overrides])).evaluation.of_average is of_average


@pytest.mark.slow
def test_a_sequence_may_be_as_long_as_the_model_has_positions():
    words = [*SMALL, "model.max_positions=64", "max_prompt_tokens=24"]
    build(compose([*words, "max_response_tokens=40"]))
    assert "= 65 is more than the 64 positions" in refusal(*words, "max_response_tokens=41")


@pytest.mark.slow
def test_minibatches_may_not_divide_groups_that_stay_together():
    """Four groups of two rows: eight minibatches of one row each would split them."""
    words = (*SMALL, "update.minibatches=8")
    build(compose(words))
    assert "does not divide the 8 sequences of a step into equal parts of whole groups" in refusal(
        *words, "update=dpo", small=()
    )


@pytest.mark.slow
def test_a_system_prompt_stands_before_every_question(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("model=scratch", "model.width=32", "model.heads=2", "max_prompt_tokens=128")
    data = ("data=gsm8k", "data.held_out_size=2", f"data.path={path}", "data.system_prompt=Think.")
    experiment = build(compose([*words, *data]))
    tokenizer = experiment.loop.policy.tokenizer
    texts = [tokenizer.decode(prompt.tokens) for prompt in experiment.loop.source.prompts]
    assert all(text.startswith("<|system|>Think.<|end|><|user|>") for text in texts)
    assert all(text.endswith("+1?<|end|><|assistant|>") for text in texts)


INCOMPLETE = """
from types import SimpleNamespace

from rl4p.learner.kl import Fixed


class Nothing:
    pass


class Remembering(Fixed):
    def initial_state(self):
        return {}


class WithoutFind:
    def open(self, prompts, *, seed):
        methods = ("take", "credit", "state", "restore")
        return SimpleNamespace(**dict.fromkeys(methods, print))


class WithoutRestore:
    def open(self, *parts, **sizes):
        return SimpleNamespace(collect=print, state=print, close=print)
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("key", "name", "sentence"),
    [
        ("source", "Nothing", "incomplete.Nothing has no method open, but"),
        ("source", "WithoutFind", "has no method find, but rl4p.protocols.collection.OpenSource"),
        ("collector", "Nothing", "has no method open, but rl4p.protocols.collection.Collector"),
        ("collector", "WithoutRestore", "has no method restore, but"),
        ("correction", "Nothing", "has no method __call__, but rl4p.protocols.phases.Correction"),
        ("kl", "Nothing", "has no attribute active, but rl4p.protocols.phases.KL requires it"),
        ("kl", "Remembering", "has no method next_state, but rl4p.protocols.phases.Adapts"),
        ("+hooks.mine", "Nothing", "has no attribute every, but rl4p.protocols.hook.Hook"),
        ("+scores.mine", "Nothing", "has no method __call__, but rl4p.protocols.phases.UserScore"),
    ],
)
def test_a_part_that_lacks_a_member_is_refused(tmp_path, monkeypatch, key, name, sentence):
    (tmp_path / "incomplete.py").write_text(INCOMPLETE)
    monkeypatch.syspath_prepend(tmp_path)
    message = refusal(f"{key}._target_=incomplete.{name}", "trusted_targets=[incomplete]")
    assert message.startswith(f"{key.strip('+')}: the class ")
    assert sentence in message


def test_an_adapter_is_refused_before_data_are_read(tmp_path):
    adapter, data = tmp_path / "adapter", tmp_path / "array.json"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    data.write_text("[\n")
    words = ("model=pretrained", f"model.path={adapter}", "data=jsonl", f"data.path={data}")
    assert "has an adapter" in refusal(*words, small=())
