"""The documentation does what it says: its commands run, its code works, its flags exist."""

import inspect
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest

from mjfleet import terms
from mjfleet.cli.dispatcher import mjfleet
from mjfleet.cli.run_command import run_command
from mjfleet.cli.train import train
from mjfleet.errors import UserError
from mjfleet.loggers.console_logger import ConsoleLogger
from mjfleet.registry import FoundTask, discover, find_task
from mjfleet.tools.check_task.examine import examine, on_native

from .bench.tiny import BENCHMARKS
from .conftest import REPOSITORY, Output, changed, only_run, run_here, write_task
from .loggers.test_console_logger import make_row
from .tools.test_new_task_from import SPHERES
from .tools.test_play import column

README = (REPOSITORY / "README.md").read_text()
TASKS_PAGE = (REPOSITORY / "docs/tasks.md").read_text()
SECTIONS = re.split("^## ", TASKS_PAGE, flags=re.MULTILINE)
(VARIANT,) = (text for text in SECTIONS if text.startswith("A variant of a bundled task\n"))
(LEGGED,) = (text for text in SECTIONS if text.startswith("A legged robot of your own\n"))
GUIDE = TASKS_PAGE.replace(VARIANT, "").replace(LEGGED, "")
PAGES = [
    *REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"),
    *(REPOSITORY / "tasks").glob("*/*.md"),
]  # fmt: skip
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
MIGRATION = (REPOSITORY / "docs/migrate.md").read_text()
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z.-]*[a-z0-9]+(?!\.[a-z.-]*\*|[a-z-])")
OTHERS = {
    "--all-extras", "--bind-to", "--check", "--command", "--compile-bytecode", "--draws",
    "--editable", "--extra", "--figures", "--filename", "--flag", "--from", "--gpus-per-task",
    "--group", "--help", "--help-all", "--inexact", "--kill-on-bad-exit", "--kills", "--local-addr",
    "--log-dir", "--logdir", "--master-addr", "--master-port", "--mjcf", "--nnodes",
    "--no-annotate", "--no-deps", "--no-dev", "--no-emit-project", "--no-flag", "--no-header",
    "--no-install-recommends", "--node-rank", "--nodes", "--nproc-per-node", "--ntasks",
    "--ntasks-per-node", "--output", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
    "--require-hashes", "--rm", "--seconds", "--shm-size", "--shutdown-timeout", "--space",
    "--time", "--torch-backend", "--trust", "--ulimit", "--user", "--version", "--wandb", "--wheel",
    "--with",
}  # fmt: skip
"""Flags of other programs, those for help, those that went, and two that stand for any."""
IGNORED = shutil.ignore_patterns("__pycache__")


def test_the_guide_shows_what_new_task_writes(output: Output, tmp_path: Path) -> None:
    whole = [text for language, text in BLOCK.findall(GUIDE) if is_file(language, text)]
    output("mjfleet", "new-task", "reacher")
    folder = tmp_path / "tasks/reacher"
    assert whole == [(folder / name).read_text() for name in ("config.py", "env.py")]
    assert (folder / "model.xml").exists()


def test_every_command_of_the_guide_runs_in_order(output: Output, tmp_path: Path) -> None:
    """Type them as a reader does, in an empty folder; training stops after 3 iterations, or 1."""
    typed: list[tuple[str, bool]] = []
    """Each command, and whether it printed the metric that the guide defines."""
    printed: set[str] = set()

    def type_in(command: str) -> None:
        is_training = command.startswith("train ") and "--dry-run" not in command
        length = "1" if (tmp_path / "logs").exists() else "3"  # The page shows the first training.
        shown = output(*shlex.split(command), *("--agent.max-iterations", length) * is_training)
        typed.append((command, "task/final_distance" in shown))
        printed.update(map(without_numbers, shown.splitlines()))

    follow_guide(tmp_path, type_in)
    assert {"new-task", "tasks", "check-task"} <= {command.split()[1] for command, _ in typed}
    played = [measured for command, measured in typed if command == "play reacher --resume latest"]
    assert played == [False, True]
    samples = [line for line in samples_of(GUIDE) if "..." not in line]
    assert len(samples) > 8
    assert {without_numbers(sample) for sample in samples} <= printed


@pytest.mark.usefixtures("here")
def test_the_command_for_a_robot_of_ones_own_makes_a_task() -> None:
    Path("robot.urdf").write_text(SPHERES)
    (command,) = (text for _, text in BLOCK.findall(GUIDE) if "--from robot.urdf" in text)
    assert run_command(mjfleet, shlex.split(command)[1:]) == 0
    assert "my-robot" in discover({}).tasks


