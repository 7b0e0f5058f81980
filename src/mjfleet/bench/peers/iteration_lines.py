"""Lets rsl_rl's runner tell each iteration as a line of JSON. Standard library alone.

Imported by the drivers, of which one runs where mjfleet is not installed.
"""

import json
import os
from typing import Any


class IterationLines:
    """Prints a line after all that rsl_rl itself reports of an iteration."""

    def __init__(self) -> None:
        """Keep standard output for these lines; what else is printed there has no reader."""
        self._output = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)

    def write(self, values: dict[str, Any]) -> None:
        """Print a line."""
        os.write(self._output, json.dumps(values).encode() + b"\n")

    def follow(self, logger: Any, counts_rewards: bool) -> None:
        """Print a line for each iteration.

        Args:
            logger: rsl_rl's class `Logger`.
            counts_rewards: whether it also tells the mean reward of the iteration's steps, which
                costs a sum for each.
        """
        log, process = logger.log, logger.process_env_step
        rewards: list[Any] = []

        def process_env_step(self_: Any, reward: Any, *args: Any, **kwargs: Any) -> None:
            rewards.append(reward.mean())
            process(self_, reward, *args, **kwargs)

        def log_and_tell(self_: Any, **values: Any) -> None:
            log(self_, **values)
            line = {
                "iteration": values["it"] + 1,
                "collect_seconds": values["collect_time"],
                "learn_seconds": values["learn_time"],
            }
            if rewards:
                line["mean_reward"] = float(sum(rewards) / len(rewards))
                rewards.clear()
            self.write(line)

        logger.log = log_and_tell
        if counts_rewards:
            logger.process_env_step = process_env_step
