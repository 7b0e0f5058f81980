"""`mjfleet completion`: what is offered at a place, and that each shell asks for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mjfleet.cli.completion import completion

from ..conftest import Output, Refusal


@pytest.fixture
def offered(printed: Output) -> Callable[..., list[str]]:
    return lambda *words: printed("completion", "--words", *words).split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "cartpole-s"], ["cartpole-swingup"]),
        (["mjfleet", "ins"], ["inspect"]),
        ([".venv/bin/train", "cartpole-s"], ["cartpole-swingup"]),
        (["train", "cartpole-balance", "--env.no"], ["--env.no-swing-up"]),
        (["train", "go1-velocity-flat", "--env.swi"], []),
        (["train", "--resu"], ["--resume"]),
        (["play", "cartpole-balance", "--viewer", ""], ["native", "web", "None"]),
        (["mjfleet", "train", "cartpole-balance", "--engine=n"], ["--engine=native"]),
        (["train", "cartpole-balance", "--engine", "=", "n"], ["native"]),  # As bash divides it.
        (["train", "cartpole-balance", "--config", ""], []),  # A file.
        (["mjfleet", "nothing", "--a"], []),
    ],
)
def test_what_fits_is_offered(words: list[str], expected: list[str], offered: Any) -> None:
    assert offered(*words) == expected


@pytest.mark.usefixtures("here")
def test_runs_are_offered_where_one_is_expected(offered: Any) -> None:
    for name in ("logs/a/2026-05-04_x", "logs/a/2026-05-05_y", "mine/b/2026-05-06_z"):
        Path(name).mkdir(parents=True)
        Path(name, "run.json").touch()
    for name in ("$(touch x)", "`x`", "a;x", "\x1b]0;x", "x\ny", "*", "a&b", "a b", "'"):
        Path("logs/a", name).mkdir()  # Somebody else's, which a shell would obey.
        Path("logs/a", name, "run.json").touch()
    both = ["a/2026-05-05_y", "a/2026-05-04_x"]
    assert offered("mjfleet", "plot", "") == ["latest", *both]
    assert offered("mjfleet", "plot", "a/2026-05-04_x", "a/") == both
    assert offered("train", "cartpole-balance", "--resume", "2026-05-05") == ["2026-05-05_y"]
    assert offered("mjfleet", "report", "--log-root", "mine", "") == [
        "latest",
        "b/2026-05-06_z",
    ]


ASK = {
    "bash": 'eval "$(mjfleet completion bash)"; COMP_WORDS=(train cartpole-s); COMP_CWORD=1; '
    '_mjfleet; echo "${COMPREPLY[@]}"; complete -p play',
    "zsh": "autoload -Uz compinit; compinit -D; source <(mjfleet completion zsh); "
    'compadd() { print -r -- "${(P)@[-1]}" }; words=(train cartpole-s); CURRENT=2; _mjfleet; '
    "print $_comps[play]",
    "fish": "mjfleet completion fish | source; complete -C 'train cartpole-s'; complete -c play",
}


@pytest.mark.parametrize("shell", ASK)
def test_each_shell_offers_a_task(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": programs, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else []), "-c", ASK[shell]],
        check=False, cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | own,
    )  # fmt: skip
    assert "cartpole-swingup" in done.stdout, done
    assert "_mjfleet" in done.stdout.splitlines()[-1]
    assert not done.stderr


def test_another_shell_is_refused(printed: Output, refusal: Refusal) -> None:
    assert "bash, zsh, fish" in refusal("completion", "tcsh")
    assert "bash" in printed("completion", "--help")


def test_one_word_too_many_is_a_mistake() -> None:
    assert [completion(words) for words in ([], ["bash", "zsh"], ["--words", "train"])] == [2] * 3
