"""The flags, trainings and files that all benchmarks share. In the launcher.

`mjfleet bench` and the scripts of benchmarks/ are functions from `Setup` and their flags to Result.
"""

import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn

from mjfleet.bench.result import Result, our_commit
from mjfleet.cli.run_command import run_command
from mjfleet.cli.train import configure, train
from mjfleet.config import TrainConfig, from_dict
from mjfleet.config.flags import (
    HELP,
    LIST_FLAGS,
    flags_of,
    parse_flags,
    parse_known,
    typed_fields,
    without_fields,
)
from mjfleet.config.validation import COUNT, Checked, Count, Folder, Rule
from mjfleet.errors import UserError
from mjfleet.launch.devices import Devices, choose_devices, needs_gpus
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import FoundTask
from mjfleet.runs.run_json import now
from mjfleet.utils.console import print_error, print_line
from mjfleet.utils.hardware_names import (
    count_gpus,
    cpu_name,
    driver_version,
    gpu_name,
    usable_cores,
)
from mjfleet.utils.packages import stack_versions
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import WorkerArgs

TASK = "cartpole-balance"  # What is trained if no task is named.
CHOSEN = (
    "resume", "run_dir", "seeds", "per_run", "dry_run", "init_from", "total_envs", "total_steps",
    "env.num_envs", "agent.max_iterations",
)  # fmt: skip
"""Fields of a run that is kept or continues, and those whose values are measured."""
Counts = Annotated[
    tuple[int, ...],
    Rule(lambda v: v and all(map(COUNT.holds, v)), f"one number or more, each {COUNT.allowed}"),
]


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """The flags of every benchmark, besides those of `train`."""

    usual: ClassVar[tuple[str, ...]] = ()
    """Flags of `train` that count unless others are typed."""
    iterations: Count = 20
    """Iterations to measure in each run."""
    warmup: Count = 5
    """Iterations before those, which are not measured."""
    repeats: Count = 5
    """How often to measure everything, in turn."""
    output: Folder = "logs/bench"
    """Folder for the results, as JSON and Markdown."""


@dataclass(frozen=True)
class Setup:
    """A task on the selected devices, and a folder for temporary files."""

    found: FoundTask
    base: TrainConfig  # As the flags of `train` make it.
    options: Options
    devices: Devices
    scratch: Path
    save: Callable[[Result], object]
    """Writes a result, also one that is not complete yet, into `--output`."""

    @property
    def kind(self) -> str:
        """The engine and the kind of device."""
        engine = self.worker_args(self.config(None)).engine
        return f"{engine}-{self.devices.names[0].partition(':')[0]}"

    @property
    def device_flags(self) -> list[str]:
        """The flags that give a command the first of the devices."""
        threads, gpu = self.base.cpu_threads, (*map(str, self.devices.indices), "None")[0]
        return ["--engine", self.base.engine, "--cpu-threads", str(threads), "--gpu-ids", gpu]

    def config(
        self, num_envs: int | None, *, workers: int = 1, threads: int | None = None, **agent: Any
    ) -> TrainConfig:
        """Return the configuration with settings of the agent, and environments per worker.

        Without `num_envs` it has as many as the flags say. The workers are on the first of the
        devices and share `threads`, or --cpu-threads. They train for --warmup and --iterations,
        unless `agent` says otherwise.
        """
        options, gpus = self.options, self.devices.indices
        values = {
            "gpu_ids": list(gpus[:workers]) or None,
            "cpu_workers": None if gpus or workers == 1 else workers,
            "cpu_threads": threads or self.base.cpu_threads,
            "env": {"num_envs": num_envs} if num_envs else {},
            "agent": {"max_iterations": options.warmup + options.iterations, **agent},
        }
        return from_dict(self.base, values)

    def worker_args(self, config: TrainConfig) -> WorkerArgs:
        """Return the arguments of a single worker, which trains without a launcher.

        UserError if engine, threads and devices do not fit each other.
        """
        devices = replace(self.devices, indices=self.devices.indices[:1])
        plan = make_plan(self.found, config, [devices])
        return replace(plan, run_dir=self.scratch).worker_args()

    def result(self, what: str, *contents: Any, **more: Any) -> Result:
        """Return a result whose name and title hold task, engine and kind of device."""
        name = f"{what}-{self.found.name}-{self.kind}"
        return Result(name, f"{what}: {self.found.name}, {self.kind}", *contents, **more)

    def rounds(
        self,
        keys: Sequence[Mapping[str, Any]],
        measure: Callable[..., Mapping[str, Any]],
        label: str,
    ) -> list[dict[str, Any]]:
        """Call `measure` with every key in turn, `--repeats` times: noise then affects all alike.

        Returns the keys and figures of each measurement. Before it, `label` is printed to standard
        error, with the values of the key in the place of their names in braces.
        """
        samples = []
        for number in range(1, self.options.repeats + 1):
            for key in keys:
                print_error(f"round {number} of {self.options.repeats}: {label.format(**key)}")
                samples.append({**key, **measure(**key)})
        return samples


