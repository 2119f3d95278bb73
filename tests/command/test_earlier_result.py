import os

import pytest

from rl4p.base.errors import InputError
from rl4p.command.earlier_result import is_document_with, is_page_of, refuse_other_file

PAGE = '<!doctype html>\n<meta name="generator" content="rl4p.samples">'


@pytest.mark.parametrize(
    ("content", "made", "refused"),
    [
        (None, is_page_of("samples"), False),
        ("", is_page_of("samples"), False),
        (PAGE, is_page_of("samples"), False),
        (PAGE, is_page_of("compare"), True),
        ("x" * 5000 + PAGE, is_page_of("samples"), True),
        ("mine", is_page_of("samples"), True),
        ('{"fits": true, "verdict": ""}', is_document_with("fits", "verdict"), False),
        ('{"fits": true}', is_document_with("fits", "verdict"), True),
        ('["fits", "verdict"]', is_document_with("fits", "verdict"), True),
        ("[" * 100_000, is_document_with("fits"), True),
        ("\udc80", is_document_with("fits"), True),
    ],
)
def test_only_an_earlier_result_is_replaced(tmp_path, content, made, refused):
    out = tmp_path / "out"
    if content is not None:
        out.write_bytes(content.encode(errors="surrogateescape"))
    if not refused:
        return refuse_other_file(out, "plan", made)
    with pytest.raises(InputError, match=f"^out={out} exists and was not made by rl4p.plan: name"):
        refuse_other_file(out, "plan", made)
    sentence = f"^out={tmp_path}: {out} exists and was not made by rl4p.plan: name another"
    with pytest.raises(InputError, match=sentence):
        refuse_other_file(tmp_path, "plan", made, file=out)
    return None


def test_what_is_no_regular_file_is_refused(tmp_path):
    made = is_page_of("samples")
    with pytest.raises(InputError, match=f"^out={tmp_path} is a folder: name a file"):
        refuse_other_file(tmp_path, "samples", made)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is a device or a pipe: name a file"):
        refuse_other_file(tmp_path / "pipe", "samples", made)
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        refuse_other_file(tmp_path / ("a" * 300), "samples", made)
