"""A conversation as the exact tokens that the policy read and chose.

The tokens of a response are never decoded and tokenized again. What follows a response is found in
the text of the chat template: if the text of the whole conversation begins with the text that the
tokens stand for, only the rest is tokenized and appended. Otherwise the template has rewritten
earlier messages, as Qwen3 does when it leaves out their thoughts. The conversation then goes on in
a new segment, which the policy reads from its beginning. There is no third way: a token that was
not sampled is never trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl4p.base.errors import RunError
from rl4p.base.serialization import Serializable
from rl4p.base.types import Prompt
from rl4p.data.conversation import Template
from rl4p.model.policy import Policy
from rl4p.model.tokenizer import TEMPLATE_ERRORS
from rl4p.protocols.engine import Completion

Message = Mapping[str, Any]


@dataclass(kw_only=True)
class Segment(Serializable):
    """Tokens that the policy reads from their beginning.

    Attributes:
      tokens: token ids.
      chosen: for each token, whether the policy chose it.
      logprobs: log-probabilities under the sampling policy; 0 elsewhere.
      versions: the weight version that drew each token; -1 elsewhere.
    """

    tokens: list[int] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def read(self, tokens: Sequence[int]) -> None:
        """Appends tokens that the policy did not choose."""
        self.tokens += tokens
        self.chosen += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)
        self.versions += [-1] * len(tokens)

    def choose(self, completion: Completion) -> None:
        """Appends tokens that the policy chose."""
        self.tokens += completion.tokens.tolist()
        self.chosen += [True] * len(completion.tokens)
        self.logprobs += completion.logprobs.tolist()
        self.versions += completion.versions.tolist()


class ExactConversation:
    """A conversation that grows by responses of the policy and by messages of an environment.

    Args:
      template: the chat template, with the tools of the conversation.
      messages: the messages before the first response.

    Attributes:
      segments: the tokens so far; the policy goes on with the last segment.
      messages: the messages so far.
    """

    def __init__(self, template: Template, messages: Sequence[Message]) -> None:
        self.template, self.messages = template, list(messages)
        self.text = self.render()
        self.segments = [Segment()]
        self.segments[0].read(self.tokenized(self.text))

    @property
    def context(self) -> list[int]:
        """Returns the tokens that precede the next token of the policy."""
        return self.segments[-1].tokens

    def respond(self, completion: Completion) -> Message:
        """Appends a response of the policy and returns its message.

        The content of the message is the text of all its tokens except the end token, with special
        tokens as they stand, so that the template writes the same text again.
        """
        self.segments[-1].choose(completion)
        tokens = completion.tokens.tolist()
        self.text += self.decoded(tokens)
        if tokens and tokens[-1] in self.template.end_ids:
            tokens = tokens[:-1]
        message = {"role": "assistant", "content": self.decoded(tokens)}
        self.messages.append(message)
        return message

    def extend(self, messages: Sequence[Message]) -> int:
        """Appends messages of the environment; returns the number of tokens that they added.

        Raises:
          RunError: the chat template does not take the messages.
        """
        self.messages += messages
        text = self.render()
        if text.startswith(self.text):
            added = self.tokenized(text[len(self.text) :])
        else:
            added = self.tokenized(text)
            self.segments.append(Segment())
        self.text = text
        self.segments[-1].read(added)
        return len(added)

    def render(self) -> str:
        try:
            return self.template.render(self.messages, add_generation_prompt=True)
        except TEMPLATE_ERRORS as error:
            raise RunError(
                f"The model's chat template does not take the messages of the environment: {error}."
            ) from None

    def tokenized(self, text: str) -> list[int]:
        return self.template.tokenize(text)[0]

    def decoded(self, tokens: Sequence[int]) -> str:
        text: Any = self.template.tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def conversation_of(
    policy: Policy, prompt: Prompt, tools: Sequence[Message] | None, messages: Sequence[Message]
) -> ExactConversation:
    """Returns the conversation of an episode, before the first response.

    Args:
      tools: the schemas of the tools that an environment offers; None takes the prompt's own.
    """
    template = Template(
        tokenizer=policy.tokenizer,
        end_ids=policy.end_ids,
        tools=prompt.tools if tools is None else tools,
        arguments=policy.template,
    )
    return ExactConversation(template, messages)
