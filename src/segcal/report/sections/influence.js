// What raises and lowers the temperature.
addSection('influence', 'Why', content => {
  const part = found => node('div', null, node('h3', null, key(found.method), found.method),
    node('div', { class: 'grid halves kept' },
      found.features.length ? node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Surroundings of the pixel', node('span', null, 'factor per standard deviation')), factors(found.features, `${found.method}: factors of the features`)) : null,
      found.classes.length ? node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Predicted class', node('span', null, 'factor of each class')), node('div', { class: 'tall' }, factors(found.classes, `${found.method}: factors of the classes`))) : null),
    found.words.length ? node('details', { open: found.words.length < 16 }, node('summary', null, 'In words'), node('ul', { class: 'words' }, found.words.map(words => node('li', null, words)))) : null);
  return section('influence', 'What raises and lowers the temperature', 'Factors on the temperature with 95 % intervals from refits that leave out groups of images; grey where the interval contains 1. A higher temperature lowers confidence, a lower one raises it.',
    content.map(part));
});
