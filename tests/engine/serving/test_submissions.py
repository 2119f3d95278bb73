from collections import deque
from concurrent.futures import Future

import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import Finish
from rl4p.engine.sequence import TokenSequence
from rl4p.engine.serving import submissions
from rl4p.engine.serving.submissions import Submission, fulfil, send, taken


def sequence(tokens=(5, 6), index=0):
    key = np.zeros(2, np.uint32)
    return TokenSequence(context=tokens, key=key, max_tokens=4, end_ids=(), index=index)


def test_an_aborted_submission_ends_each_unfinished_sequence():
    found = []
    submission = Submission(found.append, None)
    submission.left = {number: sequence(index=number) for number in (0, 2)}
    assert submission.count == 2
    send([submission.aborted()])
    (chunks,) = found
    ends = [(chunk.sequence.index, chunk.finish) for chunk in chunks]
    assert ends == [(0, Finish.ABORT), (2, Finish.ABORT)]


def test_an_error_goes_to_who_asked_for_errors():
    found, failed = [], []
    submission = Submission(found.append, failed.append)
    submission.left = {0: sequence()}
    error = RunError("broken")
    send([submission.failed(error)])
    assert (found, failed) == ([], [error])


def test_a_cancelled_submission_gets_nothing_and_a_delivery_that_fails_stops_no_other(caplog):
    found = []

    def fails(content):
        raise OSError("gone")

    failing, gone, other = (Submission(x, None) for x in (fails, found.append, found.append))
    gone.cancelled = True
    send([(submission, submission.deliver, "tokens") for submission in (failing, gone, other)])
    assert found == ["tokens"]
    assert "The delivery of tokens failed." in caplog.text


def test_the_caller_of_a_command_gets_its_result_or_its_error():
    done, failed = Future(), Future()
    fulfil(lambda: 3, done)
    fulfil(lambda: 1 / 0, failed)
    assert done.result() == 3
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_few_tokens_are_prefilled_between_two_calls(monkeypatch):
    monkeypatch.setattr(submissions, "PROMPT_TOKENS_PER_CALL", 32)
    same, other = (7,) * 16, (8,) * 16
    waiting = deque(map(sequence, (same, same, other, (9,), same)))
    assert [x.tokens[0] for x in taken(waiting, 8)] == [7, 7, 8]
    assert [x.tokens[0] for x in taken(waiting, 1)] == [9]
    long = deque([sequence((3,) * 100), sequence()])
    assert len(taken(long, 8)) == 1  # a long context waits for nobody
