#!/bin/sh
# transformers 5.23.0 renders calls, tools and results of tools that a chat template does not write, without a word.
#
# apply_chat_template(messages, tools=tools) could be expected to fail if the template has no place for a tool call. Of
# the 72 templates that TRL 1.16.0 ships, a call leaves no trace in 20, the tools in 26, and the result of a tool in 6,
# while others raise an exception. Training on such a text teaches the policy to answer with its end token. A word that
# occurs nowhere else, put into the name of the function and looked for in the text, tells what a template writes.
#
# Output seen:
#   transformers 5.23.0, trl 1.16.0, 72 templates
#   call: no trace in 20, an exception in 7
#   tools: no trace in 26, an exception in 0
#   result: no trace in 6, an exception in 13
#
# Seen on 2026-11-29 with Python 3.11. Ends with another exit code than 0 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 jinja2==3.1.6
"$folder/env/bin/pip" install --quiet --disable-pip-version-check --no-deps trl==1.16.0
cd "$folder"
TRANSFORMERS_VERBOSITY=error "$folder/env/bin/python" - <<'PYTHON'
from importlib.metadata import distribution, version
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

templates = sorted(
    Path(distribution("trl").locate_file(each))
    for each in distribution("trl").files
    if each.suffix == ".jinja"
)
print(f"transformers {version('transformers')}, trl {version('trl')}, {len(templates)} templates")
parameters = {"type": "object", "properties": {"a": {"type": "integer", "description": "x"}}}
tool = {"type": "function", "function": {"name": "zqtool", "description": "x", "parameters": parameters}}
call = {"type": "function", "id": "abcdefghi", "function": {"name": "zqcall", "arguments": {"a": 1}}}
asked = {"role": "user", "content": "Hello."}
calling = {"role": "assistant", "content": "", "tool_calls": [call]}
result = {"role": "tool", "name": "zqcall", "tool_call_id": "abcdefghi", "content": "zqresult"}
CASES = {
    "call": ([asked, calling], "zqcall"),
    "tools": ([asked], "zqtool"),
    "result": ([asked, calling, result], "zqresult"),
}
counts = {}
for name, (messages, word) in CASES.items():
    silent = raised = 0
    for path in templates:
        try:
            (text,), _ = render_jinja_template(
                conversations=[messages], tools=[tool], chat_template=path.read_text(), bos_token="", eos_token=""
            )
        except Exception:
            raised += 1
        else:
            silent += word not in text
    counts[name] = silent
    print(f"{name}: no trace in {silent}, an exception in {raised}")
assert len(templates) == 72
assert counts == {"call": 20, "tools": 26, "result": 6}
PYTHON
