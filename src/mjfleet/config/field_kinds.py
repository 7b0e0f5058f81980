"""What each field of a configuration is: who may set it, and what a change makes of a resumed run.

Names are dotted, as in config.yaml. A field in none of these sets decides what is learned, as a
task's own fields under `env.` do; a run that is resumed with another value becomes one of its own.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLACEMENT = _names("""
hosts ssh_config launcher_address min_hosts env_var tasks_dir log_root run_dir torchrunx_log_dir
resume config teacher init_from agent.logger agent.wandb.project agent.wandb.entity
agent.wandb.mode agent.wandb.checkpoints
""")
"""Fields that do not count in a file, unless a run that was begun here has the same: where, as whom
and with whose code a run is trained. A resumed run with other values continues in place."""

TEACHER = "agent.teacher.checkpoint"
"""A file to learn from, which counts as PLACEMENT does."""

OPERATION = _names("""
gpu_ids cpu_workers engine cpu_threads numa deterministic backend collective_timeout hang_timeout
seeds per_run max_restarts keep_checkpoints save_worlds eval_interval eval_envs video_interval
on_nan plain quiet dry_run total_steps env.nconmax env.njmax
agent.tf32 agent.max_iterations agent.save_interval agent.wandb.group agent.wandb.tags
agent.wandb.notes agent.torch_compile_mode agent.algorithm.backprop agent.algorithm.learning_threads
""")
"""How long, on what and how exactly the same is computed, and what is logged and kept. A run that
is resumed goes on in place."""

NAMES = frozenset({"agent.experiment_name", "agent.run_name"})
"""A run that is resumed under another name becomes a run of its own."""

INITIAL = frozenset({"agent.actor.distribution.init_std"})
"""What only a new policy begins with, so that it cannot be changed for one that goes on."""


SHORT = {
    "env.num_envs": "num_envs",
    "agent.seed": "seed",
    "agent.max_iterations": "max_iterations",
    "agent.run_name": "run_name",
}
"""Fields whose flags also have a short name: `--seed` is `--agent.seed`."""


def decides_learning(name: str) -> bool:
    """Return whether a field decides what is learned, those of a task included."""
    return name not in PLACEMENT | OPERATION | NAMES
