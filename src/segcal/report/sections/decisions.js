// Decisions: thresholds with a guarantee, risk against coverage, volumes with intervals.
addSection('decisions', 'Decisions', ({ channels, curves, tables }) => {
  const curve = (channel, unit, title) => node('div', { class: 'card' }, node('h3', { class: 'head' }, channel ? `${channel}: ${title}` : title), legend(),
    lines(methods.map(method => ({ method, points: curves[channel][unit][method].map(([kept, wrong, sure]) => [100 * kept, known(wrong) ? 100 * wrong : null, sure]) })),
      { x: 'kept (%)', y: 'wrong (%)', width: 420, named: [0, 25, 50, 75, 100], step: 10, tell: ([kept, wrong, sure]) => [['kept', `${fixed(kept, 0)} %`], ['wrong', `${fixed(wrong, 2)} %`], ['confidence', fixed(sure, 4)]] }));
  const pairs = channels.map(channel => node('div', { class: 'grid halves', style: 'margin-top:1rem' },
    curve(channel, 'pixels', 'Reject the least confident pixels'), curve(channel, 'images', 'Reject the least confident images')));
  const [thresholds, ...others] = tables.map(writtenTable);
  return section('decisions', 'Decisions', 'What the probabilities allow: how little must be accepted for a class not to be missed, which pixels or images to give to a person, and volumes with an error.',
    thresholds, pairs, others);
});
