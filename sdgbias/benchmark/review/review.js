(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const items = new Map(data.items.map((item) => [item.key, item]));
  const keys = [...items.keys()];
  let verdicts = new Map(); // key -> [verdict, reason, comment] of the chosen reviewer
  let file = new Map(); // key -> what the two reviewers said, of the items of the loaded CSV
  let list = keys; // keys that the filter shows
  let at = 0;
  let unkept = 0; // changes that this browser doesn't keep (yet)

  // IndexedDB, not localStorage: a page opened from a folder and reloaded is at times shown an older localStorage by Chromium
  // (156: in one of six reloads), and what it then writes is lost.
  const database = new Promise((resolve, reject) => {
    const opening = indexedDB.open("sdgbias-review", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("kept");
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = reject;
  });
  const name = () => `${data.sample}|${$("who").value}`;

  async function stored(mode, act) {
    try {
      const change = (await database).transaction("kept", mode);
      const request = act(change.objectStore("kept"));
      await new Promise((resolve, reject) => Object.assign(change, { oncomplete: resolve, onabort: reject }));
      if (mode === "readwrite") unkept--;
      return request.result;
    } catch {
      notice("This browser can't keep your verdicts. Press Save CSV before you close the page.");
    }
  }

  function keep(where, value) {
    unkept++;
    return stored("readwrite", (store) => store.put(value, where));
  }

  // Meanwhile no item is shown: what is pressed belongs to nobody.
  async function read() {
    $("item").hidden = true;
    verdicts = (await stored("readonly", (store) => store.get(name()))) || new Map();
  }

  function notice(text) {
    $("notice").textContent = text;
    $("notice").hidden = !text;
  }

  function isShown(key) {
    const [verdict] = verdicts.get(key) || [""];
    const filter = $("show").value;
    if (filter === "file") return file.has(key);
    return filter === "all" || verdict === (filter === "open" ? "" : filter);
  }

  // Without a key: the first item that is open. The keys belong to the item again.
  function choose(key) {
    list = keys.filter(isShown);
    at = Math.max(0, key ? list.indexOf(key) : list.findIndex((other) => !(verdicts.get(other) || [""])[0]));
    show();
    document.activeElement.blur();
  }

  function show() {
    const item = items.get(list[at]);
    $("total").textContent = list.length.toLocaleString("en");
    $("at").value = list.length ? at + 1 : 0;
    $("empty").hidden = Boolean(item);
    $("item").hidden = !item;
    if (item) draw(item);
    mark();
  }

  function draw(item) {
    for (const field of ["task", "pillar", "indicator", "question", "gold", "basis", "place", "cluster", "key"]) $(field).textContent = item[field];
    $("test").textContent = `Context ${item.test}`;
    $("context").textContent = item.context || "none: no value is known";
    $("said").textContent = file.get(item.key) || "";
    $("said").hidden = $("said-term").hidden = !file.get(item.key);
    const options = item.options.map((text, i) => {
      const row = element("li", { className: "ABC"[i] === item.gold ? "gold" : "", hidden: !text });
      row.append(element("span", { textContent: "ABC"[i] }), element("span", { textContent: text }));
      return row;
    });
    $("options").replaceChildren(...options);
    const pictures = Array.from({ length: item.parts }, (_, part) => {
      const alt = `Picture ${part + 1} of ${item.parts}: ${item.place}`;
      const picture = element("img", { alt, src: `images/${item.image}-${part}.jpg` });
      picture.onerror = () => picture.replaceWith(element("p", { textContent: "The picture is missing: copy the images folder beside the sheet." }));
      return picture;
    });
    $("pictures").replaceChildren(...(item.parts ? pictures : [element("p", { textContent: "There is no image: this benchmark was built without." })]));
  }

  const element = (tag, fields) => Object.assign(document.createElement(tag), fields);

  function mark() {
    const [verdict, reason, comment] = verdicts.get(list[at]) || ["", "", ""];
    for (const button of document.querySelectorAll("#verdict [data-verdict]")) {
      button.setAttribute("aria-pressed", String(button.dataset.verdict === verdict && (button.dataset.reason || "") === reason));
    }
    if ($("comment").value !== comment) $("comment").value = comment;
    const done = [...verdicts.values()].filter(([given]) => given).length;
    $("bar").max = keys.length;
    $("bar").value = done;
    $("done").textContent = `${done.toLocaleString("en")} of ${keys.length.toLocaleString("en")}`;
  }

  function judge(verdict, reason, comment) {
    if ($("item").hidden) return;
    verdicts.set(list[at], [verdict, reason, comment]);
    keep(name(), verdicts);
    mark();
  }

  function go(to) {
    at = Math.min(Math.max(to, 0), Math.max(list.length - 1, 0));
    show();
    scrollTo(0, 0);
  }

  const quoted = (text) => (/[",;\r\n\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  function save() {
    const rows = keys.filter((key) => !file.size || file.has(key) || verdicts.has(key));
    const lines = rows.map((key) => [key.split("-")[0], key, ...(verdicts.get(key) || ["", "", ""])].map(quoted).join(","));
    const href = URL.createObjectURL(new Blob([`\ufeff${[data.columns.join(","), ...lines].join("\r\n")}\r\n`], { type: "text/csv" }));
    element("a", { href, download: `${$("who").value}.csv` }).click();
  }

  // Rows of a CSV: commas, semicolons or tabs, quotes doubled inside quotes.
  function rows(text) {
    const header = text.split("\n", 1)[0];
    const separator = [",", ";", "\t"].sort((a, b) => header.split(b).length - header.split(a).length)[0];
    const field = new RegExp(`(?:"((?:[^"]|"")*)"|([^${separator}\r\n]*))(${separator}|\r?\n|$)`, "g");
    const out = [[]];
    for (const [, inside, plain, end] of text.matchAll(field)) {
      out.at(-1).push((inside === undefined ? plain : inside.replaceAll('""', '"')).trim());
      if (end !== separator) out.push([]);
    }
    return out;
  }

  async function load(text, title) {
    const [header, ...body] = rows(text.replace(/^\ufeff?(sep=.\r?\n)?/, ""));
    const columns = header.map((column) => column.toLowerCase());
    if (!["task", "item_id", "verdict"].every((column) => columns.includes(column))) return notice(`${title}: no reviewer's CSV; its first row must read ${data.columns.join(",")}`);
    // A CSV goes to the person whose it is, whoever is chosen on the page.
    const person = columns.includes("said") ? "adjudicator" : title.replace(/( ?\(\d+\))?\.csv$/i, "");
    if ([...$("who").options].some((option) => option.value === person)) $("who").value = person;
    await read();
    file = new Map();
    let strange = 0;
    for (const cells of body) {
      const [task, id, verdict, reason, comment, said] = [...data.columns, "said"].map((column) => cells[columns.indexOf(column)] || "");
      if (!id) continue;
      const key = /^-?\d+$/.test(id) ? `${task.toLowerCase()}-${id}` : id;
      const value = [verdict.toLowerCase(), reason.toLowerCase(), comment];
      if (!items.has(key) || !["", "accept", "reject"].includes(value[0]) || !["", ...data.reasons].includes(value[1])) {
        strange++;
        continue;
      }
      file.set(key, said);
      if (value.some(Boolean)) verdicts.set(key, value);
    }
    keep(name(), verdicts);
    const rowCount = file.size;
    if (file.size === keys.length) file = new Map();
    document.querySelector("#show [value=file]").disabled = !file.size;
    $("show").value = file.size ? "file" : "all";
    choose();
    const rest = strange ? `, ${strange} rows that don't belong to this sheet were left out` : "";
    notice(`${title}, for ${$("who").value}: ${rowCount} rows${rest}.`);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#verdict [data-verdict]");
    if (!button) return;
    judge(button.dataset.verdict, button.dataset.reason || "", $("comment").value.trim());
    if (at < list.length - 1) go(at + 1);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return $("item").focus();
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const target = document.querySelector(`[data-key="${CSS.escape(event.key.length === 1 ? event.key.toLowerCase() : event.key)}"]`);
    if (!target) return;
    event.preventDefault();
    if (target === $("comment")) target.focus();
    else target.click();
  });
  $("undo").onclick = () => judge("", "", "");
  $("comment").oninput = () => judge(...(verdicts.get(list[at]) || ["", ""]).slice(0, 2), $("comment").value);
  $("previous").onclick = () => go(at - 1);
  $("next").onclick = () => go(at + 1);
  $("at").onchange = () => go(Math.round(Number($("at").value) || 1) - 1);
  $("show").onchange = () => choose(list[at]);
  $("who").onchange = async () => {
    keep(`${data.sample}|chosen`, $("who").value);
    await read();
    choose();
  };
  $("save").onclick = save;
  $("load").onclick = () => $("file").click();
  $("file").onchange = async () => {
    const [chosen] = $("file").files;
    if (chosen) await load(await chosen.text(), chosen.name);
    $("file").value = "";
  };
  window.addEventListener("beforeunload", (event) => {
    if (unkept) event.preventDefault();
  });

  stored("readonly", (store) => store.get(`${data.sample}|chosen`)).then(async (person) => {
    if ([...$("who").options].some((option) => option.value === person)) $("who").value = person;
    await read();
    choose();
  });
})();
