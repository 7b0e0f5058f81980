"""What a robot must know to run a policy that was trained by velocity_env."""

from typing import Any


def describe(env: Any) -> dict[str, Any]:
    """Return the deployment record of a VelocityEnv, see `Env.deployment`."""
    frame = []
    for part in env.frame:
        known = {"name": part.name, "size": part.read().shape[1], "unit": part.unit}
        frame.append(known | ({"meaning": part.meaning} if part.meaning else {}))
    units = {"forward": "m/s", "left": "m/s", "turn_left": "rad/s"}
    commands = [
        {"name": name, "size": 1, "unit": units[name], "range": (low, high)}
        for name, (_, low, high) in env.commands().items()
    ]
    frames = {
        "name": "frames",
        "size": env.seen.past[0].numel(),
        "history": env.cfg.history,
        "meaning": "one of each control step, the oldest first; the first fills all places",
        "parts": frame,
    }
    command = {"name": "command", "size": 3, "parts": commands}
    scales = env.action_scale.tolist() if env.action_factors else env.cfg.action_scale
    return {
        "observations": {"actor": [frames, command]},
        "action_scale": scales,
        "targets": "default_pose + action_scale * actions, in rad, without delay or limits; PD "
        "controllers with kp and kv follow them",
    }
