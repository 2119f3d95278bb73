"""A task set of verifiers, with a harness that talks to the policy in this process."""

import asyncio
import json
from urllib.request import Request, urlopen

import verifiers.v1 as vf

TURNS = 2


class Data(vf.TaskData):
    answer: int


class State(vf.State):
    wanted: str = ""


class Sums(vf.Task[Data, State, vf.TaskConfig]):
    async def setup(self, trace):
        trace.state.wanted = chr(ord("a") + self.data.answer % 26)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

    @vf.reward(weight=0.5)
    async def length(self, trace) -> float:
        return len(trace.last_reply) / 10

    @vf.reward(weight=2.0)
    async def letter(self, trace) -> float:
        if self.data.answer == 13:
            raise ValueError("an unlucky number")
        return float(trace.state.wanted in trace.last_reply)


class Config(vf.TasksetConfig):
    split: str = "train"
    size: int = 6


class SumsTaskset(vf.Taskset[Sums, Config]):
    def load(self):
        first = 100 if self.config.split == "test" else 0
        for i in range(first, first + self.config.size):
            yield Sums(Data(prompt=f"{i} + 1?", answer=i + 1), self.config.task)


def ask(url, key, messages):
    """Returns the message that answers a conversation."""
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urlopen(Request(f"{url}/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]


class Talks(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt}]
        for turn in range(TURNS):
            messages.append(await asyncio.to_thread(ask, endpoint, secret, messages))
            messages.append({"role": "user", "content": f"turn {turn}"})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["SumsTaskset", "Talks"]
