"""Unitree G1 that follows velocity commands or clips. README.md has the sources of its numbers."""

from mjfleet.config import Task
from mjfleet.legged.config import BIPED_AGENT, BipedWeights, CommandConfig, VelocityConfig
from mjfleet.tracking.config import AGENT, TrackingConfig

SIDES = ("left", "right")
LIMBS = ("hip_roll", "knee", "foot", "shoulder_roll", "elbow", "wrist_yaw")
OWN_SHAPES = ("hip_yaw", "knee", "foot", "elbow", "wrist_yaw")
FEET, HANDS = (tuple(f"{side}_{part}" for side in SIDES) for part in ("foot", "wrist_yaw"))

TASKS = {
    "g1-velocity-flat": Task(
        summary="A Unitree G1, a humanoid, follows velocity commands on flat ground.",
        env=VelocityConfig(
            decimation=2,  # Physics steps of 10 ms.
            action_scale=0.4,
            command=CommandConfig(forward=(-0.5, 1.0), lateral=(-0.5, 0.5)),
            weights=BipedWeights(
                linear=10.0, yaw=6.0, fall=-4.0, torque=-1e-5, power=-1e-3, pose=-0.5, air_time=4.0
            ),
        ),
        env_class="env:FlatEnv",
        agent=BIPED_AGENT,
        num_actions=29,
    ),
    "g1-tracking": Task(
        summary="A Unitree G1 does what clips show: --env.clips FILES.",
        env=TrackingConfig(
            decimation=2,  # Physics steps of 10 ms.
            clips=("task:clips/walk.npz",),
            anchor="torso",
            bodies=("pelvis", "torso", *(f"{side}_{limb}" for side in SIDES for limb in LIMBS)),
            end_bodies=(*FEET, *HANDS),
            feet=FEET,
            touching=(*FEET, *HANDS),
            self_collision=("torso", *(f"{side}_{part}" for side in SIDES for part in OWN_SHAPES)),
        ),
        env_class="env:FollowEnv",
        agent=AGENT,
        num_actions=29,
    ),
}
