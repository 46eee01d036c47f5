"""The key that requests have to bring: a text, or a file that may come later and change."""

from sp500.serving import guard
from sp500.serving.guard import Key


def test_text_is_compared_as_a_whole():
    key = Key("secret")
    assert key.is_needed
    assert all(map(key.fits, (b"Bearer secret", b"bearer secret", b"BEARER secret")))  # RFC 7235, 2.1
    wrong = (b"", b"Bearer ", b"Bearer secre", b"Bearer Secret", b"Bearer secret ", b"Basic secret", b"secret")
    assert not any(map(key.fits, wrong))


def test_without_text_and_file_every_request_passes():
    key = Key()
    assert not key.is_needed
    assert key.fits(b"")


def test_file_that_is_missing_or_empty_lets_no_request_through(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "KEY_SECONDS", 0.0)
    key = Key("", tmp_path / "key")
    assert key.is_needed
    assert not any(map(key.fits, (b"", b"Bearer ", b"Bearer first")))
    (tmp_path / "key").write_text("\n")
    assert not any(map(key.fits, (b"", b"Bearer ")))
    (tmp_path / "key").write_text("first\n")
    assert key.fits(b"Bearer first")


def test_changed_file_changes_the_key(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_text("first")
    key = Key("", file)
    assert key.fits(b"Bearer first")
    file.write_text("second")
    assert key.fits(b"Bearer first")  # read again after a while, and not for every request
    monkeypatch.setattr(guard, "KEY_SECONDS", 0.0)
    assert (key.fits(b"Bearer first"), key.fits(b"Bearer second")) == (False, True)
