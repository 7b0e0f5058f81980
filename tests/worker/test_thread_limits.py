"""A worker imports no compiler that it does not use, and one that it does use works."""

import subprocess
import sys

LEARN = """
import sys
from mjfleet.worker.thread_limits import prepare
prepare()
import torch
import mjfleet.rl.runner, mjfleet.rl.checkpoint_contents
network = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(network.parameters())
network(torch.ones(1, 2)).sum().backward()
optimizer.step(), optimizer.zero_grad(), optimizer.state_dict()
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
torch.distributed.all_gather_object([None], "text")
torch.distributed.destroy_process_group()
print([name for name in ("torch._inductor", "sympy", "wandb") if name in sys.modules])
"""

COLLECT = """
import gc
from mjfleet.worker.thread_limits import prepare
prepare()
print(gc.isenabled(), gc.get_freeze_count() > 100_000, gc.get_stats()[2]["collections"])
"""

LEAVE = """
import gc
gc.disable()
class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        print("collected")
Cycle()
from mjfleet.cli.dispatcher import main
main()
"""

COMPILE = """
sine = torch.compile(lambda x: x.sin() + 1, backend="eager")
print(sine(torch.zeros(1)).item(), type(torch._dynamo).__name__)
optimizer.step()
"""

IMPORT_PART = """
import torch._dynamo.eval_frame as part
from torch._dynamo.eval_frame import OptimizedModule
print(isinstance(torch.compile(network, backend="eager"), OptimizedModule))
print(part is torch._dynamo.eval_frame, part.__spec__.name)
import wandb
print(wandb.__name__)
"""


def run(code: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_learning_imports_no_compiler() -> None:
    assert run(LEARN) == ["[]"]


def test_compiling_imports_the_compiler() -> None:
    assert run(LEARN + COMPILE)[1:] == ["1.0 module"]


def test_a_part_of_the_compiler_is_imported_once_and_wandb_on_demand() -> None:
    assert run(LEARN + IMPORT_PART)[1:] == ["True", "True torch._dynamo.eval_frame", "wandb"]


def test_what_is_imported_is_not_searched_for_garbage_again_and_again() -> None:
    enabled, frozen, collections = run(COLLECT)[0].split()
    assert (enabled, frozen) == ("True", "True")
    assert int(collections) <= 1


def test_a_command_ends_without_searching_for_garbage() -> None:
    printed = run(LEAVE, "tasks")
    assert "collected" not in printed
    assert any("cartpole-balance" in line for line in printed)
