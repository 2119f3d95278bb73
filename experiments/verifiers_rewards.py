"""Compares the rewards of `agent=verifiers` with those of verifiers' own evaluation.

    pip install verifiers uv
    python -m experiments.verifiers_rewards MODULE ...

Each module has a task set. Both ways play its first 100 tasks against a server whose answer depends
on the conversation alone, so that they get the same responses: a number, right or wrong, alone or
in words, or calls of a tool. A line has the numbers of tasks, of tasks that verifiers could not
grade, of different rewards, and of tasks whose reward, scores or metrics differ between the ways.
"""

import asyncio
import json
import re
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from itertools import islice
from threading import Thread
from typing import Any
from zlib import crc32

from rl4p.base.types import Prompt
from rl4p.protocols.environment import AgentEpisode
from rl4p.rollout.agents.verifiers import EpisodeError, Verifiers

TASKS = 100
Grades = tuple[float, dict[str, float]] | None  # the reward and the numbers; None for an error


def response_to(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the message that answers a conversation."""
    said = [(m["role"], m.get("content"), m.get("name")) for m in body["messages"]]
    draw = crc32(json.dumps(said).encode())
    asked = next(str(m["content"]) for m in body["messages"] if m["role"] == "user")
    total = sum(map(int, re.findall(r"\d+", asked)))
    calls = sum(message["role"] == "tool" for message in body["messages"])
    if body.get("tools") and calls < 4 and draw % 3:
        function = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
        call = {"id": f"call_{calls}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    texts = (f"{total}", f"{total}", f"{total + 1}", f" {total}.0\n", f"It is {total}.", "unknown")
    return {"role": "assistant", "content": texts[draw % len(texts)]}


class Handler(BaseHTTPRequestHandler):
    """The chat completions of OpenAI's API, whole and as a stream."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = response_to(body)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "c", "created": 0, "model": "m", "usage": usage}
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        if body.get("stream"):
            calls = [{"index": i, **x} for i, x in enumerate(message.get("tool_calls", ()))]
            delta = {**message, "tool_calls": calls} if calls else message
            event = {
                **head,
                "object": "chat.completion.chunk",
                "choices": [choice | {"delta": delta}],
            }
            kind, text = "text/event-stream", f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
        else:
            whole = {
                **head,
                "object": "chat.completion",
                "choices": [choice | {"message": message}],
            }
            kind, text = "application/json", json.dumps(whole)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


async def ours(agent: Verifiers, url: str) -> list[Grades]:
    """Returns the grades of the first tasks, as a rollout gets them."""
    async with agent.playing() as play:
        room = asyncio.Semaphore(8)

        async def graded(question: Any) -> Grades:
            prompt = Prompt(**vars(question), tokens=(1,))
            episode = AgentEpisode(prompt=prompt, base_url=url, api_key="k", model="m", seed=0)
            async with room:
                try:
                    result = await play(episode)
                except EpisodeError:
                    return None
            return result.reward, dict(result.metrics)

        return await asyncio.gather(*map(graded, islice(agent.questions(), TASKS)))


async def theirs(agent: Verifiers, url: str, folder: str) -> list[Grades]:
    """Returns the grades of the first tasks in verifiers' own evaluation."""
    evaluation: Any = import_module("verifiers.v1.configs.cli.eval")
    config = evaluation.EvalConfig(
        env=agent.config({}),
        model="m",
        client={"base_url": url, "api_key_var": "NO_SUCH_KEY"},
        select={"limit": TASKS},
        max_concurrent=8,
        push=False,
        rich=None,
        output_dir=folder,
    )
    episodes = await import_module("verifiers.v1.cli.eval.runner").run_eval(config)
    grades: list[Grades] = []
    for episode in sorted(episodes, key=lambda each: each.task.data.idx):
        if not episode.ok:
            grades.append(None)
            continue
        (trace,) = episode.traces
        scores = {f"reward/{name}": each.score for name, each in trace.rewards.items()}
        grades.append((trace.reward, trace.metrics | scores))
    return grades


def main() -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    url, wrong = f"http://127.0.0.1:{server.server_port}/v1", 0
    print(f"{'task set':24} tasks errors rewards differ")
    for name in sys.argv[1:]:
        agent = Verifiers(env={"taskset": {"id": name}})
        with tempfile.TemporaryDirectory() as folder:
            their = asyncio.run(theirs(agent, url, folder))
        our = asyncio.run(ours(agent, url))
        differ = sum(a != b for a, b in zip(our, their, strict=True))
        rewards = {grades[0] for grades in their if grades is not None}
        errors = their.count(None)
        print(f"{name:24} {len(their):5} {errors:6} {len(rewards):7} {differ:6}", flush=True)
        wrong += differ
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
