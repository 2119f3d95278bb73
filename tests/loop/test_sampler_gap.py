import math
from types import SimpleNamespace

import pytest

from rl4p.base.errors import RunError
from rl4p.loop.sampler_gap import GAP, check_gap
from rl4p.rollout.naive_sampler import NaiveSampler

LIMITED = NaiveSampler(max_response_tokens=8, max_logprob_gap=0.05)


def episodes(*engines):
    return [SimpleNamespace(engine=engine) for engine in engines]


@pytest.mark.parametrize(
    ("rollout", "metrics"),
    [
        (LIMITED, {GAP: 0.05}),
        (LIMITED, {}),  # no token is of the weights of this step
        (NaiveSampler(max_response_tokens=8), {GAP: 9.0}),
        (SimpleNamespace(), {GAP: 9.0}),
    ],
)
def test_a_small_gap_and_one_without_a_limit_pass(rollout, metrics):
    check_gap(rollout, 3, metrics, episodes(""))


@pytest.mark.parametrize("gap", [0.06, math.inf, math.nan])
@pytest.mark.parametrize(
    ("engines", "who"),
    [
        (("", ""), r"The sampler \(NaiveSampler\) does not sample"),
        (("http://b:1", "http://b:1"), "http://b:1 does not sample"),
        (("http://b:1", "http://a:1"), "http://a:1 and http://b:1 do not sample"),
    ],
)
def test_a_large_gap_names_engines_and_version(gap, engines, who):
    with pytest.raises(
        RunError, match=rf"^{who} from the weights of step 3 \(version 3\): .* in step 4 .*gap=0.05"
    ):
        check_gap(LIMITED, 3, {GAP: gap}, episodes(*engines))
