"""The reference is MuJoCo's own; starts, failures and ends of clips are those of an oracle."""

from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np
import pytest
import torch

from mjfleet.config import SamplingConfig
from mjfleet.env import EnvShard
from mjfleet.errors import UserError
from mjfleet.parts.motion.kinematics import body_velocities, central_differences, resample
from mjfleet.sim.deferred import read
from mjfleet.utils.input_files import InputFile

from ...env.test_env import no_host_synchronisation
from ...sim.test_contract import ENGINES
from .robots import BODIES, MODEL, STEP, build, moving, positions, step, write


def exact_velocities(times: np.ndarray) -> torch.Tensor:
    """MuJoCo's differences over a very short time."""
    found = np.zeros((len(times), MODEL.nv))
    for row, one, other in zip(
        found, positions(times - 5e-6), positions(times + 5e-6), strict=True
    ):
        mujoco.mj_differentiatePos(MODEL, row, 1e-5, one, other)
    return torch.from_numpy(found)


def test_frames_of_another_rate_are_on_the_way_between_those_of_the_clip() -> None:
    found = resample(moving(2.0, 30.0).qpos, 7, 30.0, STEP)
    times = np.arange(101) * STEP
    assert len(found) == 101
    torch.testing.assert_close(found, torch.from_numpy(positions(times)), rtol=0, atol=1e-3)
    same = resample(moving().qpos, 7, 50.0, STEP)
    torch.testing.assert_close(same, moving().qpos, rtol=0, atol=1e-12)
    qpos = moving().qpos
    qpos[1::2, 3:7] *= -1  # The same rotations.
    torch.testing.assert_close(
        resample(qpos, 7, 50.0, STEP / 2).abs(), resample(moving().qpos, 7, 50.0, STEP / 2).abs()
    )


def test_velocities_are_those_of_the_motion_in_the_axes_of_qvel() -> None:
    found = central_differences(moving().qpos, 7, STEP)
    wanted = exact_velocities(np.arange(151) * STEP)
    torch.testing.assert_close(found[1:-1], wanted[1:-1], rtol=0, atol=1e-3)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.05)  # At the ends from one side.


def test_a_clip_has_its_own_name_where_a_runs_copy_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = InputFile(Path(write(tmp_path)), "moves/moving.npz")
    entry = file.pinned
    file.path.rename(file.copy)
    assert build([entry]).motion.names == ("moving",)


@pytest.mark.parametrize("engine", ENGINES)
def test_bodies_and_their_velocities_are_mujocos_own(engine: str, tmp_path: Path) -> None:
    env = build([write(tmp_path)], engine)
    ids, sim, frame = env.motion.body_ids, env.sim, env.motion.now()
    assert [env.sim.model.body(i).name for i in ids] == [*BODIES]
    velocities, spins = body_velocities(
        sim.xpos[:, ids], sim.cvel[:, ids], sim.subtree_com[:, [1] * len(ids)]
    )
    found = sim.xpos[:, ids], sim.xquat[:, ids], velocities, spins
    for own, reference in zip(found, frame.bodies, strict=True):
        torch.testing.assert_close(own.float(), reference, rtol=0, atol=2e-5)
    data = mujoco.MjData(env.sim.model)
    for i in range(env.num_envs):
        data.qpos[:], data.qvel[:] = frame.qpos[i].cpu(), frame.qvel[i].cpu()
        mujoco.mj_forward(env.sim.model, data)
        for k, body in enumerate(ids):
            own = np.zeros(6)
            kind = mujoco.mjtObj.mjOBJ_XBODY
            mujoco.mj_objectVelocity(env.sim.model, data, kind, body, own, 0)
            both = torch.cat((frame.bodies.spins[i, k], frame.bodies.velocities[i, k])).cpu()
            np.testing.assert_allclose(both, own, atol=1e-5)


