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
  for (const point of points) {
    if (hidden.has(point.method)) continue;
    const style = styleOf(point.method);
    const mark = marker(style.shape, x(point.x), y(point.y), 3.6, { fill: style.colour, 'fill-opacity': .75, class: 'point' });
    mark.addEventListener('pointermove', event => showTip(event.clientX, event.clientY, point.name,
      [['method', point.method], ['NLL', fixed(point.y, 4)], ['entropy', fixed(point.x, 4)]]));
    mark.addEventListener('pointerleave', hideTip);
    chart.append(mark);
  }
  return chart;
}
