"""The case stream: slabs put together are the case, checks are made once, and kept cases touch no file."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.cases import CaseStream
from segcal.cases import stream as stream_module
from segcal.functional.arrays import TemporaryArrays
from segcal.functional.geometry import foreground
from segcal.types import Array, Case, InputError

CLASSES = 3


def case_of(name: str, size: Sequence[int] = (12, 10), seed: int = 0, dtype: Any = np.float32) -> Case:
    random = np.random.default_rng(seed)
    logits = random.normal(size=(CLASSES, *size)).astype(dtype)
    return Case(name, logits, random.integers(0, CLASSES, size).astype(np.uint8), random.random((2, *size), np.float32))


def on_disk(case: Case, folder: Path) -> Case:
    path = folder / f"{case.name}.npy"
    np.save(path, case.logits)
    return Case(case.name, np.load(path, mmap_mode="r"), case.labels, case.image)


class Loaded(Sequence[Case]):
    """Cases that count how often each is loaded."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases, self.loads = cases, [0] * len(cases)

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: Any) -> Any:
        self.loads[index] += 1
        return self.cases[index]


class Mapped(Loaded):
    """Cases whose logits are files that are mapped when a case is read."""

    def __init__(self, cases: Sequence[Case], folder: Path) -> None:
        super().__init__([replace(case, logits=np.empty(0)) for case in cases])
        self.folder = folder
        for case in cases:
            np.save(folder / f"{case.name}.npy", case.logits)

    def __getitem__(self, index: Any) -> Any:
        case = super().__getitem__(index)
        return replace(case, logits=np.load(self.folder / f"{case.name}.npy", mmap_mode="r"))


@pytest.fixture
def finite_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the cases whose logits were looked through, in order."""
    seen: list[str] = []
    check = stream_module.check_logits

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["of"])
        return check(*args, **kwargs)

    monkeypatch.setattr(stream_module, "check_logits", counted)
    return seen


@given(rows=st.integers(1, 30), width=st.integers(1, 9), slab=st.integers(1, 400), context=st.integers(0, 9))
def test_inner_slices_of_slabs_are_the_case(rows: int, width: int, slab: int, context: int) -> None:
    case = case_of("a", (rows, width), seed=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segcal.cases.stream.SLAB", slab)
        slabs = list(CaseStream([case], CLASSES).slabs(context))
    inner = [slab.logits[:, :, slab.inner] for slab in slabs]
    assert torch.equal(torch.cat(inner, dim=2)[0], torch.from_numpy(case.logits))
    assert torch.equal(
        torch.cat([one.labels[:, one.inner] for one in slabs], dim=1)[0].byte(), torch.from_numpy(case.labels)
    )
    assert torch.equal(torch.cat([one.image[:, :, one.inner] for one in slabs], dim=2)[0], torch.from_numpy(case.image))
    for one in slabs:
        assert np.array_equal(one.logits[0].numpy(), case.logits[:, one.rows])
        reach = [
            one.rows.start == max(0, one.inner_rows.start - context),
            one.rows.stop == min(rows, one.inner_rows.stop + context),
        ]
        assert all(reach)


def test_later_passes_load_and_check_nothing(tmp_path: Path, finite_checks: list[str]) -> None:
    cases = Loaded([on_disk(case_of(name, seed=k), tmp_path) for k, name in enumerate("ab")])
    stream = CaseStream(cases, CLASSES)
    first = [slab.logits.clone() for slab in stream.slabs()]
    for name in "ab":
        (tmp_path / f"{name}.npy").unlink()
    again = [slab.logits for slab in stream.slabs(context=2)]
    assert cases.loads == [1, 1]
    assert finite_checks == ["case 'a'", "case 'b'"]
    assert all(map(torch.equal, first, again))


def test_cases_beyond_the_memory_are_loaded_again_and_checked_once(tmp_path: Path, finite_checks: list[str]) -> None:
    case = case_of("a")
    size = case.logits.nbytes + case.image.nbytes + 8 * case.labels.size
    cases = Loaded([on_disk(case_of(name, seed=k), tmp_path) for k, name in enumerate("abc")])
    stream = CaseStream(cases, CLASSES, memory=size)
    for _ in range(3):
        assert len(list(stream.slabs())) == 3
    assert cases.loads == [1, 3, 3]
    assert len(finite_checks) == 3


def test_parts_share_what_is_kept(tmp_path: Path) -> None:
    cases = Loaded([on_disk(case_of(name, seed=k), tmp_path) for k, name in enumerate("abc")])
    stream = CaseStream(cases, CLASSES)
    assert [case.name for case in stream.part([2, 0])] == ["c", "a"]
    list(stream.part([2]).slabs())
    list(stream.part([0, 1]).part([0]).slabs())
    before = list(cases.loads)
    list(stream.part([0, 2]).slabs())
    assert cases.loads == before


def test_decompressed_cases_beyond_the_memory_are_kept_in_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are loaded once, as long as there is room on the disk; a stream without memory keeps nothing."""
    whole = [case_of(f"{k}", seed=k) for k in range(3)]
    for memory, share, loads in ((1, 0.5, 1), (1, 0.0, 3), (0, 0.5, 3)):
        monkeypatch.setattr(stream_module, "_DISK_SHARE", share)
        cases = Loaded(whole)
        stream = CaseStream(cases, CLASSES, memory=memory)
        for _ in range(3):
            for case, slab in zip(whole, stream.slabs(), strict=True):
                assert np.array_equal(slab.logits[0].numpy(), case.logits)
                assert np.array_equal(slab.labels[0].numpy(), case.labels)
                assert np.array_equal(slab.image[0].numpy(), case.image)
        assert cases.loads == [loads] * 3


