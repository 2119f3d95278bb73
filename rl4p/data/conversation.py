"""Conversations as token ids, with the ranges of tokens that are trained.

The messages of the assistant are trained, each with the token that ends it, except those that the
data set excludes (`message_weights.py`). System and user messages, results of tools and the headers
of messages are not. The chat template decides where a message begins:

* A template with ``{% generation %}`` tags marks the text of the assistant.
* With any other template, a message of the assistant begins where the generation prompt of the
  messages before it ends. The tokens of that prompt must be the first tokens of the conversation.

A message is trained only after the tokens that would precede it if the policy itself answered.
Some templates render an earlier message in another way than the last one: Qwen3 leaves out its
thoughts, Mistral moves the tools. Such a conversation becomes several rows, and each message is
trained in the row that it ends.

Ranges of tokens are found by tokenizing the text up to a boundary (`tokenized_text.py`), never by
character offsets, because some tokenizers leave whitespace out of them (`trim_offsets`).
"""

import logging
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from sys import maxsize
from typing import TYPE_CHECKING, Any, cast

from rl4p.base.errors import InputError
from rl4p.base.types import Demonstration, Prompt, Question
from rl4p.data.message_weights import KEYS, check_weights, is_trained
from rl4p.data.prompts import FIRST, encode_prompts, misfit, short_enough, system_of
from rl4p.data.rendering import ShownCheck, as_read, habits_with, render, take
from rl4p.data.tokenized_text import TokenizedText
from rl4p.model.tokenizer import TEMPLATE_ERRORS
from rl4p.model.trial import try_first_use

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

log = logging.getLogger(__name__)
Message = Mapping[str, Any]
Range = tuple[int, int]

