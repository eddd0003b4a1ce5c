"""Files on disk: output that appears whole or not at all, what it may replace, and how text and arrays are read."""

from segcal.files.guards import (
    LISTED,
    MARKER,
    check_output_file,
    check_output_folder,
    local_path,
    refuse_foreign,
    refuse_overwriting,
    refuse_unfinished,
    url_of,
)
from segcal.files.outputs import signed_file, staged_file, staged_folder, staged_store
from segcal.files.reading import read_json, read_text, read_toml, refuse_special, release_pages, write_json

__all__ = [
    "LISTED",
    "MARKER",
    "check_output_file",
    "check_output_folder",
    "local_path",
    "read_json",
    "read_text",
    "read_toml",
    "refuse_foreign",
    "refuse_overwriting",
    "refuse_special",
    "refuse_unfinished",
    "release_pages",
    "signed_file",
    "staged_file",
    "staged_folder",
    "staged_store",
    "url_of",
    "write_json",
]
