// Decisions: thresholds with a guarantee, risk against coverage, volumes with intervals.
addSection('decisions', 'Decisions', content => {
  const share = (title, name) => ({ title, of: row => row[name], show: row => percent(row[name], 1) });
  const label = { title: 'Class', of: row => row.label, show: row => row.label };
  const few = row => `needs ${row.needed} ${content.units}`;
  const thresholds = sortable([label, methodColumn,
    { title: 'Threshold', of: row => row.threshold, show: row => row.enough ? row.shown : few(row) },
    share('Missed %', 'missed'), share('Left out %', 'left_out'), share('By label %', 'by_label'), share('Precision %', 'precision'),
    { title: 'Size', of: row => row.size, show: row => fixed(row.size, 2) }], content.thresholds);
  const areas = (channel, unit) => sortable([methodColumn, { title: 'AURC', of: row => row.aurc, show: row => fixed(row.aurc, 4) },
    { title: 'Excess', of: row => row.excess, show: row => fixed(row.excess, 4) }, share('Risk of all %', 'risk')], content.areas.filter(row => row.channel === channel && row.unit === unit));
  const curve = (channel, unit, title) => node('div', { class: 'card' }, node('h3', { class: 'head' }, channel ? `${channel}: ${title}` : title), legend(),
    riskCoverage(methods.map(method => ({ method, points: content.curves[channel][unit][method] }))), areas(channel, unit));
  const curves = content.channels.map(channel => node('div', { class: 'grid halves', style: 'margin-top:1rem' },
    curve(channel, 'pixels', 'Reject the least confident pixels'), curve(channel, 'images', 'Reject the least confident images')));
  const number = (title, name) => ({ title, of: row => row[name], show: row => known(row[name]) ? row.shown[name] : '–' });
  const volumes = sortable([label, methodColumn, number('Expected', 'expected'), number('True', 'true'),
    { title: '±', of: row => row.reach, show: row => row.enough ? row.shown.reach : few(row) }, share('Inside, left out %', 'left_out')], content.intervals);
  return section('decisions', 'Decisions', 'What the probabilities allow: how little must be accepted for a class not to be missed, which pixels or images to give to a person, and volumes with an error.',
    node('div', { class: 'card' }, node('h3', { class: 'head' }, `Thresholds that miss at most ${percent(content.risk, 0)} % of a class`), node('div', { class: 'tall' }, thresholds),
      node('p', { class: 'note' }, `A pixel is taken for a class where its probability reaches the threshold. On average over new images that contain the class, at most ${percent(content.risk, 0)} % of its pixels are then missed (conformal risk control). Left out: missed with the threshold of all other ${content.units}. By label: missed by the predicted labels. Size: pixels taken, relative to the true number.`)),
    ...curves,
    node('div', { class: 'card', style: 'margin-top:1rem' }, node('h3', { class: 'head' }, 'Volumes'), node('div', { class: 'tall' }, volumes),
      node('p', { class: 'note' }, `Mean over images${content.volume_unit ? `, in ${content.volume_unit}` : ''}. The expected volume is the sum of the probabilities; for ${percent(content.level, 0)} % of new images the true volume lies inside the interval (conformal, in units of the image's uncertain volume). Inside, left out: images inside the interval of all other ${content.units}.`)));
});
