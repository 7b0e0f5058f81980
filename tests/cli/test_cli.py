"""The command line as an interface: help, errors, and what it must not import."""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import mjfleet
from mjfleet.utils.hardware_names import cpu_name

from ..conftest import HEAVY, POISON, REPOSITORY, SMALL, TESTS, Output, Run, copy_task

TASK = "cartpole-balance"


def test_the_poison_works(run: Run) -> None:
    result = run("train", prelude=f"{POISON}\nimport {HEAVY[0]}")
    assert f"imported {HEAVY[0]}" in result.stderr


def test_help_lists_the_tasks_and_the_common_flags(run: Run, output: Output) -> None:
    shown = output("train", "--help", prelude=POISON)
    for words in ("cartpole-balance", "Keep a pole upright", "--gpu-ids", "--dry-run", "--config"):
        assert words in shown
    assert "--swing-up" not in shown
    without_arguments = run("train", prelude=POISON)
    assert (without_arguments.returncode, without_arguments.stdout) == (2, shown)


def test_the_whole_help_of_a_task_shows_every_number_with_its_meaning(output: Output) -> None:
    shown = output("train", "cartpole-swingup", "--help-all", prelude=POISON)
    text = " ".join(shown.replace("│", " ").split())
    for words in (
        "--num-envs INT, --env.num-envs INT Environments per worker; `mjfleet tune`",
        "--env.swing-up, --env.no-swing-up",
        "--agent.algorithm.learning-rate FLOAT",
        "(default: 0.001)",
        "--agent.algorithm.use-mixed-precision",
        "--agent.torch-compile-mode",
        "--agent.actor.hidden-dims",
        "--agent.actor.distribution.init-std",
    ):
        assert words in text, words


def test_help_has_no_line_breaks_of_the_source(output: Output) -> None:
    shown = output("mjfleet", "export", "--help", COLUMNS="300")
    assert "part of a run's name, `latest`, or a run on W&B" in shown


def test_tasks_are_listed_as_a_table(output: Output) -> None:
    shown = output("mjfleet", "tasks", prelude=POISON)
    (line,) = [line for line in shown.splitlines() if "cartpole-balance " in line]
    for words in ("Keep a pole upright", "actor 5, critic 5", "1", "tasks/cartpole"):
        assert words in line
    assert "?" not in shown  # go1's observations depend on its flags.


def test_the_variations_of_a_task_are_listed_with_their_ranges(run: Run) -> None:
    result = run("mjfleet", "tasks", "go1-velocity-flat")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "geom_friction FR_foot, FL_foot, RR_foot, RL_foot set 0.4 to 1.2 at the start" in rows[2]
    assert any("gains .* scale 0.9 to 1.1 at the start each its own" in row for row in rows)
    assert "varies nothing" in run("mjfleet", "tasks", "cartpole-balance").stdout
    result = run("mjfleet", "tasks", "go1-velocity-falt")
    assert result.returncode == 2
    assert "Did you mean go1-velocity-flat" in result.stderr


def test_commands_are_listed(run: Run) -> None:
    assert "tasks" in run("mjfleet", "--help", prelude=POISON).stdout
    assert run("mjfleet").returncode == 2
    result = run("mjfleet", "trian")
    assert result.returncode == 2
    assert "Commands: train, play, tasks" in result.stderr


def test_dry_run_prints_the_plan_and_creates_nothing(output: Output, tmp_path: Path) -> None:
    shown = output(
        "train", "cartpole-balance", "--dry-run", "--env.num-envs", "100", prelude=POISON,
        TORCHRUNX_LOG_DIR="/tmp/workers",
    )  # fmt: skip
    lines = dict(line.split(":", 1) for line in shown.splitlines() if ":" in line)
    values = {name: value.strip() for name, value in lines.items()}
    assert values["task"].startswith("cartpole-balance (")
    assert values["engine"] == "native"
    assert values["environments"] == "100 per worker, 100 in total"
    assert values["steps per iteration"] == "3200"
    assert values["run directory"].startswith("logs/cartpole-balance/")
    assert values["checkpoint"] == "none (new run)"
    assert "/tmp/workers" not in shown  # One worker alone needs no torchrunx.
    assert not list(tmp_path.iterdir())


def test_dry_run_shows_every_worker(output: Output) -> None:
    shown = output(
        "train", "cartpole-balance", "--dry-run", "--cpu-workers", "2", "--total-envs", "100",
        "--agent.seed", "5", "--cpu-threads", "2", prelude=POISON, TORCHRUNX_LOG_DIR="mine",
    )  # fmt: skip
    rows = [line.split() for line in shown.splitlines()]
    workers = [row for row in rows if row[:1] in (["0"], ["1"])]
    assert [row[:5] for row in workers] == [
        ["0", "localhost", "cpu", "5", "1"],
        ["1", "localhost", "cpu", "6", "1"],
    ]
    for index, row in enumerate(workers):
        assert row[5].startswith("mine/")
        assert row[5].endswith(f"/localhost[{index}].log")
    assert "50 per worker, 100 in total" in shown
    assert "--total-envs 100: 50 environments for each of 2 workers" in shown


