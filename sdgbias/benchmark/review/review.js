(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const items = new Map(data.items.map((item) => [item.key, item]));
  const keys = [...items.keys()];
  let verdicts = new Map(); // key -> [verdict, reason, comment]
  let said = new Map(); // key -> what the two reviewers said, from the adjudicator's CSV
  let file = new Set(); // keys of the loaded CSV
  let list = keys; // keys that the filter shows
  let at = 0;
  let unsaved = false;
  let typing = false; // the last input was a key
  let lost = false; // this browser keeps nothing

  const forgets = "This browser can't keep your verdicts. Press Save CSV before you close the page.";
  // IndexedDB, not localStorage: a page opened from a folder and reloaded is at times shown an older localStorage by Chromium
  // (156: in one of six reloads), and what it then writes is lost.
  const kept = new Map(); // name -> what this browser keeps
  let writing = 0;
  const store = new Promise((resolve) => {
    try {
      const asked = indexedDB.open("sdgbias-review", 1);
      asked.onupgradeneeded = () => asked.result.createObjectStore("kept");
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  const prefix = () => `${data.sample}|${$("who").value}|`;

  async function recall() {
    const database = await store;
    if (!database) return forget();
    await new Promise((resolve) => {
      const walk = database.transaction("kept").objectStore("kept").openCursor();
      walk.onerror = () => resolve(forget());
      walk.onsuccess = () => {
        const cursor = walk.result;
        if (!cursor) return resolve();
        kept.set(cursor.key, cursor.value);
        cursor.continue();
      };
    });
  }

  function forget() {
    lost = true;
    notice(forgets);
  }

  async function remember(name, value) {
    if (value === null) kept.delete(name);
    else kept.set(name, value);
    writing++;
    const database = await store;
    if (!database) return void (writing--, forget());
    const change = database.transaction("kept", "readwrite");
    change.oncomplete = () => writing--;
    change.onabort = () => (writing--, forget());
    if (value === null) change.objectStore("kept").delete(name);
    else change.objectStore("kept").put(value, name);
  }

  function notice(text) {
    $("notice").textContent = text;
    $("notice").hidden = !text;
  }

  function read() {
    verdicts = new Map();
    const start = prefix();
    for (const [name, value] of kept) {
      if (name.startsWith(start) && items.has(name.slice(start.length))) verdicts.set(name.slice(start.length), value);
    }
  }

  function keep(key, value) {
    const empty = value.every((text) => !text);
    if (empty) verdicts.delete(key);
    else verdicts.set(key, value);
    unsaved = true;
    remember(prefix() + key, empty ? null : value);
  }

  function filter(key) {
    const show = $("show").value;
    const verdict = (verdicts.get(key) || [""])[0];
    if (show === "open") return !verdict;
    if (show === "file") return file.has(key);
    return show === "all" || verdict === show;
  }

  // Without a key: the first item that is open. After a click the keys belong to the item again; who steps through a list
  // with the arrow keys stays in it until Escape.
  function choose(key) {
    list = keys.filter(filter);
    at = Math.max(0, key ? list.indexOf(key) : list.findIndex((other) => !(verdicts.get(other) || [""])[0]));
    show();
    if (!typing) document.activeElement.blur();
  }

  function show() {
    const key = list[at];
    $("total").textContent = list.length.toLocaleString("en");
    $("at").value = list.length ? at + 1 : 0;
    $("at").max = list.length;
    $("empty").hidden = list.length > 0;
    count();
    if (!key) return void ($("item").hidden = true);
    draw(items.get(key));
  }

  function count() {
    const done = [...verdicts.values()].filter(([verdict]) => verdict).length;
    $("bar").max = keys.length;
    $("bar").value = done;
    $("done").textContent = `${done.toLocaleString("en")} of ${keys.length.toLocaleString("en")}`;
  }

  function draw(item) {
    $("item").hidden = false;
    for (const name of ["task", "pillar", "indicator", "question", "gold", "basis", "place", "cluster", "key"]) $(name).textContent = item[name];
    $("test").textContent = `Context ${item.test}`;
    $("context").textContent = item.context || "none: no value is known";
    const heard = said.get(item.key);
    $("said").textContent = heard || "";
    $("said").hidden = $("said-term").hidden = !heard;
    $("options").replaceChildren(
      ...item.options.map((text, i) => {
        const row = document.createElement("li");
        const letter = document.createElement("span");
        const words = document.createElement("span");
        letter.textContent = "ABC"[i];
        words.textContent = text;
        row.className = "ABC"[i] === item.gold ? "gold" : "";
        row.hidden = !text;
        row.append(letter, words);
        return row;
      }),
    );
    $("pictures").replaceChildren(...pictures(item));
    mark();
  }

  function pictures(item) {
    const none = () => {
      const words = document.createElement("p");
      words.textContent = item.parts ? "The picture is missing: copy the images folder beside the sheet." : "There is no image: this benchmark was built without.";
      return words;
    };
    if (!item.parts) return [none()];
    return Array.from({ length: item.parts }, (_, part) => {
      const picture = document.createElement("img");
      picture.alt = `Picture ${part + 1} of ${item.parts}: ${item.place}`;
      picture.onerror = () => picture.replaceWith(none());
      picture.src = `images/${item.image}-${part}.jpg`;
      return picture;
    });
  }

  function mark() {
    const [verdict, reason, comment] = verdicts.get(list[at]) || ["", "", ""];
    for (const button of document.querySelectorAll("#verdict [data-verdict]")) {
      const chosen = button.dataset.verdict === verdict && (button.dataset.reason || "") === reason;
      button.setAttribute("aria-pressed", String(chosen));
    }
    $("comment").value = comment;
  }

  function judge(verdict, reason) {
    const key = list[at];
    if (!key || $("item").hidden) return;
    keep(key, [verdict, reason, $("comment").value.trim()]);
    if (verdict && at < list.length - 1) return step(1);
    count();
    mark();
  }

  function step(by) {
    const next = Math.min(Math.max(at + by, 0), list.length - 1);
    if (next === at || !list.length) return;
    at = next;
    show();
    scrollTo(0, 0);
  }

  const quoted = (text) => (/[",;\r\n\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  function save() {
    const rows = keys.filter((key) => !file.size || file.has(key) || verdicts.has(key));
    const lines = rows.map((key) => [key.split("-")[0], key, ...(verdicts.get(key) || ["", "", ""])].map(quoted).join(","));
    const text = `\ufeff${[data.columns.join(","), ...lines].join("\r\n")}\r\n`;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${$("who").value}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    unsaved = false;
  }

  // Rows of a CSV: commas, semicolons or tabs, quotes doubled inside quotes.
  function rows(text) {
    const header = text.split(/\r?\n/, 1)[0];
    const comma = [",", ";", "\t"].reduce((best, sep) => (header.split(sep).length > header.split(best).length ? sep : best));
    const out = [];
    let row = [];
    let field = "";
    let inside = false;
    for (let i = 0; i < text.length; i++) {
      const c = text[i];
      if (inside) {
        if (c === '"' && text[i + 1] === '"') field += text[++i];
        else if (c === '"') inside = false;
        else field += c;
      } else if (c === '"' && !field) inside = true;
      else if (c === comma || c === "\n") {
        row.push(field.replace(/\r$/, ""));
        field = "";
        if (c === "\n") row = (out.push(row), []);
      } else field += c;
    }
    if (field || row.length) out.push([...row, field]);
    return out;
  }

  function load(text, name) {
    const [header = [], ...body] = rows(text.replace(/^\ufeff/, ""));
    const columns = new Map(header.map((title, i) => [title.trim().toLowerCase(), i]));
    if (!["task", "item_id", "verdict"].every((title) => columns.has(title))) return notice(`${name}: no reviewer's CSV; its first row must read ${data.columns.join(",")}`);
    const get = (row, title) => (row[columns.get(title)] || "").trim();
    // A CSV goes to the person whose it is, whoever is chosen on the page.
    const person = columns.has("said") ? "adjudicator" : name.replace(/( ?\(\d+\))?\.csv$/i, "");
    if ([...$("who").options].some((option) => option.value === person)) $("who").value = person;
    read();
    file = new Set();
    said = new Map();
    let strange = 0;
    let given = 0;
    for (const row of body) {
      const id = get(row, "item_id");
      if (!id) continue;
      const key = /^\d+$/.test(id) ? `${get(row, "task").toLowerCase()}-${id}` : id;
      const value = [get(row, "verdict").toLowerCase(), get(row, "reason").toLowerCase(), get(row, "comment")];
      if (!items.has(key) || !["", "accept", "reject"].includes(value[0]) || (value[1] && !data.reasons.includes(value[1]))) {
        strange++;
        continue;
      }
      file.add(key);
      if (get(row, "said")) said.set(key, get(row, "said"));
      if (value.some((text) => text)) keep(key, value);
      if (value[0]) given++;
    }
    if (file.size === keys.length) file = new Set();
    document.querySelector("#show [value=file]").disabled = !file.size;
    $("show").value = file.size ? "file" : "all";
    choose();
    const rest = strange ? `, ${strange} rows that don't belong to this sheet were left out` : "";
    notice(`${name}, for ${$("who").value}: ${given} verdicts${rest}.`);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("#verdict [data-verdict]");
    if (button) judge(button.dataset.verdict, button.dataset.reason || "");
  });
  for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, () => (typing = kind === "keydown"), true);
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
  $("undo").onclick = () => {
    $("comment").value = "";
    judge("", "");
  };
  $("comment").oninput = () => {
    const key = list[at];
    const [verdict, reason] = verdicts.get(key) || ["", ""];
    if (key) keep(key, [verdict, reason, $("comment").value.trim()]);
  };
  $("previous").onclick = () => step(-1);
  $("next").onclick = () => step(1);
  $("at").onchange = () => {
    at = Math.min(Math.max(Math.round(Number($("at").value) || 1), 1), Math.max(list.length, 1)) - 1;
    show();
  };
  $("show").onchange = () => choose(list[at]);
  $("who").onchange = () => {
    remember(`${data.sample}|who`, $("who").value);
    read();
    choose();
  };
  $("save").onclick = save;
  $("load").onclick = () => $("file").click();
  $("file").onchange = async () => {
    const chosen = $("file").files[0];
    if (chosen) load(await chosen.text(), chosen.name);
    $("file").value = "";
  };
  window.addEventListener("beforeunload", (event) => {
    if (writing || (unsaved && lost)) event.preventDefault();
  });

  recall().then(() => {
    const last = kept.get(`${data.sample}|who`);
    if ([...$("who").options].some((option) => option.value === last)) $("who").value = last;
    read();
    choose();
  });
})();
