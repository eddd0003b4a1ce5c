"""File formats: what each can hold, arrays written slab by slab, arrays larger than memory, geometry of NIfTI."""

from __future__ import annotations

import errno
import gzip
import io
import logging
import zipfile
from pathlib import Path
from unittest.mock import Mock

import nibabel
import nibabel.imageglobals
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nibabel.orientations import aff2axcodes
from PIL import Image

from segcal.data.folders.folder import open_folder, write_map, write_scores
from segcal.data.io import base, formats
from segcal.data.io.arrays import read_array
from segcal.data.io.base import slab_writer
from segcal.data.io.nifti import read_volume
from segcal.types import InputError

IBSR = Path(__file__).resolve().parents[3] / "shared" / "data" / "ibsr18"
SHAPE = (2, 5, 4, 3)  # L z y x
OBLIQUE = np.array([[1.2, 0.3, -0.1, -90], [-0.3, 1.1, 0.4, -120], [0.2, -0.3, 2.0, 60], [0, 0, 0, 1.0]])
AFFINES = {
    "RAS": np.diag([1.5, 2.0, 2.5, 1.0]),
    "LPS": np.array([[-1.5, 0, 0, 80], [0, -2.0, 0, 90], [0, 0, 2.5, -70], [0, 0, 0, 1]]),
    "PSR": np.array([[0, 0, 2.5, 0], [-1.5, 0, 0, 10], [0, 2.0, 0, 20], [0, 0, 0, 1]]),
    "oblique": OBLIQUE,
}


def scores(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


# ---- the registry -------------------------------------------------------------------------------------


def test_every_format_is_found_by_its_extensions() -> None:
    for kind in formats.FORMATS:
        for ends in kind.extensions.values():
            for end in ends:
                assert formats.file_at(Path(f"a.b{end.upper()}")) == kind(Path(f"a.b{end.upper()}"))
    assert formats.LABELS[0] == ".png", "messages name it first"
    assert ".jpg" not in formats.LABELS
    assert formats.extension_of(Path("a.gz"), formats.SCORES) is None


# ---- slab by slab -------------------------------------------------------------------------------------


@given(cuts=st.sets(st.integers(1, 4)), classes=st.booleans(), last=st.booleans(), order=st.randoms())
def test_slabs_in_any_order_make_the_array(cuts: set[int], classes: bool, last: bool, order, tmp_path_factory) -> None:
    values = scores() if classes else scores()[0]
    path = tmp_path_factory.mktemp("raw") / "array"
    starts = [0, *sorted(cuts)]
    slabs = list(zip(starts, [*starts[1:], 5], strict=True))
    order.shuffle(slabs)
    with path.open("w+b") as file:
        write = slab_writer(file, 7, values.shape, "float32", classes=classes, classes_last=classes and last)
        for start, stop in slabs:
            write(start, values[:, start:stop] if classes else values[start:stop])
    written = np.frombuffer(path.read_bytes()[7:], np.float32)
    expected = np.moveaxis(values, 0, -1) if classes and last else values
    np.testing.assert_array_equal(written, expected.ravel())


@pytest.mark.parametrize("end", [".npy", ".npz", ".nii", ".nii.gz"])
@pytest.mark.parametrize("layout", ["first", "last"])
def test_files_written_in_slabs_are_read_back(tmp_path: Path, end: str, layout: str) -> None:
    values, like = scores(), tmp_path / f"like{end}"
    if end == ".npy":
        np.save(like, values)
    elif end == ".npz":
        np.savez_compressed(like, logits=values)
    else:
        stored = values.T if layout == "last" else np.moveaxis(values, 0, -1).T
        nibabel.save(nibabel.Nifti1Image(stored, OBLIQUE), like)
    new = formats.file_at(tmp_path / f"new{end}")
    with new.create("logits", SHAPE, "float32", like=like) as write:
        for start in (2, 0, 4):
            write(start, values[:, start : start + 2])
    found = new.read("logits", SHAPE[1:])
    np.testing.assert_array_equal(found, values)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"like{end}", f"new{end}"]


