"""Precision and determinism."""

from pathlib import Path

import pytest

from ..conftest import Output, Run, only_run, rows

SETTINGS = """
import torch
from mjfleet.config import AgentConfig, TrainConfig
from mjfleet.worker.torch_settings import apply_settings
for tf32, deterministic in ((True, False), (False, True)):
    config = TrainConfig(agent=AgentConfig(tf32=tf32), deterministic=deterministic)
    apply_settings(config)
    # The second as torch's compiler asks.
    print(torch.backends.cuda.matmul.fp32_precision, torch.get_float32_matmul_precision())
    print(torch.are_deterministic_algorithms_enabled())
print(torch.utils.deterministic.fill_uninitialized_memory)
"""


def test_precision_and_determinism_are_those_of_the_flags(output: Output, tmp_path: Path) -> None:
    """In a process of its own: torch refuses to go back."""
    (tmp_path / "settings.py").write_text(SETTINGS)
    shown = output("python", "settings.py")
    assert shown.split() == ["tf32", "high", "False", "ieee", "highest", "True", "False"]


@pytest.mark.parametrize("engine", ["native", pytest.param("warp", marks=pytest.mark.slow)])
def test_deterministic_training_lacks_no_algorithm_and_learns_the_same_on_a_cpu(
    run: Run, tmp_path: Path, engine: str
) -> None:
    flags = ("--engine", engine, "--gpu-ids", "None", "--env.num-envs", "8")
    flags = (*flags, "--agent.max-iterations", "2", "--eval-interval", "2", "--eval-envs", "2")
    learned = []
    for more in ((), ("--deterministic",)):
        folder = tmp_path / str(len(more))
        folder.mkdir()
        result = run("train", "cartpole-balance", *flags, *more, "--log-root", str(folder / "logs"))
        assert result.returncode == 0, result.stderr
        kept = ("mean_reward", "loss/value", "loss/surrogate", "loss/entropy")
        learned.append([[row[name] for name in kept] for row in rows(only_run(folder))])
    assert learned[0] == learned[1]
    assert len(learned[0]) == 2
