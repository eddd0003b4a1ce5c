"""Cases written as a data folder, and read back as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segcal.data.folders.folder import open_folder
from segcal.data.folders.writer import write_folder
from segcal.types import Case, InputError

SHAPES = {2: (4, 6), 3: (3, 4, 6)}


def case_of(name: str, dims: int = 2, **changes: Any) -> Case:
    random = np.random.default_rng(sum(name.encode()))
    case = Case(
        name=name,
        logits=random.normal(size=(3, *SHAPES[dims])).astype(np.float32),
        labels=random.integers(0, 3, SHAPES[dims]),
        image=random.normal(size=(2, *SHAPES[dims])),
    )
    return replace(case, **changes)


def assert_same(read: Case, given: Case) -> None:
    for part in ("logits", "labels", "image"):
        first, second = getattr(read, part), getattr(given, part)
        assert (first is None) == (second is None)
        if second is not None:
            np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
            if part != "labels":
                assert np.asarray(first).dtype == np.asarray(second).dtype
    assert (read.name, read.group, read.spacing) == (given.name, given.group, given.spacing)


def complaint(path: Path, splits: Any, **options: Any) -> str:
    """The message with which writing fails, having left nothing behind."""
    with pytest.raises(InputError) as caught:
        write_folder(path, splits, **options)
    assert not path.exists()
    assert list(path.parent.iterdir()) == []
    return str(caught.value)


@pytest.mark.parametrize("dims", [2, 3])
def test_there_and_back(tmp_path: Path, dims: int) -> None:
    splits = {
        "fit": [
            case_of("b", dims, group="patient 1", spacing=(0.1, 2.0, 1e-7)[:dims]),
            case_of("a v1.5", dims, logits=case_of("x", dims).logits.astype(np.float16)),
        ],
        "validation": [case_of("ü", dims, group='a "b"\\')],
        "nothing": [],
    }
    names = ['say "no"', "back\\slash", "Straße 🚲", "x"][:3]
    write_folder(tmp_path / "new/data", splits, class_names=names, ignore_index=(7, 255), background=0)
    folder = open_folder(tmp_path / "new/data")
    assert folder.names == ("a v1.5", "b", "ü")
    assert folder.splits == {"fit": ("b", "a v1.5"), "validation": ("ü",), "nothing": ()}
    assert (folder.num_classes, folder.spatial_dims, folder.image_channels) == (3, dims, 2)
    assert (folder.class_names, folder.ignore_index, folder.background) == (tuple(names), (7, 255), 0)
    assert folder.scores == "logits"
    for split in ("fit", "validation"):
        for read, given in zip(folder.select(split), splits[split], strict=True):
            assert_same(read, given)
    suffix = ".png" if dims == 2 else ".npy"
    assert (tmp_path / f"new/data/labels/b{suffix}").is_file()


def test_files_that_are_there(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", {"test": [case_of("a", image=None)]})
    found = sorted(str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data").rglob("*.*"))
    assert found == ["labels/a.png", "logits/a.npy", "segcal.json", "segcal.toml", "splits.json"]
    assert json.loads((tmp_path / "data/segcal.json").read_text())["format"] == 1
    folder = open_folder(tmp_path / "data", split="test")
    assert (folder.class_names, folder.ignore_index, folder.background, folder.image_channels) == (None, None, None, 0)


@pytest.mark.parametrize("text", ["\x00\x07\x1f\x7f\n\r\n\t", "'''", '"""', "\\u0041", "\u2028\x85", "", "[a] = # b"])
def test_class_names_of_any_kind(tmp_path: Path, text: str) -> None:
    write_folder(tmp_path / "data", {"fit": [case_of("a", group=text)]}, class_names=["a", text, "c"])
    folder = open_folder(tmp_path / "data")
    assert folder.class_names == ("a", text, "c")
    assert folder[0].group == text


@pytest.mark.parametrize(
    ("stray", "dtype", "suffix"),
    [(255, np.uint8, ".png"), (255, np.int64, ".png"), (256, np.uint16, ".npy"), (-1, np.int8, ".npy")],
)
def test_labels_that_fit_a_picture_and_others(tmp_path: Path, stray: int, dtype: Any, suffix: str) -> None:
    labels = case_of("a").labels.astype(dtype)
    labels[1, 2] = stray
    write_folder(tmp_path / "data", {"fit": [case_of("a", labels=labels)]}, ignore_index=stray)
    assert (tmp_path / f"data/labels/a{suffix}").is_file()
    folder = open_folder(tmp_path / "data")
    np.testing.assert_array_equal(folder[0].labels, labels)
    assert folder.ignore_index == (stray,)