def samples_of(page: str) -> list[str]:
    """Return the lines of output that a page shows, which are indented."""
    text = BLOCK.sub("", page)
    return re.findall(r"^    (.*\S)$", text, flags=re.MULTILINE)


def without_numbers(line: str) -> str:
    """Return a line of output with a zero for each number, or for the dash in its place."""
    number = r"-?\d[\d.,:_]*(e[+-]?\d+)?(-\d[\d:_]*)*"
    on_any_device = re.sub(r"\bcuda:\d", "cpu", line)
    return " ".join(re.sub(rf"{number}|(?<==)-(?= |$)", "0", on_any_device).split())


def test_the_line_of_plain_output_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleLogger(99_999).iteration(make_row(99_998, 1.5, evaluated=2.5))
    printed = without_numbers(capsys.readouterr().out)
    page = (REPOSITORY / "docs/watching.md").read_text()
    assert printed in map(without_numbers, samples_of(page))


@pytest.mark.slow
def test_the_pieces_of_the_guide_are_tasks_without_mistakes(output: Output, tmp_path: Path) -> None:
    def only_make_it(command: str) -> None:
        if "new-task" in command:
            output(*command.split())

    follow_guide(tmp_path, only_make_it)
    found = discover({}, str(tmp_path / "tasks")).tasks["reacher"]
    pieces = re.findall(r"^class (\w+)\(ReacherEnv\):", GUIDE, flags=re.MULTILINE)
    assert len(pieces) > 6
    for piece in pieces:
        assert_no_mistakes(found, f"env:{piece}")


def test_the_variant_of_the_guide_has_no_mistakes_and_its_run_keeps_the_bundled_task(
    output: Output, tmp_path: Path
) -> None:
    config, env = (text for language, text in BLOCK.findall(VARIANT) if language == "python")
    write_task(tmp_path / "tasks", "steady", config, env)
    found = discover({}, str(tmp_path / "tasks")).tasks["cartpole-steady"]
    assert not list(on_native(found))
    few = ("--env.num-envs", "8", "--env.episode-seconds", "1", "--agent.max-iterations", "1")
    output("train", "cartpole-steady", *few)
    assert "reward/effort" in output("play", "cartpole-steady", "--resume", "latest")
    (kept,) = (only_run(tmp_path, "cartpole-steady") / "task").iterdir()
    (base, *_) = find_task("cartpole-steady", kept).load("env:SteadyEnv").__bases__
    assert inspect.getfile(base) == str(kept / "cartpole/env.py")


def test_the_quadruped_of_the_guide_has_no_mistakes_stands_and_trains(
    output: Output, tmp_path: Path
) -> None:
    blocks, folder = BLOCK.findall(LEGGED), tmp_path / "tasks/foal"
    shutil.copytree(REPOSITORY / "examples/foal", folder, ignore=IGNORED)
    shown = [text for language, text in blocks if is_file(language, text)]
    assert shown == [(folder / name).read_text() for name in ("config.py", "env.py")]
    (piece,) = (text for language, text in blocks if "class SeeingEnv(" in text)
    (naming,) = (text for language, text in blocks if "env:SeeingEnv" in text)
    for name, text in (("env.py", piece), ("config.py", naming)):
        with (folder / name).open("a") as file:
            file.write(f"\n{text}")
    tasks = discover({}, str(folder.parent)).tasks
    # What sees is all that is rough, and more.
    for name in ("foal-velocity-flat", "foal-velocity-rough"):
        assert not list(on_native(tasks[name]))
    few = {
        "train": ("--agent.max-iterations", "2", "--env.num-envs", "16"),
        "play": ("--env.num-envs", "4", "--env.episode-seconds", "2"),
    }
    commands, mixing = [text for language, text in blocks if language == "bash"]
    for command in (*commands.splitlines()[1:3], mixing.replace("\\\n", "")):
        program, *flags = shlex.split(command)
        shown = output(program, *changed(flags, *few[program]))
        if "--actions" in flags:
            assert column(shown, "length") == [100, 0, 100, 100]


