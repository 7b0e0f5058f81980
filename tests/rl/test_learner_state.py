"""What a learner of the user's changes: found if it is not declared, and restored if it is."""

import copy
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn, optim

from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.learner import Learner, Step
from mjfleet.rl.runner import Runner
from mjfleet.sim.deferred import Deferred

from .checkpoints.test_checkpoints import TASK, agent, train
from .evaluation.test_evaluator import make_env


class Following(Learner):
    """Moves the means of its actions towards those that it has taken."""

    def __init__(self, setup: Any) -> None:
        super().__init__(setup)
        self.actor = self.policy_of(setup.env, setup.agent, setup.load)
        self.adam = optim.Adam(self.actor.mlp.parameters(), 1e-3)
        self.learning_rate, self.rollout = 1e-3, list[Any]()
        self.scratch("rollout")
        self.declare()

    def declare(self) -> None:
        pass

    def change(self) -> None:
        pass

    def networks(self) -> dict[str, nn.Module]:
        return {"actor": self.actor}

    def optimizers(self) -> dict[str, optim.Optimizer]:
        return {"adam": self.adam}

    def act(self, obs: TensorDict) -> torch.Tensor:
        return self.actor(obs) + 0.1 * torch.randn(len(obs), 1)

    def record(self, before: TensorDict, actions: torch.Tensor, step: Step) -> None:
        self.rollout = [*self.rollout[1 - self.num_steps :], (before["actor"], actions, step)]

    def checked(self) -> dict[str, list[torch.Tensor]]:
        seen, actions, steps = zip(*self.rollout, strict=True)
        columns = {
            "observation/actor": [*seen, steps[-1].observations["actor"]],
            "action": actions,
            "reward": [step.rewards for step in steps],
            "done": [step.dones for step in steps],
        }
        return {name: [torch.stack([*column])] for name, column in columns.items()}

    def learn(self) -> Deferred[dict[str, float]]:
        found = {name: parts[0] for name, parts in self.checked().items()}
        errors = self.actor.mlp(found["observation/actor"][:-1]) - found["action"]
        loss = errors.square().mean()
        self.descend(loss, "adam")
        self.change()
        return Deferred(loss.detach(), lambda numbers: {"actions": numbers[0]})


class Replay:
    def __init__(self) -> None:
        self.rows, self.count = torch.zeros(3), 0


def hidden_optimizer() -> optim.Optimizer:
    network = nn.Linear(1, 1)
    network.weight.grad = torch.ones(1, 1)
    return optim.Adam(network.parameters())


def add(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor += 1


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "an object's tensor": (Replay, lambda replay: add(replay.rows)),
    "a TensorDict": (lambda: TensorDict({"a": torch.zeros(3)}), lambda rows: add(rows["a"])),
    "a full deque": (
        lambda: deque([torch.zeros(3)], maxlen=1),
        lambda rows: rows.append(torch.ones(3)),
    ),
    "moments of an optimiser": (hidden_optimizer, lambda optimizer: optimizer.step()),
}


def make(kind: type[Learner], folder: Path, iterations: int) -> tuple[Runner, Checkpointer]:
    folder.mkdir(exist_ok=True)
    config = agent(iterations, algorithm={"name": "own:Kind"}, save_interval=1)
    torch.manual_seed(1)
    runner = Runner(make_env(), config, "cpu", 1, lambda name, base=None: kind)
    return runner, Checkpointer(runner, TASK, folder, None)


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_within_an_attribute_is_one_message(name: str, tmp_path: Path) -> None:
    first, change = CHANGES[name]

    class Forgetful(Following):
        def declare(self) -> None:
            self.kept = first()

        def change(self) -> None:
            change(self.kept)

    words = r"Forgetful\.kept\S* changes in an update, .* `self\.add_state\('kept', get="
    with pytest.raises(UserError, match=words):
        train(*make(Forgetful, tmp_path, 1))
    assert not [*tmp_path.glob("model*")]


