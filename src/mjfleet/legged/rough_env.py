"""A legged robot on rough ground, with a curriculum of levels. Runs in a worker."""

import mujoco
import torch

from mjfleet.env import Levels
from mjfleet.errors import UserError
from mjfleet.legged import mirror
from mjfleet.legged.config import RoughVelocityConfig, VelocityConfig
from mjfleet.legged.mirror import Part
from mjfleet.legged.scene import make_robot
from mjfleet.legged.terrain import Ground, Terrain, make_terrain, mixed_kinds
from mjfleet.legged.velocity_env import VelocityEnv
from mjfleet.parts import grid

ROWS, COLUMNS = 11, 7
"""Points at which the value network sees the ground's height: 1 m x 0.6 m, every 0.1 m."""
LEFT_IS_RIGHT: mirror.Map = (
    [COLUMNS * row + COLUMNS - 1 - column for row in range(ROWS) for column in range(COLUMNS)],
    [1.0] * (ROWS * COLUMNS),
)


class RoughVelocityEnv(VelocityEnv):
    """The policy observes what it does on flat ground; the value network also sees the ground.

    Put it before the robot's own class: `class RoughEnv(RoughVelocityEnv, FlatEnv)`.
    """

    @classmethod
    def make_model(cls, cfg: VelocityConfig) -> mujoco.MjModel:
        """Return the robot of `model_file` on rough ground."""
        return make_robot(cls.model_path(), cls.base, cls.feet, _terrain(cfg))

    def setup(self) -> None:
        cfg, device = self.cfg, self.device
        assert isinstance(cfg, RoughVelocityConfig)
        terrain = _terrain(cfg)
        self.ground = Ground(torch.as_tensor(terrain.heights, device=device))
        self.origins = torch.as_tensor(terrain.origins, device=device)
        self.column = self.env_ids % cfg.columns
        start = self.env_ids // cfg.columns % min(cfg.start_levels, cfg.levels)
        self.levels = Levels(self, cfg.levels, start)
        """Level of each environment's ground."""
        # An evaluation has levels of its own, always the same.
        kinds = () if self.is_evaluation else dict.fromkeys(terrain.kinds)
        has_kind = [[own == kind for own in terrain.kinds] for kind in kinds]
        counted = torch.tensor([[True] * cfg.columns, *has_kind], device=device)
        self.counted = counted[:, self.column].float()
        """For the mean over all and for that over each kind of ground, which environments count."""
        self.level_names = ["terrain_level", *(f"terrain_level/{kind}" for kind in kinds)]
        self.walked = self.add_state("walked")
        """Distance covered in this episode in the commanded direction, m."""
        self.wanted = self.add_state("wanted")
        """Distance commanded in this episode, m."""
        # What Isaac Lab scans, in a smaller rectangle.
        self.scan = grid(1.0, 0.6, 0.1)[0][:, :2].to(device)
        super().setup()

    def end_episode(self, mask: torch.Tensor) -> None:
        """Move robots that covered the commanded distance to harder ground, as legged_gym does.

        Unlike there, only a whole episode without a fall leads to harder ground.
        """
        share = self.walked / self.wanted.clamp(min=1.0)
        has_been = mask & (self.wanted > 1.0)
        self.levels.move(has_been & ~self.failed & (share > 0.75), has_been & (share < 0.5))

    def spawn_points(self, mask: torch.Tensor) -> torch.Tensor:
        """Start on the platform in the middle of a tile."""
        around = torch.nn.functional.pad(self.uniform(2, -0.5, 0.5), (0, 1))
        return self.origins[self.levels.now, self.column] + around + self.lift

    def truth_parts(self) -> list[Part]:
        """Add the base's height above the surrounding ground for the value network."""
        return [*super().truth_parts(), Part("scan", self._scan_ground, LEFT_IS_RIGHT)]

    def after_physics(self) -> None:
        """Add to the distances covered and commanded."""
        super().after_physics()
        speed = self.command[:, :2].norm(dim=1)
        along = (self.velocity[:, :2] * self.command[:, :2]).sum(dim=1) / speed.clamp(min=0.1)
        self.walked += self.step_dt * along.float()
        self.wanted += self.step_dt * speed

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """Add the mean level of the ground, and in training that of each kind of it."""
        levels = (self.counted * self.levels.now).unbind()
        pairs = zip(levels, self.counted.unbind(), strict=True)
        return super().metrics() | dict(zip(self.level_names, pairs, strict=True))

    def _scan_ground(self) -> torch.Tensor:
        place = self.sim.qpos[:, :3].float()
        ahead = torch.nn.functional.normalize(self.frame_of_base[:, :2, 0].float())
        left = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
        # On a GPU, TF32 would round a product of matrices to three digits.
        along, across = self.scan[:, :1] * ahead.unsqueeze(1), self.scan[:, 1:] * left.unsqueeze(1)
        points = place[:, None, :2] + along + across
        return place[:, 2:] - self.ground.heights_at(points)


def _terrain(cfg: VelocityConfig) -> Terrain:
    if not isinstance(cfg, RoughVelocityConfig):
        raise UserError(f"rough ground has a {type(cfg).__name__}, not a RoughVelocityConfig.")
    kinds = mixed_kinds(vars(cfg.terrain_shares), cfg.columns)
    return make_terrain(cfg.levels, cfg.columns, cfg.terrain_seed, cfg.terrain_scale, kinds)
