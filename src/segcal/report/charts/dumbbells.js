// NLL and entropy over all pixels, joined by a bar: the longer, the further from the best temperature.
function dumbbells(rows) {
  const left = 100, width = 420, row = 30, top = 18, height = top + row * rows.length + 24;
  const ends = rows.flatMap(r => [r.nll, r.entropy]).filter(known), least = Math.min(...ends), most = Math.max(...ends);
  const pad = (most - least) * .08 || .01, x = scale(least - pad, most + pad, left, width - 12), marks = ticks(least - pad, most + pad, 4);
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', class: 'middling', 'aria-label': 'NLL and entropy over all pixels' });
  for (const value of marks) chart.append(line(x(value), top, x(value), height - 20, 'gridline'), text(x(value), height - 6, value.toFixed(digitsOf(marks))));
  const tips = rows.map((r, k) => {
    const y = top + row * (k + .5), over = r.nll > r.entropy, group = draw('g', { class: 'column' });
    group.append(draw('rect', { class: 'catch', x: 0, y: y - row / 2, width, height: row }));
    group.append(text(left - 10, y + 4, r.method.length > 13 ? `${r.method.slice(0, 12)}…` : r.method, 'end', 'strong'));
    group.append(draw('line', { x1: x(r.entropy), x2: x(r.nll), y1: y, y2: y, stroke: over ? 'var(--over)' : 'var(--under)', 'stroke-width': 5, 'stroke-opacity': .4 }));
    group.append(draw('circle', { cx: x(r.entropy), cy: y, r: 5, fill: 'var(--card)', stroke: 'var(--ink)', 'stroke-width': 1.5 }), draw('circle', { cx: x(r.nll), cy: y, r: 5, class: 'dot' }));
    chart.append(group);
    return { element: group, title: r.method, rows: [['NLL', fixed(r.nll, 4)], ['entropy', fixed(r.entropy, 4)], [over ? 'overconfident by' : 'underconfident by', `${fixed(Math.abs(r.nll - r.entropy), 4)} nats`]] };
  });
  explain(chart, tips);
  return chart;
}