@pytest.mark.parametrize("change", [add, lambda bias: bias.data.add_(1)])
def test_a_network_that_no_checkpoint_holds_is_one_message_if_it_changes(
    change: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    class Frozen(Following):
        def declare(self) -> None:
            self.more, self.others = nn.Linear(1, 1), [nn.Linear(1, 1)]

    class Hidden(Frozen):
        def change(self) -> None:
            change(self.more.bias)

    train(*make(Frozen, tmp_path, 1))
    words = r"Hidden\.more\.bias changes .* remembered, return `self\.more` from `networks\(\)`"
    with pytest.raises(UserError, match=words):
        train(*make(Hidden, tmp_path, 1))


class Scheduled(Following):
    """Has a temperature that it learns, and schedules and objects with state."""

    def declare(self) -> None:
        self.env = make_env()  # Environments change, and declare their own state.
        self.log = self.add_state("log", torch.zeros(()).requires_grad_())
        self.log_adam = optim.Adam([self.log], 0.1)
        self.schedule_of_log = optim.lr_scheduler.MultiStepLR(self.log_adam, [1, 3])
        at = self.schedule_of_log
        self.add_state("schedule_of_log", get=at.state_dict, set=at.load_state_dict)
        self.replay = Replay()
        put = vars(self.replay).update
        self.add_state("replay", per="rank", get=lambda: {**vars(self.replay)}, set=put)
        self.noise = torch.Generator().manual_seed(3)
        self.add_state("noise", get=self.noise.get_state, set=self.noise.set_state)

    def optimizers(self) -> dict[str, optim.Optimizer]:
        return {"adam": self.adam, "log_adam": self.log_adam}

    def change(self) -> None:
        self.env.step(torch.zeros(4, 1))
        self.descend((self.log - torch.rand((), generator=self.noise)).square(), "log_adam")
        self.schedule_of_log.step()
        self.replay.count += 1
        self.replay.rows += self.log.detach()


def test_a_learned_number_and_objects_with_state_are_resumed_bit_for_bit(tmp_path: Path) -> None:
    whole, checkpointer = make(Scheduled, tmp_path, 4)
    train(whole, checkpointer)
    train(*make(Scheduled, tmp_path / "again", 3))
    runner, checkpointer = make(Scheduled, tmp_path / "again", 4)
    assert checkpointer.resume(tmp_path / "again/model_3.pt") == []
    train(runner, checkpointer)
    assert runner.alg.log.item() == whole.alg.log.item() != 0
    assert runner.alg.replay.rows.tolist() == whole.alg.replay.rows.tolist()
    assert runner.alg.replay.count == 4
    rates = [x.alg.log_adam.param_groups[0]["lr"] for x in (whole, runner)]
    assert rates == [pytest.approx(1e-3)] * 2


KEPT: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "shape": (torch.zeros(3), lambda x: torch.zeros(4), r"was a tensor \(3,\) of .* and is a ten"),
    "dtype": (
        torch.zeros(3),
        lambda x: x.double(),
        "was .*float32 at first, and is a tensor .*float64",
    ),
    "None": (3, lambda x: None, "was a number or text at first, and is NoneType now"),
    "NumPy": (1.0, lambda x: x * np.float64(0.5), "holds a numpy.float64, which no checkpoint"),
}


@pytest.mark.parametrize("name", KEPT)
def test_declared_state_that_could_not_be_restored_is_one_message(
    name: str, tmp_path: Path
) -> None:
    first, change, words = KEPT[name]

    class Changing(Following):
        def declare(self) -> None:
            self.kept = self.add_state("kept", copy.deepcopy(first))

        def change(self) -> None:
            self.kept = change(self.kept)

    with pytest.raises(UserError, match=f"the state 'kept' of Changing {words}"):
        train(*make(Changing, tmp_path, 1))
    assert not [*tmp_path.glob("model*")]


def test_a_state_belongs_to_run_rank_or_environments(tmp_path: Path) -> None:
    class Wrong(Following):
        def declare(self) -> None:
            per: Any = "envs"
            self.add_state("kept", 1, per=per)

    with pytest.raises(UserError, match="`per` is 'envs'; it must be one of run, rank, env"):
        make(Wrong, tmp_path, 1)


class Parts(Following):
    """Returns what it is told to return."""

    def declare(self) -> None:
        self.more = nn.Linear(1, 1)


WRONG: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "no actor": ("networks", lambda own: {"policy": own.actor}, "returns no `actor`"),
    "a list": ("networks", lambda own: [own.actor], "it must return a dictionary whose values"),
    "None": ("networks", lambda own: {"actor": own.actor, "x": None}, "each a torch.nn.*Module"),
    "a copy": (
        "networks",
        lambda own: {"actor": own.actor, "mean": copy.deepcopy(own.more)},
        "returns 'mean', which no checkpoint can hold: it is another in each call",
    ),
    "one name": (
        "optimizers",
        lambda own: {"actor": own.adam},
        "returns 'actor', which no checkpoint can hold: a network has this name",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_parts_that_no_checkpoint_could_hold_are_refused(name: str, tmp_path: Path) -> None:
    method, returned, words = WRONG[name]
    kind = type("Wrong", (Parts,), {method: returned})
    with pytest.raises(UserError, match=rf"Wrong\.{method}\(\) .*{words}"):
        make(kind, tmp_path, 1)


def test_an_error_in_a_constructor_is_shown_as_it_is(tmp_path: Path) -> None:
    class Failing(Following):
        def declare(self) -> None:
            raise ValueError("of the learner's own")

    with pytest.raises(ValueError, match=r"^of the learner's own$"):
        make(Failing, tmp_path, 1)