def test_the_newest_word_on_the_number_of_worlds_counts(output: Output, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("total_envs: 64\n")
    flags = ("--config", "my.yaml", "--cpu-workers", "2", "--cpu-threads", "2", "--dry-run")
    assert "32 per worker" in output("train", "cartpole-balance", *flags)
    own = output("train", "cartpole-balance", *flags, "--env.num-envs", "10")
    assert "10 per worker, 20 in total" in own


@pytest.mark.parametrize("file", sorted((REPOSITORY / "examples").glob("*.[yj]*[ln]")))
@pytest.mark.usefixtures("here")
def test_a_file_is_a_whole_run(file: Path, printed: Output) -> None:
    shown = printed("train", "--config", str(file), "--agent.seed", "5", "--dry-run")
    name = re.search(r'run_name"?: "?([\w-]+)', file.read_text())
    assert name
    assert f"task: {file.stem} " in " ".join(shown.split())
    assert f"_{name[1]}\n" in shown
    shown = printed("train", f"--config={file}", "--total-steps", "7", "--dry-run")
    assert "--total-steps 7: 1 iterations" in shown


def test_the_cpu_is_announced_where_no_gpu_was_found(output: Output) -> None:
    shown = output("train", "cartpole-balance", "--dry-run", CUDA_VISIBLE_DEVICES="")
    assert "training on the CPU" in shown
    explicit = output("train", "cartpole-balance", "--dry-run", "--gpu-ids", "None")
    assert "training on the CPU" not in explicit


FILES = {
    "wrong.yaml": "agent: {sede: 3}",
    "half.yaml": "env: [",
    "twice.yaml": "agent: {seed: 3}\nagent: {run_name: a}",
    "number.yaml": "3",
    "itself.yaml": "agent: &it {actor: *it}",
    "many.yaml": "hosts:\n- - &list0 [a, a]\n"
    + "".join(f"  - &list{n + 1} [*list{n}, *list{n}]\n" for n in range(40)),
    "seeds.yaml": "seeds: {a: 1}",
    "program.yaml": "agent: {algorithm: {name: '__main__:Own'}}",
    "no_task.yaml": "env: {num_envs: 8}",
    "no_such.yaml": "task: walker",
    "other.yaml": "task: cartpole-swingup",
    "fork.yaml": "fork: true",
    "file.yaml": "config: other.yaml",
    "gone.yaml": "tasks_dir: no_such/tasks",
}
ERRORS = [
    (["--run-dir", "new"], ["the task comes first"]),
    (["--config", "my.yaml"], ["--config my.yaml: No such file"]),
    (["--config", "no_task.yaml"], ["names no task"]),
    (["--config", "no_such.yaml"], ["no task `walker`"]),
    ([TASK, "--config", "wrong.yaml"], ["wrong.yaml", "unknown key `agent.sede`", "seed"]),
    ([TASK, "--config", "half.yaml"], ["not YAML"]),
    ([TASK, "--config", "twice.yaml"], ["not YAML: `agent` stands there twice"]),
    ([TASK, "--config", "number.yaml"], ["must hold a mapping"]),
    ([TASK, "--config", "itself.yaml"], ["not YAML: found unconstructable recursive node"]),
    ([TASK, "--config", "many.yaml"], ["not YAML: its aliases stand for too many values"]),
    ([TASK, "--config", "seeds.yaml"], ["`seeds` is {'a': 1}; it must be an integer"]),
    ([TASK, "--agent.algorithm.name"], ["Missing value for argument '--agent.algorithm.name'"]),
    ([TASK, "--config", "program.yaml"], ["program.yaml does not decide agent.algorithm.name"]),
    ([TASK, "--config", "fork.yaml"], ["fork.yaml does not decide fork"]),
    ([TASK, "--config", "file.yaml"], ["file.yaml does not decide config", "--config=other.yaml"]),
    ([TASK, "--config", "gone.yaml"], ["gone.yaml: its tasks_dir, no_such/tasks, is no folder"]),
    ([TASK, "--", "--seed", "2"], ["leave out `--`"]),
    ([TASK, "--config", "other.yaml"], ["other.yaml", "cartpole-swingup", TASK, "lines `task`"]),
    ([TASK, "--gpu-ids", "0"], ["--gpu-ids 0", "--gpu-ids None"]),
    ([TASK, "--gpu-ids"], ["--gpu-ids is []", "1 to 1024 GPU indices"]),
    ([TASK, "--env.num-envs", "auto"], ["'auto'", "`mjfleet tune` measures"]),
    ([TASK, "--total-envs", "64", "--env.num-envs", "32"], ["--total-envs and --env.num-envs"]),
    (
        [TASK, "--cpu-workers", "3", "--total-envs", "100"],
        ["--total-envs is 100", "a multiple of 3", "such as 102"],
    ),
    ([TASK, "--log-root", "half.yaml"], ["--log-root half.yaml"]),
]


@pytest.mark.parametrize(("arguments", "words"), ERRORS)
def test_an_error_is_one_message_with_exit_code_2_and_creates_nothing(
    run: Run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    result = run("train", *arguments, prelude=POISON)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    text = " ".join((result.stdout + result.stderr).replace("│", " ").split())
    for word in words:
        assert word in text
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()


def test_help_fits_a_terminal_of_any_width(run: Run) -> None:
    for arguments in (["--help"], ["cartpole-balance", "--help"], ["--no-such-flag"]):
        result = run("train", *arguments, COLUMNS="2")
        assert result.returncode == (0 if "--help" in arguments else 2)
        assert "--help" not in arguments or "--dry-run" in result.stdout


def test_output_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    mjfleet = [sys.executable, "-m", "mjfleet.cli.dispatcher"]
    for arguments in (["tasks"], ["train", "--help"], ["runs", "--log-root", str(tmp_path)]):
        with Path("/dev/full").open("w") as full:
            result = subprocess.run(
                [*mjfleet, *arguments], check=False, stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert result.returncode == 1
        assert result.stderr.splitlines() == ["error: standard output: No space left on device"]


def test_a_folder_that_has_been_removed_is_one_message(run: Run) -> None:
    removed = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir(os.getcwd())"
    done = run("train", "cartpole-balance", "--agent.max-iterations", "1", late=removed)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: the current folder: ")
    assert "Traceback" not in done.stderr


def test_nothing_is_said_once_the_reader_of_a_pipe_has_gone(tmp_path: Path) -> None:
    name = "cartpole-balance-9159368"
    shutil.copytree(TESTS / "data" / name, tmp_path / "logs/cartpole-balance" / name)
    reader, writer = os.pipe()
    os.close(reader)
    for words in (
        "train --help", "tasks", "runs", "runs --json",
        "completion bash", "submit slurm --print -- train cartpole-balance --gpu-ids None",
    ):  # fmt: skip
        result = subprocess.run(
            [sys.executable, "-m", "mjfleet.cli.dispatcher", *words.split()],
            check=False, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, ""), words
    os.close(writer)


def test_a_rank_that_cannot_be_is_told_by_the_worker_that_has_it(run: Run) -> None:
    place = {"RANK": "5", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    result = run("train", "cartpole-balance", WORLD_SIZE="2", **place)
    assert result.returncode == 2
    assert "RANK=5" in result.stderr


def test_versions_are_printed_and_a_module_is_a_command() -> None:
    def output_of(*command: str | Path) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    folder = Path(sys.executable).parent
    printed = output_of(folder / "mjfleet", "bench", "startup", "--version")
    assert f"mjfleet {mjfleet.__version__}\n" in printed
    assert f"torch {version('torch')}\n" in printed
    assert f"CPU {cpu_name()}\n" in printed
    for command in ("train", "play"):
        assert f"usage: {command}" in output_of(folder / command, "--help")
    asked = output_of(sys.executable, "-m", "mjfleet", "tasks", "--help")
    assert "usage: mjfleet tasks" in asked


INTERRUPTED = """
import os, signal, sys
from mjfleet.cli.entry import train
class Interrupt:
    def find_spec(self, name, *_):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
train()
"""


@pytest.mark.parametrize("module", ["mjfleet.cli.train", "tyro", "mjfleet.cli.help"])
def test_ctrl_c_shows_no_traceback_while_a_command_is_imported(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, "")


def test_ctrl_c_while_python_ends_shows_no_traceback(run: Run) -> None:
    late = """import atexit, os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # In the background, it may be ignored.
atexit.register(os.kill, os.getpid(), signal.SIGINT)"""
    result = run("train", "--version", prelude=late)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")
    assert result.stdout.startswith("mjfleet ")


def test_what_a_task_has_left_is_written_and_called_before_a_command_ends(
    run: Run, tmp_path: Path
) -> None:
    env = copy_task(tmp_path / "tasks", "leaving") / "env.py"
    text = env.read_text().replace("import math", "import atexit\nimport ctypes\nimport math", 1)
    left = """
    def setup(self) -> None:
        self.notes, self.numbers = open("notes.txt", "w"), open("numbers", "wb")
        self.notes.write("all of it")
        self.numbers.write(b"all of them")

    def reset_worlds("""
    text = text.replace("\n    def reset_worlds(", left, 1)
    by_c = "atexit.register(ctypes.CDLL(None).printf, b'a line of a library')"
    env.write_text(f"{text}\n\n{by_c}\natexit.register(print, 'the last line', end=' ')\n")
    flags = (*SMALL, "--gpu-ids", "None", "--agent.max-iterations", "1")
    done = run("train", "leaving-balance", *flags, prelude="import signal", PYTHONUNBUFFERED="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\nthe last line a line of a library")
    assert (tmp_path / "notes.txt").read_text() == "all of it"
    assert (tmp_path / "numbers").read_text() == "all of them"
