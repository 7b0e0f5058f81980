"""Finding tasks: where they may be, and what happens to folders that cannot be read."""

import shutil
import sys
from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.registry import bundled_tasks, discover, find_task

from .conftest import write_task

pytestmark = pytest.mark.usefixtures("here")


def config(name: str) -> str:
    return f"""
from mjfleet.config import EnvConfig, Task
TASKS = {{"{name}": Task(summary="A task.", env=EnvConfig(), env_class="env:Thing")}}
"""


def test_folders_are_searched_in_order(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "near", config("near"))
    write_task(tmp_path / "flag", "far", config("far"))
    write_task(tmp_path / "one", "a", config("first"))
    write_task(tmp_path / "two", "b", config("second"))
    found = discover({"MJFLEET_TASKS": f"{tmp_path}/one:{tmp_path}/two"}, str(tmp_path / "flag"))
    assert list(found.tasks)[:4] == ["far", "first", "second", "near"]
    assert "cartpole-balance" in found.tasks


def test_installed_packages_bring_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    write_task(site / "robots" / "tasks", "walker", config("robot-walk"))
    (site / "robots" / "__init__.py").write_text("raise RuntimeError('imported for a list')")
    information = site / "robots-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: robots\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[mjfleet.tasks]\nrobots = robots.tasks\n")
    monkeypatch.syspath_prepend(str(site))
    assert discover({}).find("robot-walk").folder == site / "robots" / "tasks" / "walker"


def test_the_same_folder_by_two_ways_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundled_tasks().parent)
    tasks = discover({"MJFLEET_TASKS": str(bundled_tasks())}, str(bundled_tasks())).tasks
    assert "cartpole-balance" in tasks


def test_two_tasks_of_one_name_show_both_places(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "tasks", "mine", config("cartpole-balance"))
    with pytest.raises(UserError) as error:
        discover({})
    assert str(folder) in str(error.value)
    assert str(bundled_tasks() / "cartpole") in str(error.value)


def test_a_misspelt_task_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean cartpole-balance"):
        discover({}).find("cartpole-balanse")
    with pytest.raises(UserError, match="Did you mean g1-velocity-flat or go1-velocity-flat or"):
        discover({}).find("velocity")
    with pytest.raises(UserError, match=r"Tasks: .*cartpole-swingup"):
        discover({}).find("zzzzzz")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import sys\nsys.exit()", "SystemExit"),
        ("TASKS = {'thing': 3}", "TASKS must be a dict"),
        (
            "import mjfleet\n\nraise OSError('no disk')",
            r"(?s)config.py\", line 3.*raise OSError.*OSError: no disk",
        ),
        (config("a/b"), "the task name 'a/b' must be a plain folder name"),
        (config("a").replace('"a"', "1"), "the task name 1 must be a plain folder name"),
        (
            config("thing").replace("Task(", "Task(packages=('numpy'), "),
            r"`packages` is 'numpy'; it must be a tuple of names, such as \('numpy',\)",
        ),
        (
            config("thing").replace("Task(", "Task(observation_sizes=[3], "),
            r"`observation_sizes` is \[3\]; it must be a dict",
        ),
        (
            "import mjfleet\n\n\nclass ArmConfig(mjfleet.EnvConfig):\n    no_wind: bool = True\n",
            r"ArmConfig\.no_wind: a name must not begin with `no_`",
        ),
        (config("thing").replace("EnvConfig()", "EnvConfig"), r"`env` .* an EnvConfig\("),
        (config("thing").replace('"env:Thing"', "EnvConfig"), "`env_class` .* `module:Class`"),
        (config("thing").replace("env:Thing", "Thing"), "`env_class` is 'Thing'.* `module:Class`"),
        (config("thing").replace(")}", ", agent={3: 4})}"), r"`agent` is {3: 4}.* an AgentConfig"),
    ],
)
def test_a_broken_folder_hides_no_other_task(tmp_path: Path, source: str, why: str) -> None:
    folder = write_task(tmp_path / "tasks", "broken", source)
    registry = discover({})
    assert registry.find("cartpole-balance")
    with pytest.raises(UserError, match=why) as error:
        registry.find("thing")
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("def f(:\n    pass", ["line 1", "def f(:", "^", "SyntaxError"]),
        ("import config, env", ["import config, env", "write `from .config import ...`"]),
        ("x = y", ["line 1", "x = y", "NameError: name 'y' is not defined"]),
    ],
)
def test_code_that_cannot_be_imported_is_shown_where_it_fails(
    tmp_path: Path, source: str, shown: list[str]
) -> None:
    folder = write_task(tmp_path / "tasks", "broken", config("thing"), source)
    with pytest.raises(UserError) as error:
        discover({}).find("thing").load("env:Thing")
    with pytest.raises(UserError) as other_error:
        find_task("thing", write_task(tmp_path / "tasks", "too", source))
    for file, message in (
        (folder / "env.py", str(error.value)),
        (tmp_path / "tasks" / "too" / "config.py", str(other_error.value)),
    ):
        assert message.count("\n") <= 6
        for words in (str(file), *shown):
            assert words in message


def test_a_task_folder_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UserError, match="--tasks-dir names 'nowhere'"):
        discover({}, "nowhere")
    with pytest.raises(UserError, match="MJFLEET_TASKS names '/nowhere'"):
        discover({"MJFLEET_TASKS": "/nowhere"})


def test_a_task_folder_where_its_parent_belongs_is_named() -> None:
    with pytest.raises(UserError, match="which is a task folder; name the folder that holds it"):
        discover({}, str(bundled_tasks() / "cartpole"))


def test_folders_of_one_name_keep_their_modules_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        env = f"Thing = 'thing {number}'"
        write_task(tmp_path / str(number), "robot", config(f"robot-{number}"), env)
    found = discover({"MJFLEET_TASKS": f"{tmp_path}/1:{tmp_path}/2"})
    things = [found.find(f"robot-{n}").load("env:Thing") for n in (1, 2)]
    assert things == ["thing 1", "thing 2"]
    assert find_task("robot-2", tmp_path / "2" / "robot").load("env:Thing") == "thing 2"


def test_a_wrong_reference_into_the_folder_says_what_is_missing(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "robot", config("robot"), "Other = Thong = 1")
    found = discover({}, str(tmp_path / "tasks")).find("robot")
    with pytest.raises(UserError, match=r"no nowhere\.py"):
        found.load("nowhere:Thing")
    with pytest.raises(UserError, match=r"has no `Thing`\. Did you mean Thong\?"):
        found.load("env:Thing")


def test_a_class_of_a_program_or_of_python_is_of_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # As of a script.
    found = discover({}).find("cartpole-balance")
    assert not found.owns("__main__:Own")
    assert found.modules(["__main__:Own", "os:path", "sys:path"]) == {}
    with pytest.raises(UserError, match="sys has no `Own`"):
        found.load("sys:Own", object)


def test_a_folder_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    for name in ("robot", "robot-again"):
        shutil.rmtree(tmp_path / "tasks", ignore_errors=True)
        folder = write_task(tmp_path / "tasks", "mine", config(name), f"Thing = {name!r}")
        found = discover({}).find(name)
        assert (found.folder, found.load("env:Thing")) == (folder, name)


def test_a_task_says_which_package_is_missing(tmp_path: Path) -> None:
    needs = 'Task(packages=("nonexistent",), extra="gym", '
    write_task(tmp_path / "tasks", "thing", config("thing").replace("Task(", needs))
    with pytest.raises(UserError, match=r"task thing needs nonexistent: .*gym"):
        find_task("thing", tmp_path / "tasks/thing").check_packages()
