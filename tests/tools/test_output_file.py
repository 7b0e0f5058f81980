"""Whether the file that a command was asked to write can be written."""

from pathlib import Path
from typing import Any

import pytest

from mjfleet.errors import UserError
from mjfleet.tools.output_file import check_output


def test_a_folder_that_takes_no_file_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**_: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory")  # As /proc answers.

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(UserError, match="No file can be made there"):
        check_output("--output", str(tmp_path / "a.onnx"))
    with pytest.raises(UserError, match="No such file"):
        check_output("--output", str(tmp_path / "none/a.onnx"))
