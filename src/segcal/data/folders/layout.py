"""Which files of a folder belong to which case: by name, one file of each kind."""

from __future__ import annotations

from pathlib import Path

from segcal.data.folders.case_files import CaseFiles
from segcal.data.folders.settings import Scores, Settings
from segcal.data.io import formats
from segcal.types import InputError


def find_cases(
    root: Path, labels: Path | None, kind: Scores, nnunet: bool, settings: Settings, require_labels: bool
) -> dict[str, CaseFiles]:
    """Each case of the folder by name: one score file, one label file, and an image for all or for none.

    Without `require_labels` a case may lack its label file, and the folder its `labels/`.
    """
    score_files = _find_scores(root, nnunet)
    settings.check_names(score_files)
    label_folder = _label_folder(root, labels, nnunet, require_labels)
    label_files = _by_name(label_folder, formats.LABELS) if label_folder.is_dir() else {}
    predictions = _by_name(root, (".png", *formats.NIFTI)) if nnunet else {}
    image_files = _by_name(root / "images", formats.IMAGES) if (root / "images").is_dir() else {}
    return {
        name: CaseFiles(
            name=name,
            scores=_only(name, score_files, "score", root / "logits", formats.SCORES),
            labels=_only(name, label_files, "label", label_folder, formats.LABELS)
            if require_labels or name in label_files
            else None,
            image=_only(name, image_files, "image", root / "images", formats.IMAGES) if image_files else None,
            kind=kind,
            nnunet=nnunet,
            group=settings.group_of(name),
            spacing=settings.spacing_of(name),
            prediction=next(iter(predictions.get(name, [])), None),
        )
        for name in sorted(score_files)
    }


def existing(path: Path, what: str) -> Path:
    """Raise unless `path` is a folder."""
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing"
        raise InputError(f"the {what} folder '{path}' must exist, got {got} there; give the right {what} folder")
    return path


def _find_scores(root: Path, nnunet: bool) -> dict[str, list[Path]]:
    found = _by_name(root, (".npz",)) if nnunet else _by_name(root / "logits", formats.SCORES)
    if not found:
        raise InputError(
            f"'{root}' must hold scores as logits/NAME{_either(formats.SCORES)}, or as NAME.npz of nnU-Net "
            "(--save_probabilities), got none; is it the right folder?"
        )
    return found


def _label_folder(root: Path, labels: Path | None, nnunet: bool, required: bool) -> Path:
    if labels is None:
        return existing(root / "labels", "labels") if required else root / "labels"
    if nnunet and labels.resolve() == root.resolve():
        raise InputError(
            f"labels must be the folder of the true labels, got '{labels}', where nnU-Net wrote its own "
            "predictions; give the one that holds the truth"
        )
    return existing(labels, "labels")


def _by_name(folder: Path, extensions: tuple[str, ...]) -> dict[str, list[Path]]:
    """Files with one of `extensions`, by their name without it; hidden ones are left out."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        extension = formats.extension_of(path, extensions)
        if extension and path.is_file() and not path.name.startswith("."):
            found.setdefault(path.name[: -len(extension)], []).append(path)
    return found


def _only(name: str, found: dict[str, list[Path]], what: str, folder: Path, extensions: tuple[str, ...]) -> Path:
    paths = found.get(name, [])
    if not paths:
        raise InputError(
            f"case '{name}' must have one {what} file, got none at '{folder / name}{extensions[0]}' "
            f"(or {_either(extensions[1:])}); add it, or remove the case"
        )
    if len(paths) > 1:
        got = " and ".join(f"'{path}'" for path in paths)
        raise InputError(f"case '{name}' must have one {what} file, got {got}; remove one")
    return paths[0]


def _either(extensions: tuple[str, ...]) -> str:
    return "|".join(extensions)
