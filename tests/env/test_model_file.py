"""Where a task's model comes from."""

from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch

from mjfleet.config import EnvConfig
from mjfleet.env import Env
from mjfleet.errors import UserError

XML = "<mujoco><worldbody><body name='{}'><geom size='0.1'/></body></worldbody></mujoco>"


def model_of(name: Any) -> mujoco.MjModel:
    """The model of a task that names it."""

    class Robot(Env[EnvConfig]):
        model_file = name

        def apply(self, action: torch.Tensor) -> None: ...

    return Robot.make_model(EnvConfig())


def test_a_model_is_named_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "own.xml"
    file.write_text(XML.format("own"))
    assert [model_of(name).body(1).name for name in (file, str(file))] == ["own"] * 2


def test_a_model_of_menagerie_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unitree_go1").mkdir()
    for name in ("scene", "go1"):
        (tmp_path / f"unitree_go1/{name}.xml").write_text(XML.format(name))
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert model_of("menagerie:unitree_go1").body(1).name == "scene"
    assert model_of("menagerie:unitree_go1/go1").body(1).name == "go1"
    for name, said in (
        ("unitree_goo1", "unitree_go1"),
        ("unitree_go1/walk", "go1, scene"),
        ("xyz", r"Unknown robot 'xyz'\. MENAGERIE_ROOT"),
        ("unitree_g1", "MENAGERIE_ROOT"),
        ("unitree_g1/walk", "available: .*scene"),  # The name is looked at first.
    ):
        with pytest.raises(UserError, match=said):
            model_of(f"menagerie:{name}")

    # Nowhere on this machine, and where it is fetched from is not reached.
    monkeypatch.delenv("MENAGERIE_ROOT")
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MENAGERIE_BASE_URL", (tmp_path / "nowhere").as_uri())
    with pytest.raises(UserError, match="MENAGERIE_ROOT"):
        model_of("menagerie:unitree_g1")
