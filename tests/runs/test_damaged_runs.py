"""A run directory in which files are damaged, or something else lies in their place."""

import copy
import io
import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.cli.run_command import run_command

from ..conftest import TESTS, Output, Run, drawn

TASK = "cartpole-balance"
RUN = TESTS / "data" / "cartpole-balance-9159368"
ESCAPE = "\x1b]0;title\x07[/b][link=x]$\\frac$"
FAILURE = {
    "rank": 0, "host": "h", "device": "cpu", "seed": 1, "iteration": 2, "phase": "collect",
    "time": 1.0, "kind": "E", "message": "m", "traceback": "t", "mistake": False,
    "is_secondary": False, "log": ["l"],
}  # fmt: skip
BYTES = (
    b"", b"\0" * 3000, b"[" * 100_000, b"{" * 60_000, b"- " * 30_000, b"\xff\xfe\x1b[2J",
    b"a: &a [1]\nb: [*a, *a]", b"a: " + b"9" * 5000, b"a: 2026-13-45", b'{"a": 1e999}',
    b"iteration,mean_return\n" + b"1," * 50_000 + b"\n", b"iteration\n" * 2000,
    b"iteration,iteration,mean_return\n1,2,3\n", b"iteration,mean\r_return\n1,2\n",
    b"9" * 100_000, b"PK\x03\x04" + bytes(100),
    f"iteration,mean_return,task/{ESCAPE},total_steps\n1,1e308,-1e308,inf\n2,3,4,nan\n".encode(),
)  # fmt: skip
VALUES = (
    None, True, 0, -1, 2**70, 1e308, float("inf"), float("nan"), "", "1" * 5000, ESCAPE, "\udcff",
    "../../x", "/", "9999-12-31T23:59:59", "0001-01-01T00:00:00+14:00", [], {}, [[]], [None, 3],
    {"a": {"b": [1]}}, [{}], "a\0b", [[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]],
)  # fmt: skip


def make_run(root: Path, name: str = "2026-01-01_00-00-00") -> Path:
    """Return a copy of a run, with files that not every run has."""
    run_dir = Path(shutil.copytree(RUN, root / "logs" / TASK / name))
    for file in ("failures/rank0.json", "failures/attempt_1/rank0.json"):
        (run_dir / file).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / file).write_text(json.dumps(FAILURE))
    (run_dir / "videos").mkdir()
    (run_dir / "videos/iteration_3.mp4").write_bytes(b"a video")
    return run_dir


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return kind and content of all that a folder holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        content = os.readlink(path).encode() if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = kind, content
    return found


def places(value: Any, found: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a value."""
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    return [found, *(path for key, item in items for path in places(item, (*found, key)))]


def retype(path: Path, kind: str, outside: Path) -> None:
    """Put something else in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening, chdir(path.parent):
            listening.bind(path.name)
    elif kind != "gone":
        targets = {"link": outside, "loop": path, "zero": Path("/dev/zero"), "root": Path("/")}
        path.symlink_to(targets[kind])


def damage(draw: Callable[[Any], Any], run_dir: Path, other: Path, outside: Path) -> None:
    """Damage one thing of a run."""
    paths = sorted(path for path in run_dir.rglob("*") if not path.is_symlink())
    files = [path for path in paths if path.is_file()]
    how = draw(st.sampled_from(("truncate", "flip", "bytes", "value", "value", "swap", "retype")))
    path = draw(st.sampled_from(paths if how == "retype" else files))
    content = path.read_bytes() if path.is_file() else b""
    if how == "truncate":
        path.write_bytes(content[: draw(st.integers(0, len(content)))])
    elif how == "flip" and content:
        place = draw(st.integers(0, len(content) - 1))
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x15]) + content[place + 1 :])
    elif how == "bytes":
        path.write_bytes(draw(st.sampled_from(BYTES)))
    elif how == "swap":
        others = sorted(path for path in other.rglob("*") if path.is_file())
        path.write_bytes(draw(st.sampled_from(others)).read_bytes())
    elif how == "retype":
        kinds = ("folder", "pipe", "socket", "link", "loop", "zero", "root", "gone")
        retype(path, draw(st.sampled_from(kinds)), outside)
    elif path.suffix in (".json", ".yaml"):
        load = json.loads if path.suffix == ".json" else yaml.safe_load
        dump = json.dumps if path.suffix == ".json" else yaml.safe_dump
        try:
            data = load(content)
        except (ValueError, RecursionError, yaml.YAMLError):
            return  # It is damaged already.
        *keys, last = draw(st.sampled_from([(None,), *filter(None, places(data))]))
        value = copy.deepcopy(draw(st.sampled_from(VALUES)))
        if last is not None:
            parent = data
            for key in keys:
                parent = parent[key]
            parent[last] = value
        path.write_text(dump(value if last is None else data), errors="surrogateescape")


def make_damaged(draw: Callable[[Any], Any], root: Path, times: int) -> tuple[Path, Path]:
    """Return a run with so many things damaged, and one without, beside a folder with a file."""
    run_dir, other = make_run(root), make_run(root, "2026-01-02_00-00-00")
    outside = root / "outside"
    outside.mkdir()
    (outside / "model_9.pt").write_bytes(b"precious")
    for _ in range(times):
        damage(draw, run_dir, other, outside)
    return run_dir, other


