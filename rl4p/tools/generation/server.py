"""Responses of an OpenAI-compatible server (`POST /chat/completions`).

A request holds messages, and the server applies its own chat template. One request asks for one
response, with a seed that depends on the run's seed, the prompt and the number of the sample.
Whether equal seeds give equal responses is up to the server.

`rl4p/base/http.py` says which failures are tried again. A request that the server refuses
(another 4xx) has failed. A wrong address or key ends the job, as does a redirect.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from rl4p.base.address import api_key
from rl4p.base.errors import InputError, RunError
from rl4p.base.http import (
    LONGEST_RETRY_AFTER,
    HttpClient,
    InvalidResponseError,
    RefusedError,
    RequestError,
    for_each,
    read_json,
)
from rl4p.base.types import Question, Sampling
from rl4p.data.messages import for_request
from rl4p.engine.remote.chat import chat_body, read_chat
from rl4p.rollout.sampler import words
from rl4p.runs.sample import Sample, Status
from rl4p.tools.generation.options import Server
from rl4p.tools.generation.responses import ResponseSet

# By the reason why a response ended; any other reason is an abort.
STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED}

# Sampling options that OpenAI's protocol lacks, and the fields by which some servers know them.
NOT_OF_PROTOCOL = {"top_k": "top_k", "min_p": "min_p", "least_tokens": "min_tokens"}
NOT_OF_PROTOCOL |= {"repetition_penalty": "repetition_penalty"}

MOST_FAILURES = 8  # in a row; then the server counts as down
SECONDS_BETWEEN_LOOKS = 0.1  # for a signal


@dataclass(frozen=True, kw_only=True)
class Chat:
    """What the requests for all responses have in common."""

    model: str  # the name of the model
    sampling: Sampling  # temperature, top-p and the presence penalty
    max_tokens: int  # the longest response
    seed: int  # the run's seed
    stop: tuple[str, ...] = ()  # the stop strings
    # The first message, unless a question has its own; None for none.
    system_prompt: str | None = None
    # More fields, or other values; None leaves a field out.
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plain = Sampling()
        for name, field_name in NOT_OF_PROTOCOL.items():
            value = getattr(self.sampling, name)
            if value != getattr(plain, name) and field_name not in self.changes:
                raise InputError(
                    f"rollout.{name} is not part of the protocol: leave it out, or, if this server "
                    f"knows it, set server.body={{{field_name}: {value}}}."
                )

    def body(self, question: Question, sample: int) -> dict[str, Any]:
        """Returns the body of the request for one response."""
        return chat_body(
            self.model,
            for_request(question.prompt_messages(self.system_prompt)),
            self.changes,
            max_tokens=self.max_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            presence_penalty=self.sampling.presence_penalty or None,
            stop=list(self.stop) or None,
            # Servers accept 31 bits.
            seed=words(f"{self.seed}/{question.id}/{sample}")[0] >> 1,
        )


def read_answer(content: bytes, question: Question, sample: int) -> Sample:
    """Returns the response in the body of an answer.

    Raises:
      InvalidResponseError: the body is not JSON, or holds no response.
    """
    answer = read_json(content)
    text, finish = read_chat(answer)
    usage = answer.get("usage") or {}
    if not isinstance(usage, dict):
        raise InvalidResponseError("an answer whose usage is no object")
    length = usage.get("completion_tokens")
    return Sample.response_to(
        question,
        text or "",
        sample=sample,
        status=STATUS.get(finish, Status.ABORTED) if isinstance(finish, str) else Status.ABORTED,
        length=length if type(length) is int and length >= 0 else None,
    )


@dataclass(kw_only=True)
class Client:
    """A client of one server."""

    server: Server
    chat: Chat
    # The reasons of the responses that failed for good.
    failures: list[str] = field(default_factory=list)
    # What failed since the last success. The samples of a question that the server refuses count
    # once, because it refuses all of them.
    since_success: set[tuple[str, int | None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        try:
            key = api_key(self.server.key_variable, "server.key_variable")
        except ValueError as error:
            raise InputError(str(error)) from None
        self.http = HttpClient(
            url=f"{self.server.url.rstrip('/')}/chat/completions",
            key=key,
            connections=self.server.concurrency,
        )

    def complete(
        self,
        questions: Sequence[Question],
        samples: int,
        responses: ResponseSet,
        stopped: Callable[[], bool],
    ) -> None:
        """Requests the responses that are missing, and adds each as it arrives.

        Args:
          stopped: called all the time; if true, open requests are dropped and the call returns.
        """

        async def complete_one(missing: tuple[Question, int]) -> None:
            response = await self.response(*missing)
            if response is not None:
                self.since_success.clear()
                responses.add([response])

        async def complete_all() -> None:
            missing = [(x, n) for x in questions for n in responses.missing(x, samples)]
            async with aclosing(self.http):
                work = for_each(missing, complete_one, concurrency=self.server.concurrency)
                task = asyncio.create_task(work)
                try:
                    while not task.done() and not stopped():
                        await asyncio.wait({task}, timeout=SECONDS_BETWEEN_LOOKS)
                    if task.done():
                        task.result()
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        asyncio.run(complete_all())

    async def response(self, question: Question, sample: int) -> Sample | None:
        """Returns one response, after as many attempts as it takes, or None if all fail."""
        try:
            return await self.http.retry(
                "POST",
                "",
                self.chat.body(question, sample),
                lambda content: read_answer(content, question, sample),
                seconds=self.server.timeout_seconds,
                attempts=self.server.attempts,
            )
        except RequestError as error:
            failure, url = error, self.server.url
        hint = failure.hint("server.key_variable") if isinstance(failure, RefusedError) else None
        if hint is not None:
            raise InputError(f"{url}: {failure} ({hint}).")
        if failure.retry_after > LONGEST_RETRY_AFTER:
            raise RunError(
                f"{url}: {failure}. It asks to wait for {failure.retry_after:.0f} seconds: repeat "
                "the command then, to go on."
            )
        self.failures.append(str(failure))
        self.since_success.add((question.id, sample if failure.transient else None))
        if len(self.since_success) >= MOST_FAILURES:
            raise RunError(
                f"The server {url} failed {MOST_FAILURES} times in a row, at last with: "
                f"{failure}. The responses so far are saved: repeat the command to go on."
            )
        return None
