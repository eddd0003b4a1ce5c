"""MkDocs hook: formulas become MathML when the site is built, so that no script and no other host is needed."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.S)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of a page, marked by pymdownx.arithmatex in generic mode, by MathML."""
    content = _BLOCK.sub(lambda found: convert(html.unescape(found[1]), display="block"), content)
    return _INLINE.sub(lambda found: convert(html.unescape(found[1])), content)
