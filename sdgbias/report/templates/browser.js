"use strict";
(() => {
  const data = JSON.parse(document.getElementById("examples").textContent);
  const $ = (id) => document.getElementById(id);
  const form = document.querySelector(".filters");
  const names = { q_only: "Q-only", ctx_q: "CTX+Q", img_q: "IMG+Q", full: "Full" };
  const outcomes = { fixed: "fixed by CADE", broken: "broken by CADE", moved: "changed, wrong both times", same: "unchanged" };
  const minus = (x, digits) => x.toFixed(digits).replace("-", "\u2212");
  let shown = data.questions, at = 0;

  /* el("p.note", "text", child, ...): an element with classes; text is never parsed as HTML */
  function el(kind, ...children) {
    const [tag, ...classes] = kind.split(".");
    const node = document.createElement(tag);
    if (classes.length) node.className = classes.join(" ");
    node.append(...children.filter((c) => c !== null));
    return node;
  }

  function crop(uri, part, caption) {
    const box = el("div.crop." + part);
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", uri ? caption : caption + " (not available)");
    if (uri) box.style.backgroundImage = `url("${uri}")`;
    return el("figure", box, el("figcaption", caption));
  }

  function probabilities(q, view) {
    const p = q.views[view];
    const figure = el("figure", el("figcaption", names[view]));
    if (!p.length) return el("figure", el("figcaption", names[view]), el("p.note", "not scored"));
    const best = p.indexOf(Math.max(...p));
    p.forEach((x, i) => {
      const fill = el("span.fill");
      fill.style.width = (100 * x).toFixed(1) + "%";
      figure.append(el(i === best ? "div.bar.top" : "div.bar", el("span", "ABC"[i]), el("span.track", fill), el("span", (100 * x).toFixed(0) + "\u00a0%")));
    });
    return figure;
  }

  function signed(x, scale, win) {
    const fill = el(x < 0 ? "span.fill.minus" : "span.fill.plus");
    const width = Math.min(50, (50 * Math.abs(x)) / scale);
    fill.style.width = width + "%";
    fill.style.left = (x < 0 ? 50 - width : 50) + "%";
    return el(win ? "td.win" : "td", minus(x, 2), el("span.track", fill));
  }

  function terms(q) {
    const sub = (a, s, b) => el("span", a, el("sub", s), b);
    const g = q.gate;
    const heads = [
      el("th", sub("log P", "img", "")),
      el("th", sub("\u2212 α", "i", ""), sub(" log P", "ctx", ""), el("small", "αᵢ = " + g.alpha.toFixed(2))),
      el("th", sub("\u2212 β log P", "q", ""), el("small", "β = " + g.beta.toFixed(2))),
      el("th", "Score"),
    ];
    const rows = [...q.terms, q.score];
    const scale = Math.max(0.01, ...rows.flat().map(Math.abs));
    const best = q.score.indexOf(Math.max(...q.score));
    const head = el("tr", el("th"), ...q.score.map((_, i) => { const th = el("th", "ABC"[i]); th.scope = "col"; return th; }));
    const body = rows.map((row, r) => {
      heads[r].scope = "row";
      return el(r === 3 ? "tr.total" : "tr", heads[r], ...row.map((x, i) => signed(x, scale, r === 3 && i === best)));
    });
    const table = el("table.terms", el("thead", head), el("tbody", ...body));
    table.setAttribute("aria-label", "CADE score of each option");
    return table;
  }

  function draw() {
    const has = shown.length > 0;
    $("empty").hidden = has;
    $("question").hidden = !has;
    $("previous").disabled = $("next").disabled = shown.length < 2;
    $("position").textContent = has ? `${at + 1} of ${shown.length}` : "0 of 0";
    if (!has) return;
    const q = shown[at], uri = data.pictures[q.picture] || "";
    const options = el("ul.options", ...q.options.map((text, i) => {
      const letter = "ABC"[i];
      const tags = [letter === q.gold ? "correct" : "", letter === q.full ? "Full" : "", letter === q.cade ? "CADE" : ""].filter(Boolean);
      return el(letter === q.gold ? "li.gold" : "li", el("span", letter), el("span", text), el("span.tags", tags.join(", ")));
    }));
    const pictures = el("div",
      el("div.pictures", ...(q.photo ? [crop(uri, "photo", "Street photo")] : []), crop(uri, "tile", "Satellite, north up"), crop(uri, "lights", "Nightlights, log scale")));
    const text = el("div",
      el("h3", q.indicator || q.pillar),
      el("p.meta", [q.place, q.model, q.test, outcomes[q.outcome]].filter(Boolean).join(" · ")),
      el("p", q.question),
      q.context ? el("p.meta", q.context) : el("p.meta", "No context is shown at " + q.test + " for this place."),
      options,
      el("h4", "Probability of each option, by view"),
      el("div.bars", ...Object.keys(names).map((v) => probabilities(q, v))),
      el("h4", q.gate.kept ? "CADE score (not used: the gate kept the Full answer)" : "CADE score, term by term"),
      terms(q),
      el("p.why", q.why));
    $("question").replaceChildren(pictures, text);
  }

  function step(by) {
    if (!shown.length) return;
    at = (at + by + shown.length) % shown.length;
    draw();
  }

  function filter() {
    const wanted = [...new FormData(form)].filter(([, value]) => value);
    shown = data.questions.filter((q) => wanted.every(([name, value]) => q[name] === value));
    at = 0;
    draw();
  }

  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  $("reset").addEventListener("click", () => { form.reset(); filter(); form.querySelector("select").focus(); });
  $("browser").addEventListener("keydown", (event) => {
    if (event.target.tagName === "SELECT" || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      event.preventDefault();
      step(event.key === "ArrowRight" ? 1 : -1);
    }
  });
  form.reset();
  $("browser").hidden = false;
  draw();
})();
