"""The commit that results name is the one of the code that made them."""

import subprocess

import pytest

from ripe_mambaspike.commit import VARIABLE, commit


@pytest.fixture(autouse=True)
def _no_commit_from_outside(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_the_commit_of_a_checkout(tmp_path, packed):
    home, code = tmp_path / ".git", tmp_path / "src" / "code.py"
    (home / "refs" / "heads").mkdir(parents=True)
    (home / "HEAD").write_text("ref: refs/heads/main\n")
    if packed:
        (home / "packed-refs").write_text(
            f"# pack-refs\n{'b' * 40} refs/heads/other-main\n{'a' * 40} refs/heads/main\n"
        )
    else:
        (home / "refs" / "heads" / "main").write_text("a" * 40 + "\n")
    assert commit(code) == "a" * 40
    (home / "HEAD").write_text("c" * 40 + "\n")
    assert commit(code) == "c" * 40


def test_no_commit_outside_a_checkout(tmp_path):
    assert commit(tmp_path / "code.py") is None


def test_changed_files_are_said(tmp_path):
    def git(*words):
        return subprocess.run(["git", "-C", str(tmp_path), *words], capture_output=True, text=True, check=True).stdout

    code = tmp_path / "src" / "code.py"
    code.parent.mkdir()
    code.write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD").strip()
    (tmp_path / "notes.txt").write_text("not tracked")
    assert commit(code) == head
    other = tmp_path / "copy" / "src" / "code.py"
    subprocess.run(["git", "clone", "-q", str(tmp_path), str(tmp_path / "copy")], check=True, capture_output=True)
    other.write_text("a = 2\n")
    assert commit(other) == f"{head}-dirty"


def test_a_copy_without_history_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1234567")
    assert commit(tmp_path / "code.py") == "1234567"
