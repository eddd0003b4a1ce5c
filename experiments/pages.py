"""Write what the commands print from the archives into the result pages: `python -m experiments.pages`.

A page holds it between two comments; everything outside them is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.archive import unpack
from experiments.camvid.table import tables
from experiments.coco.__main__ import published
from segcal.files import staged_file

FOLDER = Path(__file__).parents[1] / "docs" / "results"
BEGIN, END = "<!-- begin of what `python -m experiments.pages` writes -->", "<!-- end of what it writes -->"


def _camvid() -> str:
    with TemporaryDirectory() as folder:
        for archive in sorted((Path(__file__).parent / "camvid" / "measured").glob("*.zip")):
            unpack(archive, Path(folder) / archive.stem)
        return tables(Path(folder))


PAGES: Mapping[str, Callable[[], str]] = {"camvid": _camvid, "voc": published}
"""What each page shows, by its name."""


def filled(page: str) -> str:
    """Return the text of a page with what is printed now."""
    before, _, rest = (FOLDER / f"{page}.md").read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{PAGES[page]()}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write every page."""
    for page in PAGES:
        text = filled(page)
        with staged_file(FOLDER / f"{page}.md") as file:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
