"""The program of the process in which a tokenizer and its chat template are tried (`trial.py`).

It reads {"folder": ..., "memory": BYTES, "seconds": [N, N], "cases": [{"messages": ...,
"tools": ..., "options": ...}, ...], "texts": [...]} from the standard input, and prints "tried" if
all could be rendered and encoded. Errors of a template do not count: it may refuse a conversation.
"""

import json
import os
import resource
import sys


def limit(memory: int, seconds: int) -> None:
    """Limits this process, beyond what it has used: bytes (on Linux) and seconds of a processor."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:  # noqa: PTH123 - nothing more is imported
            used = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = used + memory if hard == resource.RLIM_INFINITY else min(used + memory, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    limit_time(seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time(seconds: int) -> None:
    """Limits the processor time of this process beyond what it has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + seconds, hard))


def main() -> int:
    request = json.load(sys.stdin)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    from transformers import PreTrainedTokenizerFast

    loading, seconds = request["seconds"]
    limit(request["memory"], loading)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            request["folder"], local_files_only=True
        )
    except MemoryError:
        return 1
    except Exception:  # noqa: BLE001 - it cannot be loaded at all, which `load_tokenizer` reports
        print("tried")
        return 0
    limit_time(seconds)
    for case in request["cases"]:
        try:
            text = tokenizer.apply_chat_template(
                case["messages"], tools=case["tools"], tokenize=False, **case["options"]
            )
        except MemoryError:
            return 1
        except Exception:  # noqa: BLE001 - the template refuses this conversation, as it may
            continue
        tokenizer(str(text), add_special_tokens=False)
    for text in request["texts"]:
        tokenizer(text, add_special_tokens=False)
    print("tried")
    return 0


if __name__ == "__main__":
    sys.exit(main())
