"""What is read of files that somebody else may have made, and what a folder may hold."""

import os
from pathlib import Path

import pytest

from mjfleet.errors import UserError
from mjfleet.utils.safe_read import check_folder, open_regular


def test_regular_files_of_a_limited_size_are_read(tmp_path: Path) -> None:
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_bytes(b"1234")
    link.symlink_to(file)
    os.mkfifo(pipe)
    for opened in (open_regular(file, 4), open_regular(link, 4, may_link=True)):
        with opened:
            assert opened.read() == b"1234"
    with pytest.raises(OSError, match="it has 4 bytes; 3 are allowed"):
        open_regular(file, 3)
    for path in (link, pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path, 4)


@pytest.mark.parametrize(
    ("link", "is_sound"),
    [("a.pt", False), ("wandb", False), ("wandb/latest", True), ("seed_1/wandb/latest", True)],
)
def test_a_link_is_refused_unless_it_is_wandbs(tmp_path: Path, link: str, is_sound: bool) -> None:
    (tmp_path / "run" / link).parent.mkdir(parents=True)
    (tmp_path / "run" / link).symlink_to(tmp_path)
    if is_sound:
        check_folder(tmp_path / "run")
    else:
        with pytest.raises(UserError, match=f"{link} in it is a symbolic link"):
            check_folder(tmp_path / "run")