def test_the_arm_that_sees_trains(output: Output, tmp_path: Path) -> None:
    output("mjfleet", "new-task", "reacher")
    page = (REPOSITORY / "docs/cameras.md").read_text()
    pieces = [text for language, text in BLOCK.findall(page) if language == "python"]
    for name, piece in zip(("env.py", "config.py"), pieces, strict=True):
        with (tmp_path / "tasks/reacher" / name).open("a") as file:
            file.write(f"\n{piece}")
    output("train", "reacher", "--env.num-envs", "4", "--agent.max-iterations", "1")
    assert "actions differ by at most" in output("mjfleet", "export", "latest")
    policy = only_run(tmp_path, "reacher") / "exported/policy.json"
    (camera,) = json.loads(policy.read_text())["cameras"]
    assert camera["name"] == "eye"


def assert_no_mistakes(found: FoundTask, env_class: str) -> None:
    """Check a task on both engines, and that they agree."""
    task = replace(found.task, env_class=env_class)
    assert not examine(replace(found, task=task), "cpu"), env_class


def commands_here(page: str) -> list[str]:
    """Return the commands in the second columns of tables, without variables in front."""
    cells = re.findall(r"^\|(?:`[^`]*`|[^|`\n])*\| `(.*?)`", page, flags=re.MULTILINE)
    without = [re.sub(r"^([A-Z_]+=\S+ )+", "", cell) for cell in cells]
    return [cell for cell in without if cell.split()[0] in ("train", "play", "mjfleet", "torchrun")]


