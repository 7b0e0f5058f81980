"""The folder of a group that goes on, if nothing is trained."""

from dataclasses import replace
from pathlib import Path

from mjfleet.groups.group_record import GroupRecord
from mjfleet.registry import discover
from mjfleet.runs.config_yaml import write_config

CONFIG = discover({}).tasks["cartpole-balance"].defaults()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_group_that_goes_on_in_vain_is_as_it_was(tmp_path: Path) -> None:
    folder, task = tmp_path / "group", "cartpole-balance"
    config = replace(CONFIG, run_dir=str(folder))
    with GroupRecord.create("seeds", task, config, {"seed_1": {"seed": 1}}, ["train"]) as group:
        group.end("failed")
    (folder / "seed_1.log").write_text("iteration 1\n")
    before = contents(folder)
    with GroupRecord.reopen(folder, task, ["train", "--resume"]) as group:
        write_config(group.config_file, task, CONFIG)
        group.note("seed_1", status="failed")
        with (folder / "seed_1.log").open("a") as log:
            log.write("error: no luck\n")
        (folder / "seed_2.log").write_text("error: no luck\n")
        group.discard()
    assert contents(folder) == before
