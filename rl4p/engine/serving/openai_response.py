"""The part of a response that the endpoints of OpenAI's API share."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

from rl4p.engine.serving.active_request import ActiveRequest
from rl4p.engine.serving.choice import Choice, CompletionOptions, empty_choices
from rl4p.engine.serving.http_request import HttpRequest
from rl4p.engine.serving.openai_request import OpenAIRequest
from rl4p.engine.serving.responses import DONE, EventStream, JsonResponse, event
from rl4p.engine.serving.server_state import ServerState, new_id, or_null, seeds_of


class OpenAIResponse(ABC):
    """A response with choices: one JSON object, or a stream of chunks.

    Args:
      prompts: the token ids of each prompt, with `request.n` choices for each.
      options: the options of each completion.

    Attributes:
      PREFIX: the first part of the id.
      KINDS: the types of the JSON object and of a chunk.
    """

    PREFIX: ClassVar[str]
    KINDS: ClassVar[tuple[str, str]]

    def __init__(
        self,
        server: ServerState,
        request: OpenAIRequest,
        prompts: Sequence[Sequence[int]],
        options: CompletionOptions,
    ) -> None:
        self.server, self.request, self.prompts, self.options = server, request, prompts, options
        self.scores: list[list[float]] = []  # the log-probabilities of the prompts
        self.head = {
            "id": f"{self.PREFIX}-{new_id()}",
            "object": self.KINDS[request.stream],
            "created": int(time.time()),
            "model": server.name,
        }

    async def generate(self, http: HttpRequest, param: str) -> JsonResponse | EventStream:
        """Generates the choices; `param` is the name of the field with the prompts.

        Raises:
          HttpError: a prompt is too long, or too many completions wait.
        """
        server, request, options = self.server, self.request, self.options
        for prompt in self.prompts:
            server.check_prompt(prompt, options.max_tokens, param)
        drawn = request.n if options.max_tokens else 0
        scored = request.prompt_logprobs is not None
        shown = scored or request.return_token_ids
        server.check_size(options, self.prompts, request.n, scored=scored, shown=shown)
        seeds = seeds_of(request.seed, len(self.prompts), drawn)
        active = server.start(
            options, self.prompts, seeds, stream=request.stream, scored=scored, unsent=http.unsent
        )
        if request.stream and drawn:
            return EventStream(self.stream(http, active))
        async with http.watched(active):
            choices, self.scores = await active.finished(), active.scores
        empty = empty_choices(len(self.prompts) * (request.n - drawn), server.detokenizer, options)
        return JsonResponse(self.body([*choices, *empty]))

    @abstractmethod
    def body(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Returns the object with all choices."""

    @abstractmethod
    def change(self, index: int, choice: Choice) -> dict[str, Any]:
        """Returns what a choice gained since the last chunk."""

    @abstractmethod
    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        """Returns the log-probabilities of the tokens from `start`."""

    def first_chunks(self) -> bytes:
        """Returns the chunks before the first token."""
        return b""

    async def stream(self, http: HttpRequest, active: ActiveRequest) -> AsyncIterator[bytes]:
        """Yields the events of a stream."""
        async with http.watched(active):
            if first := self.first_chunks():
                yield first
            async for changed in active.changes():
                yield b"".join(self.chunk(self.change(*each)) for each in changed)
            if self.request.usage:
                yield event(self.head | {"choices": [], "usage": self.usage(active.choices)})
            yield DONE

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """Returns the event with one choice."""
        usage = {"usage": None} if self.request.usage else {}
        return event(self.head | {"choices": [choice]} | usage)

    def choice(self, index: int, choice: Choice, start: int) -> dict[str, Any]:
        """Returns the fields of a choice beside its text, for the tokens from `start`."""
        scored = self.options.alternatives is not None
        logprobs = self.logprobs(choice, start) if scored else None
        fields: dict[str, Any] = {
            "index": index,
            "logprobs": logprobs,
            "finish_reason": choice.finish,
            # a token of `stop_token_ids` or a stop string, but no end token of the model
            "stop_reason": (
                None if choice.matched in self.server.policy.end_ids else choice.matched
            ),
            "weight_versions": choice.versions(start),
        }
        if self.request.return_token_ids:
            fields["token_ids"] = choice.tokens[start:]
        return fields

    def prompt(self, index: int) -> dict[str, Any]:
        """Returns the token ids of a prompt and their log-probabilities, if requested."""
        tokens, fields = self.prompts[index], {}
        if self.request.return_token_ids:
            fields["prompt_token_ids"] = list(tokens)
        if self.scores:
            texts = self.server.detokenizer.singles
            fields["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": or_null(logprob), "decoded_token": texts[token]}}
                for token, logprob in zip(tokens[1:], self.scores[index][1:], strict=True)
            ]
        return fields

    def usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        """Returns the numbers of tokens; each prompt counts once."""
        read, drawn = sum(map(len, self.prompts)), sum(len(each.tokens) for each in choices)
        return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}
