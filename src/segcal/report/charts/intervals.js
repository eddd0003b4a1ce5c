// One row for each method: a value with its interval, and the floor of a perfectly calibrated network.
function intervals(rows, metric, title) {
  const left = 100, width = 350, row = 26, top = 4, height = top + row * rows.length + 24;
  const ends = rows.flatMap(r => [r.value, r.low, r.high, r.floor]).filter(known), unit = DATA.metrics[metric].percent ? 100 : 1;
  // a score without a natural zero in sight starts where its values do
  const least = unit === 100 ? 0 : Math.max(0, Math.min(...ends) - .15 * (Math.max(...ends) - Math.min(...ends)));
  const most = Math.max(...ends, least + 1e-9) + .04 * (Math.max(...ends) - least);
  const x = scale(least, most, left, width - 52), marks = ticks(unit * least, unit * most, 4), format = value => inUnit(metric, value);
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  for (const value of marks) {
    chart.append(line(x(value / unit), top, x(value / unit), height - 20, 'gridline'), text(x(value / unit), height - 6, value.toFixed(digitsOf(marks))));
  }
  const tips = rows.map((r, k) => {
    const y = top + row * (k + .5), style = styleOf(r.method), group = draw('g', { class: 'column' });
    const name = r.method.length > 13 ? `${r.method.slice(0, 12)}…` : r.method;
    group.append(draw('rect', { class: 'catch', x: 0, y: y - row / 2, width, height: row }));
    group.append(text(left - 10, y + 4, name, 'end', 'strong'));
    if (known(r.low)) group.append(draw('line', { x1: x(r.low), x2: x(r.high), y1: y, y2: y, stroke: style.colour, 'stroke-width': 3, 'stroke-opacity': .45, 'stroke-linecap': 'round' }));
    if (known(r.floor)) group.append(line(x(r.floor), y - 9, x(r.floor), y + 9, 'floorline'));
    if (known(r.value)) group.append(marker(style.shape, x(r.value), y, 4.5, { fill: style.colour }));
    group.append(text(width, y + 4, format(r.value), 'end', 'strong'));
    chart.append(group);
    const detail = [[title, format(r.value)]];
    if (known(r.low)) detail.push(['95 % interval', `${format(r.low)} – ${format(r.high)}`]);
    if (known(r.floor)) detail.push(['perfectly calibrated', format(r.floor)]);
    return { element: group, title: r.method, rows: detail };
  });
  explain(chart, tips);
  return chart;
}
