// What a person who sees badly, or uses no mouse, would stumble over: a list of sentences, empty
// when there is nothing. The body of a function.
const faults = [];
document.querySelectorAll('details').forEach((d) => { d.open = true; });
for (const e of document.querySelectorAll('select, input:not([type=hidden]), textarea'))
  if (!e.labels.length || !e.labels[0].textContent.trim())
    faults.push('no label: ' + e.outerHTML.slice(0, 90));
for (const t of document.querySelectorAll('table')) {
  if (!t.caption || !t.caption.textContent.trim())
    faults.push('no caption: ' + t.textContent.slice(0, 60));
  if ([...t.querySelectorAll('th')].some((h) => !h.scope || !h.textContent.trim()))
    faults.push('head without scope or words: ' + t.caption.textContent);
}
for (const s of document.querySelectorAll('svg'))
  if (s.getAttribute('aria-hidden') !== 'true'
      && !(s.getAttribute('role') === 'img' && s.getAttribute('aria-label')))
    faults.push('picture without words: ' + s.outerHTML.slice(0, 90));
for (const i of document.images) if (!i.alt) faults.push('no alt: ' + i.src);
for (const r of document.querySelectorAll('.scroll'))
  if (r.tabIndex !== 0 || !r.getAttribute('aria-label'))
    faults.push('region out of reach of the keyboard');
for (const a of document.querySelectorAll('a, button'))
  if (!(a.textContent.trim() || a.getAttribute('aria-label')))
    faults.push('link without words: ' + a.outerHTML);
for (const tag of ['main', 'header', 'footer', 'h1'])
  if (document.querySelectorAll(tag).length !== 1) faults.push('not one ' + tag);
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
if (new Set(ids).size < ids.length) faults.push('an id twice');
const navs = [...document.querySelectorAll('nav')].map((n) => n.getAttribute('aria-label'));
if (new Set(navs).size < navs.length) faults.push('two navigations of one name: ' + navs);
let level = 0;
for (const h of document.querySelectorAll('h1, h2, h3, h4')) {
  const now = Number(h.tagName[1]);
  if (now > level + 1) faults.push(`${h.tagName} after h${level}: ${h.textContent}`);
  level = now;
}
const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
function behind(e) {
  for (let at = e; at; at = at.parentElement) {
    const c = rgb(getComputedStyle(at).backgroundColor);
    if (c.length && (c.length < 4 || c[3] > 0)) return c;
  }
  return [255, 255, 255];
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  const unseen = ['SCRIPT', 'TITLE', 'OPTION', 'OPTGROUP'].includes(e.tagName);
  if (!walker.currentNode.data.trim() || !e.checkVisibility() || unseen) continue;
  const style = getComputedStyle(e);
  const front = light(rgb(e.closest('svg') ? style.fill : style.color));
  const pair = [front, light(behind(e))].sort((a, b) => b - a);
  const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (contrast < 4.5)
    faults.push(`contrast ${contrast.toFixed(2)}: ${e.textContent.trim().slice(0, 40)}`);
}
if (document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth) faults.push('scrolls sideways');
return faults;
