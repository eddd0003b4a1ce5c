"""Work that a refused run kept, damaged before the same command continues: done again or refused, never trusted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

pytest.importorskip("nibabel")

from tests.campaign.artefacts import whole
from tests.campaign.damage import damaged
from tests.campaign.folders import document
from tests.campaign.jobs import content_of, hidden, unfinished
from tests.campaign.running import run
from tests.campaign.test_places import SPECIAL, assert_refused, unchanged
from tests.campaign.trees import become, read_tree

CAMPAIGN = settings(max_examples=max(15, settings().max_examples // 5), suppress_health_check=list(HealthCheck))

_SMALL = ("--patches", "2", "--patch-size", "4", "--out", "out")
COMMANDS = (
    ("apply", "calibrator", "data", "--temperature", "--out", "out"),
    ("evaluate", "data", "--calibrators", "calibrator", "--split", "test", *_SMALL),
    ("compare", "data", "--methods", "ts,vector", *_SMALL),
)
"""Commands that keep work when a case is damaged; diagnose reads all cases first, and keeps maps in the same way."""

KEPT = "out.unfinished/"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with one case to fit and two to measure, and a calibrator."""
    tree = dict(whole()["npy"][0].tree)
    tree["data/splits.json"] = document({"fit": ["a1"], "test": ["a2", "b1"]})
    tree["data/segcal.toml"] = (tree["data/segcal.toml"] or b"").replace(b"group", b"# group")
    folder = tmp_path_factory.mktemp("kept") / "home"
    folder.mkdir()
    become(folder, {}, tree)
    return folder


def digest(out: Path) -> str:
    """Return the SHA-256 of an output without what differs after a file was written again: times and checksums."""
    found = content_of(out)
    for name in [name for name in found if name.endswith("segcal.json")]:
        content = json.loads(found[name] or b"")
        for key in ("files", "written", "checksums", "checksum"):
            content.pop(key, None)
        found[name] = json.dumps(content).encode()
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


@pytest.fixture(scope="module")
def expected(home: Path) -> dict[tuple[str, ...], str]:
    """The output of every command; there is time to compile."""
    found = {}
    for args in COMMANDS:
        with unchanged(home):
            assert run(args, home, seconds=600).status == 0
            found[args] = digest(home / "out")
    return found


@CAMPAIGN
@given(args=st.sampled_from(COMMANDS), data=st.data())
def test_damaged_work_is_never_trusted(
    args: tuple[str, ...], data: st.DataObject, home: Path, expected: dict[tuple[str, ...], str]
) -> None:
    with unchanged(home):
        # compare holds the first case out first, so that its first fits do not read it
        last = home / "data" / "logits" / ("a1.npy" if args[0] == "compare" else "b1.npy")
        content = last.read_bytes()
        last.write_bytes(content[:-4] + b"\xff\xff\xff\x7f")  # NaN
        assert_refused(run(args, home))
        last.write_bytes(content)
        kept = read_tree(home)
        names = [name for name in kept if name.startswith(KEPT) and kept[name] is not None]
        assert names
        if data.draw(st.integers(0, 3)):
            damage = data.draw(damaged(kept, KEPT))
            become(home, kept, damage.tree)
        else:
            name, kind = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(SPECIAL))
            note(f"{name}: {kind}")
            (home / name).unlink()
            kind(home / name)
        ran = run(args, home)
        if ran.status or ran.error:
            assert_refused(ran)
        else:
            assert digest(home / "out") == expected[args]
            assert not [*hidden(home), *unfinished(home)]
        event(f"{args[0]}: {'refused' if ran.status else 'right'}")
