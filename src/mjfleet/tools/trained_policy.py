"""A trained policy with its task and environments: for `play`, `export` and `Run.policy`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjfleet.config import TrainConfig
from mjfleet.registry import FoundTask, discover, find_task
from mjfleet.runs.attempts import run_dir_of
from mjfleet.runs.config_yaml import classes_in, from_file
from mjfleet.runs.named_run import NamedRun, find_trained, read_run
from mjfleet.runs.own_runs import note_of, tasks_dir_of
from mjfleet.runs.pretrained import describe, find_pretrained
from mjfleet.runs.read_facts import read_code_facts
from mjfleet.runs.run_json import CONFIG_FILE
from mjfleet.runs.start import decide_code
from mjfleet.runs.task_snapshot import changes_since
from mjfleet.utils.console import print_line

if TYPE_CHECKING:
    from mjfleet.env import Env


def find_policy(
    wanted: str,
    log_root: Path,
    tasks_dir: str | None = None,
    *,
    task: str | None = None,
    is_pretrained: bool = False,
    as_trained: bool = False,
) -> tuple[FoundTask, TrainConfig, NamedRun]:
    """Return a policy, its task, and the configuration of its training; print what has changed.

    `wanted` is a word for a run, a checkpoint or a pretrained policy's file; with `is_pretrained`,
    a task that has one. `task` is the one that the user has typed, if any. `as_trained` uses the
    run's own copy of the task's code. UserError if there is no such policy, task or copy, or they
    do not fit each other.
    """
    if is_pretrained:
        registry = discover(os.environ, tasks_dir)
        file = find_pretrained(registry, wanted)
        print_line(f"pretrained: {describe(file)}")
        trained = read_run(file, wanted).trained()
    else:
        trained = find_trained(wanted, log_root, task)
        registry = discover(os.environ, tasks_dir or tasks_dir_of(trained.run_dir or Path()))
    name, checkpoint, data = trained.task, trained.policy, trained.config
    facts = read_code_facts(registry, name, checkpoint, as_trained)
    copy, notes = decide_code("fork", as_trained, "typed", facts)
    for note in (*trained.notes, *notes):
        print_line(note)
    found = find_task(name, copy) if copy else registry.find(name)
    modules = found.modules(classes_in(data))
    if changes := () if copy else changes_since(checkpoint, found.folder, modules):
        print_line(f"{changes}\n--as-trained uses the code as it was\n")
    run_dir = trained.run_dir
    file = f"{run_dir}: its {CONFIG_FILE}" if run_dir else str(checkpoint)
    return found, from_file(found, data, file, run_dir and note_of(run_dir)), trained


def build(
    found: FoundTask, config: TrainConfig, engine: Any, device: str, threads: int, *runs: Path
) -> "Env[Any]":
    """Build environments as for an evaluation: the levels of a curriculum stay the same.

    `runs` are folders with copies of the files that the configuration names.
    """
    from mjfleet.env import EnvShard
    from mjfleet.env.factory import build_env

    num_envs = config.env.num_envs
    shard = EnvShard(0, num_envs, num_envs, seed=config.agent.seed)
    return build_env(found, config, engine, device, threads, shard=shard, runs=runs)


def load_policy(
    found: FoundTask,
    config: TrainConfig,
    checkpoint: Path,
    engine: Any = "native",
    device: str = "cpu",
    threads: int = 1,
) -> "tuple[Env[Any], Any, int]":
    """Return environments, a policy, and its number of iterations; UserError if they do not fit."""
    from mjfleet.rl.build_algorithm import policy_of
    from mjfleet.rl.checkpoints.files import load_policy as load

    runs = filter(None, [run_dir_of(checkpoint)])
    env = build(found, config, engine, device, threads, *runs)
    policy = policy_of(env, config.agent, found.load)
    return env, policy, load(checkpoint, policy)
