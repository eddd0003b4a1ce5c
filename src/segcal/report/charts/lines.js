// A line for each method: series of [x, value].
function lines(series, metric, xTitle, yTitle) {
  const box = { left: 48, right: 550, top: 10, base: 250 };
  const xs = [...new Set(series.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b);
  const ys = series.flatMap(s => s.points.map(p => p[1])).filter(known), unit = DATA.metrics[metric].percent ? 100 : 1;
  const most = Math.max(...ys, 1e-9) * unit, x = scale(xs[0], xs[xs.length - 1], box.left + 12, box.right - 12);
  const named = xs.filter((value, k) => k === 0 || k === xs.length - 1 || xs.length < 9 || value % 25 === 0);
  const marks = ticks(0, most * 1.04), y = value => scale(0, most * 1.04, box.base, box.top)(value * unit);
  const chart = draw('svg', { viewBox: '0 0 560 290', role: 'img', class: 'wide', 'aria-label': `${yTitle} against ${xTitle}` });
  axes(chart, box, x, value => y(value / unit), named, marks, { x: String, y: value => value.toFixed(digitsOf(marks)) }, xTitle, yTitle);
  const tips = [];
  for (const { method, points } of series) {
    const style = styleOf(method), kept = points.filter(p => known(p[1]));
    chart.append(draw('polyline', { points: kept.map(p => `${x(p[0])},${y(p[1])}`).join(' '), fill: 'none', stroke: style.colour, 'stroke-width': 2, 'stroke-dasharray': style.dash }));
    for (const [size, value] of kept) {
      const group = draw('g', { class: 'column' }, draw('circle', { class: 'catch', cx: x(size), cy: y(value), r: 11 }),
        marker(style.shape, x(size), y(value), 4, { fill: style.colour }));
      chart.append(group);
      tips.push({ element: group, title: method, rows: [[xTitle, String(size)], [yTitle, inUnit(metric, value)]] });
    }
  }
  explain(chart, tips);
  return chart;
}
