// The charts: reliability diagrams, intervals by method, lines over patch size, NLL against entropy.

const scale = (low, high, from, to) => value => from + (to - from) * (high === low ? 0.5 : (value - low) / (high - low));

function ticks(low, high, wanted = 5) {
  const span = high - low || 1, raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(k => k * power).find(k => k >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k++) found.push(k * step);
  return found;
}
const digitsOf = marks => marks.length < 2 ? 1 : Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0]) + 1e-9) + (Math.abs((marks[1] - marks[0]) / 10 ** Math.floor(Math.log10(marks[1] - marks[0]) + 1e-9) - 2.5) < 1e-6 ? 1 : 0));
const line = (x1, y1, x2, y2, kind) => draw('line', { x1, y1, x2, y2, class: kind });
const text = (x, y, words, anchor = 'middle', kind = null) => draw('text', { x, y, 'text-anchor': anchor, class: kind }, words);

function marker(shape, x, y, r, attributes) {
  if (shape === 'square') return draw('rect', { x: x - r * .9, y: y - r * .9, width: r * 1.8, height: r * 1.8, ...attributes });
  if (shape === 'diamond') return draw('path', { d: `M${x} ${y - r * 1.25}L${x + r * 1.25} ${y}L${x} ${y + r * 1.25}L${x - r * 1.25} ${y}Z`, ...attributes });
  if (shape === 'triangle') return draw('path', { d: `M${x} ${y - r * 1.2}L${x + r * 1.15} ${y + r}L${x - r * 1.15} ${y + r}Z`, ...attributes });
  return draw('circle', { cx: x, cy: y, r, ...attributes });
}

// A curve is a list of bins [pixels, right pixels, summed confidence, low, high]; the last two bound the accuracy.
function readCurve(curve) {
  const total = sum(curve.map(bin => bin[0]));
  if (!total) return { total, ece: null, accuracy: null, confidence: null };
  return {
    total,
    ece: sum(curve.map(bin => Math.abs(bin[1] - bin[2]))) / total,
    accuracy: sum(curve.map(bin => bin[1])) / total,
    confidence: sum(curve.map(bin => bin[2])) / total,
  };
}

// Accuracy of each bin, its gap to the mean confidence shaded, and below it how many pixels have such confidence.
function reliability(curve, title, small = false) {
  const read = readCurve(curve), n = curve.length;
  const left = small ? 4 : 44, size = small ? 112 : 210, top = 6, gap = small ? 4 : 8, tall = small ? 22 : 44;
  const width = left + size + 6, base = top + size, floor = base + gap + tall, height = floor + (small ? 4 : 32);
  const x = scale(0, 1, left, left + size), y = scale(0, 1, base, top);
  const peak = Math.max(...curve.map(bin => bin[0])) / (read.total || 1) || 1;
  const rows = [['pixels', whole(read.total)], ['ECE', `${percent(read.ece)} %`]];
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', class: 'reliability',
    'aria-label': `${title}: ECE ${percent(read.ece)} %, mean confidence ${fixed(read.confidence, 3)}, accuracy ${fixed(read.accuracy, 3)}` });
  for (const value of small ? [] : [0, .25, .5, .75, 1]) {
    chart.append(line(x(0), y(value), x(1), y(value), 'gridline'), text(left - 5, y(value) + 4, String(value), 'end'));
    chart.append(text(x(value), floor + 14, String(value)));
  }
  if (small) chart.append(draw('rect', { x: x(0), y: y(1), width: size, height: size, fill: 'none', class: 'gridline' }));
  const marks = [];
  curve.forEach(([count, hit, confidence, low, high], k) => {
    const from = x(k / n) + .75, wide = size / n - 1.5;
    const column = draw('g', { class: 'column' });
    if (count) {
      const accuracy = hit / count, sure = confidence / count, over = sure > accuracy, share = count / read.total;
      column.append(draw('rect', { class: 'bin', x: from, y: y(accuracy), width: wide, height: base - y(accuracy) }));
      column.append(draw('rect', { class: over ? 'over' : 'under', x: from, width: wide, y: y(Math.max(sure, accuracy)), height: Math.abs(y(sure) - y(accuracy)) }));
      if (known(low) && !small) column.append(line(x(sure), y(low), x(sure), y(high), 'whisker'));
      column.append(draw('circle', { class: 'dot', cx: x(sure), cy: y(accuracy), r: small ? 2 : 2.8 }));
      column.append(draw('rect', { class: 'bin', x: from, y: floor - tall * share / peak, width: wide, height: tall * share / peak }));
      const told = [['mean confidence', fixed(sure, 3)], ['accuracy', fixed(accuracy, 3)]];
      if (known(low)) told.push(['95 % interval', `${fixed(low, 3)} – ${fixed(high, 3)}`]);
      told.push([over ? 'overconfident by' : 'underconfident by', fixed(Math.abs(sure - accuracy), 3)]);
      told.push(['pixels', `${whole(count)} (${percent(share, 1)} %)`]);
      marks.push({ element: column, title: `${title}: confidence ${fixed(k / n, 2)} to ${fixed((k + 1) / n, 2)}`, rows: told });
    }
    column.append(draw('rect', { class: 'catch', x: x(k / n), y: top, width: size / n, height: floor - top }));
    chart.append(column);
  });
  chart.append(line(x(0), y(0), x(1), y(1), 'ideal'), line(x(0), base, x(1), base, 'axis'), line(x(0), floor, x(1), floor, 'axis'));
  if (!small) {
    chart.append(text(x(.5), floor + 28, 'confidence'), text(left - 5, floor - tall + 8, percent(peak, 0) + ' %', 'end'));
    chart.append(draw('text', { transform: `translate(${9} ${y(.5)}) rotate(-90)`, 'text-anchor': 'middle' }, 'accuracy'));
  }
  if (!read.total) chart.append(text(x(.5), y(.5), 'no pixels'));
  explain(chart, small && !marks.length ? [] : marks.map(mark => small ? { ...mark, rows: [...mark.rows, ...rows.slice(1)] } : mark));
  return chart;
}

