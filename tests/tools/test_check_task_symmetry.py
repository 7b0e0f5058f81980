"""`mjfleet check-task`: it tries the function that mirrors samples, as training does at once."""

from pathlib import Path

import pytest

from .arm import mistakes_on_native, write_arm

MIRROR = """
def mirror(env, obs, actions):
    return torch.cat((obs, obs)), torch.cat((actions, 2 * actions))
"""


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("", "use_data_augmentation", "env.py has no `mirror`"),
        (MIRROR, "use_equivariant_networks", "is a mirror: it swaps the numbers of `actions`"),
        (MIRROR.replace("2 * ", "-"), "use_equivariant_networks", None),
        (MIRROR.replace("2 * ", "env.arm - "), "use_data_augmentation", "no attribute 'arm'"),
    ],
)
def test_a_mirror_that_training_refuses_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, kind: str, said: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    symmetry = f"symmetry_cfg=SymmetryConfig(data_augmentation_func='env:mirror', {kind}=True)"
    write_arm(
        tmp_path,
        ("\n\nclass ArmEnv", f"{function}\n\nclass ArmEnv"),
        config=[
            ("PPOConfig, Task", "PPOConfig, SymmetryConfig, Task"),
            ("entropy_coef", f"{symmetry}, entropy_coef"),
        ],
    )
    found = mistakes_on_native(tmp_path)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
