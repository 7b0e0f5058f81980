"""`mjfleet check-task`: it finds each mistake that is planted, with its line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mjfleet.cli.dispatcher import mjfleet

from ..conftest import Output, Run
from .arm import (
    APPLY,
    METHODS,
    OBSERVE,
    RESET,
    REWARDS,
    SETUP,
    TERM,
    Change,
    after,
    method,
    mistakes_on_native,
    write_arm,
)  # fmt: skip

Check = Callable[..., list[str]]


@pytest.fixture
def check(here: Path) -> Check:
    """Check the template with some of its text replaced, on MuJoCo's own engine."""

    def run_check(*changes: Change, **files: list[Change]) -> list[str]:
        write_arm(here, *changes, **files)
        return mistakes_on_native(here)

    return run_check


POSE = "pose = self.uniform(2, -2.0, 2.0)"
TARGET = "        self.sim.mocap_pos[:, 0, :2] = self.target"
EFFORT = '"effort": -self.cfg.effort_weight * dt * effort'
MISTAKES: list[tuple[list[Change], list[str]]] = [
    # What no checkpoint holds, and random numbers that are not the worker's own.
    (
        [
            ("import torch\n", "import numpy as np\nimport torch\n"),
            ("import math\n", "import math\nimport random\n"),
            after(SETUP, "self.steps, self.sum = 0, torch.zeros(self.num_envs)",
                  "self.one, self.other = torch.ones(2), torch.zeros(2)",
                  "self.own, self.odd = torch.Generator(), object()"),
            after(APPLY, "self.steps += 1", "self.one, self.other = self.other, self.one",
                  "self.sum += 1"),
            (POSE, f"{POSE} * np.random.rand()\n        pose = pose + 0.1 * random.random()\n"
             "        pose = pose + torch.rand(self.num_envs, 2, device=self.device)\n"
             "        pose = pose + torch.rand(self.num_envs, 2, generator=self.own)"),
        ],
        [
            r"ArmEnv.steps changes in a step, and is not declared",
            r"ArmEnv.sum changes in a step",
            r"ArmEnv.one changes in a step",
            r"ArmEnv.other changes in a step",
            r"ArmEnv.own changes in a step",
            r"self.odd: of a type that is not looked at",
            r"a step draws from NumPy's global",
            r"a step draws from Python's global",
            r"a step draws from torch's global",
        ],
    ),
    # Terms and actions without use.
    (
        [
            (APPLY, "        self.sim.ctrl[:, 0] = action[:, 0].clamp(-1.0, 1.0)\n"),
            (EFFORT, '"effort": 0 * effort'),
            method("terminated", "self.sim.qpos[:, 0] > 1000"),
            method("truncated", "self.sim.qpos[:, 0] < -1000"),
        ],
        [
            r"'effort'\]: 0 in all environments",
            r"action columns 1 changes nothing within 20 steps; write sim.ctrl",
            r"terminated\(\) was never true",
            r"truncated\(\) was never true",
        ],
    ),
    # What is read or kept where it must not be; masses; methods that change what they are shown.
    (
        [
            after(SETUP, 'self.sim.expand("body_mass")[:, 2] += 0.2'),
            (TARGET, '        self.sim.qvel[:, 0] = torch.where(mask, self.sim.sensor("fingertip")'
             f"[:, 0], self.sim.qvel[:, 0])\n{TARGET}"),
            after(REWARDS, "self.sim.qvel[:] *= 0.9"),
            method("debug_vis", '{"a": (self.normal(3), self.normal(3))}'),
        ],
        [
            r"reset_worlds\(\): sim.qvel follows from what the last episode has left",
            r"setup\(\) changes masses: body_subtreemass .* call self.sim.set_const\(\)",
            r"rewards\(\) changes sim.qvel",
            r"debug_vis\(\) changes the random numbers that follow",
            r"draws sim.expand\('body_mass'\) the same for all environments",
        ],
    ),
    # Variations that add up over resets, or are equal everywhere; environments that meet.
    (
        [
            after(SETUP, 'self.damping = self.sim.expand("dof_damping")'),
            after(RESET, "factor = self.uniform(2, 0.8, 1.2)",
                  "self.write(mask, self.damping, self.damping * factor)"),
            ("radius = self.uniform(1, -math.pi, math.pi), self.uniform(1, 0.1, 0.35)",
             "radius = (self.uniform(1, low, high)[:1].expand(self.num_envs, 1)"
             " for low, high in ((-math.pi, math.pi), (0.1, 0.35)))"),
            (TERM, TERM.replace("distance", "distance / distance.mean()")),
        ],
        [
            r"sim.expand\('dof_damping'\) follows from what the last episode has left",
            r"draws sim.mocap_pos the same for all environments",
            r"draws self.target the same for all environments",
            r"rewards\(\)\['approach'\] of an environment depends",
        ],
    ),
    # Variations that vary nothing: equal ranges, zeros that are scaled, what touches nothing.
    (
        [
            ("import torch\n", "import torch\n\nfrom mjfleet.parts import vary\n"),
            after(SETUP, 'vary(self, "dof_damping", ".*", "scale", (0.5, 2.0))',
                  'vary(self, "body_mass", ".*arm", "scale", (1.5, 1.5))',
                  'vary(self, "geom_friction", ".*", "scale", (0.5, 2.0))',
                  'vary(self, "dof_frictionloss", ".*", "scale", (0.5, 2.0))',
                  'vary(self, "dof_armature", ".*", "add", (0.0, 0.0))'),
        ],
        [
            r"vary\('body_mass', '.\*arm'\): is the same in all environments, by its range of 1.5",
            r"vary\('geom_friction', '.\*'\): changes nothing within 99 steps",
            r"vary\('dof_frictionloss', '.\*'\): is the same in all .*, since it scales zeros",
        ],
    ),
    ([(APPLY, "        action.clamp(-1.0, 1.0)\n")], [r"the actions change nothing"]),
    ([method("terminated", "self.way_to_target().norm(dim=1) < 10")],
     [r"terminated\(\) or truncated\(\): episodes end after 1 of 200 .*the wrong way round"]),
    ([after(SETUP, "self.start = self.sim.qpos.clone()"),
      ("speeds = self.sim.qpos", "speeds = self.start"),
      ("self.write(mask, self.target, target)", "self.target[:] = target")],
     [r"observe\(\)\['critic'\] columns 0, 1, 2, 3: 1, 1, 0, 0 in all",
      r"reset_worlds\(mask\): changes self.target"]),
    ([("state = torch.cat((angles.cos(), angles.sin(), 0.2 * speeds, way), dim=1)",
       "state = torch.zeros(self.num_envs, 8, device=self.device)"), ("state + noise", "state")],
     [r"observe\(\)\['actor'\]: 0, 0, 0, 0, ... in all environ"]),
    # Numbers that are rarely not finite.
    (
        [
            (TERM, f'{TERM}            "rare": (14.0 - self.sim.qvel.norm(dim=1)).sqrt(),\n'),
            method("terminated", "self.sim.qvel.norm(dim=1) > 10.0"),
        ],
        [r"'rare'\]: not finite in .* of random states"],
    ),
    # Environments that see each other, also in rare states; a model that differs each time.
    (
        [
            ("return self.target - ", "return self.target[0] - "),
            ("    def setup", "    @classmethod\n    def make_model(cls, cfg):\n"
             "        import numpy\n        model = super().make_model(cfg)\n"
             "        model.geom_rgba[0, 0] = numpy.random.default_rng().random()\n"
             "        return model\n\n    def setup"),
        ],
        [
            r"make_model\(\) returns another geom_rgba each time",
            r"of an environment depends on the others",
        ],
    ),
    # A model that is written in a reset; a hook that is none.
    (
        [
            after(RESET, "self.sim.model.dof_damping[:] = 0.3"),
            after(SETUP, "self.sim.model.opt.timestep = 0.005"),
            method("metric", "{}"), method("terminate", "self.never"),
        ],
        [
            r"sim.model.dof_damping is written after make_model.*write rows of sim.expand",
            r"sim.model.opt.timestep is written after make_model.*set it in make_model\(\)",
            r"never calls terminate\(\); did you mean terminated",
            r"never calls metric\(\); did you mean metrics",
        ],
    ),
    # A start out of range, a model changed too late.
    (
        [
            ("-2.0, 2.0)", "-5.0, 5.0)"),
            after(SETUP, "self.sim.model.body_mass[2] *= 3"),
        ],
        [
            r"sim.model.body_mass is written after make_model",
            r"episodes start with joint elbow at -[0-9.]+ to [0-9.]+, beyond its range",
        ],
    ),
    # Seeds.
    ([after(SETUP, "self.bonus = torch.arange(self.num_envs, device=self.device)"),
      (TERM, TERM.replace("distance", "distance * (1 + self.bonus)"))],
     [r"rewards\(\)\['approach'\] differs between environments in the same state"]),
    # Writes that are lost, or made when the policy is shown what it sees.
    (
        [
            after(OBSERVE, "self.sim.qpos[:, 0].add_(0.1)", "self.sim.sensordata.mul_(0.9)"),
            after(RESET, "self.sim.xpos[:, 1] = 0.0", "self.write(mask, self.sim.xquat, 1.0)"),
        ],
        [
            r"in observe\(\): `self.sim.sensordata.mul_.* has no effect: sim.sensordata",
            r"in reset_worlds\(\): `self.sim.xpos.* has no effect: sim.xpos is computed",
            r"in reset_worlds\(\): `self.write.* has no effect: sim.xquat is computed",
            r"observe\(\) changes sim.qpos",
        ],
    ),
    # Waits for the device, which are seen without one.
    (
        [
            after(REWARDS, "total = sum(float(distance[i]) for i in range(2))",
                  "least = distance.min().item()",
                  "if (distance < 0).any():", "    total = least",
                  "listed = distance.tolist()",
                  "array = distance.numpy()",
                  "copied = distance.cpu()",
                  "near = distance[distance < 0.1]",
                  "count = (distance < 0.1).nonzero()",
                  "scale = torch.tensor([1.0, 2.0], device=self.device)",
                  "ends = self.sim.qpos[:, [0, 1]]",
                  "distance[distance < 0.0] = 0.0  # Waits for nothing."),
            after(RESET, "self.sim.qpos[mask] = pose[0].to(self.sim.qpos)"),
        ],
        [
            rf"in {method}\(\): `{code}.*waits for the device"
            for method, code in (
                ("<genexpr>", "total ="), ("rewards", "least ="), ("rewards", "if "),
                ("rewards", "listed ="), ("rewards", "array ="), ("rewards", "copied ="),
                ("rewards", "near ="),
                ("rewards", "count ="), ("rewards", "scale ="), ("rewards", "ends ="),
                ("reset_worlds", "self.sim.qpos"),
            )
        ],
    ),
    # Degrees; starts that are equal.
    ([("action.clamp(-1.0, 1.0)", "57.3 * action")],
     [r"apply\(\): sim.ctrl columns 0, 1 is mostly beyond [34]\d times its range"]),
    ([("-2.0, 2.0)", "-150.0, 150.0)")],
     [r"joint shoulder at -1\d\d to 1\d\d, beyond two turns, -12.6 to 12.6; write positions in rad",
      r"joint elbow at -1\d\d to 1\d\d, beyond its range in the model, -2.62 to 2.62"]),
    ([(POSE, "pose = torch.ones(self.num_envs, 2)"),
      ("self.uniform(1, -math.pi, math.pi), self.uniform(1, 0.1, 0.35)",
       "2 * (torch.full((self.num_envs, 1), 0.3),)")],
     [r"all episodes start in the same state"]),
    # What outlasts an environment.
    (
        [
            ("class ArmEnv", "STEPS, MEMORY = 0, {}\n\n\nclass ArmEnv"),
            ('    model_file = "model.xml"\n', '    model_file = "model.xml"\n    count = 0\n'),
            after(APPLY, "global STEPS", "STEPS += 1", "type(self).count += 1",
                  'MEMORY["action"] = action.clone()'),
        ],
        [r"a step changes env.STEPS", r"a step changes env.MEMORY", r"a step changes ArmEnv.count"],
    ),
    (
        [
            ("class ArmEnv", "MEMORY = {}\n\n\nclass ArmEnv"),
            after(REWARDS, "MEMORY.setdefault(id(self), []).append(distance)",
                  "distance = distance + len(MEMORY[id(self)])"),
        ],
        [r"rewards\(\)\['approach'\] differs if the same steps are taken from the same state"],
    ),
    # Shapes and exceptions.
    ([('"critic": state}', '"critic": state[:, 0]}')],
     [r"ArmEnv.observe\(\)\['critic'\] is \(32,\)"]),
    ([('"critic": state}', '"critic": state[:, : 8 - int(self.episode_length_buf[0] > 3)]}')],
     [r"ArmEnv.observe\(\)\['critic'\] changes its size"]),
    ([("0.2 * speeds", "speeds.sqrt()")],
     [r"observe\(\)\['actor'\] columns 4, 5: not finite in .* of steps with",
      r"observe\(\)\['critic'\] columns 4, 5: not finite in .* of steps with"]),
    ([('sensor("fingertip")', 'sensor("hand")')],
     [r"env.py:\d+, in way_to_target\(\): .*ValueError"]),
]  # fmt: skip