def call(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it prints."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = run_command(mjfleet, words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 2
    return code, out.getvalue()


@pytest.mark.parametrize(
    ("file", "kind", "message"),
    [
        ("run.json", "pipe", "run.json: it is not a regular file"),
        ("config.yaml", "link", "config.yaml: it is not a regular file"),
        ("metrics.csv", "zero", "metrics.csv in it is a symbolic link"),
        ("checkpoints", "loop", "must lead to a folder of yours"),
        ("videos", "socket", "videos in it is not a regular file"),
    ],
)
def test_what_is_no_file_of_a_run_is_named_and_nothing_written_elsewhere(
    tmp_path: Path, file: str, kind: str, message: str
) -> None:
    run_dir, outside = make_run(tmp_path), tmp_path / "outside"
    if file == "checkpoints":
        (run_dir / file).rename(outside)
    else:
        outside.mkdir()
        (outside / ".x.tmp").write_bytes(b"precious")
    if not (run_dir / file).exists():
        (run_dir / file).touch()
    retype(run_dir / file, kind, outside)
    before = everything(tmp_path)
    with chdir(tmp_path):
        code, said = call("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "9")
    assert (code, message in said) == (2, True), said
    assert everything(tmp_path) == before


def test_a_link_between_attempts_is_not_followed(tmp_path: Path) -> None:
    run_dir, outside = make_run(tmp_path), tmp_path / "outside"
    (run_dir / "failures/attempt_1").rename(outside)
    (outside / "rank0.json").write_text(json.dumps(FAILURE | {"message": "elsewhere"}))
    (run_dir / "failures/attempt_1").symlink_to(outside)
    assert call("report", str(run_dir), "--output", str(tmp_path / "page.html"))[0] == 0
    assert "elsewhere" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("file", ["run.json", "config.yaml"])
def test_a_file_that_fits_no_memory_is_not_read(tmp_path: Path, file: str) -> None:
    run_dir = make_run(tmp_path)
    os.truncate(run_dir / file, 2**40)
    with chdir(tmp_path):
        assert call("runs")[0] == 0
        code, said = call("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "9")
    assert (code, f"{file}: it has {2**40:,} bytes; " in said) == (2, True), said


@pytest.mark.slow
@pytest.mark.timeout(3600)
@drawn(25)
@given(data=st.data())
def test_any_damage_is_answered(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    root = tmp_path_factory.mktemp("damaged")
    run_dir, other = make_damaged(data.draw, root, data.draw(st.integers(1, 2)))
    before = everything(root)
    name = f"{TASK}/{run_dir.name}"
    output = str(root.parent / f"{root.name}.out")
    with chdir(root):
        for command in (
            ("runs",),
            ("runs", "--json"),
            ("plot", str(run_dir), "--output", f"{output}.svg", "--columns", "mean_return"),
            ("report", str(run_dir), "--output", f"{output}.html"),
            ("train", TASK, "--dry-run", "--resume", str(run_dir)),
            ("train", TASK, "--dry-run", "--resume", "latest"),
            ("train", TASK, "--dry-run", "--config", str(run_dir / "config.yaml")),
        ):
            code, said = call(*command)
            assert code in ((0,) if command[0] == "runs" else (0, 2)), said
            assert all(c.isprintable() or c in "\n\t" for c in said), said
            if command[0] == "runs":
                assert f"{TASK}/{other.name}" in said
                has_files = any(os.path.lexists(run_dir / f) for f in ("run.json", "metrics.csv"))
                assert (name in said) == has_files
    assert everything(root) == before
    shutil.rmtree(root)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@drawn(1)
@given(data=st.data())
def test_a_damaged_run_continues_or_is_refused(run: Run, tmp_path: Path, data: Any) -> None:
    root = tmp_path
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run_dir, _ = make_damaged(data.draw, root, 1)
    models = {path.read_bytes() for path in run_dir.glob("checkpoints/*.pt") if path.is_file()}
    before = everything(root)
    result = run("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "4")
    said = result.stdout + result.stderr
    assert result.returncode in (0, 2), said
    assert "Traceback" not in said
    after = everything(root)
    if result.returncode == 2:
        assert after == before
    is_own = f"logs/{TASK}/{run_dir.name}"
    assert {k: v for k, v in after.items() if not k.startswith(is_own)} == {
        k: v for k, v in before.items() if not k.startswith(is_own)
    }
    assert models <= {path.read_bytes() for path in run_dir.rglob("*.pt") if path.is_file()}


@pytest.mark.parametrize("attempts", [[], [{}], [{"status": []}]])
def test_attempts_that_say_nothing_are_kept(
    tmp_path: Path, output: Output, attempts: list[Any]
) -> None:
    run_dir = make_run(tmp_path)
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"attempts": attempts}))
    output("train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "4")
    now = json.loads((run_dir / "run.json").read_text())["attempts"]
    assert (now[:-1], now[-1]["status"]) == (attempts, "finished")
