"""Files that a configuration names are pinned and copied: a run needs the originals no more."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.runs.run_files import copy_files, only, pin_files

from ..conftest import SMALL, Output, Refusal, only_run

BUNDLED = discover({}).tasks["cartpole-balance"].folder
CONFIG = '''

@dataclass(frozen=True, kw_only=True)
class TableConfig(CartpoleConfig):
    """Cart-pole that reads tables."""

    tables: Annotated[tuple[str, ...], Suffixes((".csv",))] = ("task:own.csv",)


TASKS = {
    "table": Task(summary="Table.", env=TableConfig(), env_class="env:CartpoleEnv", agent=AGENT)
}
'''
SETUP = """
    def setup(self) -> None:
        files = find_files(self.cfg.tables, self.places, (".csv",), "--env.tables")
        print("tables:", *[f"{file.path.read_text()} {file.weight}" for file in files])

    def reset_worlds("""
TRAIN = ("train", "table", "--gpu-ids", "None", "--agent.save-interval", "1", *SMALL)
ONE, TWO, THREE = (("--agent.max-iterations", count) for count in "123")
CPU = ("--gpu-ids", "None")


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task that reads files, beside two of them; the current one."""
    task = shutil.copytree(BUNDLED, tmp_path / "tasks" / "table")
    config, env = task / "config.py", task / "env.py"
    imports = "from typing import Annotated\nfrom mjfleet.utils.input_files import Suffixes\n"
    config.write_text(imports + config.read_text() + CONFIG)
    text = env.read_text().replace("\n    def reset_worlds(", SETUP)
    needed = "import math\nfrom mjfleet.utils.input_files import find_files\n"
    env.write_text(text.replace("import math\n", needed))
    (task / "own.csv").write_text("own")
    (tmp_path / "more").mkdir()
    for name in ("a.csv", "b.csv", "notes.txt"):
        (tmp_path / "more" / name).write_text(name[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tasks"


def test_a_run_continues_and_plays_with_its_copies(
    output: Output, refusal: Refusal, tasks: Path, tmp_path: Path
) -> None:
    flags = ("--env.tables", "more=2", "task:own.csv", "--run-dir", "run")
    seen = "tables: a 2.0 b 2.0 own 1.0"
    assert seen in output(*TRAIN, *ONE, *flags)
    copies = sorted(path.name.partition("_")[2] for path in (tmp_path / "run/files").iterdir())
    assert copies == ["a.csv", "b.csv", "own.csv"]
    (tmp_path / "more" / "a.csv").write_text("other")
    text = refusal(*TRAIN, *TWO, *flags)
    assert "--env.tables is" in text
    assert "--fork" in text
    shutil.rmtree(tmp_path / "more")
    assert seen in output(*TRAIN, *TWO, *flags)  # As a pod that begins again.
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    (tasks / "table" / "own.csv").unlink()
    played = output("play", "table", "--resume", str(moved), "--episodes", "1", *CPU)
    assert seen in played
    assert seen in output("train", "--resume", str(moved), "--fork", *CPU, *THREE)
    assert len(list((only_run(tmp_path, "table") / "files").iterdir())) == 3


def test_entries_are_pinned_once_and_wrong_ones_refused(tasks: Path, tmp_path: Path) -> None:
    found = discover({}, str(tasks)).find("table")

    def config(*entries: str) -> Any:
        default: Any = found.defaults()
        return replace(default, env=replace(default.env, tables=entries))

    pinned: Any = pin_files(found, config("more/a.csv=0.5", "task:own.csv"))
    hashes = [hashlib.sha256(text).hexdigest()[:16] for text in (b"a", b"own")]
    assert pinned.env.tables == (f"more/a.csv@{hashes[0]}=0.5", f"task:own.csv@{hashes[1]}")
    assert pin_files(found, pinned) == pinned
    copy_files(found, pinned, tmp_path)
    (tmp_path / "more" / "a.csv").unlink()
    assert pin_files(found, pinned, tmp_path) == pinned
    recorded = pin_files(found, config("more/a.csv=0.5"), tmp_path, pinned)
    assert recorded.env == replace(pinned.env, tables=pinned.env.tables[:1])
    assert only(found, pinned, "own").env == replace(pinned.env, tables=pinned.env.tables[1:])
    folder: Any = only(found, config("more=0.5", "task:own.csv"), "b")
    assert folder.env.tables == ("more/b.csv",)
    (tmp_path / "none").mkdir()
    for entry, message in (
        ("none.csv", "--env.tables none.csv: there is no such file or folder"),
        ("none", "the folder has no file of .csv"),
        ("task:own.csv=-1", "write FILE, FOLDER, or either with a weight"),
        ("task:own.csv=much", "write FILE, FOLDER, or either with a weight"),
        (f"task:own.csv@{hashes[0]}", "nor is task:own.csv a file with this content"),
    ):
        with pytest.raises(UserError, match=message):
            pin_files(found, config(entry))
    with pytest.raises(UserError, match=r"--clip b: --env\.tables has a, own"):
        only(found, pinned, "b")