RARE: list[tuple[list[Change], list[str]]] = [
    ([method("terminated", "self.episode_length_buf >= self.max_episode_length")],
     [r"terminated\(\) is true at 200 steps"]),
    ([method("terminated", "((self.sim.qvel[:, 0] > 8) | (self.sim.qvel[:, 1:] > 8)).any(0)")],
     [r"terminated\(\) of an environment depends on the others"]),
    ([("import math\n", "import math\nimport time\n"), (POSE, f"{POSE} * (time.time() % 1)")],
     [r"differs between two environments with the same seed"]),
    ([(RESET, f"        self.generator.manual_seed(0)\n{RESET}")],
     [r"workers with different ranks have the same environments"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [*MISTAKES, *(pytest.param(*mistake, marks=pytest.mark.slow) for mistake in RARE)],
)
def test_mistakes_are_found(check: Check, changes: list[Change], expected: list[str]) -> None:
    found = check(*changes)
    missing = [each for each in expected if not any(re.search(each, text) for text in found)]
    assert not missing, found
    assert len(found) <= len(expected) + 2, found  # Few consequences are told.


ONE_CAUSE: list[tuple[list[Change], str]] = [
    ([("import math\n", "import math\nimport random\n"),
      after(REWARDS, "distance = distance + random.uniform(-0.1, 0.1)")],
     r"^a step draws from Python's global generator"),
    ([("import Env\n", "import Delay, Env\n"), after(SETUP, "self.late = Delay(self, 2, 1, 1)"),
      ("action.clamp", "self.late(action).clamp"),
      method("terminated", "self.sim.qvel.norm(dim=1) < 1e3")],
     r"^terminated\(\) or truncated\(\): episodes end after 1 of 200 steps"),
    ([("class ArmEnv", "LAST = {}\n\n\nclass ArmEnv"),
      after(REWARDS, 'LAST["way"] = distance + 0 * LAST.get("way", distance)',
            'distance = LAST["way"]')],
     r"^a step changes env.LAST"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), ONE_CAUSE)
def test_of_a_mistake_the_cause_alone_is_told(
    check: Check, changes: list[Change], expected: str
) -> None:
    (found,) = check(*changes)
    assert re.search(expected, found), found


def test_names_may_have_any_character(check: Check) -> None:
    named = ('"approach": -50.0', '"it\'s \\"near\\"": -50.0')
    group = ('"critic": ', '"it\'s": torch.zeros(self.num_envs, 1), "critic": ')
    (found,) = check(named, group)
    assert found.startswith("""observe()["it's"]: 0 in all environments""")


def test_masses_of_a_compiled_model_and_of_an_idle_motor_are_found(check: Check) -> None:
    model = (
        "    @classmethod\n    def make_model(cls, cfg):\n        model = super().make_model(cfg)\n"
    )
    model += "        model.body_mass[2] *= 3\n        return model\n\n"
    found = check((METHODS, model + METHODS), model=[('gear="0.25"', 'gear="0"')])
    (masses,) = [text for text in found if "changes masses" in text]
    assert "body_subtreemass" in masses
    assert any("columns 1 changes nothing" in text and "gear" in text for text in found)


def test_of_a_state_that_is_not_finite_no_consequences_are_told(check: Check) -> None:
    (found,) = check(after(APPLY, "self.sim.qvel[:] = action.sqrt()"))
    assert "BADQVEL in 32 of 32 environments" in found  # MuJoCo's own engine resets such worlds.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (  # Only late in an episode.
            (TERM, TERM.replace("distance", "distance * torch.where(self.episode_length_buf > 60,"
             " self.sim.qpos.dtype.itemsize, 1)")),
            r"'approach'\]: differs between the engines after \d\d steps",
        ),
        (
            ("action.clamp(-1.0, 1.0)", "action.clamp(-1.0, 1.0) / self.sim.qpos.dtype.itemsize"),
            r"sim.ctrl columns 0, 1: differs between the engines after 1",
        ),
        (  # MuJoCo's own engine resets such worlds.
            after(APPLY, "self.sim.qvel[:] = action.sqrt()"),
            r"sim.qpos.*: not finite in .*on warp",
        ),
    ],
)  # fmt: skip
def test_engines_that_disagree_are_found_by_the_command(
    here: Path, capsys: pytest.CaptureFixture[str], change: Change, expected: str
) -> None:
    write_arm(here, change)
    capsys.readouterr()
    assert mjfleet(["check-task", "arm"]) == 1
    lines = capsys.readouterr().out.splitlines()
    mistakes = [line for line in lines if line.startswith("mistake: ")]
    assert any(re.search(expected, line) for line in mistakes)
    assert len(mistakes) <= 3


