import stat

import pytest

from rl4p.configuration import signature
from rl4p.configuration.signature import MARK, is_own, key_file, own_key, signed


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A signed file, with a key of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "config.yaml"
    file.write_text(signed("config.yaml", "a: 1\n"))
    return file


def test_a_file_with_a_signature_is_the_users_own(file):
    assert is_own(file)
    assert file.read_text().startswith(f"a: 1\n{MARK}")
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    assert [path.name for path in key_file().parent.iterdir()] == ["key"]
    assert own_key() == own_key()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("a: 1", "a: 2"), id="value"),
        pytest.param(lambda text: text.partition(MARK)[0], id="unsigned"),
        pytest.param(lambda text: "b: 1\n" + text, id="before"),
        pytest.param(lambda text: text + "b: 1\n", id="after"),
        pytest.param(lambda text: text + text, id="twice"),
        pytest.param(lambda text: text[:-2] + "\n", id="cut"),
        pytest.param(lambda text: text.partition(MARK)[0] + MARK + "0" * 64 + "\n", id="forged"),
        pytest.param(lambda text: text.partition(MARK)[0] + MARK + "\n", id="empty signature"),
        pytest.param(lambda text: "", id="empty"),
    ],
)
def test_a_file_that_was_changed_is_not(file, change):
    file.write_text(change(file.read_text()))
    assert not is_own(file)


def test_no_file_stands_for_another(file):
    assert not is_own(file.rename(file.with_name("overrides.yaml")))


def test_another_user_has_another_key(file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not is_own(file)
    assert own_key()


@pytest.mark.parametrize("harm", ["readable", "short", "folder", "no home"])
def test_without_a_secret_key_nothing_is_signed(file, tmp_path, monkeypatch, harm):
    if harm == "readable":
        key_file().chmod(0o644)
    elif harm == "short":
        key_file().write_bytes(b"")
    elif harm == "folder":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(signature.Path, "home", _no_home)
    assert own_key() is None
    assert not is_own(file)
    assert signed("config.yaml", "a: 1\n") == "a: 1\n"


def _no_home():
    raise RuntimeError("Could not determine home directory.")