@pytest.mark.parametrize("end", [".npz", ".nii.gz"])
def test_large_compressed_arrays_go_to_a_file(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, path = scores(), tmp_path / f"a{end}"
    if end == ".npz":
        np.savez_compressed(path, logits=values)
    else:
        nibabel.save(nibabel.Nifti1Image(values.T, OBLIQUE), path)
    file = formats.file_at(path)
    small = file.read("logits", SHAPE[1:])
    monkeypatch.setattr(base, "IN_MEMORY", 100)
    monkeypatch.setattr(base, "PIECE", 64)
    large = file.read("logits", SHAPE[1:])
    np.testing.assert_array_equal(small, values)
    np.testing.assert_array_equal(large, values)
    assert isinstance(large, np.memmap)
    assert not isinstance(small, np.memmap)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="damaged or incomplete"):
        file.read("logits", SHAPE[1:])


# ---- geometry -----------------------------------------------------------------------------------------


def write_case(root: Path, affine: np.ndarray, *, label_affine: np.ndarray | None = None) -> None:
    for where in ("logits", "labels"):
        (root / where).mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(scores().T, affine)
    image.header.set_qform(affine, code=1)
    image.header.set_sform(affine, code=2)
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, root / "logits/a.nii.gz")
    labels = np.zeros(SHAPE[1:], np.uint8).T
    nibabel.save(
        nibabel.Nifti1Image(labels, affine if label_affine is None else label_affine), root / "labels/a.nii.gz"
    )


@pytest.mark.parametrize("name", AFFINES)
def test_geometry_there_and_back(tmp_path: Path, name: str) -> None:
    """Affine, its codes, orientation, zooms and units of what is written are those of what was read.

    Arrays have the axes of the file in reverse.
    """
    write_case(tmp_path, AFFINES[name])
    folder = open_folder(tmp_path)
    assert folder[0].orientation == "".join(aff2axcodes(AFFINES[name]))[::-1]
    source = nibabel.load(tmp_path / "logits/a.nii.gz")
    assert folder[0].spacing == pytest.approx(np.linalg.norm(AFFINES[name][:3, :3], axis=0)[::-1])
    written = nibabel.load(write_scores(tmp_path / "out", "a", folder[0].logits, folder))
    heat = nibabel.load(write_map(tmp_path / "maps", "a", np.ones(SHAPE[1:], np.float32), folder))
    for image in (written, heat):
        np.testing.assert_array_equal(image.affine, source.affine)
        assert aff2axcodes(image.affine) == aff2axcodes(AFFINES[name])
    for form in ("qform", "sform"):
        ours, code = getattr(written, f"get_{form}")(coded=True)
        theirs, expected = getattr(source, f"get_{form}")(coded=True)
        np.testing.assert_array_equal(ours, theirs)
        assert code == expected
    assert written.header.get_zooms() == source.header.get_zooms()
    assert written.header.get_xyzt_units() == source.header.get_xyzt_units()
    np.testing.assert_array_equal(written.get_fdata(), source.get_fdata())


def test_different_orientations_are_refused(tmp_path: Path) -> None:
    write_case(tmp_path, AFFINES["RAS"], label_affine=AFFINES["LPS"])
    with pytest.raises(InputError, match="must have the same orientation, got RAS and LPS; reorient one to the other"):
        open_folder(tmp_path)[0]


def test_spacing_is_that_of_the_affine_in_mm(tmp_path: Path) -> None:
    labels, read = np.zeros((4, 5, 6), np.uint8), read_volume
    image = nibabel.Nifti1Image(labels, np.diag([0.7, 1.3, 2.5, 1.0]))
    nibabel.save(image, tmp_path / "a.nii")
    assert read(tmp_path / "a.nii")[1] == pytest.approx((2.5, 1.3, 0.7))
    image.header["pixdim"][1:4] = 1  # lengths that contradict the sform, which places the volume
    image.header.set_sform(image.affine, code=2)
    image.header.set_qform(None, code=0)
    content = bytearray(image.to_bytes())
    (tmp_path / "b.nii").write_bytes(content)
    assert nibabel.load(tmp_path / "b.nii").header.get_zooms() == (1, 1, 1)
    assert read(tmp_path / "b.nii")[1] == pytest.approx((2.5, 1.3, 0.7))
    for unit, millimetres in (("micron", 1e-3), ("meter", 1e3), ("mm", 1.0), ("unknown", 1.0)):
        image = nibabel.Nifti1Image(labels, np.diag([700.0, 1300.0, 2500.0, 1.0]))
        image.header.set_xyzt_units(unit)
        nibabel.save(image, tmp_path / "c.nii")
        assert read(tmp_path / "c.nii")[1] == pytest.approx([k * millimetres for k in (2500, 1300, 700)])


