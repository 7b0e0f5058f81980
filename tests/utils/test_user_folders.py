"""Commands of a user without a home, as in a container that knows no such user."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mjfleet.utils.user_folders import FOLDERS, have_user_folders

from ..conftest import MODULES, SMALL

NOBODY = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
"""Begins a command as a user who is in no list of users."""
OF_A_USER = ("HOME", "USER", "LOGNAME", "USERNAME", "LNAME", "MPLCONFIGDIR")
TASK = "cartpole-balance"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files, which is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_folders_that_can_be_written_are_used(
    tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {"HOME": str(tmp_path), "WARP_CACHE_PATH": f"{tmp_path}/kernels"}
    before = dict(environ)
    have_user_folders(environ)
    assert environ == before
    assert not list(temporary.iterdir())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", [*FOLDERS, "WARP_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR"])
def test_one_that_cannot_be_written_is_replaced_and_a_line_says_so(
    name: str, tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {"HOME": str(tmp_path), name: "/dev/null/folder"}
    have_user_folders(environ)
    assert environ["HOME"] == str(tmp_path)
    assert environ.keys() == {"HOME", name}
    (own,) = temporary.iterdir()
    assert own in Path(environ[name]).parents
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    shown = capfd.readouterr().err
    assert shown.startswith("/dev/null/folder cannot be written: ")
    assert shown.endswith(f"{own}\n")
    assert shown.count("\n") == 1
    # The same again for a later command; processes that this one starts have nothing to replace.
    again, inherited = {"HOME": str(tmp_path), name: "/dev/null/folder"}, dict(environ)
    have_user_folders(again)
    have_user_folders(inherited)
    assert again == inherited == environ
    assert capfd.readouterr().err == shown


def test_a_home_that_is_no_folder_is_as_good_as_none(temporary: Path) -> None:
    for home in ("/dev/null", "/dev/null/home"):
        environ = {"HOME": home}
        have_user_folders(environ)
        assert all(temporary in Path(environ[name]).parents for name in FOLDERS)


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, temporary: Path) -> None:
    usual = temporary / f"mjfleet-home-{os.geteuid()}"
    (tmp_path / "theirs").mkdir()
    for prepare in (
        lambda: usual.symlink_to(tmp_path / "theirs"),
        lambda: (usual.unlink(), usual.mkdir(), usual.chmod(0o777)),
    ):
        prepare()
        environ = {"HOME": "/dev/null"}
        have_user_folders(environ)
        assert all(usual not in Path(environ[name]).parents for name in FOLDERS)
    assert not list((tmp_path / "theirs").iterdir())


def run_as_nobody(
    folder: Path, temporary: Path, *words: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command of MODULES, or of Python, without a home and without a user's name."""
    if subprocess.run([*NOBODY, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system has no namespaces for users")
    kept = {n: v for n, v in os.environ.items() if n not in OF_A_USER and n[:4] != "XDG_"}
    kept |= {"TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": "", **variables}
    python = [sys.executable, *(("-m", MODULES[words[0]]) if words[0] in MODULES else words[:1])]
    command = [*NOBODY, *python, *words[1:]]
    result = subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("there is no home directory") == 1, result.stderr
    return result


def test_a_user_without_a_home_trains(tmp_path: Path, temporary: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    train = ("train", TASK, *SMALL, "--agent.max-iterations", "1", "--run-dir", "run")
    result = run_as_nobody(folder, temporary, *train)
    assert "iteration=1/1" in result.stdout
    assert len(result.stderr.splitlines()) == 1
    # The note of the run is found again, by which its placement counts.
    assert list(temporary.rglob("mjfleet/runs/*.json"))
    script = "import mjfleet, pathlib; print(mjfleet.Run('run').status, pathlib.Path.home())"
    assert f"finished {temporary}" in run_as_nobody(folder, temporary, "-c" + script).stdout
    assert [path.name for path in folder.iterdir()] == ["run"]


@pytest.mark.slow
def test_no_command_needs_a_home_a_name_a_locale_or_a_time_zone(
    tmp_path: Path, temporary: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    bare = {"LC_ALL": "xx_YY.ISO-8859-1", "TZ": "Nowhere/None"}
    logged = ("--agent.logger", "tensorboard", "wandb", "--agent.wandb.mode", "offline")
    shown = ("--eval-interval", "1", "--video-interval", "1", "--run-name", "ü", *logged)
    for words in (
        ("train", TASK, *SMALL, "--max-iterations", "2", "--cpu-workers", "2", *shown),
        ("train", TASK, *SMALL, "--max-iterations", "1", "--engine", "warp"),
        ("train", TASK, "--resume", "ü", "--max-iterations", "3"),
        ("play", TASK, "--resume", "ü", "--episodes", "1", "--video", "ö.mp4"),
        ("mjfleet", "runs"),
        ("mjfleet", "doctor"),
        ("mjfleet", "check-task", TASK),
        ("mjfleet", "report", "ü"),
        ("mjfleet", "plot", "ü"),
        ("mjfleet", "export", "ü", "--format", "torchscript"),
    ):
        run_as_nobody(folder, temporary, *words, **bare)
    made = {path.name for path in folder.iterdir()}
    assert made == {"logs", "ö.mp4"}
