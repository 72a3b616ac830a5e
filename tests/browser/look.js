// Looks at the page from inside: what is too wide, what cannot be read, what is cut off; and tells its frame.
const rgb = text => (text.match(/[\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => { const f = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
const behind = node => { for (; node; node = node.parentElement) { const c = rgb(getComputedStyle(node).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const pale = [], small = [];
for (const node of document.body.querySelectorAll('*')) {
  const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
  if (!own || node.closest('script') || node.closest('svg') || !node.getClientRects().length) continue;
  const style = getComputedStyle(node), ratio = contrast(rgb(style.color), behind(node));
  if (ratio < 4.5) pale.push(node.className + ' ' + node.textContent.slice(0, 30) + ' ' + ratio.toFixed(1));
  if (parseFloat(style.fontSize) < 11) small.push(node.textContent.slice(0, 30));
}
const letters = [...document.querySelectorAll('.chart text')].map(node => node.getBoundingClientRect().height);
const charts = [...document.querySelectorAll('.chart')].map(node => node.getBoundingClientRect());
const cut = [...document.querySelectorAll('.chart text')].filter(node => { const a = node.getBoundingClientRect(),
  b = node.closest('svg').getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1; });
const squares = [...document.querySelectorAll('.matrix td')].map(node => node.getBoundingClientRect().width);
parent.postMessage(JSON.stringify({ wide: document.scrollingElement.scrollWidth, pale, small,
  letters: Math.min(...letters), charts: Math.min(...charts.map(c => c.width)), cut: cut.length,
  squares: Math.min(...squares), background: getComputedStyle(document.body).backgroundColor,
  headings: document.querySelectorAll('h1').length }), '*');