@pytest.mark.parametrize("kind", ["compressed", "mapped"])
@pytest.mark.parametrize("memory", [1 << 20, 1])
def test_more_cases_than_open_files(tmp_path: Path, kind: str, memory: int) -> None:
    """A map of each case would hold its file open: many cases share one, and those in memory have none."""
    cases: list[Case] = [case_of(f"{k}", (4, 5), seed=k) for k in range(60)]
    given = Mapped(cases, tmp_path) if kind == "mapped" else Loaded(cases)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 30, hard))
    try:
        stream = CaseStream(given, CLASSES, memory=memory)
        for _ in range(2):
            for case, slab in zip(cases, stream.slabs(), strict=True):
                assert np.array_equal(slab.logits[0].numpy(), case.logits)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_full_disk_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(files: TemporaryArrays, array: Array) -> Array:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TemporaryArrays, "copy", full)
    cases = Loaded([case_of("a")])
    stream = CaseStream(cases, CLASSES, memory=1)
    for _ in range(2):
        (slab,) = stream.slabs()
        assert np.array_equal(slab.logits[0].numpy(), cases.cases[0].logits)
    assert cases.loads == [2]


def test_arrays_in_memory_are_not_copied() -> None:
    case = case_of("a")
    (slab,) = CaseStream([case], CLASSES, memory=0).slabs()
    assert slab.logits.data_ptr() == case.logits.ctypes.data


@pytest.mark.parametrize("slab", [1 << 25, 40])
def test_impossible_classes_are_replaced_in_every_pass(monkeypatch: pytest.MonkeyPatch, slab: int) -> None:
    monkeypatch.setattr("segcal.cases.stream.SLAB", slab)
    case = case_of("a")
    case.logits[1, 3, 4] = -np.inf
    stream = CaseStream([case], CLASSES, memory=0)
    for _ in range(2):
        assert all(bool(slab.logits.isfinite().all()) for slab in stream.slabs())
    assert np.isneginf(case.logits[1, 3, 4])


def test_labels_outside_all_are_left_out() -> None:
    case = case_of("a", (40, 40))
    labels = np.zeros((40, 40), np.uint8)
    labels[10:14, 10:20], labels[30, 30] = 1, 255
    case = Case("a", case.logits, labels)
    (slab,) = CaseStream([case], CLASSES, ignore_index=255, background=0).slabs()
    truth = torch.from_numpy(labels.astype(np.int64))[None]
    inside = foreground(truth, 255, background=0)
    assert torch.equal(slab.labels, torch.where(inside, truth, -1))
    assert bool((slab.labels == 0).any())
    assert int((slab.labels == 0).sum()) < int((truth == 0).sum())


def test_facts_are_known_after_a_pass() -> None:
    plain, doubtful = case_of("a", (20, 20)), case_of("b", (20, 20), seed=1)
    exponential = np.exp(doubtful.logits)
    doubtful = Case("b", exponential / exponential.sum(axis=0), doubtful.labels)
    stream = CaseStream([plain, doubtful], CLASSES)
    assert stream.facts == []
    list(stream.slabs())
    assert [facts.name for facts in stream.facts] == ["a", "b"]
    assert len({facts.fingerprint for facts in stream.facts}) == 2
    assert [text[:33] for text in stream.doubts] == ["the logits look like probabilitie"]


def test_a_crop_is_a_box_of_the_case() -> None:
    case = case_of("a", (12, 10, 8))
    slab = CaseStream([case], CLASSES)[0].crop((slice(2, 9), slice(0, 4), slice(3, 8)))
    assert np.array_equal(slab.logits[0].numpy(), case.logits[:, 2:9, 0:4, 3:8])
    assert np.array_equal(slab.labels[0].numpy(), case.labels[2:9, 0:4, 3:8])
    assert np.array_equal(slab.image[0].numpy(), case.image[:, 2:9, 0:4, 3:8])


