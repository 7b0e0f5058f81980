"""PPO and GRPO by our own update, all of which is in `ppo.py`."""

from mjfleet.rl.ppo.ppo import PPO as PPO
