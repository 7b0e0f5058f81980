"""Sees whether runs of a task log the metric of a sweep. Runs in the launcher."""

import difflib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import write_config
from mjfleet.runs.metrics_csv import METRICS_FILE, read_rows
from mjfleet.utils.child_process import ChildProcess, python_module
from mjfleet.utils.console import print_line
from mjfleet.worker.stop_signals import StopRequest

ALWAYS = ("mean_return", "eval/return", "eval/length")
"""Columns that every run logs, if it is evaluated."""


def check_metric(task: str, config: TrainConfig, metric: str) -> None:
    """Train one iteration in a temporary folder if that is needed to know what runs log.

    Raises:
        UserError: no run logs the metric, or none can begin.
    """
    if metric in ALWAYS:
        return
    print_line(f"training one iteration to see whether runs log {metric}")
    agent = replace(config.agent, max_iterations=1, logger=("none",))
    config = replace(
        config,
        agent=agent,
        total_steps=None,
        video_interval=None,
        eval_interval=config.eval_interval and 1,
    )
    with TemporaryDirectory() as folder, StopRequest().installed():
        file, run_dir = Path(folder, "config.yaml"), Path(folder, "run")
        write_config(file, task, replace(config, log_root=folder))
        words = task, "--config", str(file), "--run-dir", str(run_dir), "--quiet"
        with ChildProcess(python_module("mjfleet.cli.train", *words), is_foreign=True) as child:
            if child.wait():
                raise UserError(child.errors().rpartition("error: ")[2].strip())
        columns, _ = read_rows(run_dir / METRICS_FILE)
    if metric not in columns:
        near = difflib.get_close_matches(metric, columns, n=3, cutoff=0.5) or columns
        raise UserError(
            f"--metric {metric}: runs of {task} never log it. They log {', '.join(near)}."
        )
