"""How much of their throughput 32 clients of rl4p.serve keep beside a hostile one.

    python -m experiments.benchmarks.hostile_client [KIND ...]

Starts `python -m rl4p.serve` and, in turns, 32 clients alone and the same clients beside a hostile
client, which is a process of its own. Prints the median rates and their ratio for each kind of
hostile client, by default for all kinds. All of them share the processors of the machine.
"""

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from experiments.benchmarks.serving import MODEL

CLIENTS, TOKENS, EACH, ROUNDS = 32, 128, 4, 5
PAUSE = 0.05  # seconds between two attacks
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


def request(path: str, body: object) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HEAD % (path.encode(), len(content)) + content


def answered(port: int, content: bytes, held: list[socket.socket]) -> None:
    """Sends a request, and reads what arrives within a second."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(content)
        while connection.recv(2**16):
            pass


def unread(port: int, content: bytes, held: list[socket.socket]) -> None:
    """Sends a request, and reads nothing; few connections stay open."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(content)
    held.append(connection)
    if len(held) > 4:
        held.pop(0).close()


def idle(port: int, content: bytes, held: list[socket.socket]) -> None:
    """Opens connections, of which half begin a request with the content; many stay open."""
    for half in (False, True):
        held.append(socket.create_connection(("127.0.0.1", port)))
        if half:
            held[-1].sendall(content)
    while len(held) > 2000:
        held.pop(0).close()


def vanishing(port: int, content: bytes, held: list[socket.socket]) -> None:
    """Sends a request, and closes the connection at once."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(content)


def completion(**fields: object) -> bytes:
    return request("/v1/completions", {"prompt": [1, 2], "max_tokens": 1} | fields)


LONG = {"input_ids": [1, 2, 3], "stream": True, "return_logprob": True, "top_logprobs_num": 20}
LONG |= {"sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}
SCORES = {"prompt": [[1, 2, 3] * 20] * 4, "max_tokens": 0, "prompt_logprobs": 0}
PATH = {"model_path": "/" + "a" * 4000}
MESSAGES = {"messages": [{"role": "user", "content": "a"}] * 10**5}
# How each kind sends, and a function that returns what it sends.
ATTACKS: dict[
    str, tuple[Callable[[int, bytes, list[socket.socket]], None], Callable[[], bytes]]
] = {
    "values": (answered, lambda: completion(top_k=2**31)),
    "digits": (answered, lambda: completion().replace(b": 1}", b": %d}" % 10**4000)),
    "ids": (answered, lambda: request("/generate", LONG | {"rid": "r" * 10**6})),
    "path": (answered, lambda: request("/update_weights_from_disk", PATH)),
    "texts": (answered, lambda: completion(prompt="ab " * 5 * 2**20)),
    "values_many": (
        answered,
        lambda: request("/v1/completions", b'{"prompt": [' + b"[]," * 2**21 + b"[]]}"),
    ),
    "messages": (answered, lambda: request("/v1/chat/completions", MESSAGES)),
    "unread": (unread, lambda: request("/generate", LONG)),
    "idle": (idle, lambda: b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: "),
    "headers": (answered, lambda: b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10**5),
    "header": (answered, lambda: b"GET / HTTP/1.1\r\nA: " + b"a" * 2**20),
    "scores": (vanishing, lambda: request("/v1/completions", SCORES)),
    "vanishing": (vanishing, lambda: completion(max_tokens=500, ignore_eos=True)),
}


def attack(kind: str, port: int) -> None:
    """Attacks the server without end."""
    held: list[socket.socket] = []
    send, content = ATTACKS[kind][0], ATTACKS[kind][1]()
    while True:
        with suppress(OSError):
            send(port, content, held)
        time.sleep(PAUSE)


def measure(kind: str, port: int) -> dict[str, object]:
    """Returns the rates of the clients alone and beside a hostile one."""
    load = [sys.executable, "-m", "experiments.benchmarks.serving", "clients", str(port)]
    load += [str(CLIENTS), str(TOKENS), str(EACH), "false"]
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(ROUNDS + 1):
        for beside in (False, True):
            line = [sys.executable, "-m", "experiments.benchmarks.hostile_client", kind, str(port)]
            hostile = subprocess.Popen(line) if beside else None
            try:
                if hostile is not None:
                    time.sleep(0.5)
                rate = float(subprocess.run(load, capture_output=True, check=True).stdout)
            finally:
                if hostile is not None:
                    hostile.kill()
                    hostile.wait()
            if turn:  # the first compiles
                rates[beside].append(rate)
    alone, beside = (round(statistics.median(rates[each])) for each in (False, True))
    return {"alone": alone, "beside": beside, "ratio": round(beside / alone, 3)}


def main(kinds: list[str]) -> None:
    """Prints the figures of some kinds of hostile clients, or of all."""
    # A slot for the hostile client: whoever has a token may use the server.
    line = [sys.executable, "-m", "rl4p.serve", *MODEL, "port=0", f"slots={CLIENTS + 1}"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().strip().rpartition(":")[2])
        for kind in kinds or ATTACKS:
            print(kind, json.dumps(measure(kind, port)), flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2].isdigit():
        attack(sys.argv[1], int(sys.argv[2]))
    else:
        main(sys.argv[1:])
