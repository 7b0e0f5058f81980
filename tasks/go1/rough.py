"""The Go1 on rough ground, with a curriculum of levels."""

from pathlib import Path

import mujoco
import torch

from mjfleet.env import next_levels

from .config import Go1Config, RoughConfig
from .env import Go1Env
from .terrain import heights_at, make_terrain


class RoughEnv(Go1Env):
    """The policy observes what it does on flat ground; the value network also sees the ground."""

    cfg: RoughConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    @classmethod
    def make_model(cls, cfg: Go1Config) -> mujoco.MjModel:
        assert isinstance(cfg, RoughConfig)
        spec = mujoco.MjSpec.from_file(str(Path(__file__).with_name("rough.xml")))
        make_terrain(cfg.levels, cfg.columns, cfg.terrain_seed).put_into(spec)
        return spec.compile()

    def setup(self) -> None:
        super().setup()
        cfg, device = self.cfg, self.device
        terrain = make_terrain(cfg.levels, cfg.columns, cfg.terrain_seed)
        self.ground = torch.as_tensor(terrain.heights, device=device)
        self.origins = torch.as_tensor(terrain.origins, device=device)
        self.column = self.env_ids % cfg.columns
        self.level = self.env_ids // cfg.columns % min(cfg.start_levels, cfg.levels)
        """Level of each environment's ground, from 0 to `levels` - 1."""
        self.walked = torch.zeros(self.num_envs, device=device)
        """Distance covered in this episode in the commanded direction, m."""
        self.wanted = torch.zeros(self.num_envs, device=device)
        """Distance commanded in this episode, m."""
        # What Isaac Lab scans, in a smaller rectangle: 1 m x 0.6 m, every 0.1 m.
        x, y = (torch.linspace(-n / 20, n / 20, n + 1, device=device) for n in (10, 6))
        self.scan = torch.stack(torch.meshgrid(x, y, indexing="ij"), dim=2).flatten(0, 1)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        """Move robots that covered the commanded distance to harder ground, as legged_gym does."""
        share = self.walked / self.wanted.clamp(min=1.0)
        has_been = mask & (self.wanted > 1.0)
        up, down = has_been & (share > 0.75), has_been & (share < 0.5)
        self.level = next_levels(self, self.level, up, down, self.cfg.levels)
        self.walked.masked_fill_(mask, 0.0)
        self.wanted.masked_fill_(mask, 0.0)
        super().reset_worlds(mask)

    def spawn_points(self, mask: torch.Tensor) -> torch.Tensor:
        """Start on the platform in the middle of a tile."""
        around = torch.nn.functional.pad(self.uniform(2, -0.5, 0.5), (0, 1))
        return self.origins[self.level, self.column] + around + self.lift

    def observe(self) -> dict[str, torch.Tensor]:
        """Add the trunk's height above the surrounding ground for the value network."""
        groups = super().observe()
        place, yaw = self.sim.qpos[:, :3].float(), self.yaw().float().unsqueeze(1)
        x, y = self.scan[:, 0] * yaw.cos(), self.scan[:, 1] * yaw.cos()
        x, y = x - self.scan[:, 1] * yaw.sin(), y + self.scan[:, 0] * yaw.sin()
        points = place[:, None, :2] + torch.stack((x, y), dim=2)
        seen = place[:, 2:] - heights_at(self.ground, points)
        return groups | {"critic": torch.cat((groups["critic"], seen), dim=1)}

    def rewards(self) -> dict[str, torch.Tensor]:
        told = self.command[:, :2].norm(dim=1)
        along = (self.velocity[:, :2] * self.command[:, :2]).sum(dim=1) / told.clamp(min=0.1)
        self.walked += self.step_dt * along.float()
        self.wanted += self.step_dt * told
        return super().rewards()

    def metrics(self) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        return super().metrics() | {"terrain_level": self.level.float()}
