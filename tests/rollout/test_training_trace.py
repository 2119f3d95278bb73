"""Tests rows as traces of turns."""

import json

import numpy as np

from rl4p.rollout.recorder import FinishedEpisode, rows_on_host
from rl4p.rollout.training_trace import training_traces
from tests.support.episodes import segment


def test_each_turn_has_what_was_read_and_chosen(policy, make_prompt):
    one = [segment([1, 2], (3,), [4, 5], (6, 7), [8]), segment([1, 9], (4,))]
    episodes = [
        FinishedEpisode(prompt=make_prompt(), segments=segments)
        for segments in (one, [segment([1, 2])])
    ]
    trajectories, _ = rows_on_host(policy, episodes, 2, 16)
    traces = training_traces(policy.mesh.shard_rows(trajectories))
    assert json.loads(json.dumps(traces)) == traces
    assert [(x["prompt_token_ids"], x["completion_token_ids"]) for x in traces[0]] == [
        ([1, 2], [3]),
        ([1, 2, 3, 4, 5], [6, 7]),
        ([1, 9], [4]),
    ]
    for turn in traces[0]:
        count = len(turn["completion_token_ids"])
        assert turn["loss_mask"] == [1] * count
        np.testing.assert_array_equal(turn["per_token_logps"], [-1.0] * count)
    assert traces[1] == []
