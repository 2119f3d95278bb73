"""Teachers that are no model of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import Formatter
from typing import Literal

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Episode, Params, Prompt, Trajectories
from rl4p.data.rendering import render
from rl4p.distributed.processes import to_host
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy, pad_left
from rl4p.protocols.collection import Collected

FIELDS = ("question", "answer", "solution")


@dataclass(frozen=True, kw_only=True)
class OwnTeacher:
    r"""The policy as its own teacher, which reads more than the policy (SDFT, 2601.19897).

        A_t = log pi_teacher(token t | prompt with context, tokens before t) - log pi_student

    `advantage=distill` reads it. The context is in the last message of the user, and the teacher
    scores the responses that the policy drew without it. No gradient passes through the teacher.

    Attributes:
      prompt: that message, with the fields ``{question}``, ``{answer}``, ``{solution}`` and those
        of the row's metadata, such as ``"{question}\\nThe answer is {answer}."``
      weights: those of the teacher: `live`, the policy's of the step, `start`, of the beginning of
        the run, or `average`, the moving average (`ema.decay`).
    """

    prompt: str
    weights: Literal["live", "start", "average"] = "live"

    def __post_init__(self) -> None:
        fields = {name for _, name, _, _ in Formatter().parse(self.prompt) if name is not None}
        if not fields - {"question"}:
            raise ValueError(
                "prompt shows the teacher nothing that the policy does not read: write {answer}, "
                "{solution} or a field of the metadata in it."
            )

    @property
    def needs(self) -> frozenset[str]:
        """Returns the score whose model has the weights of the start, if they are the teacher's."""
        return frozenset({"reference_logprobs"} if self.weights == "start" else ())

    def tokens(self, policy: Policy, prompt: Prompt) -> list[int]:
        """Returns the tokens of a prompt with the context."""
        own = {name: getattr(prompt, name) for name in FIELDS}
        known = {**prompt.metadata, **{name: x for name, x in own.items() if x is not None}}
        try:
            content = self.prompt.format(**known)
        except (KeyError, IndexError) as error:
            raise InputError(
                f"teacher.prompt has the field {{{error.args[0]}}}, which the row {prompt.id} "
                f"lacks: its fields are {', '.join(known)}."
            ) from None
        messages = prompt.prompt_messages()
        last = max(i for i, each in enumerate(messages) if each["role"] == "user")
        messages[last] = messages[last] | {"content": content}
        options = {"add_generation_prompt": True, **policy.template}
        text = render(policy.tokenizer, messages, prompt.tools, **options)
        return policy.tokenizer(text, add_special_tokens=False)["input_ids"]

    def logprobs(
        self,
        policy: Policy,
        model: tuple[Decoder, Params],
        options: ScoreOptions,
        collected: Collected,
        temperature: Array | float | None = None,
    ) -> Array:
        """Returns the teacher's log-probabilities of the responses: float32 [B, T].

        Args:
          model: the decoder and the merged parameters of the teacher.
        """
        trajectories = collected.trajectories
        rows = self.rows(policy, trajectories, collected.episodes)
        own = replace(options, decoder=model[0])
        scores_BT = to_host(score_tokens(own, model[1], rows, temperature)["logprobs"])
        # At the columns of the responses, which stand behind the prompts of the policy.
        before = trajectories.prompt_columns
        responses_BR = np.asarray(scores_BT)[:, rows.prompt_columns :]
        return policy.mesh.shard_rows(np.pad(responses_BR, ((0, 0), (before, 0))))

    def rows(
        self, policy: Policy, trajectories: Trajectories, episodes: Sequence[Episode]
    ) -> Trajectories:
        """Returns the responses behind the prompts that the teacher reads."""
        W, by_id = trajectories.prompt_columns, {each.prompt.id: each.prompt for each in episodes}
        if not W:
            raise InputError(
                "A teacher with a context needs rows of a prompt and one response: choose a "
                "rollout of a single turn."
            )
        own = {id: self.tokens(policy, prompt) for id, prompt in by_id.items()}
        tokens_BS, mask_BS = pad_left([own[each.prompt.id] for each in episodes], policy.pad_id)
        t = to_host(trajectories)

        def behind(prompt_BS: np.ndarray, rows_BT: Array) -> np.ndarray:
            return np.concatenate([prompt_BS, np.asarray(rows_BT)[:, W:]], axis=1)

        nothing_BS = np.zeros_like(tokens_BS)
        segments_BT = behind(mask_BS.astype(np.int32), t.segment_ids_BT)
        longest, most = segments_BT.sum(axis=1).max(), policy.decoder.config.max_positions
        if longest > most:
            raise InputError(
                f"A row with the teacher's prompt has {longest} tokens, more than the {most} "
                "positions of the model: shorten teacher.prompt."
            )
        rows = replace(
            t,
            tokens_BT=behind(tokens_BS, t.tokens_BT),
            response_mask_BT=behind(nothing_BS > 0, t.response_mask_BT),
            positions_BT=np.maximum(np.cumsum(segments_BT, axis=1, dtype=np.int32) - 1, 0),
            segment_ids_BT=segments_BT,
            behaviour_logprobs_BT=behind(nothing_BS.astype(np.float32), t.behaviour_logprobs_BT),
            policy_version_BT=behind(nothing_BS - 1, t.policy_version_BT),
            experts_BTX=None,
            alternatives_BTA=None,
            alternative_logprobs_BTA=None,
            prompt_columns=tokens_BS.shape[1],
        )
        return policy.mesh.shard_rows(rows)
