"""How much of the in-process sampler's rate rl4p.serve reaches with concurrent clients.

    python -m experiments.benchmarks.serving [clients=32] [tokens=128] [stream=true] [KEY=VALUE]

Starts `python -m rl4p.serve` with a model from scratch, and a process with so many clients. Each
client keeps one connection and asks for one completion after another. In turns with them, so that a
slow minute slows both, `rollout=continuous` decodes as many prompts as one batch in this process.
All completions have the same number of tokens. Prints the median rates over the rounds in tokens a
second, and their ratio.

The other arguments choose the model (keys of model=scratch, such as `model.width=512`). The default
model needs about 2 ms for a decode step of 32 completions on two cores, and `model.width=512
model.layers=6 model.heads=8 model.num_kv_heads=2 model.feed_forward_width=1536` about 9 ms.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time

CLIENTS, TOKENS, PROMPT, ROUNDS = 32, 128, 32, 5
MODEL = (
    "model=scratch",
    "model.width=192",
    "model.layers=4",
    "model.heads=3",
    "model.feed_forward_width=768",
)


def main() -> None:
    """Prints the figures as JSON."""
    own = {"clients": str(CLIENTS), "tokens": str(TOKENS), "stream": "false", "requests": "4"}
    given = dict(line.partition("=")[::2] for line in sys.argv[1:])
    own |= {key: given.pop(key) for key in own if key in given}
    lines = [*MODEL, *(f"{key}={value}" for key, value in given.items())]
    clients, tokens, each = int(own["clients"]), int(own["tokens"]), int(own["requests"])
    server = subprocess.Popen(
        [sys.executable, "-m", "rl4p.serve", *lines, "port=0", f"slots={clients}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip().rpartition(":")[2]
        load = [sys.executable, "-m", "experiments.benchmarks.serving", "clients"]
        load += [port, str(clients), str(tokens), str(each), own["stream"]]
        decode = in_process(lines, clients, tokens)
        served, batch = [], []
        for turn in range(ROUNDS + 1):
            found = subprocess.run(load, capture_output=True, text=True, check=True).stdout
            seconds = decode()
            if turn:  # the first compiles
                served.append(float(found))
                batch.append(clients * tokens / seconds)
    finally:
        server.terminate()
        server.wait()
    rates = statistics.median(served), statistics.median(batch)
    figures = {
        "clients": clients,
        "tokens_each": tokens,
        "stream": own["stream"] == "true",
        "served_tokens_per_second": round_to(rates[0]),
        "in_process_tokens_per_second": round_to(rates[1]),
        "in_process_ms_per_step": round(1000 * clients / rates[1], 2),
        "ratio": round(rates[0] / rates[1], 3),
        "ratios": [round(a / b, 3) for a, b in zip(served, batch, strict=True)],
    }
    print(json.dumps(figures, indent=2))


def round_to(rate: float) -> int:
    return int(float(f"{rate:.4g}"))


def prompt_of(client: int) -> list[int]:
    """Returns a prompt of bytes, another for each client."""
    return [(7 * client + 3 * at) % 256 for at in range(PROMPT)]


def in_process(lines: list[str], clients: int, tokens: int):
    """Returns a function that decodes a batch with the in-process sampler, and its seconds."""
    from dataclasses import replace

    import jax
    import numpy as np

    from rl4p.configuration import compose
    from rl4p.protocols.engine import Request
    from rl4p.rollout.continuous import Continuous
    from rl4p.runs.policy import load_policy

    policy, params, _ = load_policy(compose(lines), None)
    policy = replace(policy, end_ids=(policy.decoder.config.vocabulary + 1,))  # none ever ends
    engine = Continuous(max_response_tokens=tokens).open(policy)
    engine.publish(params, 0)
    requests = [
        Request(
            tokens=prompt_of(client),
            keys_N=np.asarray(jax.random.key_data(jax.random.key(client)))[None],
            max_tokens=tokens,
        )
        for client in range(clients)
    ]

    def seconds() -> float:
        start = time.perf_counter()
        found = engine.complete(requests)
        took = time.perf_counter() - start
        assert sum(len(each.tokens) for each in found) == clients * tokens
        return took

    return seconds


async def client(number: int, port: str, tokens: int, requests: int, stream: bool) -> int:
    """Asks for completions one after another, and returns the number of tokens that came."""
    body = json.dumps(
        {
            "prompt": prompt_of(number),
            "max_tokens": tokens,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "seed": number,
            "stream": stream,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port), limit=2**22)
    count = 0
    for _ in range(requests):
        writer.write(head.encode() + body)
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert headers.startswith(b"http/1.1 200"), headers
        if stream:
            while size := int(await reader.readline(), 16):
                chunk = (await reader.readexactly(size + 2))[:-2]
                for line in chunk.split(b"\n\n"):
                    if line.startswith(b"data: {"):
                        count += len(json.loads(line[6:])["choices"][0]["token_ids"])
            await reader.readline()
        else:
            length = int(headers.partition(b"content-length:")[2].partition(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
            count += len(answer["choices"][0]["token_ids"])
    writer.close()
    return count


async def load(port: str, clients: str, tokens: str, requests: str, stream: str) -> None:
    """Runs all clients, and prints their tokens a second."""
    start = time.perf_counter()
    jobs = [
        client(number, port, int(tokens), int(requests), stream == "true")
        for number in range(int(clients))
    ]
    counts = await asyncio.gather(*jobs)
    seconds = time.perf_counter() - start
    assert sum(counts) == int(clients) * int(tokens) * int(requests), counts
    print(sum(counts) / seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["clients"]:
        asyncio.run(load(*sys.argv[2:]))
    else:
        main()
