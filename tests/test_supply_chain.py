"""Everything that builds and publishes the package is pinned, and the origin of bundled files is stated."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import segcal.data.sample

ROOT = Path(__file__).parents[1]


def test_actions_are_pinned_by_digest() -> None:
    used = [
        line.strip()
        for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(used) > 5
    assert all(re.fullmatch(r"- uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line) for line in used), used


def test_tools_of_a_release_are_pinned_by_version() -> None:
    installed = re.findall(r"pip install (.+)", (ROOT / ".github/workflows/release.yml").read_text())
    assert installed
    assert all("==" in name for line in installed for name in line.split())


def test_the_notice_names_the_bundled_network() -> None:
    digest = hashlib.sha256(segcal.data.sample.BRAIN_WEIGHTS.read_bytes()).hexdigest()
    assert digest in (ROOT / "NOTICE").read_text()
    assert "NOTICE" in (ROOT / "pyproject.toml").read_text()
