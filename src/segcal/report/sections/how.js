// Definitions and settings.
addSection('how', 'How', content => {
  const pairs = entries => node('dl', null, entries.flatMap(([name, value]) => [node('dt', null, name), node('dd', null, value)]));
  return section('how', 'What was measured, and how', null, node('div', { class: 'grid halves' },
    node('div', { class: 'card' }, node('h3', null, 'Definitions'), pairs(content.definitions)),
    node('div', { class: 'card' }, node('h3', null, 'Settings'), pairs(content.settings))));
});
