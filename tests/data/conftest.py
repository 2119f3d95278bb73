"""A fixture that writes files of rows."""

import json

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes a file of rows, lines, text or bytes, and returns its path."""

    def write(content, name="rows.jsonl"):
        path = tmp_path / name
        if isinstance(content, list):
            lines = (each if isinstance(each, str) else json.dumps(each) for each in content)
            content = "\n".join(lines)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write
