// Scales, ticks, markers and axes that the charts share.

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

function axes(chart, box, x, y, xMarks, yMarks, format, xTitle, yTitle) {
  for (const value of yMarks) chart.append(line(box.left, y(value), box.right, y(value), 'gridline'), text(box.left - 6, y(value) + 4, format.y(value), 'end'));
  for (const value of xMarks) chart.append(line(x(value), box.base, x(value), box.base + 4, 'axis'), text(x(value), box.base + 17, format.x(value)));
  chart.append(line(box.left, box.base, box.right, box.base, 'axis'), text((box.left + box.right) / 2, box.base + 34, xTitle));
  chart.append(draw('text', { transform: `translate(12 ${(box.top + box.base) / 2}) rotate(-90)`, 'text-anchor': 'middle' }, yTitle));
}
