// What a method that chooses has tried, and what it chose.
addSection('choice', 'Choice', content => {
  const difference = row => known(row.difference) ? node('td', null, `${row.difference > 0 ? '+' : ''}${fixed(row.difference, 4)}`.replace('-', '−'),
    node('span', { class: 'side' }, row.difference_error ? `± ${fixed(row.difference_error, 4)}` : '')) : '–';
  const card = found => node('div', { class: 'card' }, node('h3', { class: 'head' }, key(found.method), found.method, node('span', null, `chose ${found.chosen}`)),
    node('p', null, `${found.why}.`), !found.rows.length ? null : sortable(`Candidates of ${found.method}`, [
      { title: 'Candidate', of: row => row.name, show: row => node('td', { class: row.name === found.chosen ? 'best' : null }, row.name) },
      { title: 'Held-out NLL', of: row => row.nll, show: row => known(row.nll) ? node('td', null, fixed(row.nll, 4), node('span', { class: 'side' }, `± ${fixed(row.error, 4)}`)) : '–' },
      { title: 'Difference to ts', of: row => row.difference, show: difference },
      { title: 'Parameters', of: row => row.numbers, show: row => known(row.numbers) ? whole(row.numbers) : '–' },
      { title: 'Seconds', of: row => row.seconds, show: row => fixed(row.seconds, 1) }], found.rows),
    found.rows.filter(row => row.note).map(row => node('p', { class: 'note' }, `${row.name}: ${row.note}.`)));
  return section('choice', 'How the method was chosen', 'Every candidate is fitted on some groups of images and scored on the others. ± is one standard error over groups; differences are paired by group.',
    content.map(card));
});
