// Figures as SVG files, and the values of figures and tables as CSV files.

function save(name, kind, content) {
  const address = URL.createObjectURL(new Blob([content], { type: kind }));
  node('a', { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
const fileName = title => title.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '').slice(0, 80) || 'figure';

// Text that a spreadsheet would take for a formula is quoted with an apostrophe.
function cellOf(value) {
  const words = !known(value) ? '' : typeof value === 'string' && /^[=+@-]/.test(value) && isNaN(value) ? `'${value}` : String(value);
  return /[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
}
const csv = rows => rows.map(row => row.map(cellOf).join(',') + '\n').join('');
function markRows(marks) {
  const names = [...new Set(marks.flatMap(mark => mark.rows.map(([name]) => name)))];
  return [['', ...names], ...marks.map(mark => [mark.title, ...names.map(name => (mark.rows.find(row => row[0] === name) || [])[1])])];
}

// The chart alone, with the styles that the page gives it.
const STYLES = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-opacity', 'stroke-dasharray', 'stroke-linecap', 'opacity', 'font-family', 'font-size', 'font-weight'];
function standalone(chart) {
  const copy = chart.cloneNode(true), from = chart.querySelectorAll('*');
  copy.querySelectorAll('*').forEach((element, k) => {
    const style = getComputedStyle(from[k]);
    for (const name of STYLES) element.setAttribute(name, style.getPropertyValue(name));
  });
  const [, , width, height] = chart.getAttribute('viewBox').split(' ');
  fill(copy, { width, height }, []);
  return new XMLSerializer().serializeToString(copy);
}
const download = (words, name, kind, content) => node('button', { type: 'button', 'aria-label': `Download ${name} as ${words}`, onclick: () =>
  save(`${fileName(name)}.${words.toLowerCase()}`, kind, content()) }, words);
function figure(chart, marks) {
  const [name] = chart.getAttribute('aria-label').split(':');  // without the numbers
  return node('figure', { class: 'chart' }, chart, node('div', { class: 'downloads' }, download('SVG', name, 'image/svg+xml', () => standalone(chart)),
    marks.length ? download('CSV', name, 'text/csv', () => csv(markRows(marks))) : null));
}
