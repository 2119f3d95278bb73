"""The frameworks: their packages, the program of each, and what the policy is made to say."""

import json
from collections.abc import Sequence
from dataclasses import dataclass


def call(tool: str, **arguments: int | str) -> str:
    """Returns a call of a tool as the policy writes it."""
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def fields(**values: str) -> str:
    """Returns an answer in the markers of dspy."""
    parts = [f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in values.items()]
    return "".join(parts) + "[[ ## completed ## ]]"


def keys(*typed: str, done: bool = False) -> str:
    """Returns an answer of Terminus-2: what is typed into its terminal."""
    commands = [{"keystrokes": each, "duration": 0.5} for each in typed]
    answer = {"analysis": "A sum.", "plan": "I add.", "commands": commands}
    return json.dumps(answer | {"task_complete": done})


ADD = call("add", a=12, b=30)
SUM = "echo $((12 + 30))"


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework, and its ordinary program of two turns.

    The texts are for the question "What is 12 + 30?", whose numbers differ for each framework.

    Attributes:
      packages: what pip installs, or npm if they are written as npm has them (`name@1.2.3`).
      program: a file of the folder `frameworks`.
      texts: what the policy says in an episode, one text for each call.
      room: the most tokens after the first context.
      python: the version of Python that it needs at least.
    """

    packages: Sequence[str]
    program: str
    texts: Sequence[str] = (ADD, "The sum is 42.")
    room: int = 1024
    python: tuple[int, int] = (3, 11)


FRAMEWORKS = {
    "openai chat": Framework(packages=["openai==3.57.0"], program="openai_chat.py"),
    "openai responses": Framework(packages=["openai==3.57.0"], program="openai_responses.py"),
    "anthropic": Framework(packages=["anthropic==2.14.0"], program="anthropic_runner.py"),
    "openai-agents": Framework(packages=["openai-agents==0.24.0"], program="openai_agents.py"),
    "pydantic-ai": Framework(
        packages=["pydantic-ai-slim[openai]==2.68.0"],
        program="pydantic_ai_agent.py",
        texts=(ADD, call("final_result", value=42)),
    ),
    "smolagents ToolCallingAgent": Framework(
        packages=["smolagents[openai]==1.26.0"],
        program="smolagents_tools.py",
        texts=(ADD, call("final_answer", answer="42")),
        room=8192,
    ),
    "smolagents CodeAgent": Framework(
        packages=["smolagents[openai]==1.26.0"],
        program="smolagents_code.py",
        texts=(
            "Thought: I add.\n<code>\nprint(add(a=12, b=30))\n</code>",
            "Thought: It is done.\n<code>\nfinal_answer(42)\n</code>",
        ),
        room=2048,
    ),
    "langgraph": Framework(
        packages=["langgraph==1.2.24", "langchain==1.5.2", "langchain-openai==1.7.4"],
        program="langgraph_agent.py",
    ),
    "litellm": Framework(packages=["litellm==1.110.2"], program="litellm_loop.py"),
    "dspy": Framework(
        packages=["dspy==3.4.1"],
        program="dspy_react.py",
        texts=(
            fields(
                next_thought="I add.", next_tool_name="add", next_tool_args='{"a": 12, "b": 30}'
            ),
            fields(next_thought="It is done.", next_tool_name="finish", next_tool_args="{}"),
            fields(reasoning="The tool says 42.", answer="42"),
        ),
        room=8192,
    ),
    "autogen": Framework(
        packages=["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"],
        program="autogen_agent.py",
    ),
    "ag2": Framework(packages=["ag2[openai]==1.2.1"], program="ag2_agents.py"),
    "llama-index": Framework(
        packages=["llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"],
        program="llama_index_agent.py",
    ),
    "instructor": Framework(
        packages=["instructor==1.17.0"],
        program="instructor_answer.py",
        texts=(call("Sum", a=12, b=30, value=999), call("Sum", a=12, b=30, value=42)),
    ),
    "strands": Framework(packages=["strands-agents[openai]==1.62.0"], program="strands_agent.py"),
    "google-adk": Framework(
        packages=["google-adk==2.13.0", "litellm==1.110.2"], program="google_adk_agent.py"
    ),
    "crewai": Framework(packages=["crewai==1.15.30"], program="crewai_crew.py"),
    "haystack": Framework(packages=["haystack-ai==3.4.1"], program="haystack_agent.py"),
    "vercel ai": Framework(
        packages=["ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4.6.7"], program="vercel_ai.mjs"
    ),
    # Whole programs that people run: each answers after a command of its shell.
    "mini-swe-agent": Framework(
        packages=["mini-swe-agent==2.4.6"],
        program="mini_swe_agent.py",
        texts=(
            "I add.\n" + call("bash", command=SUM),
            call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 42"),
        ),
        room=1536,
    ),
    "claude code": Framework(
        packages=["@anthropic-ai/claude-code@2.1.332"],
        program="claude_code.py",
        texts=("I add.\n" + call("Bash", command=SUM, description="Adds"), "The sum is 42."),
        room=1536,
    ),
    "codex": Framework(
        packages=["@openai/codex@0.171.0"],
        program="codex.py",
        texts=("I add.\n" + call("exec_command", cmd=SUM), "The sum is 42."),
        room=1536,
    ),
    "qwen code": Framework(
        packages=["@qwen-code/qwen-code@0.24.4"],
        program="qwen_code.py",
        texts=("I add.\n" + call("run_shell_command", command=SUM), "The sum is 42."),
        room=1792,
    ),
    "opencode": Framework(
        packages=["opencode-ai@1.18.33"],
        program="opencode.py",
        texts=("I add.\n" + call("bash", command=SUM, description="Adds"), "The sum is 42."),
        room=1536,
    ),
    "terminus-2": Framework(
        packages=["harbor==0.26.0"],
        program="terminus_2.py",
        texts=(keys("echo 42 > sum\n"), keys(done=True), keys(done=True)),
        room=1536,
        python=(3, 12),
    ),
}
