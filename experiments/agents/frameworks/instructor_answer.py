"""instructor: an answer in a model of pydantic, which is asked for again when it is not valid."""

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field


class Sum(BaseModel):
    """A sum of two numbers."""

    a: int
    b: int
    value: int = Field(le=200)


row = json.loads(sys.stdin.readline())
client = instructor.from_openai(OpenAI())
answer = client.chat.completions.create(
    model="gpt-4.1",
    messages=[{"role": "user", "content": row["question"]}],
    response_model=Sum,
    max_retries=2,
)
print(float(row["answer"] == str(answer.value)))
