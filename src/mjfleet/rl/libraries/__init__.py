"""Other libraries' algorithms behind the interface of our PPO."""
