"""What each field of a configuration is: who may set it, and what a change makes of a resumed run.

Names are dotted, as in config.yaml. Each field is in one of these sets; a task's own fields under
`env.` are numbers of LEARNING.
"""

from mjfleet.config.validation import is_class_path


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLACEMENT = _names("""
hosts ssh_config launcher_address min_hosts env_var tasks_dir log_root run_dir torchrunx_log_dir
resume config trust teacher init_from agent.logger agent.wandb.project agent.wandb.entity
agent.wandb.mode agent.wandb.checkpoints
""")
"""Where, as whom or with whose code something runs. Only the user decides it, never somebody else's
file; the others may come from any file. A run that is resumed goes on in place."""

CLASSES = _names("""
agent.actor.class_name agent.critic.class_name agent.teacher.class_name agent.algorithm.name
agent.runner_hook
""")
"""What may be `module:Class`, whose code then learns. Only the user decides on such a value, as on
PLACEMENT; a plain name may come from any file. A run that is resumed with another value becomes one
of its own."""

TEACHER = "agent.teacher.checkpoint"
"""A file to learn from, on which only the user decides."""

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

LEARNING = _names("""
total_envs env.num_envs env.decimation env.episode_seconds
agent.library agent.seed agent.num_steps_per_env agent.init_at_random_ep_len
agent.obs_groups.actor agent.obs_groups.critic agent.obs_groups.rnd_state
agent.actor.hidden_dims agent.actor.activation agent.actor.obs_normalization
agent.actor.rnn_type agent.actor.rnn_hidden_dim agent.actor.rnn_num_layers
agent.actor.distribution.class_name agent.actor.distribution.std_type
agent.actor.distribution.std_range agent.actor.distribution.learn_std
agent.critic.hidden_dims agent.critic.activation
agent.critic.obs_normalization agent.critic.rnn_type agent.critic.rnn_hidden_dim
agent.critic.rnn_num_layers
agent.teacher.checkpoint agent.teacher.obs_groups
agent.teacher.hidden_dims agent.teacher.activation agent.teacher.obs_normalization
agent.teacher.rnn_type agent.teacher.rnn_hidden_dim agent.teacher.rnn_num_layers
agent.teacher.distribution.class_name agent.teacher.distribution.init_std
agent.teacher.distribution.std_type agent.teacher.distribution.std_range
agent.teacher.distribution.learn_std
agent.algorithm.group_size agent.algorithm.gradient_length agent.algorithm.loss_type
agent.algorithm.num_learning_epochs agent.algorithm.num_mini_batches agent.algorithm.learning_rate
agent.algorithm.schedule agent.algorithm.desired_kl agent.algorithm.gamma agent.algorithm.lam
agent.algorithm.clip_param agent.algorithm.use_clipped_value_loss agent.algorithm.value_loss_coef
agent.algorithm.entropy_coef agent.algorithm.max_grad_norm agent.algorithm.optimizer
agent.algorithm.normalize_advantage_per_mini_batch agent.algorithm.use_mixed_precision
agent.algorithm.rnd_cfg.weight agent.algorithm.rnd_cfg.num_outputs
agent.algorithm.rnd_cfg.predictor_hidden_dims agent.algorithm.rnd_cfg.target_hidden_dims
agent.algorithm.rnd_cfg.activation agent.algorithm.rnd_cfg.state_normalization
agent.algorithm.rnd_cfg.reward_normalization agent.algorithm.rnd_cfg.learning_rate
agent.algorithm.symmetry_cfg.data_augmentation_func
agent.algorithm.symmetry_cfg.use_equivariant_networks
agent.algorithm.symmetry_cfg.use_data_augmentation agent.algorithm.symmetry_cfg.use_mirror_loss
agent.algorithm.symmetry_cfg.mirror_loss_coeff
""") | {
    f"agent.{network}.cnn_cfg.{name}"
    for network in ("actor", "critic", "teacher")
    for name in (
        *("output_channels", "kernel_size", "stride", "padding", "norm", "activation"),
        *("max_pool", "global_pool"),
    )
}
"""What decides what is learned. A run that is resumed with another value becomes one of its own."""


def is_for_the_user(name: str, value: object) -> bool:
    """Return whether only the user may say that a field has a value other than its default."""
    is_class = name in CLASSES and isinstance(value, str) and is_class_path(value)
    return is_class or name in PLACEMENT or name == TEACHER


def decides_learning(name: str) -> bool:
    """Return whether a field decides what is learned, those of a task included."""
    return name not in PLACEMENT | OPERATION | NAMES
