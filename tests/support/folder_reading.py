"""Reading folders through the case stream, as every command does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from segcal.cases import CaseStream
from segcal.cases.channels import ChannelCases
from segcal.data.folders.folder import Folder, open_folder
from segcal.types import InputError


def read_all(folder: Folder) -> None:
    """Go through all cases of a folder, where everything that is wrong with one is raised."""
    labelled = all(files.labels for files in folder.files.values())
    many = folder.num_classes if folder.activation == "sigmoid" else 1
    for channel in range(many):
        sigmoid = folder.activation == "sigmoid"
        cases = ChannelCases(folder, channel, many) if sigmoid else folder
        classes = 2 if sigmoid else folder.num_classes
        for _ in CaseStream(cases, classes, ignore_index=folder.ignore_index, labelled=labelled).slabs():
            pass


def complaint(root: Path, **options: Any) -> str:
    """Return the message with which opening a folder or reading its cases fails."""
    with pytest.raises(InputError) as caught:
        read_all(open_folder(root, **options))
    message = str(caught.value)
    assert "\n" not in message
    return message
