// One row for each influence: a factor on the temperature with its interval, on a logarithmic scale around 1.
// The axis stays in sight when many rows scroll.
const FACTORS = [.02, .05, .1, .2, .25, .33, .5, .67, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 5, 10, 20, 50];
function factors(rows, title) {
  const narrow = innerWidth < 640, left = narrow ? 150 : 206, width = narrow ? 350 : 460, row = 24, top = 4, height = top + row * rows.length + 4, right = width - 44;
  const ends = rows.flatMap(r => [r.value, r.low, r.high]).filter(known).map(value => Math.abs(Math.log(value)));
  const reach = Math.max(...ends, Math.log(1.06)) * 1.06, x = value => scale(-reach, reach, left, right)(Math.log(value));
  const chart = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  const taken = [x(1)];
  const shown = [1, ...[...FACTORS].sort((a, b) => Math.abs(Math.log(b)) - Math.abs(Math.log(a))).filter(value => {
    const free = Math.abs(Math.log(value)) <= reach && taken.every(at => Math.abs(at - x(value)) > 36);
    if (free) taken.push(x(value));
    return free;
  })];
  for (const value of shown) chart.append(line(x(value), 0, x(value), height, value === 1 ? 'ideal' : 'gridline'));
  const axis = draw('svg', { viewBox: `0 0 ${width} 34`, class: 'axisrow', 'aria-hidden': 'true' }, line(left, .5, right, .5, 'axis'),
    shown.map(value => text(x(value), 14, `×${value}`)), text(x(1) - 8, 29, narrow ? '← raises' : '← raises confidence', 'end'), text(x(1) + 8, 29, narrow ? 'lowers →' : 'lowers confidence →', 'start'));
  const tips = rows.map((r, k) => {
    const y = top + row * (k + .5), sure = known(r.low) && (r.low > 1 || r.high < 1), group = draw('g', { class: 'column' });
    const colour = known(r.low) && !sure ? 'var(--faint)' : r.value > 1 ? 'var(--over)' : 'var(--under)';
    const name = r.name.length > (narrow ? 24 : 34) ? `${r.name.slice(0, narrow ? 23 : 33)}…` : r.name;
    group.append(draw('rect', { class: 'catch', x: 0, y: y - row / 2, width, height: row }), text(left - 10, y + 4, name, 'end', 'strong'));
    if (known(r.low)) group.append(draw('line', { x1: x(r.low), x2: x(r.high), y1: y, y2: y, stroke: colour, 'stroke-width': 3, 'stroke-opacity': .45, 'stroke-linecap': 'round' }));
    group.append(marker('circle', x(r.value), y, 4.5, { fill: colour }), text(width, y + 4, `×${fixed(r.value, 2)}`, 'end', 'strong'));
    chart.append(group);
    const detail = [['factor on the temperature', `×${fixed(r.value, 3)}`]];
    if (known(r.low)) detail.push(['95 % interval', `×${fixed(r.low, 3)} – ×${fixed(r.high, 3)}`]);
    return { element: group, title: r.name, rows: detail };
  });
  explain(chart, tips);
  return node('div', { class: 'factors' }, chart, axis);
}
