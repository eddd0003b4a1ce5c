// One row for each method and one dot for each image: how much a metric varies within the data set.
function strip(rows, metric, title) {
  const left = 100, width = innerWidth < 640 ? 400 : 720, row = 40, top = 6, base = top + row * rows.length, height = base + 38;
  const all = rows.flatMap(r => r.values).filter(known), unit = DATA.metrics[metric].percent ? 100 : 1;
  const most = Math.max(...all, 1e-9) * 1.04, x = scale(0, most, left, width - 12), marks = ticks(0, unit * most, width / 100);
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  for (const value of marks) chart.append(line(x(value / unit), top, x(value / unit), base, 'gridline'), text(x(value / unit), base + 16, value.toFixed(digitsOf(marks))));
  chart.append(text((left + width) / 2, base + 33, title));
  rows.forEach((r, k) => {
    const y = top + row * (k + .5), style = styleOf(r.method), kept = r.values.filter(known).sort((a, b) => a - b);
    chart.append(text(left - 10, y + 4, r.method.length > 13 ? `${r.method.slice(0, 12)}…` : r.method, 'end', 'strong'));
    if (kept.length) {
      const middle = (kept[Math.floor((kept.length - 1) / 2)] + kept[Math.floor(kept.length / 2)]) / 2;
      chart.append(line(x(middle), y - 14, x(middle), y + 14, 'whisker'));
    }
    r.values.forEach((value, j) => {
      if (!known(value)) return;
      const mark = marker(style.shape, x(value), y + ((j * 7) % 17 - 8), 3.4, { fill: style.colour, 'fill-opacity': .8, class: 'point' });
      mark.addEventListener('pointermove', event => showTip(event.clientX, event.clientY, DATA.cases[j], [['method', r.method], [title, inUnit(metric, value)]]));
      mark.addEventListener('pointerleave', hideTip);
      chart.append(mark);
    });
  });
  return chart;
}
