"""Trains one task with three seeds, two at a time, and draws their curves with matplotlib.

uv run python examples/three_seeds.py [iterations]
"""

import sys

import matplotlib.pyplot as plt

import mjfleet

SEEDS, AT_ONCE = (1, 2, 3), 2
iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 40

finished: list[mjfleet.Run] = []
running: list[mjfleet.Run] = []
for seed in SEEDS:
    if len(running) == AT_ONCE:
        finished.append(running.pop(0).wait())
    agent = {"seed": seed, "max_iterations": iterations, "run_name": f"seed_{seed}"}
    run = mjfleet.train(
        "cartpole-balance", gpu_ids=None, cpu_threads=1, agent=agent, background=True
    )
    running.append(run)
finished += [run.wait() for run in running]

for run in finished:
    metrics = run.metrics()
    plt.plot(metrics["total_steps"] / 1e6, metrics["mean_reward"], label=run.path.name)
plt.xlabel("million environment steps")
plt.ylabel("mean reward per step, at most 1")
plt.legend()
plt.savefig("three_seeds.png")
print("wrote three_seeds.png")