TAGS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A conversation, or the beginning of one, as a sequence of tokens."""

    messages: int  # their number; the last one is trained
    tokens: list[int]  # up to the token that ends the last message
    begins: int  # the number of tokens before the last message
    trained: tuple[Range, ...]  # the ranges of trained tokens, in order


@dataclass(frozen=True, kw_only=True)
class Template:
    """The chat template of a conversation."""

    tokenizer: "PreTrainedTokenizerFast"
    end_ids: Sequence[int]  # of the tokens that end a message of the assistant
    system: Sequence[Message] = ()  # the message before the conversation, or none
    tools: Sequence[Message] | None = None  # `Question.tools`
    arguments: Mapping[str, Any]  # `model.template`

    def rows(self, messages: Sequence[Message]) -> list[Row]:
        """Returns rows in which every message that is to be trained is trained exactly once.

        Most conversations are one row. Messages after the last trained one are left out.
        """
        counts = [count for count, message in enumerate(messages, 1) if is_trained(message)]
        if not counts:
            raise InputError("no message is of the assistant")
        merged: list[Row] = []
        later = None
        for count in reversed(counts):
            try:
                row, later = self.row(messages[:count], later)
            except InputError:
                for first in counts:  # the first message with an error is named
                    self.row(messages[:first])
                raise
            # A row whose tokens begin a later row is a part of it.
            if merged and merged[-1].tokens[: len(row.tokens)] == row.tokens:
                trained = (*row.trained, *merged[-1].trained)
                merged[-1] = replace(merged[-1], trained=trained)
            else:
                merged.append(row)
        return merged[::-1]

    def row(
        self, messages: Sequence[Message], later: TokenizedText | None = None
    ) -> tuple[Row, TokenizedText]:
        """Returns the row whose last message, which is of the assistant, is trained.

        Args:
          later: a longer conversation; its tokens are taken if its text begins with these messages.

        Returns: the row, and the text whose tokens it has.
        """
        count = len(messages)
        if count == 1 and not self.system:
            raise InputError("message 1 is of the assistant, so that it has no prompt")
        source: Any = self.tokenizer.get_chat_template(tools=self.tools)  # type: ignore[arg-type]
        tagged = TAGS.search(source) is not None
        text, cuts = (
            self.cut_by_tags(messages, source)
            if tagged
            else self.cut_by_generation_prompt(messages)
        )
        if later is not None:
            # A template may write a newline after all messages but the last one.
            begun = text if later.text.startswith(text) else text.rstrip()
            if later.text.startswith(begun) and cuts[-1] <= len(begun):
                row = self.trained_row(count, later, len(begun), cuts, tagged)
                if isinstance(row, Row):
                    return row, later
        own = TokenizedText(self.tokenizer, text)
        row = self.trained_row(count, own, len(text), cuts, tagged)
        if isinstance(row, str):
            raise InputError(row)
        return row, own

    def trained_row(
        self, count: int, text: TokenizedText, length: int, cuts: Sequence[int], tagged: bool
    ) -> Row | str:
        """Returns the row of the first `count` messages, or a sentence about why it is none.

        Args:
          text: begins with these messages, which are `length` characters.
          cuts: where the generation prompt of the last message, or where its tags begin and end.
        """
        ends, tokens, most = [*map(text.before, cuts)], text.tokens, text.shared(length)
        if None in ends:
            return (
                f"a token of message {count} is on both sides of a {{% generation %}} tag (remove "
                "the whitespace at the beginning and the end of the message)"
                if tagged
                else f"the tokens of the header of message {count} depend on the text after it "
                "(remove the whitespace at the beginning of the message, or end the header in the "
                "template with a special token)"
            )
        places = [each for each in ends if each is not None] + [most] * (not tagged)
        if not places[0]:
            return f"no token precedes message {count}, so that it has no prompt"
        # Tags may enclose the text alone. A template may go on after the end token, with a newline
        # or, as Phi-3, with another end token between tags of its own.
        stops = [*places[1:-1:2], min(places[-1] + 1, most)]
        ranges = list(zip(places[::2], stops, strict=True))
        last = (i for each in ranges for i in range(*each))
        end = next((i + 1 for i in last if tokens[i] in self.end_ids), None)
        if end is None:
            names = self.tokenizer.convert_ids_to_tokens(list(self.end_ids))
            return (
                f"it does not end message {count} with one of the end tokens {names}, so that a "
                "policy would not learn to end (add the token to eos_token_id in "
                "generation_config.json)"
            )
        trained = tuple((start, min(stop, end)) for start, stop in ranges if start < end)
        return Row(messages=count, tokens=tokens[:end], begins=places[0], trained=trained)

    def cut_by_generation_prompt(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """Returns the text, and where the generation prompt of the last message ends."""
        texts: list[Any] = [
            render(
                self.tokenizer,
                [*self.system, *part],
                self.tools,
                add_generation_prompt=prompts,
                **self.arguments,
            )
            for part, prompts in ((messages, False), (messages[:-1], True))
        ]
        text, prompt = texts
        if not text.startswith(prompt):
            raise InputError(
                f"it does not begin message {len(messages)} with its generation prompt, so that "
                "the header of the message is not known (check model.template, or mark what the "
                "assistant says by {% generation %} in the template)"
            )
        return text, [len(prompt)]

    def cut_by_tags(self, messages: Sequence[Message], source: str) -> tuple[str, list[int]]:
        """Returns the text, and where the tags in the last message begin and end."""
        from transformers.utils.chat_template_utils import render_jinja_template

        earlier = sum(message["role"] == "assistant" for message in messages) > 1

        def apply(form: Sequence[Message]) -> Any:
            parts = [
                {name: value for name, value in message.items() if value is not None}
                for message in form
            ]
            return render_jinja_template(
                conversations=[parts, parts[:-1]] if earlier else [parts],
                tools=self.tools,  # type: ignore[arg-type]
                chat_template=source,
                return_assistant_tokens_mask=True,
                **{**self.tokenizer.special_tokens_map, **self.arguments},
            )

        habits = habits_with(self.tokenizer, self.arguments)
        given = as_read(habits, [*self.system, *messages])
        texts, ranges = take(apply, given)
        spans, *before = cast("list[list[Range]]", ranges)
        cuts = [cut for span in spans[len(before[0]) if before else 0 :] for cut in span]
        if not cuts:
            raise InputError(f"it has {{% generation %}}, but not around message {len(messages)}")
        return texts[0], cuts


def encode_demonstrations(
    questions: Sequence[Question],
    tokenizer: "PreTrainedTokenizerFast",
    *,
    system_prompt: str | None,
    max_prompt_tokens: int,
    end_ids: Sequence[int],
    template: Mapping[str, Any] | None = None,
    whole: bool = False,
) -> tuple[list[Prompt], int]:
    """Returns the prompts of worked answers, and the number dropped for being too long.

    Each row of a conversation (`Template.rows`) is a prompt, with a `Demonstration`. The prompt is
    all that precedes the last message of the row; it is dropped if it is longer than
    `max_prompt_tokens`. A `solution` answers a conversation that ends with another role.
    `encode_prompts` encodes questions without messages.

    Args:
      whole: whether only the last answer of each conversation is trained, and has what the chat
        template writes after its end token, such as a newline, where a classifier reads its score.
    """
    if whole:
        questions = [
            question
            if question.messages
            else replace(question, messages=tuple(question.prompt_messages()))
            for question in questions
        ]
    if all(question.messages is None for question in questions):
        return encode_prompts(
            questions,
            tokenizer,
            system_prompt=system_prompt,
            max_prompt_tokens=max_prompt_tokens,
            template=template,
        )
    questions = with_training(questions)
    given = {"system_prompt": system_prompt, "template": template or {}}
    check = ShownCheck(tokenizer, template or {})
    first = [
        {
            "messages": row.messages or row.prompt_messages(system_prompt),
            "tools": row.tools,
            "options": template or {},
        }
        for row in questions[:FIRST]
    ]
    try_first_use(tokenizer, first)
    prompts_by_question: dict[int, list[Prompt]] = {}
    for key, question in {id(row): row for row in questions}.items():  # a mixture repeats some
        if question.messages is None:
            prompts, _ = encode_prompts([question], tokenizer, max_prompt_tokens=maxsize, **given)
        else:
            ends = {"end_ids": end_ids, "whole": whole}
            prompts = demonstrations(question, tokenizer, check=check, **ends, **given)
        prompts_by_question[key] = prompts
    encoded = [prompt for question in questions for prompt in prompts_by_question[id(question)]]
    return short_enough(encoded, max_prompt_tokens)


def with_training(questions: Sequence[Question]) -> list[Question]:
    """Returns the questions without the conversations that exclude all of their answers."""
    excluded, others = set(), 0
    for row in {id(row): row for row in questions}.values():
        try:
            others += check_weights(row.messages or ())
        except InputError as error:
            raise InputError(f"The conversation {row.id} ({row.question:.40}): {error}.") from None
        messages = list(row.messages or ())
        answers = [each for each in messages if each["role"] == "assistant"]
        if not answers or any(map(is_trained, answers)):
            continue
        if row.solution is None or messages[-1] is answers[-1]:  # else the solution is trained
            excluded.add(id(row))
    keys = ", ".join(KEYS)
    if len(excluded) == len({id(row) for row in questions}):
        raise InputError(f"Nothing is trained: {keys} exclude each message of the assistant.")
    if excluded:
        log.warning("%d conversations left out: %s exclude all answers.", len(excluded), keys)
    if others:
        log.warning("%d messages are not trained, as no assistant says them: %s.", others, keys)
    return [row for row in questions if id(row) not in excluded]


def demonstrations(
    question: Question,
    tokenizer: "PreTrainedTokenizerFast",
    *,
    system_prompt: str | None,
    end_ids: Sequence[int],
    template: Mapping[str, Any],
    check: ShownCheck,
    whole: bool = False,
) -> list[Prompt]:
    """Returns the prompts of a conversation, one for each row.

    The one that ends with the last answer has the question's id and reference answer. For each of
    the others, the last message of its row is the reference answer.
    """
    messages = list(question.messages or ())
    first = question.prompt_messages(system_prompt)[:1]
    system = [each for each in first if each["role"] == "system" and each not in messages[:1]]
    if question.solution is not None and messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": question.solution})
    chat_template = Template(
        tokenizer=tokenizer,
        end_ids=end_ids,
        system=system,
        tools=question.tools,
        arguments=template,
    )
    try:
        if whole:
            row, text = chat_template.row(messages)
            rows = [replace(row, tokens=text.tokens)]
        else:
            rows = chat_template.rows(messages)
        read = [*system, *messages[: rows[-1].messages]]
        check(read, question.tools, before=len(system))
    except (InputError, *TEMPLATE_ERRORS) as error:
        raise misfit(tokenizer, question, error) from None
    prompts = []
    last = max(i for i, message in enumerate(messages, 1) if message["role"] == "assistant")
    for row in rows:
        part, answered = tuple(messages[: row.messages]), question
        if row.messages < last:
            answer = part[-1].get("content") or ""
            answered = replace(
                question,
                id=f"{question.id}/{row.messages}",
                question=next((x["content"] for x in reversed(part) if x["role"] == "user"), ""),
                answer=answer,
                solution=answer,
            )
        fields = vars(answered) | {
            "messages": part,
            "tokens": tuple(row.tokens[: row.begins]),
            "system_prompt": system_of([*system, *part]),
            "demonstration": Demonstration(
                tokens=array("i", row.tokens[row.begins :]), trained=row.trained
            ),
        }
        prompts.append(Prompt(**fields))
    return prompts