def test_unlabelled_cases_can_be_read_for_applying() -> None:
    case = case_of("a")
    (slab,) = CaseStream([Case("a", case.logits, None)], CLASSES, labelled=False).slabs()
    assert slab.labels is None
    with pytest.raises(InputError, match="has none; add them"):
        list(CaseStream([Case("a", case.logits, None)], CLASSES).slabs())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.zeros((2, 12, 10), np.float32)}, "got \\(2, 12, 10\\) of case 'a'"),
        ({"logits": np.full((3, 12, 10), np.nan, np.float32)}, "must be finite.* of case 'a'"),
        ({"labels": np.full((12, 10), 7, np.uint8)}, "labels must be in 0..2, got 7 at .* of case 'a'"),
        ({"labels": np.zeros((12, 9), np.uint8)}, "labels must have shape \\(12, 10\\)"),
        ({"labels": np.zeros(12, np.uint8)}, "labels must have shape \\(12, 10\\)"),
        ({"labels": np.full((12, 10), 2**64 - 1, np.uint64)}, "below 2\\^63, got 18446744073709551615"),
        ({"image": np.zeros((12, 10, 3), np.float32)}, "its channels are last"),
        ({"logits": np.zeros((3, 12, 10), np.longdouble)}, "of at most 64 bits, got dtype"),
        ({"logits": torch.zeros(3, 12, 10).to_sparse()}, "got a tensor of layout torch.sparse_coo"),
        ({"logits": torch.zeros(3, 12, 10, dtype=torch.complex64)}, "got dtype torch.complex64"),
        ({"logits": torch.zeros(3, 12, 10).to(torch.float8_e5m2)}, "got dtype torch.float8_e5m2"),
        ({"labels": torch.zeros(12, 10, device="meta")}, "got a tensor of .* on device meta"),
        ({"labels": [[0] * 10] * 12}, "got list; give a dense"),
    ],
)
def test_bad_cases_are_refused_by_name(change: dict[str, Array], message: str) -> None:
    case = case_of("a")
    given = {"logits": case.logits, "labels": case.labels, "image": case.image, **change}
    with pytest.raises(InputError, match=message):
        list(CaseStream([Case("a", **given)], CLASSES).slabs())


def with_passes(case: Case, count: int = 2) -> Case:
    random = np.random.default_rng(len(case.name))
    return replace(case, passes=random.normal(size=(count, *case.logits.shape)).astype(np.float32))


@pytest.mark.parametrize("kind", ["array", "tensor", "list", "mapped"])
def test_slabs_carry_the_passes_of_their_slices(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = with_passes(case_of("a", (21, 5)))
    passes = np.asarray(case.passes)
    np.save(tmp_path / "passes.npy", passes)
    given = {
        "array": passes,
        "tensor": torch.from_numpy(passes),
        "list": list(passes),
        "mapped": np.load(tmp_path / "passes.npy", mmap_mode="r"),
    }[kind]
    monkeypatch.setattr("segcal.cases.stream.SLAB", 8 * CLASSES * 5 * 3)  # the passes count as well
    slabs = list(CaseStream([replace(case, passes=given)], CLASSES, passes=True).slabs(context=2))
    assert [slab.passes.shape[3] for slab in slabs if slab.passes is not None] == [10, 12, 7]
    found = torch.cat([slab.passes[0, :, :, slab.inner] for slab in slabs if slab.passes is not None], dim=2)
    assert torch.equal(found, torch.from_numpy(passes))
    assert all(slab.passes is None for slab in CaseStream([case], CLASSES).slabs())


def test_the_memory_of_a_stream_counts_the_passes(tmp_path: Path) -> None:
    cases = Loaded([with_passes(on_disk(case_of("a"), tmp_path))])
    size = 4 * CLASSES * 120
    for memory, loads in ((5 * size, 1), (3 * size, 2)):  # with the image and the labels in both cases
        cases.loads = [0]
        stream = CaseStream(cases, CLASSES, passes=True, memory=memory)
        for _ in range(2):
            list(stream.slabs())
        assert cases.loads == [loads]


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        (np.zeros((1, CLASSES, 12, 10), np.float32), "same passes, got 1 of case 'b' and 2 of case 'a'"),
        (None, "same passes, got 0 of case 'b'"),
        (np.zeros((2, CLASSES, 12, 9), np.float32), r"\(3, 12, 9\) of pass 0 of case 'b'"),
        (np.full((2, CLASSES, 12, 10), np.nan, np.float32), "of a pass of case 'b'"),
    ],
)
def test_bad_passes_are_refused_by_name(passes: Any, message: str) -> None:
    cases = [with_passes(case_of("a")), replace(case_of("b"), passes=passes)]
    with pytest.raises(InputError, match=message):
        list(CaseStream(cases, CLASSES, passes=True).slabs())


@pytest.mark.parametrize("shape", [(3,), (2, 2), (1, 2, 3)])
def test_labels_that_are_not_read_may_have_any_shape(shape: tuple[int, ...]) -> None:
    case = Case("a", np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.zeros(shape, np.uint8))
    (slab,) = CaseStream([case], 2, labelled=False).slabs()
    assert slab.logits.shape == (1, 2, 3, 4)
    with pytest.raises(InputError, match="labels must have shape"):
        list(CaseStream([case], 2).slabs())
