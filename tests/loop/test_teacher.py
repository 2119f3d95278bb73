"""Tests the policy as its own teacher, against logits in float64, and teachers behind servers."""

import copy
import json
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Rewards
from rl4p.configuration import compose, instantiate
from rl4p.loop.loop import train
from rl4p.loop.teacher import OwnTeacher, ServedTeacher
from rl4p.model.exact_sums import OTHER_DIGITS
from rl4p.model.huggingface import write_policy
from rl4p.protocols.collection import Collected
from rl4p.runs.build import build
from rl4p.tools.planning.abstract import abstract_run
from rl4p.tools.planning.programs import scoring
from tests.support.remote_doubles import SGLangDouble, VLLMDouble
from tests.support.scored_rows import expected_scores, rows
from tests.support.serve_process import server

RUN = (
    *("model=scratch", "model.layers=1", "model.heads=2", "model.num_kv_heads=1"),
    *("model.feed_forward_width=32", "model.width=16", "mesh=single", "tracker=none"),
    *("data.train_size=64", "data.held_out_size=4", "max_response_tokens=8"),
    *("prompts_per_step=4", "group_size=2", "evaluation.every=0", "rollout.temperature=0.7"),
    *("advantage=distill", "update=reinforce", "+teacher=own_teacher"),
)
PROMPT = r'teacher.prompt="{question} (the answer is {answer})"'


@pytest.fixture(scope="module")
def scored():
    """A run, rows of two prompts, and their scores under weights that have changed since."""
    experiment = build(compose([*RUN, PROMPT, "steps=2"]))
    loop, state = experiment.loop, experiment.state
    prompts = experiment.prompts[:2]
    options = {"group_size": 2, "key": jax.random.key(1), "version": 0}
    trajectories, episodes = loop.phases.rollout(loop.policy, state.params, prompts, **options)
    rewards = Rewards(total_B=np.zeros(4), terms={}, valid_B=np.ones(4, bool))
    collected = Collected(
        trajectories=trajectories, episodes=episodes, rewards=rewards, memory={}, metrics={}
    )
    scores = loop.scoring(loop.phases, loop.policy, state, collected)
    return experiment, prompts, jax.device_get(trajectories), scores["teacher_logprobs"]


@pytest.mark.slow
def test_the_scores_are_those_of_the_response_behind_the_context(scored, numpy_logits):
    experiment, prompts, t, scores_BT = scored
    policy, params = experiment.loop.policy, jax.device_get(experiment.state.params)
    mask_BT, vocabulary = t.response_mask_BT, policy.decoder.config.vocabulary
    assert mask_BT.sum() > 8
    for row in range(4):
        prompt = prompts[row // 2]
        plain = policy.tokenizer.decode(prompt.tokens)
        shown = plain.replace(prompt.question, f"{prompt.question} (the answer is {prompt.answer})")
        assert shown != plain
        before = policy.tokenizer(shown, add_special_tokens=False)["input_ids"]
        response = t.tokens_BT[row, mask_BT[row]]
        logits = numpy_logits(policy.decoder.config, params, np.array([*before, *response]))
        scaled = logits[len(before) - 1 : -1, :vocabulary] / 0.7
        logprobs = scaled - np.log(np.sum(np.exp(scaled), axis=1, keepdims=True))
        expected = logprobs[np.arange(len(response)), response]
        np.testing.assert_allclose(np.asarray(scores_BT)[row, mask_BT[row]], expected, atol=2e-6)
        assert np.abs(expected - t.behaviour_logprobs_BT[row, mask_BT[row]]).max() > 1e-3
    assert not np.asarray(scores_BT)[~mask_BT].any()


def test_what_was_recorded_with_a_response_stands_behind_the_context(scored):
    experiment, prompts, t, _ = scored
    policy, mask_BT = experiment.loop.policy, t.response_mask_BT
    numbers_BTA = np.arange(3 * mask_BT.size, dtype=np.int32).reshape(*mask_BT.shape, 3)
    recorded = replace(t, alternatives_BTA=numbers_BTA, alternative_logprobs_BTA=-1.0 * numbers_BTA)
    episodes = [SimpleNamespace(prompt=each) for each in prompts for _ in range(2)]
    rows = jax.device_get(experiment.loop.scoring.other_teacher.rows(policy, recorded, episodes))
    assert rows.alternatives_BTA.shape[:2] == rows.tokens_BT.shape != mask_BT.shape
    kept_BT = rows.response_mask_BT
    np.testing.assert_array_equal(rows.alternatives_BTA[kept_BT], numbers_BTA[mask_BT])
    np.testing.assert_array_equal(rows.alternative_logprobs_BTA[kept_BT], -numbers_BTA[mask_BT])


@pytest.mark.slow
@pytest.mark.mixed_dtypes  # of optax
@pytest.mark.parametrize(
    "words",
    [
        ("teacher.weights=start",),
        pytest.param(("teacher.weights=average", "ema.decay=0.5"), marks=pytest.mark.slow),
    ],
)
def test_a_run_with_former_weights(words):
    experiment = build(compose([*RUN, PROMPT, *words, "steps=2"]))
    metrics = [info.metrics for info in train(experiment.loop, experiment.state)]
    assert all(x["update/grad_norm"] > 1e-4 for x in metrics)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("teacher.prompt='{question}'",), "shows the teacher nothing that the policy does not"),
        ((PROMPT, "teacher.weights=average"), r"needs a moving average: set ema\.decay"),
        ((PROMPT, "advantage=constant", "update=gkd"), "choose advantage=distill"),
        ((PROMPT, "teacher.weights=start", "reference.reset_every=5"), "replace: leave them out"),
        ((PROMPT, "advantage=grpo"), "advantage=grpo does not use a teacher"),
    ],
)
def test_what_cannot_act_is_refused(words, sentence):
    with pytest.raises(InputError, match=sentence):
        build(compose([*RUN, *words]))


