// Charts with one row for each method or factor on a common scale.

const clipped = (name, most = 13) => name.length > most ? `${name.slice(0, most - 1)}…` : name;

// `paint(group, row, y)` draws a row and returns its marks, or nothing for the row itself to be one.
function rowChart(title, rows, { width, row, left = 100, top = 4, foot = 24, most = 13, kind = null, marks, x, format }, paint) {
  const base = top + row * rows.length;
  const chart = draw('svg', { viewBox: `0 0 ${width} ${base + foot}`, role: 'img', class: kind, 'aria-label': title });
  for (const value of marks) chart.append(line(x(value), top, x(value), base, value === 1 && !foot ? 'ideal' : 'gridline'), text(x(value), base + 17, foot ? format(value) : ''));
  const tips = rows.flatMap((r, k) => {
    const y = top + row * (k + .5), group = draw('g', { class: 'column' }, draw('rect', { class: 'catch', x: 0, y: y - row / 2, width, height: row }),
      text(left - 10, y + 4, clipped(r.name, most), 'end', 'strong'));
    chart.append(group);
    const found = paint(group, r, y);
    return Array.isArray(found[0]) ? [{ element: group, title: r.name, rows: found }] : found;
  });
  return explain(chart, tips);
}
const bar = (from, to, y, colour, wide = 3) => draw('line', { x1: from, x2: to, y1: y, y2: y, stroke: colour, 'stroke-width': wide, 'stroke-opacity': .45, 'stroke-linecap': 'round' });

// A value of each method with its interval, and the floor of a perfectly calibrated network.
function intervals(rows, metric, title) {
  const ends = rows.flatMap(r => [r.value, r.low, r.high, r.floor]).filter(known), unit = metrics[metric].percent ? 100 : 1, width = 350;
  // a score without a natural zero in sight starts where its values do
  const least = unit === 100 ? 0 : Math.max(0, Math.min(...ends) - .15 * (Math.max(...ends) - Math.min(...ends)));
  const most = Math.max(...ends, least + 1e-9) + .04 * (Math.max(...ends) - least), x = scale(least, most, 100, width - 52);
  const marks = ticks(unit * least, unit * most, 4), shown = value => inUnit(metric, value);
  return rowChart(title, rows, { width, row: 26, marks: marks.map(mark => mark / unit), x, format: value => (value * unit).toFixed(digitsOf(marks)) }, (group, r, y) => {
    const style = styleOf(r.name), rows = [[title, shown(r.value)]];
    if (known(r.low)) { group.append(bar(x(r.low), x(r.high), y, style.colour)); rows.push(['95 % interval', `${shown(r.low)} – ${shown(r.high)}`]); }
    if (known(r.floor)) { group.append(line(x(r.floor), y - 9, x(r.floor), y + 9, 'floorline')); rows.push(['perfectly calibrated', shown(r.floor)]); }
    if (known(r.value)) group.append(marker(style.shape, x(r.value), y, 4.5, { fill: style.colour }));
    group.append(text(width, y + 4, shown(r.value), 'end', 'strong'));
    return rows;
  });
}

// NLL and entropy over all pixels, joined by a bar: the longer, the further from the best temperature.
function dumbbells(rows) {
  const ends = rows.flatMap(r => [r.nll, r.entropy]).filter(known), pad = (Math.max(...ends) - Math.min(...ends)) * .08 || .01;
  const least = Math.min(...ends) - pad, most = Math.max(...ends) + pad, width = 420, x = scale(least, most, 100, width - 12), marks = ticks(least, most, 4);
  return rowChart('NLL and entropy over all pixels', rows, { width, row: 30, top: 18, kind: 'middling', marks, x, format: value => value.toFixed(digitsOf(marks)) }, (group, r, y) => {
    const over = r.nll > r.entropy;
    group.append(bar(x(r.entropy), x(r.nll), y, over ? 'var(--over)' : 'var(--under)', 5));
    group.append(draw('circle', { cx: x(r.entropy), cy: y, r: 5, fill: 'var(--card)', stroke: 'var(--ink)', 'stroke-width': 1.5 }), draw('circle', { cx: x(r.nll), cy: y, r: 5, class: 'dot' }));
    return [['NLL', fixed(r.nll, 4)], ['entropy', fixed(r.entropy, 4)], [over ? 'overconfident by' : 'underconfident by', `${fixed(Math.abs(r.nll - r.entropy), 4)} nats`]];
  });
}

