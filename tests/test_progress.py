"""Progress bars: shown to someone who can see them, restarted with each pass over the data."""

from __future__ import annotations

import pytest

from segcal import create
from segcal.calibrators.progress import fit_with_progress
from segcal.progress import Tracked, progress_of
from support.scenes import simulated


def test_nothing_is_shown_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_of("measuring") as progress:
        assert list(Tracked([1, 2], progress)) == [1, 2]
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_the_bar(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress_of("measuring", note=True) as progress:
        for _ in Tracked(range(3), progress):
            progress.refresh()
    shown = capfd.readouterr().err
    assert "measuring" in shown
    assert "2/3" in shown
    with progress_of("measuring", hidden=True) as progress:
        list(Tracked(range(3), progress))
    assert capfd.readouterr() == ("", "")


def test_every_pass_starts_again() -> None:
    with progress_of("fitting") as progress:
        cases = Tracked("abc", progress)
        assert (len(cases), cases[1], cases[1:]) == (3, "b", "bc")
        for _ in range(2):
            assert [progress.tasks[0].completed for _ in cases] == [0, 1, 2]
        assert (progress.tasks[0].completed, progress.tasks[0].total) == (3, 3)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_alone_shows_the_bar_of_a_fit(
    rank: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "RANK": str(rank), "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    fit_with_progress(create("ts", 3), simulated(2, num_classes=3, size=(8, 8)), None, {})
    assert ("fitting ts" in capfd.readouterr().err) == (rank == 0)
