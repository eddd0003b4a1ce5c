// Puts the page together: sections in their order, navigation, colour scheme.

const main = document.getElementById('main'), nav = document.getElementById('nav'), menu = document.getElementById('menu');
const OPEN = 3;
Object.entries(DATA.sections).forEach(([name, content], k) => {
  const { title, build } = SECTIONS[name], built = build(content);
  main.append(built);
  if (k >= OPEN) collapse(built);
  nav.append(node('a', { href: `#${name}`, onclick: () => { reveal(name); openMenu(false); } }, title));
});
reveal(location.hash.slice(1));

// Everything below the heading of a section, behind its heading.
function collapse(built) {
  const [heading, ...rest] = built.children;
  built.append(node('details', { class: 'folded' }, node('summary', null, heading), rest));
}
main.append(node('footer', null, 'Made with segcal. One file, nothing is loaded from elsewhere.'));

// On narrow screens the links are behind a button.
function openMenu(on) {
  nav.classList.toggle('open', on);
  menu.setAttribute('aria-expanded', String(on));
}
menu.addEventListener('click', () => openMenu(!nav.classList.contains('open')));
document.addEventListener('keydown', event => { if (event.key === 'Escape') openMenu(false); });
document.addEventListener('click', event => { if (!event.target.closest('.bar')) openMenu(false); });

// Dark where the system is dark, until the button says otherwise.
const dark = matchMedia('(prefers-color-scheme: dark)');
const setTheme = on => { document.documentElement.dataset.theme = on ? 'dark' : 'light'; };
setTheme(dark.matches);
dark.addEventListener('change', () => setTheme(dark.matches));
document.getElementById('theme').addEventListener('click', () => setTheme(document.documentElement.dataset.theme !== 'dark'));
