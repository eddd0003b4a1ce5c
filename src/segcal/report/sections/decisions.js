// Decisions: thresholds with a guarantee, risk against coverage, volumes with intervals.
addSection('decisions', 'Decisions', content => {
  const share = (title, name) => number(title, row => row[name], value => percent(value, 1));
  const label = nameColumn('Class', row => row.label);
  const few = row => `needs ${row.needed} ${content.units}`;
  const thresholds = sortable('Thresholds', [label, methodColumn,
    { title: 'Threshold', of: row => row.threshold, show: row => row.enough ? row.shown : few(row) },
    share('Missed %', 'missed'), share('Left out %', 'left_out'), share('By label %', 'by_label'), share('Precision %', 'precision'),
    { title: 'Size', of: row => row.size, show: row => fixed(row.size, 2) }], content.thresholds);
  const areas = (channel, unit) => sortable(`Risk and coverage of ${unit}`, [methodColumn, number('AURC', row => row.aurc, value => fixed(value, 4)),
    number('Excess', row => row.excess, value => fixed(value, 4)), share('Risk of all %', 'risk')], content.areas.filter(row => row.channel === channel && row.unit === unit));
  const curve = (channel, unit, title) => node('div', { class: 'card' }, node('h3', { class: 'head' }, channel ? `${channel}: ${title}` : title), legend(),
    lines(methods.map(method => ({ method, points: content.curves[channel][unit][method].map(([kept, wrong, sure]) => [100 * kept, known(wrong) ? 100 * wrong : null, sure]) })),
      { x: 'kept (%)', y: 'wrong (%)', width: 420, named: [0, 25, 50, 75, 100], step: 10, tell: ([kept, wrong, sure]) => [['kept', `${fixed(kept, 0)} %`], ['wrong', `${fixed(wrong, 2)} %`], ['confidence', fixed(sure, 4)]] }), areas(channel, unit));
  const curves = content.channels.map(channel => node('div', { class: 'grid halves', style: 'margin-top:1rem' },
    curve(channel, 'pixels', 'Reject the least confident pixels'), curve(channel, 'images', 'Reject the least confident images')));
  const volume = (title, name) => ({ title, of: row => row[name], show: row => known(row[name]) ? row.shown[name] : '–' });
  const volumes = sortable('Volumes', [label, methodColumn, volume('Expected', 'expected'), volume('True', 'true'),
    { title: '±', of: row => row.reach, show: row => row.enough ? row.shown.reach : few(row) }, share('Inside, left out %', 'left_out')], content.intervals);
  return section('decisions', 'Decisions', 'What the probabilities allow: how little must be accepted for a class not to be missed, which pixels or images to give to a person, and volumes with an error.',
    node('div', { class: 'card' }, node('h3', { class: 'head' }, `Thresholds that miss at most ${percent(content.risk, 0)} % of a class`), node('div', { class: 'tall' }, thresholds),
      node('p', { class: 'note' }, `A pixel is taken for a class where its probability reaches the threshold. On average over new images that contain the class, at most ${percent(content.risk, 0)} % of its pixels are then missed (conformal risk control). Left out: missed with the threshold of all other ${content.units}. By label: missed by the predicted labels. Size: pixels taken, relative to the true number.`)),
    ...curves,
    node('div', { class: 'card spaced' }, node('h3', { class: 'head' }, 'Volumes'), node('div', { class: 'tall' }, volumes),
      node('p', { class: 'note' }, `Mean over images${content.volume_unit ? `, in ${content.volume_unit}` : ''}. The expected volume is the sum of the probabilities; for ${percent(content.level, 0)} % of new images the true volume lies inside the interval (conformal, in units of the image's uncertain volume). Inside, left out: images inside the interval of all other ${content.units}.`)));
});
