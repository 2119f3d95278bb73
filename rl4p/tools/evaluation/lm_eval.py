"""An evaluation as files in the format of EleutherAI's lm-evaluation-harness.

`results_DATE.json` has the scores, and `samples_TASK_DATE.jsonl` the responses of a task. The
deciding term is the metric `exact_match`, of the greedy responses; `avg@k` and `pass@k` are metrics
of their own. The harness can neither have drawn nor graded these responses: tasks of equal names
have other prompts there.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import rl4p
from rl4p.loop.evaluation import Evaluation
from rl4p.runs.record import finite, replace_file
from rl4p.runs.sample import Sample

FOLDER, METRIC, NO_FILTER = "lm_eval", "exact_match", "none"


def write_lm_eval(
    folder: Path,
    report: Mapping[str, Any],
    samples: Sequence[Sample],
    evaluation: Evaluation,
    seconds: float,
) -> None:
    """Writes the files into `folder`/lm_eval, in the place of earlier ones."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    for old in place.glob("*_*.json*"):
        old.unlink()
    date = datetime.now().isoformat().replace(":", "-")
    lines = {task: list(lines_of(task, samples, evaluation)) for task in report["tasks"]}
    for task, rows in lines.items():
        name = re.sub(r"[^\w.-]", "_", task)
        name += f"_{digest(task)[:8]}" * (name != task)
        text = "".join(json.dumps(finite(row), ensure_ascii=False) + "\n" for row in rows)
        replace_file(place / f"samples_{name}_{date}.jsonl", text.encode("utf-8", "replace"))
    content = results(report, lines, seconds)
    text = json.dumps(finite(content), indent=2, ensure_ascii=False) + "\n"
    replace_file(place / f"results_{date}.json", text.encode("utf-8", "replace"))


def results(
    report: Mapping[str, Any], lines: Mapping[str, Sequence[Mapping[str, Any]]], seconds: float
) -> dict[str, Any]:
    """Returns the content of results_DATE.json."""
    source, tasks = report["evaluated"], report["tasks"]
    name = str(source.get("model") or source["run"])
    template = report["template"]["chat_template"]
    hashes = {
        task: digest("".join(x["doc_hash"] + x["prompt_hash"] + x["target_hash"] for x in rows))
        for task, rows in lines.items()
    }
    generation = {  # the settings of the greedy responses, in the harness's words
        "until": report["stop"]["strings"],
        "max_gen_toks": report["stop"]["max_response_tokens"],
        "do_sample": False,
        "temperature": 0.0,
    }
    scores = {task: scores_of(score) for task, score in tasks.items()}
    metrics = {
        task: [name.removesuffix(f",{NO_FILTER}") for name in own if "_stderr," not in name]
        for task, own in scores.items()
    }
    return {
        "results": {task: {"alias": task} | own for task, own in scores.items()},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {
            task: {
                "task": task,
                "output_type": "generate_until",
                "num_fewshot": 0,
                "repeats": 1,
                "metric_list": [
                    {"metric": each, "aggregation": "mean", "higher_is_better": True}
                    for each in metrics[task]
                ],
                "generation_kwargs": generation,
                "metadata": {"version": rl4p.__version__},
            }
            for task in tasks
        },
        "versions": dict.fromkeys(tasks, rl4p.__version__),
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {task: dict.fromkeys(metrics[task], True) for task in tasks},
        "n-samples": {
            task: {"original": score["prompts"], "effective": score["prompts"]}
            for task, score in tasks.items()
        },
        "config": {
            "model": "rl4p",
            "model_args": ",".join(f"{key}={value}" for key, value in source.items()),
            "gen_kwargs": generation,
            "limit": None,
            "random_seed": report["sampling"]["seed"],
        },
        "date": time.time(),
        "task_hashes": hashes,
        "model_source": "rl4p",
        "model_name": name,
        "model_name_sanitized": re.sub(r"[^\w.-]", "_", name).strip("_"),
        "chat_template": template,
        "chat_template_sha": template and digest(template),
        "total_evaluation_time_seconds": str(seconds),
    }


def scores_of(score: Mapping[str, Any]) -> dict[str, float | str]:
    """Returns the metrics of a task; the standard error of means of samples is not computed."""
    p, n = score["pass_at_1"], score["prompts"]
    own: dict[str, float | str] = {
        f"{METRIC},{NO_FILTER}": p,
        f"{METRIC}_stderr,{NO_FILTER}": math.sqrt(p * (1 - p) / (n - 1)) if n > 1 else "N/A",
    }
    for name, values in (("avg", score["avg_at_k"]), ("pass", score["pass_at_k"])):
        for k, value in values.items():
            own[f"{name}@{k},{NO_FILTER}"] = value
            own[f"{name}@{k}_stderr,{NO_FILTER}"] = "N/A"
    return own


def lines_of(
    task: str, samples: Sequence[Sample], evaluation: Evaluation
) -> Iterator[dict[str, Any]]:
    """Yields the lines of samples_TASK_DATE.jsonl: the greedy response to each prompt."""
    decode: Any = evaluation.policy.tokenizer.decode
    texts = {
        prompt.id: decode(prompt.tokens) for prompt in evaluation.prompts if prompt.task == task
    }
    greedy = [each for each in samples if str(each.task) == task and each.sample is None]
    limit = evaluation.phases.rollout.max_response_tokens
    for number, each in enumerate(greedy):
        doc = {"id": each.id, "question": each.prompt, "answer": each.answer}
        doc |= {"metadata": dict(each.metadata)} if each.metadata else {}
        text, target = texts.get(str(each.id), each.prompt), str(each.answer)
        settings = {"do_sample": False, "max_gen_toks": limit}
        yield {
            "doc_id": number,
            "doc": doc,
            "target": target,
            "arguments": {"gen_args_0": {"arg_0": text, "arg_1": settings}},
            "resps": [[each.response]],
            "filtered_resps": [each.response],
            "filter": NO_FILTER,
            "metrics": [METRIC],
            "doc_hash": digest(json.dumps(doc, indent=2, ensure_ascii=False)),
            "prompt_hash": digest(text),
            "target_hash": digest(target),
            METRIC: float(each.correct is True),
        }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