def test_a_method_with_other_arguments_is_a_mistake_before_anything_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_arm(here, ("def rewards(self)", "def rewards(self, action)"))
    capsys.readouterr()
    assert mjfleet(["check-task", "arm"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("mistake: ArmEnv.rewards(): missing a required argument: 'action'; ")


def test_what_a_task_accepts_is_a_note_with_its_reason_and_nothing_else_is(
    here: Path, printed: Output
) -> None:
    given = '{"joint elbow": "it swings in from outside", "joint wrist": "there is none"}'
    write_arm(
        here,
        (
            '    model_file = "model.xml"\n',
            f"    model_file = 'model.xml'\n    accepted_findings = {given}\n",
        ),
        ("-2.0, 2.0)", "-5.0, 5.0)"),
    )
    lines = printed("check-task", "arm").splitlines()
    (note,) = (line for line in lines if line.startswith("note: "))
    assert re.search(
        "start with joint elbow at .* \\(accepted: it swings in from outside\\)$", note
    )
    assert "warning: accepted_findings: 'joint wrist' is in no finding; remove it" in lines
    assert not any(line.startswith("mistake: ") or "nothing" in line for line in lines)


def test_engines_that_disagree_on_a_height_field_are_a_warning(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heights = " ".join(str(0.01 * (3 * i % 7)) for i in range(1600))
    hills = f"""<asset><hfield name="hills" nrow="40" ncol="40" size=".6 .6 .02 .1"
      elevation="{heights}"/></asset>\n  <worldbody>"""
    table = 'type="plane" pos="0 0 -0.05" size="0.6 0.6 0.1"'
    write_arm(here, model=[
        ("<worldbody>", hills), (table, 'type="hfield" hfield="hills" pos="0 0 -0.03"'),
        ('<flag contact="disable"/>', ""),
    ])  # fmt: skip
    capsys.readouterr()
    assert mjfleet(["check-task", "arm"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "differs" in line)
    assert line.startswith("warning: ")
    assert "height field" in line


def test_what_warp_lacks_is_found_and_keeps_a_run_from_beginning(run: Run, here: Path) -> None:
    write_arm(here, model=[("<flag ", '<flag fwdinv="enable" ')])
    lacks = "MuJoCo-Warp cannot simulate this model: mjENBL_FWDINV is unsupported."
    trained = run("train", "arm", "--engine", "warp", "--gpu-ids", "None")
    assert trained.returncode == 2
    (line,) = (line for line in trained.stderr.splitlines() if "GPU" not in line)
    assert line.startswith(f"error: {lacks}")
    assert line.endswith("--engine native")
    assert not (here / "logs").exists()
    found = run("mjfleet", "check-task", "arm", "--tasks-dir", "tasks")
    assert found.returncode == 1
    assert f"mistake: {lacks}" in found.stdout
