// How often the network is right at each confidence.
addSection('reliability', 'Reliability', () => {
  const classes = [selection, 'Class', 'label', [['', 'all pixels'], ...DATA.classes.map(label => [label, label])]];
  const [controls, diagrams] = live('diagrams', { region: curveRegions[0], label: '' }, [byRegion(curveRegions), classes], ({ region, label }) => methods.map(method => {
    const curve = DATA.curves[method][region][label], read = readCurve(curve), floor = label === '' ? pooledAt(method, region, 'ece').floor : null;
    return node('div', { class: 'card diagram' }, node('h4', null, key(method), method, node('span', null, `ECE ${percent(read.ece)} %`)),
      node('p', null, known(read.ece) ? `says ${fixed(read.confidence, 3)}, right ${fixed(read.accuracy, 3)}${known(floor) ? `, floor ${percent(floor)}\u00a0%` : ''}` : 'no pixels'), reliability(curve, method));
  }));
  return section('reliability', 'Reliability diagrams', 'When the network says 0.9, is it right nine times in ten? Bars show the accuracy at each confidence; calibrated bars end on the dashed line. Below, the share of pixels with that confidence. All pixels of all images together.',
    controls,
    node('ul', { class: 'legend' }, swatch('color-mix(in srgb, var(--over) 38%, transparent)', 'overconfident'), swatch('color-mix(in srgb, var(--under) 38%, transparent)', 'underconfident'),
      node('li', null, 'dot: mean confidence and accuracy of a bin, with its 95 % interval; pale: less than 1 % of the pixels')), diagrams);
});
