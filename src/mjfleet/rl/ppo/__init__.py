"""PPO and GRPO by our own update, which `ppo.py` has whole."""

from mjfleet.rl.ppo.ppo import PPO as PPO
