"""The journal of a shared run: notes of several processes, of which the last counts, and of one that was killed."""

from __future__ import annotations

from pathlib import Path

from segcal.parts.journal import Journal


def test_notes_of_all_processes_are_found_and_the_last_counts(tmp_path: Path) -> None:
    one, other = Journal(tmp_path), Journal(tmp_path)
    assert one.notes() == {}
    one.note("a", {"pixels": 1})
    other.note("b/ü", {"pixels": 2})
    other.note("a", {"pixels": 3})
    assert Journal(tmp_path).notes() == {"a": {"case": "a", "pixels": 3}, "b/ü": {"case": "b/ü", "pixels": 2}}
    assert len(list(one.place.iterdir())) == 2, "a file for each process, not for each case"


def test_a_note_that_a_killed_process_did_not_finish_is_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for name in ("a", "b"):
        journal.note(name, {"pixels": 1})
    (path,) = journal.place.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert list(journal.notes()) == ["a"]
