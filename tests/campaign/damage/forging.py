"""Checksums made right again after damage, so that what stands behind them is attacked as well."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from segcal.calibrators import saving
from segcal.files import MARKER
from segcal.files.guards import list_files
from segcal.training import checkpoints
from tests.campaign.trees import Tree, below, read_tree, write_tree


def forged(tree: Tree, prefix: str) -> Tree:
    """Return the tree in which every checksum below `prefix` is right, as far as there are places for it."""
    with TemporaryDirectory(prefix="segcal-forged-") as name:
        root = Path(name)
        write_tree(root, below(tree, prefix))
        for marker in sorted(root.rglob(MARKER), key=lambda path: -len(path.parts)):  # inner ones first
            with suppress(Exception):  # an attacker gets no further with a document that cannot be read
                _sign(marker)
        for checkpoint in root.glob("epoch-*.safetensors"):
            with suppress(Exception):
                _sign_checkpoint(checkpoint)
        found = read_tree(root)
    return {name: content for name, content in tree.items() if not name.startswith(prefix)} | {
        f"{prefix}{name}": content for name, content in found.items()
    }


def _sign(marker: Path) -> None:
    content: dict[str, Any] = json.loads(marker.read_bytes())
    folder = marker.parent
    if "checksum" in content:
        content["checksum"] = saving._checksum(content, folder / saving.WEIGHTS)
    marker.write_text(json.dumps(content))
    list_files(folder)


def _sign_checkpoint(path: Path) -> None:
    with safe_open(path, "pt") as content:
        notes, tensors = content.metadata()["notes"], {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"notes": notes, "sha256": checkpoints._digest(tensors, notes)})