@pytest.mark.parametrize("layout", ["first", "last"])
def test_unknown_units_count_as_mm(tmp_path: Path, layout: str) -> None:
    """nibabel fails at codes of length or time that it does not know."""
    write_case(tmp_path, OBLIQUE)
    for kind in ("logits", "labels"):
        path = tmp_path / kind / "a.nii.gz"
        image = nibabel.load(path)
        values = np.moveaxis(scores().T, -1, 0) if (kind, layout) == ("logits", "first") else np.asarray(image.dataobj)
        content = bytearray(nibabel.Nifti1Image(values, OBLIQUE).to_bytes())
        content[123] = 0b11100111
        path.write_bytes(gzip.compress(content))
    (tmp_path / "labels/a.nii.gz").unlink()
    np.save(tmp_path / "labels/a.npy", np.zeros(SHAPE[1:], np.uint8))
    folder = open_folder(tmp_path)
    assert folder[0].spacing == pytest.approx(np.linalg.norm(OBLIQUE[:3, :3], axis=0)[::-1])
    for path in (
        write_scores(tmp_path / "out", "a", folder[0].logits, folder),
        write_map(tmp_path / "maps", "a", np.ones(SHAPE[1:], np.float32), folder),
    ):
        assert nibabel.load(path).header["xyzt_units"] == 0b11100111


def test_a_map_cannot_have_a_degenerate_geometry(tmp_path: Path) -> None:
    content = bytearray(nibabel.Nifti1Image(scores().T, np.eye(4)).to_bytes())
    content[280:284] = bytes(4)  # the first entry of the affine
    (tmp_path / "a.nii").write_bytes(content)
    new = formats.file_at(tmp_path / "new.nii").create("labels", SHAPE[1:], "float32", like=tmp_path / "a.nii")
    with pytest.raises(InputError, match="damaged or incomplete"), new:
        pass


def test_compressed_volumes_of_the_same_values_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(tmp_path, OBLIQUE)
    folder = open_folder(tmp_path)
    one = write_scores(tmp_path / "one", "a", folder[0].logits, folder)
    monkeypatch.setattr("time.time", lambda: 4e9)
    other = write_scores(tmp_path / "other", "a", folder[0].logits, folder)
    assert one.name.endswith(".nii.gz")
    assert one.read_bytes() == other.read_bytes()


def test_extensions_of_the_header_are_kept(tmp_path: Path) -> None:
    write_case(tmp_path, OBLIQUE)
    image = nibabel.load(tmp_path / "logits/a.nii.gz")
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"scanner 7"))
    nibabel.save(
        nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine, image.header), tmp_path / "logits/a.nii.gz"
    )
    folder = open_folder(tmp_path)
    written = nibabel.load(write_scores(tmp_path / "out", "a", folder[0].logits, folder))
    assert [extension.get_content() for extension in written.header.extensions] == [b"scanner 7"]
    np.testing.assert_array_equal(written.get_fdata(), scores().T)


@pytest.mark.data
@pytest.mark.skipif(not IBSR.is_dir(), reason="IBSR18 is not here")
def test_volumes_with_a_fourth_axis_of_one(tmp_path: Path) -> None:
    """IBSR18: NIfTI of 256 x 128 x 256 x 1."""
    path = sorted((IBSR / "labels").iterdir())[0]
    labels = formats.file_at(path).read("labels")
    stored = nibabel.load(path)
    assert stored.ndim == 4
    assert labels.shape == stored.shape[2::-1]
    assert formats.file_at(path).spacing(3) == stored.header.get_zooms()[2::-1]
    np.testing.assert_array_equal(labels, np.asarray(stored.dataobj)[..., 0].T)
    image = sorted((IBSR / "images").iterdir())[0]
    assert formats.file_at(image).shape("image", labels.shape) == labels.shape
    assert formats.file_at(image).read("image", labels.shape).shape == labels.shape


def test_remarks_of_nibabel_on_a_header_are_not_printed(tmp_path: Path) -> None:
    content = bytearray(nibabel.Nifti1Image(np.zeros((3, 4, 5), np.uint8), np.eye(4)).to_bytes())
    content[252:254] = (7).to_bytes(2, "little")  # a qform_code that does not exist
    (tmp_path / "a.nii").write_bytes(content)
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    nibabel.imageglobals.logger.addHandler(handler)
    try:
        assert formats.file_at(tmp_path / "a.nii").shape("labels") == (5, 4, 3)
        assert heard.getvalue() == ""
        nibabel.load(tmp_path / "a.nii")
        assert "qform_code 7 not valid" in heard.getvalue()  # so it would have been heard
    finally:
        nibabel.imageglobals.logger.removeHandler(handler)


