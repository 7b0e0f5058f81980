"""`mjfleet bench peer mjbatch`: stepping and training beside mjbatch's.

`compare_mjbatch` runs in the launcher; its child process, which may import a task, runs `main`.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from mjfleet.bench.benchmark_options import Counts, Options, Setup
from mjfleet.bench.peers import install, versions
from mjfleet.bench.result import Result, Table
from mjfleet.bench.timed_training import TimedChild, run_module, run_timed, summarise, train_ours
from mjfleet.errors import UserError
from mjfleet.registry import TASKS_VARIABLE, find_task

VERSION = "0.1.4"
DRIVER = str(Path(__file__).with_name("mjbatch_driver.py"))
GO1 = "go1-velocity-flat"
EQUAL = f"{GO1}-as-mjbatch"
OWN, WITH_PHYSICS = "the task's model", "the same with the example's physics"
Drive = Callable[..., TimedChild]
"""Calls `mjbatch_driver` by the Python of either side: who, what it does, and the request."""
STEPPING = (
    "Medians of the repeats, with the least and the greatest. Both are measured in turn, each time "
    "in a new process; a ratio is that of two measurements next to each other, and above 1 where "
    "mjfleet is faster.",
    "The bare engines step the same MJCF from its first keyframe on, with the same random controls "
    "and as many threads, and return to it after 24 environment steps. mjfleet's is MuJoCo's own "
    "`Batch`, without what a task reads after a step.",
)
TRAINING = (
    "mjbatch trains by its example, whose functions are called as its own loop does. mjfleet "
    "trains its Go1 with the example's numbers of environments, steps, epochs and minibatches, its "
    "hidden layers and physics steps, and its time step, integrator, solver, iterations and cone; "
    "the feet alone collide.",
    "The rest is each one's own. mjfleet's task draws noise, delays, pushes and a robot for each "
    "environment, observes three frames and reads sensors of the newest state; the example "
    "observes one frame, and reads sensors of the state before the last physics step. Both "
    "policies commute with the robot's mirror: the example evaluates its own twice, mjfleet's has "
    "tied weights.",
    "Torch's threads wait by spinning unless OMP_WAIT_POLICY=PASSIVE is set, which makes learning "
    "slow where other processes want a core; mjfleet sets it itself.",
)


@dataclass(frozen=True, kw_only=True)
class MjbatchOptions(Options):
    """The same model stepped by mjbatch, which is installed for this, and by mjfleet in turn."""

    task = GO1

    gpu_ids: list[int] | Literal["auto", "all"] | None = None
    """`None` (the CPU), on which mjbatch runs."""
    num_envs: Counts = (256, 1024, 4096)
    """Numbers of environments to step."""
    example: str | None = None
    """mjbatch's examples/go1_joystick.py, whose folder holds what it needs: also trains, by that
    and by mjfleet on a model with its physics."""


def compare_mjbatch(setup: Setup, options: MjbatchOptions) -> Result:
    """Step, and train where there is an example, by both in turn.

    UserError if this is not for CPUs, the task has no MJCF, or the example does not fit;
    WorkerError if mjbatch could not be installed, or the example failed.
    """
    _check(setup, options)
    config = setup.config(options.num_envs[0])
    threads = setup.worker_args(config, setup.scratch).threads
    mjcf = _mjcf(setup)
    torch = f"torch=={version('torch').partition('+')[0]}"
    folder = install("mjbatch", VERSION, setup.scratch, ("mujoco-menagerie", torch))
    pythons = {"mjfleet": sys.executable, "mjbatch": f"{folder}/bin/python"}

    def drive(who: str, do: str, **request: Any) -> TimedChild:
        command = [pythons[who], "-P", DRIVER, json.dumps({"do": do, **request})]
        # The example would train on a GPU.
        return run_timed(command, setup.scratch, {"CUDA_VISIBLE_DEVICES": ""})

    models = {OWN: (mjcf, config.env.decimation)}
    keys = [{"what": OWN, "num_envs": n} for n in options.num_envs]
    equal = None
    if options.example:
        equal = EqualTraining.of(setup, mjcf, str(Path(options.example).resolve()), drive)
        models[WITH_PHYSICS] = equal.mjcf, equal.sizes["decimation"]
        keys += [{"what": w, "num_envs": equal.num_envs} for w in (WITH_PHYSICS, "training")]

    def measure(what: str, num_envs: int) -> dict[str, Any]:
        if equal and what == "training":
            return equal.train(drive)
        model, decimation = models[what]
        request = {"mjcf": str(model), "decimation": decimation, "num_envs": num_envs}
        request |= {"warmup": options.warmup, "iterations": options.iterations, "threads": threads}
        return {
            who: json.loads(drive(who, "step", engine=who, **request).lines[-1][1])
            for who in pythons
        }

    samples = setup.rounds(keys, measure, "{what}, {num_envs} worlds")
    bare = [
        (f"{s['what']}, {s['num_envs']} worlds", *(s[who]["steps_per_second"] for who in pythons))
        for s in samples
        if s["what"] != "training"
    ]
    tables = [Table.compared("Bare engine, env steps per second", "", "mjbatch", bare)]
    notes = [*STEPPING]
    if equal:
        tables.append(equal.table([s for s in samples if s["what"] == "training"]))
        notes += TRAINING
    found = versions("mjbatch", folder, ("mjbatch", "mujoco", "torch"), setup.scratch)
    name = f"peer-mjbatch-{setup.found.name}-native-cpu"
    title = f"{setup.found.name} by mjfleet, native engine on cpu, and by mjbatch"
    return Result(name, title, tables, notes, samples, versions=found)


@dataclass(frozen=True)
class EqualTraining:
    """The example's training, and ours with its sizes and its physics."""

    setup: Setup  # Its task is ours with the example's physics.
    example: str
    sizes: Mapping[str, Any]  # What the driver's `describe` returns.
    mjcf: Path

    @classmethod
    def of(cls, setup: Setup, mjcf: Path, example: str, drive: Drive) -> "EqualTraining":
        """Ask the example what it trains, and write a task like it into the scratch folder."""
        sizes = json.loads(drive("mjbatch", "describe", example=example).lines[-1][1])
        if "lacks" in sizes:
            lacks = ", ".join(sizes["lacks"])
            raise UserError(f"--example {example}: it lacks {lacks}; is it go1_joystick.py?")
        folder = setup.scratch / "tasks" / "equal"
        shutil.copytree(setup.found.folder, folder)
        model = folder / mjcf.relative_to(setup.found.folder)
        write_equal_model(mjcf, sizes["option"], model)
        with (folder / "config.py").open("a") as config:  # Two tasks may not have the same name.
            config.write(f"\nTASKS = {{{EQUAL!r}: TASKS[{setup.found.name!r}]}}\n")
        task = find_task(EQUAL, folder)
        return cls(replace(setup, found=task), example, sizes, model)

    @property
    def num_envs(self) -> int:
        """Environments that the example trains in."""
        return self.sizes["num_envs"]

    def train(self, drive: Drive) -> dict[str, Any]:
        """Train by both, for as many iterations."""
        sizes, steps = self.sizes, self.sizes["num_steps_per_env"]
        config = self.setup.config(self.num_envs, num_steps_per_env=steps)
        flags = [
            *("--env.decimation", sizes["decimation"], "--agent.num-steps-per-env", steps),
            *("--agent.algorithm.num-learning-epochs", sizes["epochs"]),
            *("--agent.algorithm.num-mini-batches", sizes["minibatches"]),
            *("--agent.actor.hidden-dims", *sizes["hidden"]),
            *("--agent.critic.hidden-dims", *sizes["hidden"]),
        ]
        tasks = {TASKS_VARIABLE: str(self.setup.found.folder.parent)}
        ours, _ = train_ours(self.setup, config, [str(word) for word in flags], tasks)
        iterations = config.agent.max_iterations
        child = drive("mjbatch", "train", example=self.example, iterations=iterations)
        theirs = summarise(self.setup, config, child, child.json_lines())
        return {"mjfleet": ours, "mjbatch": theirs}

    def table(self, samples: Sequence[Mapping[str, Any]]) -> Table:
        """Return the speeds of the trainings end to end, and of their parts."""
        steps = self.num_envs * self.sizes["num_steps_per_env"]
        pairs = []
        for ours, theirs in ((sample["mjfleet"], sample["mjbatch"]) for sample in samples):
            pairs += [
                ("end to end", ours["steps_per_second"], theirs["steps_per_second"]),
                ("collecting", steps / ours["collect_seconds"], steps / theirs["collect_seconds"]),
                ("learning", steps / ours["learn_seconds"], steps / theirs["learn_seconds"]),
            ]
        title = f"Training in {self.num_envs} environments, env steps per second"
        return Table.compared(title, "", "mjbatch", pairs)


