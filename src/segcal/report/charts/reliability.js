// A curve is a list of bins [pixels, correct pixels, summed confidence, low, high]; the last two bound the accuracy.
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

// Accuracy of each bin, its gap to the mean confidence shaded, and below it the share of pixels of that confidence.
// The gap of a bin with few pixels is pale: it adds next to nothing to the ECE.
const FEW = .01;
function reliability(curve, title, small = false) {
  const read = readCurve(curve), n = curve.length;
  const left = small ? 4 : 44, size = small ? 112 : 210, top = 6, gap = small ? 4 : 8, tall = small ? 22 : 44;
  const width = left + size + 6, base = top + size, floor = base + gap + tall, height = floor + (small ? 4 : 32);
  const x = scale(0, 1, left, left + size), y = scale(0, 1, base, top);
  const peak = Math.max(...curve.map(bin => bin[0])) / (read.total || 1) || 1;
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
      const accuracy = hit / count, sure = confidence / count, over = sure > accuracy, share = count / read.total, few = share < FEW ? ' few' : '';
      column.append(draw('rect', { class: `bin${few}`, x: from, y: y(accuracy), width: wide, height: base - y(accuracy) }));
      column.append(draw('rect', { class: (over ? 'over' : 'under') + few, x: from, width: wide, y: y(Math.max(sure, accuracy)), height: Math.abs(y(sure) - y(accuracy)) }));
      if (known(low) && !small) column.append(line(x(sure), y(low), x(sure), y(high), `whisker${few}`));
      column.append(draw('circle', { class: `dot${few}`, cx: x(sure), cy: y(accuracy), r: small ? 2 : 2.8 }));
      column.append(draw('rect', { class: 'bin', x: from, y: floor - tall * share / peak, width: wide, height: tall * share / peak }));
      const tips = [['mean confidence', fixed(sure, 3)], ['accuracy', fixed(accuracy, 3)]];
      if (known(low)) tips.push(['95 % interval', `${fixed(low, 3)} – ${fixed(high, 3)}`]);
      tips.push([over ? 'overconfident by' : 'underconfident by', fixed(Math.abs(sure - accuracy), 3)]);
      tips.push(['pixels', `${whole(count)} (${percent(share, 1)} %)`]);
      marks.push({ element: column, title: `${title}: confidence ${fixed(k / n, 2)} to ${fixed((k + 1) / n, 2)}`, rows: tips });
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
  return explain(chart, marks);
}