def run_script(kind: type[Options], measure: Callable[[Setup, Any], Result]) -> NoReturn:
    """Run a script of benchmarks/ by the flags of its command line, and exit."""
    prog = f"python benchmarks/{Path(sys.argv[0]).name}"
    sys.exit(run_command(partial(run_benchmark, kind, measure, prog), sys.argv[1:]))


def new_run(arguments: Sequence[str], what: str, *more: str) -> tuple[FoundTask, TrainConfig]:
    """Return the task and the configuration of runs that are measured, by arguments of `train`.

    UserError if these give a field of CHOSEN, or of `more`, which would have no effect.
    """
    if typed := [name for name in (*CHOSEN, *more) if name in typed_fields(arguments)]:
        flag = flags_of(typed[0])[0]
        raise UserError(f"{what} measures short runs that it chooses: leave out {flag}.")
    chosen = configure(arguments)
    config = replace(chosen.config, total_envs=None, total_steps=None, init_from=None)
    return chosen.found, config


def run_benchmark(
    kind: type[Options],
    measure: Callable[[Setup, Any], Result],
    prog: str,
    arguments: Sequence[str],
) -> int:
    """Run a benchmark, write its result into `--output` and print it; returns the exit code.

    UserError if the flags fit neither each other nor this machine: nothing was created then.
    """
    if asked := {*HELP, LIST_FLAGS} & {*arguments}:
        flags = "All flags of `train` count, too; `train <task> --help` shows them."
        about = f"{kind.__doc__}\n\nA task comes before all flags, else it is {TASK}. {flags}"
        with suppress(SystemExit):
            parse_flags(kind, [*asked], prog, None, about)
        return train([LIST_FLAGS]) if LIST_FLAGS in asked else 0
    options, others = parse_known(kind, arguments, prog)
    task = [others.pop(0)] if others and not others[0].startswith("-") else []
    if not task and "config" not in typed_fields(others):  # Whose file may name one.
        task = [TASK]
    usual = without_fields(kind.usual, typed_fields(others))
    found, base = new_run([*task, *usual, *others], prog, "cpu_workers", "hosts")
    folder = Path(options.output)
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise UserError(f"--output {folder}: this path leads through a file; it must be a folder.")
    is_auto = needs_gpus(base) and base.gpu_ids == "auto"
    devices = choose_devices(replace(base, gpu_ids="all") if is_auto else base, os.environ)
    gpus = [gpu_name(str(index)) for index in range(count_gpus())]
    versions = {"python": platform.python_version(), **stack_versions()}
    if commit := our_commit():
        versions["mjfleet"] += f" ({commit})"
    machine = {"CPU": cpu_name(), "cores": f"{usable_cores()} of {os.cpu_count()}"}
    machine |= {"GPU": ", ".join(gpus), "NVIDIA driver": driver_version()} if gpus else {}
    command, taken = shlex.join([*prog.split(), *arguments]), now()

    def save(result: Result) -> str:
        return result.write(folder, command, taken, machine | versions)

    with StopRequest().installed(), tempfile.TemporaryDirectory(prefix="mjfleet-bench-") as scratch:
        result = measure(Setup(found, base, options, devices, Path(scratch), save), options)
    text = save(result)
    print_error(f"written: {folder / result.name}.json and .md")
    print_line(text)
    return 0