// One row for each method: a value with its interval, and the floor of a perfectly calibrated network.
function forest(rows, format, title) {
  const left = 100, width = 350, row = 26, top = 4, height = top + row * rows.length + 24;
  const ends = rows.flatMap(r => [r.value, r.low, r.high, r.floor]).filter(known);
  const most = Math.max(...ends, 1e-9) * 1.04;
  const x = scale(0, most, left, width - 46), marks = ticks(0, most, 4);
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  for (const value of marks) {
    chart.append(line(x(value), top, x(value), height - 20, 'gridline'), text(x(value), height - 6, format(value, true)));
  }
  const told = rows.map((r, k) => {
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
  explain(chart, told);
  return chart;
}

// One row for each influence: a factor on the temperature with its interval, on a scale of logarithms around 1.
const FACTORS = [.02, .05, .1, .2, .25, .33, .5, .67, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 5, 10, 20, 50];
function factors(rows, title) {
  const left = 206, width = 460, row = 24, top = 18, height = top + row * rows.length + 24, right = width - 44;
  const ends = rows.flatMap(r => [r.value, r.low, r.high]).filter(known).map(value => Math.abs(Math.log(value)));
  const reach = Math.max(...ends, Math.log(1.06)) * 1.06, x = value => scale(-reach, reach, left, right)(Math.log(value));
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  const taken = [x(1)];
  const shown = [1, ...[...FACTORS].sort((a, b) => Math.abs(Math.log(b)) - Math.abs(Math.log(a))).filter(value => {
    const free = Math.abs(Math.log(value)) <= reach && taken.every(at => Math.abs(at - x(value)) > 36);
    if (free) taken.push(x(value));
    return free;
  })];
  for (const value of shown) chart.append(line(x(value), top, x(value), height - 20, value === 1 ? 'ideal' : 'gridline'), text(x(value), height - 6, `×${value}`));
  chart.append(text(left, top - 8, '← sharper', 'start'), text(right, top - 8, 'softer →', 'end'));
  const told = rows.map((r, k) => {
    const y = top + row * (k + .5), sure = known(r.low) && (r.low > 1 || r.high < 1), group = draw('g', { class: 'column' });
    const colour = known(r.low) && !sure ? 'var(--faint)' : r.value > 1 ? 'var(--over)' : 'var(--under)';
    const name = r.name.length > 34 ? `${r.name.slice(0, 33)}…` : r.name;
    group.append(draw('rect', { class: 'catch', x: 0, y: y - row / 2, width, height: row }), text(left - 10, y + 4, name, 'end', 'strong'));
    if (known(r.low)) group.append(draw('line', { x1: x(r.low), x2: x(r.high), y1: y, y2: y, stroke: colour, 'stroke-width': 3, 'stroke-opacity': .45, 'stroke-linecap': 'round' }));
    group.append(marker('circle', x(r.value), y, 4.5, { fill: colour }), text(width, y + 4, `×${fixed(r.value, 2)}`, 'end', 'strong'));
    chart.append(group);
    const detail = [['factor on the temperature', `×${fixed(r.value, 3)}`]];
    if (known(r.low)) detail.push(['95 % interval', `×${fixed(r.low, 3)} – ×${fixed(r.high, 3)}`]);
    return { element: group, title: r.name, rows: detail };
  });
  explain(chart, told);
  return chart;
}

function axes(chart, box, x, y, xMarks, yMarks, format, xTitle, yTitle) {
  for (const value of yMarks) chart.append(line(box.left, y(value), box.right, y(value), 'gridline'), text(box.left - 6, y(value) + 4, format.y(value), 'end'));
  for (const value of xMarks) chart.append(line(x(value), box.base, x(value), box.base + 4, 'axis'), text(x(value), box.base + 17, format.x(value)));
  chart.append(line(box.left, box.base, box.right, box.base, 'axis'), text((box.left + box.right) / 2, box.base + 34, xTitle));
  chart.append(draw('text', { transform: `translate(12 ${(box.top + box.base) / 2}) rotate(-90)`, 'text-anchor': 'middle' }, yTitle));
}

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
  const told = [];
  for (const { method, points } of series) {
    const style = styleOf(method), kept = points.filter(p => known(p[1]));
    chart.append(draw('polyline', { points: kept.map(p => `${x(p[0])},${y(p[1])}`).join(' '), fill: 'none', stroke: style.colour, 'stroke-width': 2, 'stroke-dasharray': style.dash }));
    for (const [size, value] of kept) {
      const group = draw('g', { class: 'column' }, draw('circle', { class: 'catch', cx: x(size), cy: y(value), r: 11 }),
        marker(style.shape, x(size), y(value), 4, { fill: style.colour }));
      chart.append(group);
      told.push({ element: group, title: method, rows: [[xTitle, String(size)], [yTitle, inUnit(metric, value)]] });
    }
  }
  explain(chart, told);
  return chart;
}

// Each image is a point; on the diagonal NLL equals entropy, and one temperature can do no more (Theorem 4).
function scatter(points, hidden) {
  const box = { left: 48, right: 410, top: 10, base: 372 };
  const all = points.flatMap(p => [p.x, p.y]), pad = (Math.max(...all) - Math.min(...all)) * .06 || .01;
  const least = Math.max(0, Math.min(...all) - pad), most = Math.max(...all) + pad, at = share => least + share * (most - least);
  const x = scale(least, most, box.left, box.right), y = scale(least, most, box.base, box.top), marks = ticks(least, most);
  const chart = draw('svg', { viewBox: '0 0 420 412', role: 'img', class: 'middling', 'aria-label': 'NLL against entropy, one point an image' });
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

// NLL and entropy over all pixels, joined by a bar whose length is what one temperature could still mend.
function dumbbells(rows) {
  const left = 100, width = 420, row = 30, top = 18, height = top + row * rows.length + 24;
  const ends = rows.flatMap(r => [r.nll, r.entropy]).filter(known), least = Math.min(...ends), most = Math.max(...ends);
  const pad = (most - least) * .08 || .01, x = scale(least - pad, most + pad, left, width - 12), marks = ticks(least - pad, most + pad, 4);
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', class: 'middling', 'aria-label': 'NLL and entropy over all pixels' });
  for (const value of marks) chart.append(line(x(value), top, x(value), height - 20, 'gridline'), text(x(value), height - 6, value.toFixed(digitsOf(marks))));
  const told = rows.map((r, k) => {
    const y = top + row * (k + .5), over = r.nll > r.entropy, group = draw('g', { class: 'column' });
    group.append(draw('rect', { class: 'catch', x: 0, y: y - row / 2, width, height: row }));
    group.append(text(left - 10, y + 4, r.method.length > 13 ? `${r.method.slice(0, 12)}…` : r.method, 'end', 'strong'));
    group.append(draw('line', { x1: x(r.entropy), x2: x(r.nll), y1: y, y2: y, stroke: over ? 'var(--over)' : 'var(--under)', 'stroke-width': 5, 'stroke-opacity': .4 }));
    group.append(draw('circle', { cx: x(r.entropy), cy: y, r: 5, fill: 'var(--card)', stroke: 'var(--ink)', 'stroke-width': 1.5 }), draw('circle', { cx: x(r.nll), cy: y, r: 5, class: 'dot' }));
    chart.append(group);
    return { element: group, title: r.method, rows: [['NLL', fixed(r.nll, 4)], ['entropy', fixed(r.entropy, 4)], [over ? 'overconfident by' : 'underconfident by', `${fixed(Math.abs(r.nll - r.entropy), 4)} nats`]] };
  });
  explain(chart, told);
  return chart;
}
