"""Files that lie in the place of checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from segcal.training.checkpoints import Checkpoints


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_a_pipe_in_place_of_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """To open it would wait for ever."""
    checkpoints = Checkpoints(tmp_path / "run")
    (tmp_path / "run").mkdir(exist_ok=True)
    os.mkfifo(tmp_path / "run" / "epoch-000001.safetensors")
    state, (warning,) = checkpoints.newest({})
    assert state is None
    assert "must be a regular file" in warning
