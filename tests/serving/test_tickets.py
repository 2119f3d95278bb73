from concurrent.futures import Future

import pytest

from rl4p.errors import RunError
from rl4p.serving.tickets import Ticket, fulfil, send
from rl4p.types import Finish


def test_an_aborted_ticket_ends_each_unfinished_completion():
    found = []
    ticket = Ticket(found.append, None)
    ticket.left = {0: None, 2: None}
    assert ticket.count == 2
    send([ticket.aborted()])
    (parts,) = found
    assert [(part.index, part.finish) for part in parts] == [(0, Finish.ABORT), (2, Finish.ABORT)]


def test_an_error_goes_to_who_asked_for_errors():
    found, failed = [], []
    ticket = Ticket(found.append, failed.append)
    ticket.left = {0: None}
    error = RunError("broken")
    send([ticket.failed(error)])
    assert (found, failed) == ([], [error])


def test_a_cancelled_ticket_gets_nothing_and_a_delivery_that_fails_stops_no_other(caplog):
    found = []

    def fails(content):
        raise OSError("gone")

    failing, gone, other = (Ticket(x, None) for x in (fails, found.append, found.append))
    gone.cancelled = True
    send([(ticket, ticket.deliver, "tokens") for ticket in (failing, gone, other)])
    assert found == ["tokens"]
    assert "The delivery of tokens failed." in caplog.text


def test_the_caller_of_a_command_gets_its_result_or_its_error():
    done, failed = Future(), Future()
    fulfil(lambda: 3, done)
    fulfil(lambda: 1 / 0, failed)
    assert done.result() == 3
    with pytest.raises(ZeroDivisionError):
        failed.result()