// One dot for each image: how much a metric varies within the data set.
function strip(rows, metric, title) {
  const width = innerWidth < 640 ? 400 : 720, all = rows.flatMap(r => r.values).filter(known), unit = metrics[metric].percent ? 100 : 1;
  const most = Math.max(...all, 1e-9) * 1.04, x = scale(0, most, 100, width - 12), marks = ticks(0, unit * most, width / 100);
  return rowChart(title, rows, { width, row: 40, top: 6, marks: marks.map(mark => mark / unit), x, format: value => (value * unit).toFixed(digitsOf(marks)) }, (group, r, y) => {
    const style = styleOf(r.name), kept = r.values.filter(known).sort((a, b) => a - b), n = kept.length;
    if (n) group.append(line(x((kept[(n - 1) >> 1] + kept[n >> 1]) / 2), y - 14, x((kept[(n - 1) >> 1] + kept[n >> 1]) / 2), y + 14, 'whisker'));
    return r.values.map((value, j) => ({ value, j })).filter(one => known(one.value)).map(({ value, j }) => {
      const element = marker(style.shape, x(value), y + ((j * 7) % 17 - 8), 3.4, { fill: style.colour, 'fill-opacity': .8, class: 'point' });
      group.append(element);
      return { element, title: DATA.cases[j], rows: [['method', r.name], [title, inUnit(metric, value)]] };
    });
  });
}

// A factor on the temperature with its interval, on a logarithmic scale around 1. The axis stays in sight when many rows
// scroll.
const FACTORS = [.02, .05, .1, .2, .25, .33, .5, .67, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 5, 10, 20, 50];
function factors(rows, title) {
  const narrow = innerWidth < 640, left = narrow ? 150 : 206, width = narrow ? 350 : 460, right = width - 44;
  const ends = rows.flatMap(r => [r.value, r.low, r.high]).filter(known).map(value => Math.abs(Math.log(value)));
  const reach = Math.max(...ends, Math.log(1.06)) * 1.06, x = value => scale(-reach, reach, left, right)(Math.log(value));
  const marks = [1];
  for (const value of [...FACTORS].sort((a, b) => Math.abs(Math.log(b)) - Math.abs(Math.log(a)))) {
    if (Math.abs(Math.log(value)) <= reach && marks.every(other => Math.abs(x(other) - x(value)) > 36)) marks.push(value);
  }
  const chart = rowChart(title, rows, { width, row: 24, left, foot: 0, most: narrow ? 24 : 34, marks, x }, (group, r, y) => {
    const sure = known(r.low) && (r.low > 1 || r.high < 1), colour = known(r.low) && !sure ? 'var(--faint)' : r.value > 1 ? 'var(--over)' : 'var(--under)';
    if (known(r.low)) group.append(bar(x(r.low), x(r.high), y, colour));
    group.append(marker('circle', x(r.value), y, 4.5, { fill: colour }), text(width, y + 4, `×${fixed(r.value, 2)}`, 'end', 'strong'));
    return [['factor on the temperature', `×${fixed(r.value, 3)}`], ...(known(r.low) ? [['95 % interval', `×${fixed(r.low, 3)} – ×${fixed(r.high, 3)}`]] : [])];
  });
  const axis = draw('svg', { viewBox: `0 0 ${width} 34`, class: 'axisrow', 'aria-hidden': 'true' }, line(left, .5, right, .5, 'axis'), marks.map(value => text(x(value), 14, `×${value}`)),
    text(x(1) - 8, 29, narrow ? '← raises' : '← raises confidence', 'end'), text(x(1) + 8, 29, narrow ? 'lowers →' : 'lowers confidence →', 'start'));
  return node('div', { class: 'factors' }, chart, axis);
}
