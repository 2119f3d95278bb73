import pytest

from rl4p.base.errors import InputError
from rl4p.data.csv import CSV


@pytest.fixture
def read(tmp_path):
    def read(content, **options):
        path = tmp_path / "rows.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return CSV(path=str(path), held_out_path=str(path), **options).train()

    return read


def test_all_fields_are_texts(read):
    content = '\ufeffquestion,answer,level\r\n"1,\n1",007,4\r\n\r\n"say ""x""\u2028?",2,5\r\n'
    first, second = read(content, metadata_keys=("level",))
    assert (first.question, first.answer, first.task) == ("1,\n1", "007", "csv")
    assert second.question == 'say "x"\u2028?'
    assert second.metadata == {"level": "5"}
    assert [q.answer for q in read(content, where={"level": 5})] == ["2"]


def test_another_delimiter(read):
    (question,) = read("question\tanswer\n1,1\t2\n", delimiter="\t")
    assert question.question == "1,1"
    for bad in ("", ",,", '"', "\n"):
        with pytest.raises(ValueError, match=r"delimiter=.* must be one character"):
            read("", delimiter=bad)


def test_long_fields(read):
    (question,) = read(f"question,answer\n{'1' * 200_000},2\n")
    assert len(question.question) == 200_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"data\.path=.* has no rows"),
        ("question,answer\n", r"data\.path=.* has no rows"),
        ("question,answer\n1,2\n\n3,4,5\n", r"rows\.csv, line 4: 3 fields, but 2 columns"),
        ('question,answer\n"a\nb",2\n3\n', r"rows\.csv, line 4: 1 fields, but 2 columns"),
        ('question,answer\n"a\nb",\n', r'rows\.csv, line 2: no text under "answer"'),
        ("question,answer\n1,2\n3, \n", r'rows\.csv, line 3: no text under "answer"'),
        (b"question,answer\n1,2\n\xff,4\n", r"rows\.csv, line 3: not UTF-8"),
        ('question,answer\n"1,2\n', r"rows\.csv, line 2: not CSV"),
        ("question,gold\n1,2\n", r"rows\.csv, line 1: no column \"answer\"; .*'gold'"),
        ("question,question\n1,2\n", r"the column names \['question'\] occur twice"),
    ],
    ids=range(10),
)
def test_a_bad_row_is_named_by_file_and_line(read, content, message):
    with pytest.raises(InputError, match=message):
        read(content)
