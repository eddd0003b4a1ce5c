"""Files on disk: output that appears whole or not at all, what it may replace, and how text and arrays are read."""

from segcal.files.guards import (
    MARKER,
    check_output_file,
    local_path,
    refuse_foreign,
    refuse_overwriting,
    refuse_unfinished,
    url_of,
)
from segcal.files.json_files import read_json, read_text, write_json
from segcal.files.mapped import release_pages
from segcal.files.publishing import staged_file, staged_folder, staged_store
from segcal.files.unfinished import discard_unfinished, remove_leftovers, unfinished_folder, unfinished_name

__all__ = [
    "MARKER",
    "check_output_file",
    "discard_unfinished",
    "local_path",
    "read_json",
    "read_text",
    "refuse_foreign",
    "refuse_overwriting",
    "refuse_unfinished",
    "release_pages",
    "remove_leftovers",
    "staged_file",
    "staged_folder",
    "staged_store",
    "unfinished_folder",
    "unfinished_name",
    "url_of",
    "write_json",
]
