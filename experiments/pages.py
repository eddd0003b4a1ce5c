"""Write what the commands print from the archives into the result pages: `python -m experiments.pages`.

A page holds it between two comments; everything outside them is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.archive import unpack
from experiments.camvid.table import tables
from experiments.coco.__main__ import published
from experiments.lpba40 import gathered
from experiments.lpba40 import table as volumes
from experiments.passes import table as passes
from experiments.rows import unpack_rows
from segcal.files import staged_file

FOLDER = Path(__file__).parents[1] / "docs" / "results"
BEGIN, END = "<!-- begin of what `python -m experiments.pages` writes -->", "<!-- end of what it writes -->"


def _camvid() -> str:
    with TemporaryDirectory() as folder:
        for archive in sorted((Path(__file__).parent / "camvid" / "measured").glob("*.zip")):
            unpack(archive, Path(folder) / archive.stem)
        return tables(Path(folder))


def _passes() -> str:
    return passes.tables(unpack_rows(passes.MEASURED))


def _volumes() -> str:
    return volumes.tables(gathered.unpack(gathered.MEASURED))


PAGES: Mapping[str, Callable[[], str]] = {"camvid": _camvid, "voc": published, "volumes": _volumes, "passes": _passes}
"""What each page shows, by its name."""


def folded(text: str) -> str:
    r"""Return a text whose sections of one network are closed until a reader opens them: they are long.

    >>> print(folded("## Networks\n\n1\n\n## tiny, seed 0: all\n\n2"))
    ## Networks
    <BLANKLINE>
    1
    <BLANKLINE>
    <details markdown="1">
    <summary>tiny, seed 0: all</summary>
    <BLANKLINE>
    2
    <BLANKLINE>
    </details>
    """
    sections = re.split(r"(?m)^(?=## )", text)
    return "".join(
        re.sub(r"## (.+)\n+", r'<details markdown="1">\n<summary>\1</summary>\n\n', own, count=1).rstrip()
        + "\n\n</details>\n\n"
        if re.match("## .+, seed [0-9]", own)
        else own
        for own in sections
    ).rstrip()


def filled(page: str) -> str:
    """Return the text of a page with what is printed now."""
    before, _, rest = (FOLDER / f"{page}.md").read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{folded(PAGES[page]())}\n\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Write every page."""
    for page in PAGES:
        text = filled(page)
        with staged_file(FOLDER / f"{page}.md") as file:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