def _check(setup: Setup, options: MjbatchOptions) -> None:
    if setup.kind != "cpu" or options.engine == "warp":
        raise UserError("mjbatch runs on CPUs: --gpu-ids None, without --engine warp.")
    if options.example is None:
        return
    if not Path(options.example).is_file():
        raise UserError(f"--example {options.example}: there is no such file.")
    if setup.found.name != GO1:
        raise UserError(f"--example trains a Go1: the task must be {GO1}.")
    if options.cpu_threads:
        raise UserError("--example uses all CPU threads, so --cpu-threads cannot be given with it.")


def _mjcf(setup: Setup) -> Path:
    task = {"task": setup.found.name, "task_folder": str(setup.found.folder)}
    path = run_module("mjfleet.bench.mjbatch", task, setup.scratch)
    if path is None:
        raise UserError(f"{setup.found.name} makes its model in code; mjbatch needs an MJCF file.")
    return Path(path)


def main(request: dict[str, Any]) -> None:
    """Print the path of a task's MJCF as JSON; null where the task makes its model in code.

    To the file of a legged robot, VelocityEnv adds no more than a plane and sensors.
    """
    from mjfleet.env import Env
    from mjfleet.legged.velocity_env import VelocityEnv

    found = find_task(request["task"], Path(request["task_folder"]))
    task: Any = found.load(found.task.env_class, Env)
    from_file = Env.make_model.__func__, VelocityEnv.make_model.__func__
    has_file = task.make_model.__func__ in from_file
    print(json.dumps(str(task.model_path()) if has_file else None))


def write_equal_model(source: Path, option: dict[str, str], target: Path) -> None:
    """Write the MJCF of a Go1 on a plane, with another `option`, and with feet that alone touch it.

    It is not written by MuJoCo, whose own MJCF older versions do not read.
    """
    root = ElementTree.parse(source).getroot()
    plane = {"name": "floor", "type": "plane", "size": "0 0 0.05"}
    plane |= {"contype": "1", "conaffinity": "0"}
    root.append(worldbody := ElementTree.Element("worldbody"))
    worldbody.append(ElementTree.Element("geom", plane))
    for own in root.findall("option"):
        root.remove(own)
    root.append(ElementTree.Element("option", option))
    for geom in root.iterfind("worldbody/body//geom"):
        if not geom.get("name", "").endswith("_foot"):
            geom.attrib |= {"contype": "0", "conaffinity": "0"}
    ElementTree.ElementTree(root).write(target)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
