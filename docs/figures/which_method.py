"""Draws `which-method.svg`, the decision diagram: `python docs/figures/which_method.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, ROW, BOX_W, BOX_H = 860, 92, 330, 58
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#444444"/></marker>'
)


def box(x: float, y: float, title: str, text: str = "", *, method: bool = False) -> str:
    """Return a rectangle with one or two centred lines."""
    fill, ink = ("#e3f0fb", "#0d3b66") if method else ("#f5f5f5", "#222222")
    middle = y + BOX_H / 2
    lines = [(title, middle + 5 if not text else middle - 4, "bold" if method else "normal")]
    lines += [(text, middle + 17, "normal")] if text else []
    texts = "".join(
        f'<text x="{x + BOX_W / 2}" y="{place}" font-weight="{weight}">{escape(line)}</text>'
        for line, place, weight in lines
    )
    frame = f'<rect x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="8" fill="{fill}" stroke="{ink}"/>'
    return f'{frame}<g fill="{ink}" text-anchor="middle">{texts}</g>'


def arrow(x1: float, y1: float, x2: float, y2: float, label: str) -> str:
    """Return an arrow with its label beside it."""
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#444444" marker-end="url(#tip)"/>'
    dx, dy = (8, 4) if x1 == x2 else (0, -7)
    return f'{line}<text x="{(x1 + x2) / 2 + dx}" y="{(y1 + y2) / 2 + dy}" fill="#444444">{label}</text>'


def main() -> None:
    """Write the diagram: questions on the left, methods on the right."""
    left, right = 20, WIDTH - BOX_W - 20
    rows = [
        ("Fewer than four images to fit on?", "yes", "ts", "one temperature, exact"),
        ("May predicted labels change?", "yes", "vector, dirichlet", "correct whole classes"),
        ("Do images or pixels differ (segcal diagnose)?", "no", "ts, isotonic, ets", "one function for all pixels"),
        ("A validation split?", "no", "cts", "a few dozen parameters, shrunk towards ts"),
    ]
    parts = []
    for k, (question, answer, method, text) in enumerate(rows):
        y = 16 + k * ROW
        parts += [box(left, y, question), box(right, y, method, text, method=True)]
        parts.append(arrow(left + BOX_W, y + BOX_H / 2, right - 6, y + BOX_H / 2, answer))
        other = "no" if answer == "yes" else "yes"
        parts.append(arrow(left + BOX_W / 2, y + BOX_H, left + BOX_W / 2, y + ROW - 6, other))
    y = 16 + len(rows) * ROW
    parts.append(box(left, y, "auto, or lts and cts", "compared on held-out images", method=True))
    height = y + BOX_H + 16
    style = 'font-family="system-ui, sans-serif" font-size="14"'
    title = "<title>Which calibration method to use, by data and purpose</title>"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {style}>'
    ground = f'<rect width="100%" height="100%" fill="white"/><defs>{TIP}</defs>'
    svg = f"{opening}{title}{ground}{''.join(parts)}</svg>\n"
    Path(__file__).with_name("which-method.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