@pytest.mark.parametrize("field", ["hint", "solution"])
def test_a_field_that_a_row_lacks_is_named(scored, field):
    experiment, prompts, *_ = scored
    teacher = OwnTeacher(prompt=f"{{question}} {{{field}}}")
    with pytest.raises(InputError, match=rf"the field \{{{field}\}}, which the row .* lacks"):
        teacher.tokens(experiment.loop.policy, replace(prompts[0], solution=None))


# A teacher behind servers.

STUDENT = (*(x for x in RUN if x not in ("rollout.temperature=0.7", "+teacher=own_teacher")),)
SERVED = "+teacher=served_teacher"


@pytest.fixture(scope="module")
def folder(policy, params, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "model"
    write_policy(folder, policy, params)
    return folder


@pytest.fixture(scope="module")
def address(folder):
    """The address of rl4p.serve with the weights of `params`, whose sums are exact."""
    if jax.__version_info__ >= OTHER_DIGITS:
        pytest.skip("model.exact is refused with this jax")
    words = "model=pretrained", f"model.path={folder}", "model.exact=true", "name=t"
    with server(*words) as served:
        yield served.url


def trained(*words):
    """Returns the metrics of a run without its times, and its parameters."""
    experiment = build(compose([*STUDENT, *words, "steps=2"]))
    with closing(experiment.loop.scoring):
        infos = list(train(experiment.loop, experiment.state))
    kept = "reward/", "advantage/", "update/"
    metrics = [{k: v for k, v in x.metrics.items() if k.startswith(kept)} for x in infos]
    return metrics, jax.device_get(infos[-1].state.params)


@pytest.mark.mixed_dtypes  # of optax
@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_a_run_has_every_digit_of_one_with_a_local_teacher(address, folder, protocol):
    local = "+model@teacher=pretrained", f"teacher.path={folder}", "teacher.exact=true"
    expected, expected_params = trained(*local)
    found, found_params = trained(
        SERVED, f"teacher.servers=[{address}]", f"teacher.protocol={protocol}"
    )
    assert expected[0]["update/grad_norm"] > 1e-4
    assert found == expected
    jax.tree.map(np.testing.assert_array_equal, found_params, expected_params)


@contextmanager
def opened(policy, *servers, longest=64, **options):
    """Yields a teacher whose servers have been checked."""
    options = {"patience": 20.0, "timeout_seconds": 20.0, "health_seconds": 0.2} | options
    teacher = ServedTeacher(servers=servers, **options)
    with closing(teacher):
        teacher.open(policy, longest)
        yield teacher


@pytest.mark.parametrize("protocol", ["vllm", "sglang"])
def test_each_sequence_of_a_row_is_scored_by_itself(address, policy, params, protocol):
    trajectories = rows(policy, [(5, 9), (12, 4), (4, 4)])
    expected_BT = expected_scores(policy, params, trajectories)
    with opened(policy, address, protocol=protocol) as teacher:
        found_BT = np.asarray(teacher.logprobs(policy, trajectories))
    assert np.count_nonzero(expected_BT) == 18
    np.testing.assert_allclose(found_BT, expected_BT, atol=2e-6, rtol=0)
    np.testing.assert_array_equal(found_BT == 0, expected_BT == 0)


class Slow(VLLMDouble):
    """Counts the scores that it computes at a time."""

    now, most = 0, 0

    def complete(self, body, fault):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.1)
        with self.lock:
            self.now -= 1
        return super().complete(body, fault)


