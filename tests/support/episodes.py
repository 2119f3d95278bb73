"""Conversations of agents in a small environment."""

import numpy as np

from rl4p.base.types import Finish, Microbatching, Sampling
from rl4p.engine.serving.agent_server import AgentServer
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.protocols.engine import Completion
from rl4p.rollout.agent import Agent
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.environment import Environment
from rl4p.rollout.environments.gymnasium import Gymnasium
from rl4p.rollout.recorder import Segment
from tests.support.worlds import Duel

# The tokens of the bytes C0, C1 and F5 to FF, which are in no UTF-8 text: each is decoded to one
# U+FFFD, whatever is before it.
ENDS = (124, 125, *range(177, 188))
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{{ '\ufffd' if message['role'] == 'assistant' else '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

CALLS = TEMPLATE.replace(
    "{% for message in messages %}",
    "{% if tools %}{{ tools[0]['function']['name'] }}{% endif %}{% for message in messages %}",
).replace(
    "message['content'] }}{{",
    "message['content'] }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments|tojson }}{% endfor %}{{",
)

R = 160


def rollout(agent, **options):
    return Agent(
        engine=Continuous(max_response_tokens=R, temperature=1.0),
        agent=agent,
        server=AgentServer(),
        **{"max_response_tokens": R, "max_call_tokens": 10} | options,
    )


def duel(factory=Duel, roles=("a", "b"), engine=Continuous, **options):
    """Returns a rollout of a game of two roles."""
    return Environment(
        engine=engine(max_response_tokens=R, temperature=1.0),
        environment=Gymnasium(factory=factory, roles=roles),
        **{"max_response_tokens": R, "max_turn_tokens": 12} | options,
    )


def completion(*tokens):
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.full(len(tokens), -1.0, np.float32),
        versions=np.zeros(len(tokens), np.int32),
        finish=Finish.STOP,
    )


def segment(*parts):
    """Returns a segment of parts: lists are read, tuples are chosen."""
    made = Segment()
    for part in parts:
        made.choose(completion(*part)) if isinstance(part, tuple) else made.read(part)
    return made


REWRITES = TEMPLATE.replace(
    "message['content'] }}",
    "(message['content'] if loop.last or message['role'] != 'assistant' else 'cut') }}",
)


def words(trajectories, row):
    """Returns the tokens of each segment of a row, and which of them the policy chose."""
    tokens, mask, segments = (
        np.asarray(getattr(trajectories, name))[row]
        for name in ("tokens_BT", "response_mask_BT", "segment_ids_BT")
    )
    return [
        (tokens[segments == number].tolist(), mask[segments == number].tolist())
        for number in range(1, segments.max() + 1)
    ]


def logprobs_of(policy, params, trajectories):
    options = ScoreOptions(
        decoder=policy.decoder,
        sampling=Sampling(),
        microbatching=Microbatching(tokens=4096),
        mesh=policy.mesh,
    )
    return np.asarray(score_tokens(options, params, trajectories)["logprobs"])


def recorded(trajectories, requests):
    """Returns the context and the tokens of each trained part of the rows.

    Asserts that the policy drew exactly these tokens after exactly this context.

    Args:
      requests: the context of each request to the policy, and what it drew.
    """
    read = {(tuple(context), tuple(drawn)) for context, drawn in requests}
    parts = []
    for row in range(len(np.asarray(trajectories.finish_B))):
        for tokens, mask in words(trajectories, row):
            starts = [i for i, on in enumerate(mask) if on and not mask[i - 1]]
            for start in starts:
                end = mask.index(False, start) if False in mask[start:] else len(mask)
                parts.append((tuple(tokens[:start]), tuple(tokens[start:end])))
                assert parts[-1] in read
    return parts