def test_the_frame_advances_before_rewards_and_the_end_of_a_clip_is_a_time_out(
    tmp_path: Path,
) -> None:
    env = build([write(tmp_path, seconds=1.4)])
    begun = env.motion.frame.clone()
    assert (begun <= 20).all()  # A second is left.
    length, dones = 71, torch.zeros(4, dtype=torch.bool)
    for count in range(1, length):
        before = env.motion.frame.clone()
        _, _, dones, extras = env.step(torch.zeros(4, 3))
        assert torch.equal(env.seen, before + 1)
        assert torch.equal(dones, env.seen == length - 1)
        assert torch.equal(extras["time_outs"], dones)
        if dones.any():
            assert count + int(begun[dones].max()) >= length - 1
            break
    assert dones.any()


def test_starts_leave_a_second_and_follow_weights(tmp_path: Path) -> None:
    long, short = (write(tmp_path, n, seconds=s) for n, s in (("long", 3.0), ("short", 0.5)))
    env = build([f"{long}=3", short], num_envs=4000)
    frames = env.motion.frame
    assert int(frames[frames < 151].max()) == 100
    assert set(frames[frames >= 151].tolist()) == {151}  # Of so short a clip, the first.
    wanted = 3 * 101 / (3 * 101 + 1)
    assert (frames < 151).double().mean() == pytest.approx(wanted, abs=0.01)
    counts = torch.bincount(frames[frames < 151], minlength=101)
    assert counts.double().std() < 12  # Uniform: 39 each.
    bins, edges = env.motion.starts.bins[:151], env.motion.starts._firsts[:2]
    assert bins[edges].tolist() == [0, 1]
    assert bins[edges[1] - 1] == 0
    kinds: tuple[tuple[Literal["start", "uniform"], int], ...] = ("start", 0), ("uniform", 100)
    for kind, last in kinds:
        env = build([long], sampling=SamplingConfig(kind=kind), num_envs=500)
        assert int(env.motion.frame.max()) == last


def oracle(
    failed: list[list[int]], bins: list[int], weights: list[float], numbers: SamplingConfig
) -> np.ndarray:
    """The probabilities of bins after steps that failed in these bins; clips have so many bins."""
    mean = np.zeros(sum(bins))
    for step_ in failed:
        mean = (1 - numbers.alpha) * mean + numbers.alpha * np.bincount(step_, minlength=len(mean))
    mean += numbers.floor / len(mean)
    kernel = numbers.decay ** np.arange(numbers.kernel)
    found, first = [], 0
    for count, weight in zip(bins, weights, strict=True):
        own = np.pad(mean[first : first + count], (0, numbers.kernel - 1), mode="edge")
        found.append(weight * np.convolve(own, kernel[::-1] / kernel.sum(), mode="valid"))
        first += count
    whole = np.concatenate(found)
    return whole / whole.sum()


NUMBERS = SamplingConfig(alpha=0.01, kernel=2)


def fail(env: Any, steps: int) -> list[list[int]]:
    """Take steps in which environments fail now and then; return the bins of these failures."""
    found = []
    for count in range(steps):
        env.failing = (env.env_ids + count) % 3 == 0
        step(env)
        found.append(env.motion.starts.bins[env.seen][env.failing].tolist())
    return found


def test_failures_draw_starts_as_an_oracle_says_whatever_an_iterations_length(
    tmp_path: Path,
) -> None:
    clips = [write(tmp_path, "a", seconds=4.0), f"{write(tmp_path, 'b', seconds=3.0)}=2"]
    env = build(clips, sampling=NUMBERS, num_envs=6)
    failed = fail(env, 12)
    env.end_iteration(read(env.deferred_additions())[0])
    failed += fail(env, 5)
    env.end_iteration(read(env.deferred_additions())[0])
    wanted = oracle(failed, [3, 2], [1.0, 2.0], NUMBERS)
    np.testing.assert_allclose(env.motion.starts.probabilities(), wanted, rtol=1e-12)
    many = torch.cat([env.motion.starts.draw() for _ in range(3000)])
    shares = torch.bincount(env.motion.starts.bins[many], minlength=5) / len(many)
    np.testing.assert_allclose(shares, wanted, atol=0.012)
    # Numbers stay finite however long an iteration is.
    env = build(clips, sampling=SamplingConfig(alpha=0.9), num_envs=6)
    for _ in range(2000):
        env.motion.starts.count(env.motion.frame)
    fail(env, 1)
    env.end_iteration(read(env.deferred_additions())[0])
    assert env.motion.starts.probabilities().isfinite().all()
    with pytest.raises(UserError, match="it must be above 0 and below 1"):
        SamplingConfig(alpha=1.0)
    with pytest.raises(UserError, match=r"--env.sampling.kernel is .* between 1 and 1000"):
        SamplingConfig(kernel=2**31 - 1)
    # Uniform, and in evaluations, nothing adapts.
    env = build(clips, sampling=SamplingConfig(kind="uniform"), num_envs=6)
    before = env.motion.starts.probabilities()
    fail(env, 3)
    env.end_iteration(read(env.deferred_additions())[0])
    assert torch.equal(env.motion.starts.probabilities(), before)
    assert not env.motion.starts.failures.any()


