// Risk against coverage, a line for each method: points [coverage, risk, confidence].
function riskCoverage(series) {
  const box = { left: 48, right: 410, top: 10, base: 250 };
  const most = Math.max(...series.flatMap(s => s.points.map(p => p[1])).filter(known), 1e-9) * 100;
  const x = scale(0, 100, box.left, box.right), y = scale(0, most * 1.04, box.base, box.top), marks = ticks(0, most * 1.04);
  const chart = draw('svg', { viewBox: '0 0 420 290', role: 'img', class: 'middling', 'aria-label': 'Share of wrong pixels against the share that is kept' });
  axes(chart, box, x, y, [0, 25, 50, 75, 100], marks, { x: String, y: value => value.toFixed(digitsOf(marks)) }, 'kept (%)', 'wrong (%)');
  const tips = [];
  for (const { method, points } of series) {
    const style = styleOf(method), shown = points.filter(p => known(p[1]));
    chart.append(draw('polyline', { points: shown.map(p => `${x(100 * p[0])},${y(100 * p[1])}`).join(' '), fill: 'none', stroke: style.colour, 'stroke-width': 2, 'stroke-dasharray': style.dash }));
    for (const [coverage, risk, confidence] of shown.filter((_, k) => k % 10 === 9)) {
      const mark = draw('g', { class: 'column' }, draw('circle', { class: 'catch', cx: x(100 * coverage), cy: y(100 * risk), r: 11 }),
        marker(style.shape, x(100 * coverage), y(100 * risk), 3.5, { fill: style.colour }));
      chart.append(mark);
      tips.push({ element: mark, title: method, rows: [['kept', `${percent(coverage, 0)} %`], ['wrong', `${percent(risk)} %`], ['confidence', fixed(confidence, 4)]] });
    }
  }
  explain(chart, tips);
  return chart;
}