def test_requests_run_at_a_time_and_failed_ones_again(policy, params):
    trajectories = rows(policy, [(5, 9), (12, 4), (4, 4)])
    expected_BT = expected_scores(policy, params, trajectories)
    with closing(Slow(policy, params)) as double:
        with opened(policy, double.url, concurrency=4) as teacher:
            teacher.logprobs(policy, trajectories)
            assert double.most == 4
            faults = iter(["500", None, "500"])
            double.fault = lambda path: next(faults, None) if path == "/v1/completions" else None
            double.asked.clear()
            found_BT = np.asarray(teacher.logprobs(policy, trajectories))
            assert double.asked.count("/v1/completions") == 6 + 2
        np.testing.assert_allclose(found_BT, expected_BT, atol=2e-5, rtol=0)
        with opened(policy, double.url, attempts=1) as teacher:
            double.fault = lambda path: "500" if path == "/v1/completions" else None
            message = r"has failed 1 times \(teacher.attempts\), the last time at .*: HTTP 500"
            with pytest.raises(RunError, match=message):
                teacher.logprobs(policy, trajectories)


class WithoutNumbers(VLLMDouble):
    def score(self, tokens):
        return [None, *[float("-inf")] * (len(tokens) - 1)]


def test_what_is_no_log_probability_is_refused(policy, params):
    with (
        closing(WithoutNumbers(policy, params)) as double,
        opened(policy, double.url, attempts=1) as teacher,
        pytest.raises(RunError, match="a token has no finite log-probability"),
    ):
        teacher.logprobs(policy, rows(policy, [(4, 4)]))


@pytest.mark.parametrize("double", [VLLMDouble, SGLangDouble])
def test_a_server_that_draws_a_token_needs_a_place_for_it(policy, params, double):
    protocol = "vllm" if double is VLLMDouble else "sglang"
    with closing(double(policy, params)) as served:
        served.context = 64
        with opened(policy, served.url, longest=63, protocol=protocol):
            pass
        message = r"its context has 64 tokens, but max_prompt_tokens \+ max_response_tokens \+ 1 = "
        with pytest.raises(RunError, match=message + "65"):
            open_once(policy, served.url, longest=64, protocol=protocol)


def open_once(policy, *servers, **options):
    with opened(policy, *servers, **options):
        pass


def other_tokenizer(policy):
    """Returns the policy with two tokens of its tokenizer exchanged."""
    state = json.loads(policy.tokenizer.backend_tokenizer.to_str())
    words = state["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(state))
    return replace(policy, tokenizer=tokenizer)


def larger(policy):
    config = policy.decoder.config
    config = replace(config, vocabulary=config.vocabulary + 1)
    return replace(policy, decoder=replace(policy.decoder, config=config))


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (other_tokenizer, {}, "it has another tokenizer than the policy"),
        (larger, {}, r"it does not score the policy's token \d+, the last one: HTTP 400"),
        (None, {"longest": 129}, r"has 128 tokens, but .* max_response_tokens = 129\)\."),
        (None, {"model": "m"}, "HTTP 404 at /v1/completions: .*'?m'?"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(address, policy, change, options, sentence):
    open_once(policy, address, longest=128)  # as long as the model of rl4p.serve
    start = rf"^No server of teacher.servers can be used: {address} \("
    with pytest.raises(RunError, match=f"{start}.*{sentence}"):
        open_once(change(policy) if change else policy, address, **options)


def test_a_server_that_cannot_be_reached(policy):
    message = (
        r"^No server of teacher.servers could be used for 0.2 seconds \(teacher.patience\): "
        r"http://127.0.0.1:9 \(it cannot be reached \(.*\)\)\.$"
    )
    with pytest.raises(RunError, match=message):
        open_once(policy, "http://127.0.0.1:9", patience=0.2)


NOWHERE = (SERVED, "teacher.servers=[http://127.0.0.1:9]")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("advantage=constant", "update=gkd"), "of given tokens, but the update compares distrib"),
        (("rollout.temperature=0.7",), "scores at temperature 1 over the whole vocabulary"),
        (("rollout.top_k=5",), "scores at temperature 1 over the whole vocabulary"),
        (
            ("+annealing@rollout.annealing=linear", "rollout.annealing.end=0.5"),
            "scores at temperature 1 over the whole",
        ),
        (("advantage=grpo",), "advantage=grpo does not use a teacher"),
        (("teacher.protocol=sglang", "teacher.model=m"), "model has no effect with protocol=sg"),
        (("teacher.servers=[]",), "servers is empty"),
        (
            ("rollout=vllm", "rollout.servers=[http://127.0.0.1:9/]"),
            "http://127.0.0.1:9, which has the policy's weights",
        ),
    ],
)
def test_what_servers_cannot_score_is_refused(words, sentence):
    with pytest.raises(InputError, match=sentence):
        build(compose([*STUDENT, *NOWHERE, *words]))


def test_a_plan_asks_no_server():
    config = compose([*STUDENT, *NOWHERE])
    run = abstract_run(config, instantiate(config.mesh))
    assert run.teacher is None
    assert list(scoring(run)) == []  # the programs