def test_two_workers_draw_by_the_failures_of_both(tmp_path: Path) -> None:
    clips = [write(tmp_path, seconds=5.0)]
    workers = [build(clips, sampling=NUMBERS, num_envs=3) for _ in range(2)]
    workers[1].motion.frame += 40
    failed = []
    for _ in range(2):
        pairs = zip(*(fail(worker, 7) for worker in workers), strict=True)
        failed += [one + other for one, other in pairs]
        added = [read(worker.deferred_additions())[0] for worker in workers]
        for worker in workers:
            worker.end_iteration([sum(column) for column in zip(*added, strict=True)])
    found = [worker.motion.starts.probabilities() for worker in workers]
    assert torch.equal(*found)
    np.testing.assert_allclose(found[0], oracle(failed, [4], [1.0], NUMBERS), rtol=1e-12)


def test_a_motion_continues_bit_for_bit(tmp_path: Path) -> None:
    clips = [write(tmp_path, seconds=4.0)]
    env = build(clips, sampling=NUMBERS)
    fail(env, 10)
    env.end_iteration(read(env.deferred_additions())[0])
    sim = {name: field.clone() for name, field in env.sim.state().items()}
    saved = env.state_dict()
    other = build(clips, sampling=NUMBERS)
    other.sim.restore(sim)
    other.load_state_dict(saved)
    for one in (env, other):
        fail(one, 20)
        one.end_iteration(read(one.deferred_additions())[0])
    assert torch.equal(env.motion.frame, other.motion.frame)
    assert torch.equal(env.motion.starts.probabilities(), other.motion.starts.probabilities())
    assert torch.equal(env.sim.qpos, other.sim.qpos)


def test_an_evaluation_plays_each_clip_from_its_first_frame(tmp_path: Path) -> None:
    clips = [write(tmp_path, "a", seconds=2.0), write(tmp_path, "b", seconds=1.5)]
    env = build(clips, shard=EnvShard(0, 4, 4))
    assert env.motion.frame.tolist() == [0, 0, 101, 101]
    assert env.max_episode_length == 101
    assert (env.evaluated.names, env.evaluated.numbers) == (("a", "b"), (0, 1))
    step(env, 10)
    assert env.motion.time.tolist() == pytest.approx([0.2] * 4)
    env.motion.seek(torch.full((4,), 1.8))
    assert env.motion.frame.tolist() == [90, 90, 176, 176]
    assert env.motion.ended.tolist() == [False, False, True, True]


def test_a_motion_never_waits_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = build([write(tmp_path)])
    step(env)
    with no_host_synchronisation(monkeypatch):
        env.motion._advance()
        env.motion.starts.count(env.motion.frame)
        env.motion.starts.draw()
        env.motion.now()


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "more").mkdir()
    write(tmp_path / "more")
    for clips, message in (
        ([], "give a file or a folder of clips"),
        ([path, str(tmp_path / "more")], "two clips have the name moving"),
        (
            [write(tmp_path, "short", seconds=0.01, rate=100.0)],
            "short.npz: it is shorter than a st",
        ),
        ([f"{path}=0"], "write FILE, FOLDER, or either with a weight"),
        ([str(tmp_path / "none.npz")], "there is no such file or folder"),
        ([f"{path}@{'0' * 16}"], "nor is .*moving.npz a file with this content"),
    ):
        with pytest.raises(UserError, match=message):
            build(clips)