@pytest.mark.slow
def test_every_command_for_users_of_other_stacks_runs(
    output: Output, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run them with workers on the CPU instead of GPUs; of training, make the plan only."""
    small = ("--env.num-envs", "8", "--env.episode-seconds", "1", "--agent.max-iterations", "2")
    output("train", "cartpole-balance", "--agent.run-name", "a", *small)
    (trained,) = here.glob("logs/*/*")
    Path("examples").symlink_to(REPOSITORY / "examples")
    commands = [shlex.split(command) for command in commands_here(MIGRATION)]
    assert len(commands) > 40
    run_name = f"{trained.name}/checkpoints/model_2"
    for program, *words in commands:
        typed = shlex.join(words).replace("RUN/checkpoints/model_50", run_name)
        typed = re.sub("--gpu-ids (0 1|all|1)", "--cpu-workers 2", typed)
        typed = re.sub("^--nproc-per-node .* -m mjfleet.cli.train ", "", typed)
        if "--hosts" in typed:  # No hosts have these names.
            with pytest.raises(UserError, match="node1"):
                train([*shlex.split(typed), "--dry-run"])
        elif program in ("train", "torchrun"):
            assert train([*shlex.split(typed), "--dry-run"]) == 0, typed
        elif "--viewer" not in typed:
            output(program, *shlex.split(typed))
    assert capsys.readouterr().err == ""


def test_users_of_other_stacks_find_every_term() -> None:
    here = [name for name, term in vars(terms).items() if inspect.isfunction(term)]
    assert len(here) > 15
    for name in here:
        assert re.search(rf"`[^`|]*\b{name}\b[^`|]*`[^|\n]*\|$", MIGRATION, re.MULTILINE), name


def is_file(language: str, text: str) -> bool:
    """Return whether a block of the guide is a whole file."""
    return language == "xml" or text.startswith('"""')


def follow_guide(folder: Path, type_in: Callable[[str], None]) -> None:
    """Follow the guide from top to bottom: type its commands, put its code into the files.

    Its Python blocks are whole files, which exist already; fields, which go into the class in
    config.py; and methods and classes, which are appended to env.py.
    """
    task = folder / "tasks/reacher"
    for language, text in BLOCK.findall(GUIDE):
        if language == "bash":
            for command in text.splitlines():
                type_in(command)
        elif language == "python" and re.match(r"    \w+: ", text):
            config = (task / "config.py").read_text()
            assert config.count("\n\n\nTASKS") == 1
            (task / "config.py").write_text(config.replace("\n\n\nTASKS", f"\n{text}\n\nTASKS"))
        elif language == "python" and not is_file(language, text):
            with (task / "env.py").open("a") as env:
                env.write(f"\n{text}")


def test_every_flag_in_the_documentation_exists(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flags(*words: str) -> set[str]:
        """Return the flags that a command's help shows."""
        with suppress(SystemExit):
            run_here(*words)
        return set(FLAG.findall(capsys.readouterr().out))

    options = {"rnd_cfg": {}, "symmetry_cfg": {"data_augmentation_func": "env:mirror"}}
    network = {"cnn_cfg": {"output_channels": [8]}}
    agent = dict.fromkeys(("actor", "critic", "teacher"), network) | {"algorithm": options}
    (here / "all.yaml").write_text(json.dumps({"agent": agent}))
    known = OTHERS | flags("train", "cartpole-balance", "--config", "all.yaml", "--help-all")
    for task in ("go1-velocity-rough", "g1-tracking", "hopper-v5", "humanoid-run", "reacher-hard"):
        known |= flags("train", task, "--help-all")
    known |= flags("train", "reacher-easy", "--agent.algorithm.name", "sac", "--help-all")
    known |= set(re.findall(r"--env[.][a-z]+", GUIDE)) & {
        "--env.payload",
        "--env.spread",
    }  # Fields.
    known |= {f"--agent.algorithm.{name}" for name in ("target-kl", "tau", "replay-steps")}
    known |= flags("play", "cartpole-balance", "--help")
    parts = [
        "clip show",
        "clip convert",
        "doctor",
        "submit slurm",
        "submit sky",
        "submit k8s",
        "plot",
        "compare",
        "sweep",
    ]
    for what in (*parts, "new-task", "report", "runs", "export", "inspect", "bench"):
        known |= flags(*what.split(), "--help")
    monkeypatch.syspath_prepend(BENCHMARKS)
    for script in ("peer.py", "learning.py", "reference.py", "gpu.py"):
        monkeypatch.setattr(sys, "argv", [script, "--help"])
        with pytest.raises(SystemExit):
            run_path(str(BENCHMARKS / script), run_name="__main__")
        known |= set(FLAG.findall(capsys.readouterr().out))
    assert len(PAGES) > 10
    for page in PAGES:
        text = page.read_text()
        if text == MIGRATION:  # It names other programs' flags too.
            text = "\n".join(commands_here(text))
        unknown = set(FLAG.findall(text)) - known
        assert not unknown, (page, unknown)


def test_commands_of_development_install_what_they_need() -> None:
    """Without the group, `uv run pytest` runs whichever pytest is found, or none."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["tool"]["uv"]["default-groups"] == []
    named = [REPOSITORY / name for name in (".ci/run", "docs/conf.py", "Dockerfile")]
    hidden = [*REPOSITORY.glob(".github/workflows/*"), *REPOSITORY.glob(".devcontainer/*")]
    texts = {place: place.read_text() for place in (*PAGES, *named, *hidden)}
    tools = r"pytest|ruff|pyright|lint-imports|sphinx-build|python \.ci"
    for place, text in texts.items():
        assert not re.search(rf"uv run ({tools})", text), place
        assert not re.search("uv sync --(extra|compile)", text), place  # It removes other extras.
    for place in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        assert "uv run --group dev pytest" in texts[REPOSITORY / place]


def test_the_commands_of_the_readme_fit_the_site() -> None:
    blocks = [text for language, text in BLOCK.findall(README) if language == "bash"]
    assert all(len(line) <= 100 for text in blocks for line in text.splitlines())


def test_the_tree_in_the_contributing_guide_is_that_of_the_package() -> None:
    guide = (REPOSITORY / "CONTRIBUTING.md").read_text()
    shown = re.findall(r"^ {6}(\w+/|\w+\.py) ", guide, flags=re.MULTILINE)
    package = REPOSITORY / "src/mjfleet"
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    files = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    assert set(shown) == folders | files


def test_files_that_the_documentation_names_exist() -> None:
    for page in PAGES:
        for name in re.findall(
            r"\b(?:benchmarks|tests|docs|src/mjfleet)/[\w/.-]+\b", page.read_text()
        ):
            assert (REPOSITORY / name).exists(), (page, name)


def test_what_readers_copy_imports_mjfleet_before_torch() -> None:
    """Otherwise torch's threads spin while they wait."""
    examples = (*REPOSITORY.glob("examples/*.py"), REPOSITORY / "examples/notebook.ipynb")
    blocks = BLOCK.findall((REPOSITORY / "docs/api.md").read_text())
    texts = [*(path.read_text() for path in examples), *(text for _, text in blocks)]
    for text in texts:
        imported = re.findall(r"\bimport (mjfleet|torch)\b", text)
        assert "mjfleet" not in imported or imported[0] == "mjfleet", text[:400]


def test_the_task_of_the_readme_has_no_mistakes(tmp_path: Path) -> None:
    env, config = (text for language, text in BLOCK.findall(README) if language == "python")
    model = (REPOSITORY / "tasks/cartpole/cartpole.xml").read_text()
    write_task(tmp_path, "upright", config, env, model)
    found = discover({}, str(tmp_path)).tasks["upright"]
    assert_no_mistakes(found, found.task.env_class)