def test_tensors(tmp_path: Path) -> None:
    given = case_of("a")
    logits = torch.from_numpy(given.logits).bfloat16().requires_grad_()
    tensors = replace(given, logits=logits, labels=torch.from_numpy(given.labels), image=torch.from_numpy(given.image))
    write_folder(tmp_path / "data", {"fit": [tensors]})
    assert_same(open_folder(tmp_path / "data")[0], replace(given, logits=logits.detach().float().numpy()))


def test_cases_without_labels(tmp_path: Path) -> None:
    given = {"test": [case_of("a", labels=None), case_of("b", labels=None)]}
    write_folder(tmp_path / "data", given)
    assert not (tmp_path / "data/labels").exists()
    for read, case in zip(open_folder(tmp_path / "data", require_labels=False), given["test"], strict=True):
        assert_same(read, case)


def test_written_anew_even_from_itself(tmp_path: Path) -> None:
    path = tmp_path / "data"
    write_folder(path, {"fit": [case_of("a"), case_of("b")]})
    write_folder(path, {"fit": open_folder(path)[1:]})
    assert open_folder(path).names == ("b",)
    assert_same(open_folder(path)[0], case_of("b"))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/thesis.txt").write_text("")
    with pytest.raises(InputError, match="segcal did not write"):
        write_folder(tmp_path / "foreign", {"fit": [case_of("a")]})
    assert (tmp_path / "foreign/thesis.txt").exists()


def test_cases_are_taken_one_by_one(tmp_path: Path) -> None:
    class OneByOne(Sequence[Case]):
        """Cases of which a later one may be asked for only when the one before is on disk."""

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: Any) -> Any:
            raise NotImplementedError

        def __iter__(self) -> Iterator[Case]:
            for index in range(3):
                written = len(list(tmp_path.rglob("*.npy")))
                assert written == 2 * index  # logits and image of each
                yield case_of(str(index))

    write_folder(tmp_path / "data", {"fit": OneByOne()})
    assert len(open_folder(tmp_path / "data")) == 3


@pytest.mark.parametrize(
    ("cases", "options", "expected"),
    [
        ([], {}, "splits must hold a case, got none in ['fit']"),
        ([case_of("a"), case_of("a")], {}, "a name of its own, got 'a' twice"),
        ([case_of("a/b")], {}, "serve as a file name, got 'a/b'"),
        ([case_of(".a")], {}, "serve as a file name, got '.a'"),
        ([case_of("")], {}, "serve as a file name, got ''"),
        ([case_of("a")], {"class_names": ["x"]}, "one name for each of the 3 classes of the logits, got 1"),
        ([case_of("a")], {"background": 3}, "background must be a class in 0..2, got 3"),
        ([case_of("a", labels=np.full((4, 6), 9))], {}, "labels must be in 0..2, got 9 at (0, 0) of case 'a'"),
        ([case_of("a", labels=np.full((4, 6), 0.5))], {}, "labels must be whole numbers, got 0.5 at (0, 0) in 'a'"),
        ([case_of("a", labels=np.zeros((4, 5), int))], {}, "labels must have shape (4, 6)"),
        ([case_of("a"), case_of("b", image=None)], {}, "an image or none, got both with case 'b'"),
        ([case_of("a", image=None), case_of("b")], {}, "an image or none, got both with case 'b'"),
        ([case_of("a"), case_of("b", 3)], {}, "all cases must have 2 spatial axes"),
        ([case_of("a", spacing=(1.0,))], {}, "spacing must have 2 lengths"),
        ([case_of("a", spacing=(1.0, float("nan")))], {}, "spacing must be lengths above 0"),
        ([case_of("a", logits=np.zeros((1, 3, 3, 4, 6)))], {}, "give each case without a batch axis"),
        ([case_of("a", logits=np.full((3, 4, 6), np.inf))], {}, "logits must be finite"),
    ],
)
def test_what_is_refused(tmp_path: Path, cases: list[Case], options: dict[str, Any], expected: str) -> None:
    assert expected in complaint(tmp_path / "data", {"fit": cases}, **options)


def test_one_name_in_two_splits(tmp_path: Path) -> None:
    assert "got 'a' twice" in complaint(tmp_path / "data", {"fit": [case_of("a")], "test": [case_of("a")]})