def test_an_absurd_size_is_refused_without_a_warning(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (3, 2**62, 2**62)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(InputError, match="damaged or incomplete"):
        formats.file_at(tmp_path / "a.npy").read("labels")


def test_a_header_with_an_escape_sequence_is_refused_without_a_warning(tmp_path: Path) -> None:
    """Python's parser, which numpy uses, warns of escape sequences that it does not know."""
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.uint8))
    content = (tmp_path / "a.npy").read_bytes().replace(b"'fortran_order'", b"'fortran\\`order'")
    (tmp_path / "a.npy").write_bytes(content)
    file = formats.file_at(tmp_path / "a.npy")
    for read in (file.read, file.shape):
        with pytest.raises(InputError, match=r"damaged or incomplete one \(its header has a backslash\)"):
            read("labels")


def test_pictures_of_other_formats_are_not_read(tmp_path: Path) -> None:
    """Pillow would read a TIFF file by another name, and warn of what it finds in damaged ones."""
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "a.png", "tiff")
    with pytest.raises(InputError, match="cannot identify image file"):
        formats.file_at(tmp_path / "a.png").read("labels")


def test_labels_in_half_precision() -> None:
    values = np.array([0, 1, 2048, 65504], np.float16)
    assert base.whole_numbers(values, Path("a.npy")).tolist() == [0, 1, 2048, 65504]
    for bad in (np.nan, np.inf, 0.5):
        with pytest.raises(InputError, match="labels must be whole numbers"):
            base.whole_numbers(np.append(values, np.float16(bad)), Path("a.npy"))


def _declaring(path: Path, shape: tuple[int, ...], content: bytes) -> None:
    """Write an archive of one array whose header says more, or less, than there is."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", header.getvalue() + content)


@pytest.mark.parametrize("shape", [(3, 10**6, 10**6), (2**40, 2**40, 2**40), (3, -4, 5)])
def test_an_archive_that_declares_too_much_takes_no_memory(tmp_path: Path, shape: tuple[int, ...]) -> None:
    _declaring(tmp_path / "a.npz", shape, b"\0" * 1000)
    with pytest.raises(InputError, match="cannot be in a file of its size"):
        read_array(tmp_path / "a.npz", "logits")


def test_an_archive_that_does_not_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of zeros in 100 kB; at 1 MB more than declared nothing more is read."""
    _declaring(tmp_path / "a.npz", (2, 3), b"\0" * 100_000_000)
    for in_memory in (base.IN_MEMORY, 10):
        monkeypatch.setattr(base, "IN_MEMORY", in_memory)
        with pytest.raises(InputError, match="holds more than its header declares"):
            read_array(tmp_path / "a.npz", "logits")
    monkeypatch.setattr(base, "LARGEST", 10)
    _declaring(tmp_path / "a.npz", (2, 3), b"\0" * 24)
    with pytest.raises(InputError, match="arrays that are read must have at most 0 GiB"):
        read_array(tmp_path / "a.npz", "logits")


@pytest.mark.parametrize("end", [".nii", ".nii.gz"])
def test_a_volume_that_declares_too_much_takes_no_memory(tmp_path: Path, end: str) -> None:
    image = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.float32), np.eye(4))
    image.header.set_slope_inter(2, 1)
    nibabel.save(image, tmp_path / f"a{end}")
    opened = gzip.open if end == ".nii.gz" else open
    with opened(tmp_path / f"a{end}", "rb") as file:  # type: ignore[operator]
        content = bytearray(file.read())
    content[42:48] = np.array([32000] * 3, "<i2").tobytes()  # dim[1..3]
    with opened(tmp_path / f"a{end}", "wb") as file:  # type: ignore[operator]
        file.write(bytes(content))
    with pytest.raises(InputError, match="cannot be in a file of its size"):
        read_volume(tmp_path / f"a{end}")


def test_a_lack_of_open_files_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3, 4)))
    file = formats.file_at(tmp_path / "a.npy")
    monkeypatch.setattr(Path, "open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(InputError, match=r"cannot be read \(Too many open files\)"):
        file.read("logits")
