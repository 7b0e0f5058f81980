"""`mjfleet new-task`: what it writes trains as it stands, and what it refuses leaves nothing."""

from pathlib import Path

from ..conftest import POISON, Output, Refusal, only_run, rows, write_task


def test_a_new_task_trains_as_it_stands(output: Output, tmp_path: Path) -> None:
    made = output("mjfleet", "new-task", "myreacher-2", prelude=POISON, UV_RUN_RECURSION_DEPTH="1")
    folder = tmp_path / "tasks/myreacher-2"
    assert [path.name for path in sorted(folder.parent.iterdir())] == ["myreacher-2"]
    assert sorted(path.name for path in folder.iterdir()) == ["config.py", "env.py", "model.xml"]
    assert "class Myreacher2Env(Env[Myreacher2Config])" in (folder / "env.py").read_text()
    for line in (
        "uv run train myreacher-2 --dry-run",
        "uv run mjfleet check-task myreacher-2",
        "uv run train myreacher-2",
    ):
        assert f"  {line}\n" in made
    assert "512 per worker" in output("train", "myreacher-2", "--dry-run", prelude=POISON)
    output("train", "myreacher-2", "--gpu-ids", "None", "--agent.max-iterations", "30")
    learned = rows(only_run(tmp_path, "myreacher-2"))
    rewards = [float(row["mean_reward"]) for row in learned]
    assert rewards[0] < -0.3
    assert rewards[-1] > 0


def test_a_task_in_another_folder_is_called_with_it(output: Output, tmp_path: Path) -> None:
    made = output("mjfleet", "new-task", "arm", "--tasks-dir", "my tasks/here")
    assert "train arm --tasks-dir 'my tasks/here' --dry-run" in made
    assert (tmp_path / "my tasks/here/arm/env.py").is_file()
    output("train", "arm", "--tasks-dir", "my tasks/here", "--dry-run")


def test_a_task_may_have_the_name_of_a_configuration(output: Output) -> None:
    for name in ("agent", "PPO"):
        output("mjfleet", "new-task", name)
        output("train", name, "--dry-run")


def test_what_cannot_be_made_is_one_message_and_leaves_nothing(
    tmp_path: Path, refusal: Refusal
) -> None:
    write_task(tmp_path / "tasks", "taken", "TASKS = {}\n")
    (tmp_path / "file").touch()
    for arguments, problem in (
        (["2dof"], "'2dof'; it must have at most 100 letters, digits, dashes and underscores, and"),
        (["../arm"], "letters, digits"),
        (["taken"], "tasks/taken cannot be made: File exists"),
        (["cartpole-balance"], "there is a task `cartpole-balance` already, in"),
        (["arm", "--tasks-dir", "file"], "file/arm cannot be made: Not a directory"),
        (["arm", "--tasks-dir", "file/deeper"], "file/deeper/arm cannot be made: Not a directory"),
        (["arm", "--tasks-dir", "tasks/taken"], "which is a task folder"),
    ):
        assert problem in refusal("new-task", *arguments)
