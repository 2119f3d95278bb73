"""Trains with DPO on files in TRL's format, here and in TRL: the same losses step by step.

TRL's trainer reads, tokenizes and trains by itself.
"""

import json
from functools import partial

import pytest

from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build
from tests.support.trl import MARKS, language_model, plain_sgd, trl_log

pytestmark = MARKS
BETA = 0.3
# With the rate of the other trainers the loss jumps to 5.6 and back, and the last digits of the
# machine's sums decide the fourth digit of the loss.
RATE = 2e-3
SUMS = [(12, 30, 41), (5, 5, 11), (7, 20, 207), (123, 4, 12), (9, 9, 99), (60, 6, 67)]


def chat(a, b, wrong):
    before = [{"role": "user", "content": f"{a}+{b}"}]
    return before, *(
        [{"role": "assistant", "content": f"{a}+{b}={c} #### {c}"}] for c in (a + b, wrong)
    )


def texts(a, b, wrong):
    return f"{a}+{b}", f"={a + b}", f" is {wrong}"


def explicit(row):
    return dict(zip(("prompt", "chosen", "rejected"), row, strict=True))


def implicit(row):
    return {"chosen": row[0] + row[1], "rejected": row[0] + row[2]}


FORMS = {
    f"{form.__name__} {content.__name__}": [form(content(*row)) for row in SUMS]
    for form in (explicit, implicit)
    for content in (chat, texts)
}
KINDS = {
    "dpo": ({"loss_type": ["sigmoid"]}, ()),
    "ipo": ({"loss_type": ["ipo"]}, ("update.kind=ipo", "update.length_normalised=true")),
}


def theirs(rows, folder, options):
    """Returns the losses of TRL's steps."""
    trl = pytest.importorskip("trl")
    config = partial(trl.DPOConfig, beta=BETA, **options)
    models = {"model": language_model(), "ref_model": language_model()}
    log = trl_log(trl.DPOTrainer, config, rows, folder, rate=RATE, **models)
    return [row["loss"] for row in log]


def ours(path, words):
    run = build(
        compose(
            [
                *("experiment=preferences_dpo", f"data.path={path}", "data.held_out_path=" + path),
                *plain_sgd(RATE),
                *("optimizer.schedule=constant", "optimizer.warmup_steps=0"),
                *(f"prompts_per_step={len(SUMS)}", "max_prompt_tokens=32"),
                *("max_response_tokens=32", f"update.beta={BETA}", *words),
            ]
        )
    )
    infos = list(train(run.loop, run.state))
    assert all(info.metrics["update/grad_norm"] > 0 for info in infos)
    return [info.metrics["update/loss"] for info in infos]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_losses_of_a_run(form, kind, tmp_path):
    if kind != "dpo" and form != "explicit chat":
        pytest.skip("the forms differ in the data alone")
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in FORMS[form]))
    options, words = KINDS[kind]
    losses = ours(str(path), words)
    assert losses == pytest.approx(theirs(FORMS[form], tmp_path, options), abs=2e-5)
    assert abs(losses[-1] - losses[0]) > 0.01  # the steps change the policy
