// Charts with two axes: lines of methods, and points of images.

// series: [{ method, points: [[x, y, ...]] }] in the units of the axes; `tell(point)` are the values of a mark, of which
// every `step`-th is drawn.
function lines(series, { x: xTitle, y: yTitle, width = 560, named = null, step = 1, tell }) {
  const box = { left: 48, right: width - 10, top: 10, base: 250 };
  const xs = [...new Set(series.flatMap(s => s.points.map(p => p[0])))].sort((a, b) => a - b), ys = series.flatMap(s => s.points.map(p => p[1])).filter(known);
  const most = Math.max(...ys, 1e-9) * 1.04, marks = ticks(0, most), pad = named ? 0 : 12;
  const shown = named || xs.filter((value, k) => k === 0 || k === xs.length - 1 || xs.length < 9 || value % 25 === 0);
  const x = scale(...(named ? [named[0], named[named.length - 1]] : [xs[0], xs[xs.length - 1]]), box.left + pad, box.right - pad), y = scale(0, most, box.base, box.top);
  const chart = draw('svg', { viewBox: `0 0 ${width} 290`, role: 'img', class: width > 500 ? 'wide' : 'middling', 'aria-label': `${yTitle} against ${xTitle}` });
  axes(chart, box, x, y, shown, marks, { x: String, y: value => value.toFixed(digitsOf(marks)) }, xTitle, yTitle);
  return explain(chart, series.flatMap(({ method, points }) => {
    const style = styleOf(method), kept = points.filter(p => known(p[1]));
    chart.append(draw('polyline', { points: kept.map(p => `${x(p[0])},${y(p[1])}`).join(' '), fill: 'none', stroke: style.colour, 'stroke-width': 2, 'stroke-dasharray': style.dash }));
    return kept.filter((_, k) => k % step === step - 1).map(point => {
      const element = draw('g', { class: 'column' }, draw('circle', { class: 'catch', cx: x(point[0]), cy: y(point[1]), r: 11 }), marker(style.shape, x(point[0]), y(point[1]), 4, { fill: style.colour }));
      chart.append(element);
      return { element, title: method, rows: tell(point) };
    });
  }));
}

// Each image is a point; on the diagonal NLL equals entropy, and one temperature can do no more (Theorem 4).
function scatter(points, hidden) {
  const box = { left: 48, right: 410, top: 10, base: 372 };
  const all = points.flatMap(p => [p.x, p.y]), pad = (Math.max(...all) - Math.min(...all)) * .06 || .01;
  const least = Math.max(0, Math.min(...all) - pad), most = Math.max(...all) + pad, at = share => least + share * (most - least);
  const x = scale(least, most, box.left, box.right), y = scale(least, most, box.base, box.top), marks = ticks(least, most);
  const chart = draw('svg', { viewBox: '0 0 420 412', role: 'img', class: 'middling', 'aria-label': 'NLL against entropy, one point per image' });
  const written = value => value.toFixed(digitsOf(marks));
  axes(chart, box, x, y, marks, marks, { x: written, y: written }, 'entropy (nats)', 'NLL (nats)');
  chart.append(line(x(least), y(least), x(most), y(most), 'ideal'));
  chart.append(text(x(at(.02)), y(at(.96)), 'overconfident', 'start'), text(x(at(.98)), y(at(.03)), 'underconfident', 'end'));
  return explain(chart, points.filter(point => !hidden.has(point.method)).map(point => {
    const style = styleOf(point.method), element = marker(style.shape, x(point.x), y(point.y), 3.6, { fill: style.colour, 'fill-opacity': .75, class: 'point' });
    chart.append(element);
    return { element, title: point.name, rows: [['method', point.method], ['NLL', fixed(point.y, 4)], ['entropy', fixed(point.x, 4)]] };
  }));
}
