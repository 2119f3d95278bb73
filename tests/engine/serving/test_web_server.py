import socket

import pytest

from rl4p.base.errors import InputError
from rl4p.engine.serving.web_server import address_of, listening


def test_port_0_is_a_free_port():
    with listening("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound, "127.0.0.1") == f"http://127.0.0.1:{port}"
        assert address_of(bound, "::1") == f"http://[::1]:{port}"
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_port_in_use_is_said_in_a_sentence():
    with listening("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(InputError, match=rf"127.0.0.1 port {port}: .*in use.*port=PORT"):
            listening("127.0.0.1", port)


def test_an_address_must_be_one_of_this_machine():
    with pytest.raises(InputError, match=r"cannot listen at 192\.0\.2\.1"):
        listening("192.0.2.1", 0)
    with pytest.raises(InputError, match=r"host=nowhere\.invalid is not an address"):
        listening("nowhere.invalid", 0)
