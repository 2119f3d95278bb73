"""A small server that answers like OpenAI's, and questions for it."""

import pytest

from rl4p.data.synthetic import addition
from rl4p.runs.sample import Sample, SampleFile, Status
from rl4p.tools.generation.responses import ResponseSet


@pytest.fixture
def serve(serve):
    """Returns a function that starts a server whose address ends in /v1, as OpenAI's does."""

    def start(answer):
        asked = serve(answer)
        asked.url += "/v1"
        return asked

    return start


@pytest.fixture
def questions():
    return [addition(a, b, (False, False)) for a, b in ((11, 22), (15, 26), (99, 99))]


@pytest.fixture
def open_responses(tmp_path, questions):
    """Returns a function that opens the file of responses to the questions."""
    files = []

    def start(name="out", of=questions, show=lambda count: None):
        paths = [tmp_path / f"{name}{end}" for end in (".responses.jsonl", ".settings.json")]
        files.append(SampleFile(*paths, tmp_path / name))
        files[-1].check({})
        return ResponseSet(files[-1], of, show)

    yield start
    for file in files:
        file.close()


@pytest.fixture
def respond():
    """Returns a function that makes a response."""

    def make(question, sample=0, text="so #### 33", status=Status.COMPLETED, **values):
        return Sample.response_to(question, text, sample=sample, status=status, **values)

    return make
