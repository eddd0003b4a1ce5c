// What was measured, how badly the network is calibrated, and what helps.
addSection('summary', 'Summary', content => {
  const [first, ...more] = content.headline;
  const cards = content.cards.map(({ metric, region, over, rows }) => {
    const title = `${metrics[metric].title}, ${regionName(region)}`;
    return node('div', { class: 'card' }, node('h3', { class: 'head' }, title, node('span', null, `${over}${metrics[metric].percent ? ', %' : ''}`)), intervals(rows, metric, title));
  });
  document.title = content.dataset ? `Calibration of ${content.dataset}` : 'Calibration report';
  return node('section', { id: 'summary' },
    node('p', { class: 'kicker' }, content.dataset ? ['Calibration of ', node('b', null, content.dataset)] : 'Calibration report'),
    node('ul', { class: 'facts' }, content.facts.map(fact => node('li', null, fact))),
    node('h1', { class: (content.severity || '').replace(' ', '-') }, first), ...more.map(sentence => node('p', { class: 'more' }, sentence)),
    content.warnings.length ? node('div', { class: 'warning' }, content.warnings.map(warning => node('div', null, warning))) : null,
    node('ul', { class: 'legend names' }, methods.map(method => node('li', null, key(method), node('b', null, method), content.titles[method] ? ` ${content.titles[method]}` : ''))),
    node('div', { class: 'grid cards' }, cards),
    node('p', { class: 'note' }, `Bars: 95 % bootstrap intervals over ${DATA.units}. Lower is better.${DATA.floor ? ' Dashed green: the floor, what the method would score on the same pixels if its probabilities were exactly right.' : ''} ${content.regions.join('. ')}.`));
});
