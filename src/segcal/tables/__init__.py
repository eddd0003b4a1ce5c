"""Results as tables: the paper's, in the terminal, in LaTeX and in Markdown, and means with their intervals."""

from segcal.functional.catalogue import CALIBRATION, QUALITY
from segcal.regions import REGIONS
from segcal.tables.markup import latex_table, markdown_table
from segcal.tables.paper import Average, Cell, PaperTable, Presentation, named_method, paper_table
from segcal.tables.structures import class_errors, mean_quality, structure_table, surface_table
from segcal.tables.summaries import averaged_rows, image_means, summary, volume_bias
from segcal.tables.text_table import TextTable

__all__ = [
    "CALIBRATION",
    "QUALITY",
    "REGIONS",
    "Average",
    "Cell",
    "PaperTable",
    "Presentation",
    "TextTable",
    "averaged_rows",
    "class_errors",
    "image_means",
    "latex_table",
    "markdown_table",
    "mean_quality",
    "named_method",
    "paper_table",
    "structure_table",
    "summary",
    "surface_table",
    "volume_bias",
]
